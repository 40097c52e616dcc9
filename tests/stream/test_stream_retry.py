from __future__ import annotations

import random
from threading import Event
from typing import Any

import pytest

from streamclient.errors import CodecError, ConfigurationError, DependencyException, ErrorKind, StreamClientError
from streamclient.tablestore.read_retry import ReadRetry, Repeater


class Pauses(Event):
    """An event that notes how long it was waited for, and moves a clock instead of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.seconds: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.seconds.append(timeout)
        self.now += timeout
        return self.is_set()


class Failing:
    """Fails a number of times, then succeeds."""

    def __init__(self, failures: int, error: StreamClientError) -> None:
        self.left = failures
        self.error = error
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        if self.left:
            self.left -= 1
            raise self.error
        return "done"


def repeater(pauses: Pauses, **settings: Any) -> Repeater:
    return Repeater(ReadRetry(**settings), pauses, monotonic=lambda: pauses.now, dice=random.Random(1))


def failure(kind: ErrorKind = ErrorKind.TRANSIENT) -> DependencyException:
    return DependencyException("failed", kind=kind)


@pytest.mark.parametrize("kind", [ErrorKind.THROTTLED, ErrorKind.TRANSIENT, ErrorKind.AMBIGUOUS])
def test_passing_failures_are_repeated(kind: ErrorKind) -> None:
    read = Failing(3, failure(kind))
    assert repeater(Pauses()).call("read", read) == "done"
    assert read.calls == 4


@pytest.mark.parametrize("error", [failure(ErrorKind.PERMANENT), CodecError("corrupt")])
def test_other_failures_are_raised_at_once(error: StreamClientError) -> None:
    read, pauses = Failing(3, error), Pauses()
    with pytest.raises(type(error)):
        repeater(pauses).call("read", read)
    assert (read.calls, pauses.seconds) == (1, [])


def test_the_number_of_repetitions_is_bounded() -> None:
    read, pauses = Failing(99, failure()), Pauses()
    with pytest.raises(DependencyException):
        repeater(pauses, retries=6).call("read", read)
    assert (read.calls, len(pauses.seconds)) == (7, 6)


def test_no_retries_is_one_attempt() -> None:
    read = Failing(1, failure())
    with pytest.raises(DependencyException):
        repeater(Pauses(), retries=0).call("read", read)
    assert read.calls == 1


def test_the_time_is_bounded() -> None:
    read, pauses = Failing(99, failure()), Pauses()
    with pytest.raises(DependencyException):
        repeater(pauses, retries=50, total_millis=3_000, longest_pause_millis=1_000).call("read", read)
    assert sum(pauses.seconds) <= 3.0
    assert read.calls == len(pauses.seconds) + 1


def test_slow_attempts_count_towards_the_time() -> None:
    pauses = Pauses()
    read = Failing(99, failure())

    def slow() -> str:
        pauses.now += 20
        return read()

    with pytest.raises(DependencyException):
        repeater(pauses, total_millis=30_000).call("read", slow)
    assert read.calls == 2


def test_pauses_double_up_to_the_longest() -> None:
    pauses = Pauses()
    repeater(pauses, shortest_pause_millis=50, longest_pause_millis=400).call("read", Failing(6, failure()))
    for pause, whole in zip(pauses.seconds, (0.05, 0.1, 0.2, 0.4, 0.4, 0.4), strict=True):
        assert 0.75 * whole <= pause <= whole


def test_throttling_is_waited_out_longer() -> None:
    pauses = Pauses()
    repeater(pauses).call("read", Failing(1, failure(ErrorKind.THROTTLED)))
    assert pauses.seconds[0] >= 0.75 * 0.2


def test_stop_raises_the_error_that_was_waited_out() -> None:
    read, pauses = Failing(9, failure()), Pauses()
    pauses.set()
    with pytest.raises(DependencyException, match="failed"):
        repeater(pauses).call("read", read)
    assert read.calls == 1


@pytest.mark.parametrize("name", ["retries", "shortest_pause_millis", "longest_pause_millis", "total_millis"])
@pytest.mark.parametrize("value", [-1, True, 1.5, "3"])
def test_settings_are_checked_when_made(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"{name} must be a whole number"):
        ReadRetry(**{name: value})
