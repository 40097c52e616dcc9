"""The contract of worker rows, over every store that keeps them, and proof that it finds broken ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from attrs import evolve

from streamclient.core.membership import WorkerRow, WorkerWrite
from streamclient.core.write_rules import WorkerWriteKind
from streamclient.errors import ConfigurationError
from streamclient.interfaces import ILeaseManager
from streamclient.server import LocalTablestore
from streamclient.testing.contracts.worker_directory_contract import (
    WORKER_DIRECTORY_SCENARIOS,
    check_worker_directory,
    check_worker_directory_scenario,
)
from streamclient.worker.lease import MemoryLeaseManager, WriteAnswer
from streamclient.worker.lease.lease_manager import LeaseManager
from streamclient.worker.lease.lease_store import as_worker_directory


def test_memory_keeps_the_whole_contract() -> None:
    check_worker_directory(MemoryLeaseManager)


class _Rewriting(MemoryLeaseManager):
    """Sends other writes than it is given."""

    def write_many(self, writes: Sequence[Any]) -> Sequence[WriteAnswer]:
        return super().write_many([self.other(w) if isinstance(w, WorkerWrite) else w for w in writes])

    def other(self, write: WorkerWrite) -> WorkerWrite:
        return write

    def stored(self, write: WorkerWrite) -> WorkerRow | None:
        return next(iter(self.read_workers([write.worker_id])), None)


class MindlessRegister(_Rewriting):
    def other(self, write: WorkerWrite) -> WorkerWrite:
        return evolve(write, seen=self.stored(write)) if write.kind is WorkerWriteKind.REGISTER else write


class BeatThatForgetsTheState(_Rewriting):
    def other(self, write: WorkerWrite) -> WorkerWrite:
        row = self.stored(write)
        if write.kind is WorkerWriteKind.BEAT and row is not None and write.seen is not None:
            return evolve(write, seen=evolve(write.seen, state=row.state))
        return write


class KillThatForgetsTheBeat(_Rewriting):
    def other(self, write: WorkerWrite) -> WorkerWrite:
        row = self.stored(write)
        if write.kind is WorkerWriteKind.KILL and row is not None and write.seen is not None:
            return evolve(write, seen=evolve(write.seen, beat=row.beat))
        return write


class WakeThatMakesRows(MemoryLeaseManager):
    def wake(self, worker_ids: Sequence[str]) -> None:
        super().wake(worker_ids)
        for name in set(worker_ids) - {row.worker_id for row in self.list_workers()}:
            self._workers[name] = WorkerRow(name, "", nonce="?", beat=0, wake=1)


class BeatThatBringsRowsBack(_Rewriting):
    def other(self, write: WorkerWrite) -> WorkerWrite:
        return evolve(write, seen=None) if self.stored(write) is None else write


@pytest.mark.parametrize(
    ("broken", "scenario"),
    [
        (MindlessRegister, "registering_needs_the_row_as_read"),
        (MindlessRegister, "of_rival_writes_exactly_one_wins"),
        (BeatThatForgetsTheState, "a_killed_session_never_beats_again"),
        (KillThatForgetsTheBeat, "a_killed_session_never_beats_again"),
        (WakeThatMakesRows, "a_wake_needs_a_row_and_nothing_else"),
        (BeatThatBringsRowsBack, "nothing_but_a_restoring_beat_or_a_registration_brings_a_row_back"),
    ],
)
def test_the_contract_finds_a_broken_store(broken: type[ILeaseManager], scenario: str) -> None:
    with pytest.raises(AssertionError, match=scenario):
        check_worker_directory_scenario(scenario, broken)


class WithoutWorkers(MemoryLeaseManager):
    list_workers = None  # type: ignore[assignment]


def test_a_manager_without_worker_rows_has_no_directory() -> None:
    assert as_worker_directory(WithoutWorkers()) is None
    assert as_worker_directory(MemoryLeaseManager()) is not None


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("worker_id", "", "needs a non-empty worker identifier"),
        ("stream_id", "another", "cannot be written as worker 'w1' of stream 'orders'"),
        ("nonce", "", "nonce of worker 'w1' must be a non-empty string"),
        ("beat", -1, "must be a 64-bit count, not -1"),
    ],
)
def test_a_row_that_nobody_could_read_is_not_sent(field: str, value: object, text: str) -> None:
    row = WorkerRow("w1", "orders", nonce="n", beat=1)
    wrong = evolve(row, **{field: value})
    write = WorkerWrite(WorkerWriteKind.REGISTER, wrong.worker_id, None, wrong)
    (answer,) = MemoryLeaseManager("orders").write_many([write])

    assert isinstance(answer.error, ConfigurationError)
    assert text in str(answer.error)


@pytest.fixture(scope="module")
def server() -> Iterator[LocalTablestore]:
    with LocalTablestore() as local:
        yield local


@pytest.mark.slow
@pytest.mark.parametrize("scenario", WORKER_DIRECTORY_SCENARIOS)
def test_a_status_table_keeps_the_contract(server: LocalTablestore, scenario: str) -> None:
    """Over real HTTP, through the official SDK."""
    client = server.client()

    check_worker_directory_scenario(scenario, lambda stream_id: LeaseManager(client, "status", stream_id))
