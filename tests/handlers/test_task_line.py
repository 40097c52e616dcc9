"""The line of an event loop: who has the token of a call has the call, and no call falls out."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from typing import Any

import pytest

from streamclient.base.pools import DaemonPool
from streamclient.base.reasons import Raised
from streamclient.testing.simulation.kernel import Agenda
from streamclient.worker.handlers.task_line import TaskCall, TaskLine
from streamclient.worker.owner_loop import OwnerLoop
from streamclient.worker.usercode import HandedCall, UserCode
from tests.handlers.stepping import StepBridge, StepWaiter


class Owner:
    """An owner with a line of one task; it turns when the test says so."""

    def __init__(self) -> None:
        self.agenda = Agenda()
        self.loop = OwnerLoop(lambda: self.agenda.now)
        self.code = UserCode(DaemonPool("none", 1), self.loop)
        self.bridge = StepBridge(self.agenda)
        self.line = TaskLine(lambda: self.bridge, 1)
        self.begun: list[str] = []
        self.told: list[tuple[str, object]] = []

    def put(self, shard_id: str, hold: StepWaiter | None = None, name: str = "process_records") -> HandedCall:
        async def work() -> None:
            self.begun.append(shard_id)
            if hold is not None:
                await hold

        def start(call: HandedCall) -> None:
            self.line.put(TaskCall(call, work, call.finish, is_last=name == "shutdown"))

        def done(raised: Raised | None) -> None:
            self.told.append((shard_id, "finished" if raised is None else raised.error))

        call = self.code.hand_over(name, shard_id, start, done, lambda: self.told.append((shard_id, "left")))
        self.turn()
        return call

    def turn(self) -> None:
        for _ in range(3):
            self.loop.turn(0)
            self.agenda.run_until(self.agenda.now)
        self.loop.turn(0)


@pytest.fixture
def owner() -> Owner:
    return Owner()


def test_a_call_that_its_owner_took_back_is_never_begun(owner: Owner) -> None:
    hold = StepWaiter()
    owner.put("a", hold)
    waiting = owner.put("b")
    owner.put("c")
    assert waiting.cancel()
    hold.ring()
    owner.turn()
    assert owner.begun == ["a", "c"]
    assert owner.told == [("a", "finished"), ("c", "finished")]


def test_a_call_in_line_can_be_taken_back_and_one_that_is_out_cannot(owner: Owner) -> None:
    hold = StepWaiter()
    out, waiting = owner.put("a", hold), owner.put("b")
    assert (out.cancel(), waiting.cancel()) == (False, True)


ENDS: dict[str, Callable[[Owner], Any]] = {
    "drain": lambda owner: owner.line.drain(),
    "close": lambda owner: owner.line.close(),
    "close the loop": lambda owner: owner.bridge.close(),
    "abandon": lambda owner: owner.bridge.is_closed and owner.line.abandon(),
}


@pytest.mark.parametrize("order", list(permutations(ENDS)), ids=" then ".join)
def test_however_a_line_ends_each_call_ends_once(owner: Owner, order: tuple[str, ...]) -> None:
    hold = StepWaiter()
    for shard_id in "abc":
        owner.put(shard_id, hold)
    for name in order:
        ENDS[name](owner)
        owner.turn()
    owner.line.abandon()
    owner.put("d")
    owner.turn()
    assert sorted(owner.told) == [(shard_id, "left") for shard_id in "abcd"]
    assert not owner.code.is_inside()


def test_a_last_call_runs_while_a_line_is_drained_and_is_finished_once_it_is_closed(owner: Owner) -> None:
    hold = StepWaiter()
    owner.put("a", hold)
    owner.line.drain()
    owner.turn()
    owner.put("a", name="shutdown")
    assert owner.begun == ["a", "a"]
    owner.line.close()
    owner.put("b", name="shutdown")
    owner.put("c", name="initialize")
    assert owner.begun == ["a", "a"]
    assert owner.told == [("a", "left"), ("a", "finished"), ("b", "finished"), ("c", "finished")]


def test_a_drained_line_lets_last_calls_finish_and_begins_no_other(owner: Owner) -> None:
    hold = StepWaiter()
    owner.put("a", hold, "shutdown")
    owner.put("b", StepWaiter())
    owner.line.drain()
    owner.turn()
    owner.put("c")
    owner.put("d", name="initialize")
    assert (owner.begun, owner.told) == (["a", "b"], [("b", "left"), ("c", "left"), ("d", "finished")])
    hold.ring()
    owner.turn()
    assert owner.told[3:] == [("a", "finished")]


def test_a_cancelled_call_leaves_whatever_its_task_then_does(owner: Owner, caplog: pytest.LogCaptureFixture) -> None:
    raised = ValueError("while cleaning up")

    async def work() -> None:
        try:
            await StepWaiter()
        finally:
            raise raised

    calls: list[TaskCall] = []

    def start(call: HandedCall) -> None:
        calls.append(TaskCall(call, work, call.finish))
        owner.line.put(calls[0])

    owner.code.hand_over("process_records", "a", start, lambda raised: owner.told.append(("a", raised)), _left(owner))
    owner.turn()
    owner.line.cancel(calls[0])
    owner.turn()
    assert owner.told == [("a", "left")]
    assert "shard a: process_records was cancelled, and ended with ValueError: while cleaning up" in caplog.text


def _left(owner: Owner) -> Callable[[], None]:
    return lambda: owner.told.append(("a", "left"))
