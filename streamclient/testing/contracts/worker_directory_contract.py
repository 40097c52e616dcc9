"""The contract of ``WorkerDirectory``: run ``check_worker_directory`` on a store of leases that also keeps worker rows.

Each scenario checks one rule. Workers take the leases of a killed session without waiting, so a store that breaks a
rule lets two workers read one shard.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any

from attrs import evolve

from streamclient.core import leases, membership
from streamclient.core.leases import LeaseWrite
from streamclient.core.membership import SessionState, WorkerRow, WorkerWrite
from streamclient.core.write_rules import WriteOutcome
from streamclient.interfaces import ILeaseManager
from streamclient.model import Lease
from streamclient.testing.contracts.contract import at_once, expect, named, scenario_named
from streamclient.testing.contracts.lease_manager_contract import CONTENDERS, MakeLeaseManager
from streamclient.worker.lease.lease_store import WorkerDirectory, as_worker_directory

Scenario = Callable[["_Directory"], None]

MANY_WORKERS = 230
"""The number of worker rows in the scenario with many workers. A store may need several requests to read or write this
number of rows."""


def check_worker_directory(make_manager: MakeLeaseManager) -> None:
    """Run every scenario of ``WorkerDirectory``, each with a new manager and a new stream id.

    The managers must keep worker rows.

    Raises:
        AssertionError: a rule is broken; the message names the scenario, the expected result and the actual one.
    """
    for name in WORKER_DIRECTORY_SCENARIOS:
        check_worker_directory_scenario(name, make_manager)


def check_worker_directory_scenario(name: str, make_manager: MakeLeaseManager) -> None:
    """Run the scenario ``name`` of ``WORKER_DIRECTORY_SCENARIOS``, with a new manager and a new stream id."""
    stream_id = f"stream-{uuid.uuid4().hex}"
    manager = make_manager(stream_id)
    manager.create_lease_table_if_not_exists()
    manager.wait_until_lease_table_ready()
    directory = as_worker_directory(manager)
    with scenario_named(name):
        expect(f"{manager!r} keeps worker rows", directory is not None, True)
        assert directory is not None
        WORKER_DIRECTORY_SCENARIOS[name](_Directory(directory, manager, stream_id))


class _Directory:
    """The store under test, with short methods for the steps that all scenarios share."""

    def __init__(self, store: WorkerDirectory, manager: ILeaseManager, stream_id: str) -> None:
        self.store = store
        self.manager = manager
        self.stream_id = stream_id

    def row(self, name: str = "w1", **fields: Any) -> WorkerRow:
        return evolve(WorkerRow(name, self.stream_id, nonce=f"{name}-life-1", beat=1, info="{}"), **fields)

    def register(self, name: str = "w1", **fields: Any) -> WorkerRow:
        row = self.row(name, **fields)
        self.accept(membership.register(None, row))
        return row

    def send(self, write: WorkerWrite) -> WriteOutcome:
        (answer,) = self.store.write_many([write])
        if answer.error is not None:
            raise AssertionError(f"{write} failed: {answer.error}")
        return answer.outcome

    def accept(self, write: WorkerWrite) -> WorkerRow:
        """Send a write that the store must accept, and return the row after the write.

        After a deletion, return a row that could be registered next and is not in the store.
        """
        expect(str(write), self.send(write), WriteOutcome.ACCEPTED)
        return write.result or self.row()

    def refuse(self, write: WorkerWrite) -> None:
        expect(str(write), self.send(write), WriteOutcome.REFUSED)

    def expect_rows(self, *rows: WorkerRow) -> None:
        expect("rows", list(self.store.list_workers(with_info=True)), list(rows))


def _an_empty_store_has_no_workers(directory: _Directory) -> None:
    expect("list", list(directory.store.list_workers()), [])
    expect("read", list(directory.store.read_workers(["w1"])), [])


def _a_registered_worker_reads_back_equal(directory: _Directory) -> None:
    second = directory.register("worker ü:2", info='{"host":"ä"}', beat=2**62, balance_by="bytes")
    first = directory.register("worker ä:1", state=SessionState.LEAVING)
    directory.expect_rows(first, second)
    bare = [evolve(row, info="") for row in (first, second)]
    expect("list without information", list(directory.store.list_workers()), bare)
    expect("read by names, one unknown", list(directory.store.read_workers([first.worker_id, "w9"])), bare[:1])


def _registering_needs_the_row_as_read(directory: _Directory) -> None:
    first = directory.register()
    second = directory.row(nonce="w1-life-2", info="second")
    directory.refuse(membership.register(None, second))
    directory.refuse(membership.register(evolve(first, beat=2), second))
    directory.refuse(membership.register(evolve(first, nonce="other"), second))
    directory.refuse(membership.register(evolve(first, state=SessionState.KILLED), second))
    directory.expect_rows(first)
    directory.accept(membership.register(first, second))
    directory.expect_rows(second)


def _a_beat_needs_the_row_as_written(directory: _Directory) -> None:
    row = directory.register()
    directory.refuse(membership.beat(evolve(row, beat=0)))
    directory.refuse(membership.beat(evolve(row, nonce="other")))
    directory.refuse(membership.beat(evolve(row, state=SessionState.LEAVING)))
    directory.refuse(membership.beat(directory.row("w2")))
    beaten = directory.accept(membership.beat(row))
    directory.expect_rows(beaten)
    directory.refuse(membership.beat(row))
    leaving = directory.accept(membership.beat(beaten, state=SessionState.LEAVING))
    directory.expect_rows(leaving)


def _a_beat_stores_information_only_if_it_brings_some(directory: _Directory) -> None:
    row = directory.register(info="first")
    forgetful = membership.beat(evolve(row, info=""))
    directory.accept(forgetful)
    directory.expect_rows(evolve(row, beat=2))
    directory.accept(membership.beat(evolve(row, beat=2), info="second"))
    directory.expect_rows(evolve(row, beat=3, info="second"))


def _a_killed_session_never_beats_again(directory: _Directory) -> None:
    row = directory.register()
    beaten = directory.accept(membership.beat(row))
    directory.refuse(membership.kill(row))
    killed = directory.accept(membership.kill(beaten))
    directory.expect_rows(evolve(beaten, state=SessionState.KILLED))
    directory.refuse(membership.beat(beaten))
    directory.refuse(membership.kill(beaten))
    second = directory.row(nonce="w1-life-2")
    directory.refuse(membership.register(beaten, second))
    directory.accept(membership.register(killed, second))
    directory.accept(membership.beat(second))


def _a_wake_needs_a_row_and_nothing_else(directory: _Directory) -> None:
    row = directory.register()
    directory.store.wake([])
    directory.store.wake(["w1", "w2"])
    directory.store.wake(["w1"])
    directory.expect_rows(evolve(row, wake=2))
    beaten = directory.accept(membership.beat(row))
    directory.expect_rows(evolve(beaten, wake=2))
    directory.accept(membership.kill(beaten))
    directory.store.wake(["w1"])
    killed = evolve(beaten, state=SessionState.KILLED, wake=3)
    directory.expect_rows(killed)
    directory.accept(membership.register(killed, directory.row(nonce="w1-life-2")))
    directory.expect_rows(directory.row(nonce="w1-life-2", wake=3))


def _removing_needs_the_row_as_seen(directory: _Directory) -> None:
    row = directory.register()
    directory.refuse(membership.remove(evolve(row, beat=2)))
    directory.refuse(membership.remove(evolve(row, nonce="other")))
    directory.expect_rows(row)
    directory.accept(membership.remove(row))
    directory.expect_rows()
    directory.accept(membership.remove(row))


def _nothing_but_a_restoring_beat_or_a_registration_brings_a_row_back(directory: _Directory) -> None:
    row = directory.register()
    directory.refuse(membership.restore(row))
    directory.accept(membership.remove(row))
    directory.refuse(membership.beat(row))
    directory.refuse(membership.kill(row))
    directory.refuse(membership.register(row, directory.row(nonce="w1-life-2")))
    directory.store.wake(["w1"])
    directory.expect_rows()
    directory.accept(membership.restore(row))
    directory.expect_rows(evolve(row, beat=2))


def _workers_and_leases_do_not_mix(directory: _Directory) -> None:
    """Check that one request may write leases and workers, and that the store lists each kind separately."""
    lease = Lease("w1", directory.stream_id, owner="w1")
    row, taken = directory.row(), leases.take(lease, "w2")
    beat = membership.beat(evolve(row, beat=9))
    writes: list[LeaseWrite | WorkerWrite] = [leases.create(lease), membership.register(None, row), beat, taken]
    outcomes = [answer.outcome.value for answer in directory.store.write_many(writes)]
    expect("answers", outcomes, ["accepted", "accepted", "refused", "accepted"])
    expect("leases", list(directory.manager.list_leases()), [taken.result])
    directory.expect_rows(row)


def _many_workers_are_read_written_and_woken(directory: _Directory) -> None:
    rows = [directory.row(f"w{number:03}") for number in range(MANY_WORKERS)]
    names = [row.worker_id for row in rows]
    answers = directory.store.write_many([membership.register(None, row) for row in rows])
    expect("answers", {answer.outcome for answer in answers}, {WriteOutcome.ACCEPTED})
    directory.store.wake(names)
    directory.expect_rows(*(evolve(row, wake=1) for row in rows))
    read = sorted(row.worker_id for row in directory.store.read_workers([*names, "w9"]))
    expect("workers read by name", read, names)


def _of_rival_writes_exactly_one_wins(directory: _Directory) -> None:
    row = directory.register()
    rivals: list[WorkerWrite] = [membership.beat(row), membership.kill(row)]
    rivals += [membership.register(row, directory.row(nonce=f"rival-{number}")) for number in range(CONTENDERS - 2)]
    outcomes = at_once(rivals, directory.send)
    expect("winners", outcomes.count(WriteOutcome.ACCEPTED), 1)
    winner = rivals[outcomes.index(WriteOutcome.ACCEPTED)]
    directory.expect_rows(winner.result or row)


def _no_wake_is_lost_among_many(directory: _Directory) -> None:
    row = directory.register()
    at_once([["w1"]] * CONTENDERS, directory.store.wake)
    directory.expect_rows(evolve(row, wake=CONTENDERS))


WORKER_DIRECTORY_SCENARIOS: Mapping[str, Scenario] = named(
    _an_empty_store_has_no_workers,
    _a_registered_worker_reads_back_equal,
    _registering_needs_the_row_as_read,
    _a_beat_needs_the_row_as_written,
    _a_beat_stores_information_only_if_it_brings_some,
    _a_killed_session_never_beats_again,
    _a_wake_needs_a_row_and_nothing_else,
    _removing_needs_the_row_as_seen,
    _nothing_but_a_restoring_beat_or_a_registration_brings_a_row_back,
    _workers_and_leases_do_not_mix,
    _many_workers_are_read_written_and_woken,
    _of_rival_writes_exactly_one_wins,
    _no_wake_is_lost_among_many,
)
"""The scenarios by name. Each name states the rule that its scenario checks."""
