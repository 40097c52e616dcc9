"""Helpers that all contracts share: expectations that name their rule, scenarios by name, concurrent calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Barrier
from typing import TypeVar

Argument = TypeVar("Argument")
Answer = TypeVar("Answer")
ScenarioT = TypeVar("ScenarioT", bound=Callable[..., None])

RACE_SECONDS = 300.0
"""The time limit for the threads of a scenario, in seconds. Any healthy store needs much less time."""


def expect(rule: str, actual: object, expected: object) -> None:
    """Raise ``AssertionError`` with ``rule`` in its text if ``actual`` does not equal ``expected``."""
    if actual != expected:
        raise AssertionError(f"{rule}: expected {expected}, got {actual}")


def refused(rule: str, kind: type[Exception], attempt: Callable[[], object]) -> Exception:
    """Call ``attempt``, and return the error of type ``kind`` that it raises.

    Raises:
        AssertionError: ``attempt`` returned, or raised an error of another type. The text begins with ``rule``.
    """
    try:
        attempt()
    except kind as error:
        return error
    except Exception as error:
        raise AssertionError(f"{rule}: expected {kind.__name__}, got {error!r}") from error
    raise AssertionError(f"{rule}: expected {kind.__name__}, but the call was accepted")


def named(*scenarios: ScenarioT) -> Mapping[str, ScenarioT]:
    """Return the scenarios by their function names. Each name states the rule that its scenario checks."""
    return {scenario.__name__.strip("_"): scenario for scenario in scenarios}


@contextmanager
def scenario_named(name: str) -> Iterator[None]:
    """Put the scenario's ``name`` before the text of an ``AssertionError`` that the body raises."""
    try:
        yield
    except AssertionError as error:
        raise AssertionError(f"{name}: {error}") from error


def side_by_side(arguments: Sequence[Argument], act: Callable[[Argument], Answer]) -> list[Answer]:
    """Call ``act`` with each argument in a thread of its own; return the results in the order of ``arguments``."""
    with ThreadPoolExecutor(len(arguments)) as pool:
        return [future.result(RACE_SECONDS) for future in [pool.submit(act, argument) for argument in arguments]]


def at_once(arguments: Sequence[Argument], act: Callable[[Argument], Answer]) -> list[Answer]:
    """Call ``act`` with each argument in a thread of its own, and start the calls at the same time.

    Return the results in the order of ``arguments``.
    """
    barrier = Barrier(len(arguments))

    def run(argument: Argument) -> Answer:
        barrier.wait(RACE_SECONDS)
        return act(argument)

    return side_by_side(arguments, run)
