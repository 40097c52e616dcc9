"""The common part of the contracts: expectations that name their rule, scenarios by name, calls at the same time."""

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
"""The time limit for the threads of a scenario, in seconds. It is far above the time that any healthy store needs."""


def expect(rule: str, actual: object, expected: object) -> None:
    """Raise ``AssertionError`` with the rule's name unless ``actual`` equals ``expected``."""
    if actual != expected:
        raise AssertionError(f"{rule}: expected {expected}, got {actual}")


def refused(rule: str, kind: type[Exception], attempt: Callable[[], object]) -> Exception:
    """Return the error of type ``kind`` that ``attempt`` raises; raise ``AssertionError`` if it raises none."""
    try:
        attempt()
    except kind as error:
        return error
    except Exception as error:
        raise AssertionError(f"{rule}: expected {kind.__name__}, got {error!r}") from error
    raise AssertionError(f"{rule}: expected {kind.__name__}, but it was accepted")


def named(*scenarios: ScenarioT) -> Mapping[str, ScenarioT]:
    """Return the scenarios by their names, which state the rules."""
    return {scenario.__name__.strip("_"): scenario for scenario in scenarios}


@contextmanager
def scenario_named(name: str) -> Iterator[None]:
    """Begin the text of each broken rule with the name of the scenario."""
    try:
        yield
    except AssertionError as error:
        raise AssertionError(f"{name}: {error}") from error


def side_by_side(arguments: Sequence[Argument], act: Callable[[Argument], Answer]) -> list[Answer]:
    """Call ``act`` with each argument, on a thread for each; return the answers in order."""
    with ThreadPoolExecutor(len(arguments)) as pool:
        return [future.result(RACE_SECONDS) for future in [pool.submit(act, argument) for argument in arguments]]


def at_once(arguments: Sequence[Argument], act: Callable[[Argument], Answer]) -> list[Answer]:
    """Call ``act`` as ``side_by_side`` does, on threads that start together."""
    barrier = Barrier(len(arguments))

    def run(argument: Argument) -> Answer:
        barrier.wait(RACE_SECONDS)
        return act(argument)

    return side_by_side(arguments, run)
