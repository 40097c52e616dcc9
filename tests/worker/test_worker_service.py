"""Calls to the service: failures become events, writes go out together, nothing is believed that was not answered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from sqlite3 import Cursor
from typing import Any

import pytest

from streamclient.core import events
from streamclient.core.leases import LeaseWrite, create, renew, steal, take
from streamclient.core.write_rules import WriteOutcome
from streamclient.errors import DependencyException, ErrorKind
from streamclient.model import InitialPosition, Lease, ShutdownReason
from streamclient.testing.fakes import FakeStream
from streamclient.testing.simulation.workers import Simulation
from streamclient.worker.lease import WriteAnswer, as_lease_store
from streamclient.worker.owner_loop import OwnerLoop
from streamclient.worker.service_calls import (
    DRAWS_PER_REQUEST,
    OTHER_WRITES_PER_REQUEST,
    RENEWALS_PER_CALL,
    RENEWALS_PER_REQUEST,
    ServiceCalls,
)
from tests.at_once import AtOnce
from tests.contracts.test_lease_manager_of_a_user import SqliteLeaseManager
from tests.placed_records import make_record
from tests.worker.stage import Stage

BUSY = DependencyException("busy", kind=ErrorKind.THROTTLED)


class Store:
    """Answers as told, and remembers what it was asked."""

    def __init__(self, answer: Callable[[Sequence[LeaseWrite]], Any]) -> None:
        self.answer = answer
        self.requests: list[list[LeaseWrite]] = []
        self.draws: list[list[str]] = []
        self.draw: Callable[[Sequence[str]], Any] = lambda keys: range(1, len(keys) + 1)

    def list_leases(self) -> Sequence[Lease]:
        raise BUSY

    def draw_epochs(self, lease_keys: Sequence[str]) -> Sequence[int | Exception]:
        self.draws.append(list(lease_keys))
        return self.draw(lease_keys)

    def forget_epochs(self, lease_keys: Sequence[str]) -> None:
        self.forgotten = list(lease_keys)

    def get_lease(self, lease_key: str) -> Lease | None:
        raise BUSY

    def write_many(self, writes: Sequence[LeaseWrite]) -> Sequence[WriteAnswer]:
        self.requests.append(list(writes))
        answer: Sequence[WriteAnswer] = self.answer(writes)
        return answer


class SlowVerbs(SqliteLeaseManager):
    """A user's own lease manager, each of whose calls takes a second of the clock of ``calls``."""

    def __init__(self) -> None:
        super().__init__("stream")
        self.create_lease_table_if_not_exists()
        for lease in leases(3):
            self.create_lease(lease)
        self.calls = Calls(store=as_lease_store(self))

    def _run(self, statement: str, *values: object) -> Cursor:
        if hasattr(self, "calls"):
            self.calls.now += 1
        return super()._run(statement, *values)


class SlowBatches(SlowVerbs):
    """As ``SlowVerbs``, with heartbeats that are sent together; ``batches`` has their numbers."""

    def __init__(self) -> None:
        self.batches: list[int] = []
        super().__init__()

    def renew_leases(self, leases: Sequence[Lease]) -> Sequence[bool | Exception]:
        self.batches.append(len(leases))
        return super().renew_leases(leases)


class Calls:
    def __init__(
        self, answer: Callable[[Sequence[LeaseWrite]], Any] = lambda writes: 1 // 0, *, store: Any = None
    ) -> None:
        self.now = 10.0
        self.loop = OwnerLoop(lambda: self.now)
        self.stream = FakeStream()
        self.store = Store(answer)
        self.events: list[Any] = []
        pool = AtOnce()
        self.service = ServiceCalls(
            stream_id=self.stream.stream_id,
            store=store or self.store,
            stream_api=self.stream,
            loop=self.loop,
            scan_pool=pool,
            status_pool=pool,
            renew_pool=pool,
            fetch_pool=pool,
            emit=self.events.append,
            wall_micros=lambda: 5,
        )

    def turn(self) -> list[Any]:
        self.loop.turn(0)
        found, self.events[:] = list(self.events), []
        return found


def leases(count: int) -> list[Lease]:
    return [Lease(f"s{number}", "stream", owner="w1", counter=3) for number in range(count)]


def test_failed_reads_are_events() -> None:
    """Listing shards, scanning and reading a row may fail; the worker decides, nobody dies."""
    calls = Calls()

    def fail(stream_id: str) -> Any:
        raise OSError("network is unreachable")

    calls.stream.describe_stream = fail  # type: ignore[method-assign]
    calls.service.list_shards()
    calls.service.read_rows()
    calls.service.read_row("s1")
    first, second, third = calls.turn()

    assert first.call == events.ListShards()
    assert isinstance(first.error, OSError)
    assert second == events.Answered(events.ReadRows(), error=BUSY)
    assert third == events.Answered(events.ReadRow("s1"), error=BUSY)


def test_call_that_raises_what_elsewhere_ends_a_program_is_answered_all_the_same() -> None:
    """In a pool's thread it would end nothing, and the worker would wait for the answer without end."""

    def leave(*given: Any) -> Any:
        raise SystemExit(0)

    calls = Calls(leave)
    calls.store.draw = calls.stream.describe_stream = calls.stream.get_shard_iterator = leave  # type: ignore[method-assign]
    calls.service.list_shards()
    calls.service.write([renew(leases(1)[0])])
    calls.service.draw_epochs(["s1"])
    calls.service.resolve_and_create(events.ResolveAndCreate(Lease("s2", "stream"), 1))
    answered = calls.turn()

    assert len(answered) == 4
    assert all("SystemExit: 0" in str(answer.error) for answer in answered)


def test_renewals_go_out_in_batches_apart_from_other_writes() -> None:
    calls = Calls(lambda writes: [WriteAnswer(WriteOutcome.ACCEPTED)] * len(writes))
    rows = leases(RENEWALS_PER_REQUEST + 1)
    writes = [renew(row) for row in rows] + [steal(row, "w2") for row in leases(OTHER_WRITES_PER_REQUEST + 1)]
    calls.service.write(writes)
    answered = calls.turn()

    assert [len(request) for request in calls.store.requests] == [
        RENEWALS_PER_REQUEST,
        1,
        OTHER_WRITES_PER_REQUEST,
        1,
    ]
    assert {event.call.write.lease_key for event in answered} == {row.lease_key for row in rows}
    assert len(answered) == len(writes)


@pytest.mark.parametrize("make", [renew, lambda lease: steal(lease, "w2"), lambda lease: take(lease, "w2")])
def test_each_lease_of_a_users_own_store_counts_from_before_its_own_call(make: Callable[[Lease], LeaseWrite]) -> None:
    """Otherwise the last of many leases would be over before the store has answered for it."""
    manager = SlowVerbs()
    manager.calls.service.write([make(lease) for lease in leases(3)])
    answered = manager.calls.turn()

    assert [event.sent_at for event in answered] == [10.0, 11.0, 12.0]
    assert {event.value for event in answered} == {WriteOutcome.ACCEPTED}
    manager.close()


def test_answers_of_a_users_own_store_do_not_wait_for_each_other() -> None:
    manager = SlowVerbs()
    calls = manager.calls
    manager.get_lease = lambda key: calls.loop.turn(0) or leases(1)[0]  # type: ignore[method-assign]
    manager.renew_lease = lambda lease: calls.loop.turn(0) or True  # type: ignore[method-assign]
    calls.service.write([renew(lease) for lease in leases(3)])
    assert len(calls.events) == 2, "the last call has returned, but not its answer"
    calls.turn()
    calls.service.draw_epochs(["s0", "s1", "s2"])

    assert [event.call for event in calls.events] == [events.DrawEpoch("s0"), events.DrawEpoch("s1")]
    manager.close()


def test_heartbeats_that_a_users_own_store_sends_together_go_out_in_small_groups() -> None:
    manager = SlowBatches()
    manager.calls.service.write([renew(lease) for lease in leases(RENEWALS_PER_CALL + 1)])

    assert manager.batches == [RENEWALS_PER_CALL, 1]
    assert [event.sent_at for event in manager.calls.turn()] == [10.0] * RENEWALS_PER_CALL + [10.0 + RENEWALS_PER_CALL]
    manager.close()


def test_a_lease_counts_from_before_the_request_left() -> None:
    """A slow answer must not make an owner believe in its lease beyond the others' expiry."""
    calls = Calls()

    def answer(writes: Sequence[LeaseWrite]) -> list[WriteAnswer]:
        calls.now += 12
        return [WriteAnswer(WriteOutcome.ACCEPTED)]

    calls.store.answer = answer
    calls.service.write([renew(leases(1)[0])])
    (event,) = calls.turn()

    assert event.sent_at == 10.0


@pytest.mark.parametrize("answer", [lambda writes: 1 // 0, lambda writes: []])
def test_a_store_that_breaks_its_promise_leaves_every_write_uncertain(answer: Callable[..., Any]) -> None:
    calls = Calls(answer)
    calls.service.write([renew(row) for row in leases(2)])
    assert [event.value for event in calls.turn()] == [WriteOutcome.UNCERTAIN] * 2


def test_epochs_of_many_leases_are_drawn_together_and_answered_one_by_one() -> None:
    calls = Calls()
    calls.store.draw = lambda keys: [BUSY if key == "s1" else 7 for key in keys]
    keys = [f"s{number}" for number in range(DRAWS_PER_REQUEST + 1)]
    calls.service.draw_epochs(keys)
    answered = calls.turn()

    assert [len(draw) for draw in calls.store.draws] == [DRAWS_PER_REQUEST, 1]
    assert answered[:3] == [
        events.Answered(events.DrawEpoch("s0"), 7),
        events.Answered(events.DrawEpoch("s1"), error=BUSY),
        events.Answered(events.DrawEpoch("s2"), 7),
    ]
    assert [event.call.lease_key for event in answered] == keys


@pytest.mark.parametrize("draw", [lambda keys: 1 // 0, lambda keys: []])
def test_a_store_that_breaks_its_promise_leaves_every_epoch_undrawn(draw: Callable[..., Any]) -> None:
    calls = Calls()
    calls.store.draw = draw
    calls.service.draw_epochs(["s1", "s2"])
    answered = calls.turn()

    assert [event.call for event in answered] == [events.DrawEpoch("s1"), events.DrawEpoch("s2")]
    assert all(event.value is None and event.error is not None for event in answered)


def test_a_scan_tells_what_the_wall_clock_shows() -> None:
    calls = Calls()
    calls.store.list_leases = lambda: leases(1)  # type: ignore[method-assign]
    calls.service.read_rows()

    assert calls.turn() == [events.Answered(events.ReadRows(), events.Scan(tuple(leases(1)), 5))]


def test_a_first_checkpoint_is_looked_up_before_the_row_is_created() -> None:
    calls = Calls(lambda writes: [WriteAnswer(WriteOutcome.ACCEPTED)])
    calls.stream.append("shard-1", make_record("a", 100), make_record("b", 200))
    lease = Lease("shard-1", calls.stream.stream_id)
    calls.service.resolve_and_create(events.ResolveAndCreate(lease, 150))
    found = [*calls.turn(), *calls.turn()]
    (event,) = found

    assert event.call.write.result.checkpoint == "shard-1@1"
    assert event.value is WriteOutcome.ACCEPTED


def test_a_failed_look_up_answers_the_creation() -> None:
    calls = Calls()
    lease = Lease("unknown", calls.stream.stream_id)
    calls.service.resolve_and_create(events.ResolveAndCreate(lease, 150))
    (event,) = calls.turn()

    assert (event.call.write, event.value) == (create(lease), WriteOutcome.UNCERTAIN)
    assert "unknown does not exist" in str(event.error)
    assert calls.store.requests == []


def test_a_lease_manager_of_the_user_is_enough() -> None:
    world = Stage("a", "b")
    manager = SqliteLeaseManager(world.stream.stream_id)
    manager.create_lease_table_if_not_exists()
    first = world.worker("w1", lease_manager=manager)
    second = world.worker("w2", lease_manager=manager)
    world.until(lambda: len(first.reads) == len(second.reads) == 1, 200)
    world.stream.append("a", make_record("k1", 1))
    world.until(lambda: world.journal.accepted["a"] == ["k1"], 10)
    first.stop()
    world.until(lambda: first.is_over and len(second.reads) == 2, 60)
    manager.close()


@pytest.mark.parametrize("damage", ["owner = '', counter = 0, checkpoint = 'TRIM_HORIZON'", "counter = 2"])
def test_a_row_of_a_users_own_store_that_goes_back_is_soon_read_again(world: Stage, damage: str) -> None:
    """Its writes only add 1 to the counter, so no take can set a greater one."""
    manager = SqliteLeaseManager(world.stream.stream_id)
    manager.create_lease_table_if_not_exists()
    world.worker("w1", lease_manager=manager)
    world.stream.append("a", make_record("k1", 1))
    world.until(lambda: world.journal.accepted["a"] == ["k1"], 100)
    world.advance(60)
    manager._run(f"UPDATE leases SET {damage}")
    world.advance(60)
    assert world.journal.shutdowns("a") == [ShutdownReason.ZOMBIE]
    world.stream.append("a", make_record("k2", 2))
    world.advance(120)

    assert world.journal.shutdowns("a") == [ShutdownReason.ZOMBIE]
    assert world.journal.delivered("a") == ["k1", "k2"]
    manager.close()


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        (InitialPosition.oldest(), ["k1", "k2", "k3"]),
        (InitialPosition.at(150), ["k2", "k3"]),
        (InitialPosition.latest(), ["k3"]),
    ],
)
def test_reading_starts_where_the_configuration_says(
    world: Stage, position: InitialPosition, expected: list[str]
) -> None:
    world.stream.append("a", make_record("k1", 100), make_record("k2", 200))
    world.reader(initial_position=position)
    world.advance(2)
    world.stream.append("a", make_record("k3", 2_000_000_000_000_000))
    world.until(lambda: world.journal.delivered("a")[-1:] == ["k3"], 10)

    assert world.journal.delivered("a") == expected


@pytest.mark.slow
def test_simulations_repeat_exactly() -> None:
    """What the other tests of this room rest on."""

    def run() -> list[Any]:
        world = Stage("a", "b", "c", seed=4)
        for name in "abc":
            world.stream.append(name, *[make_record(f"k{number}", number) for number in range(9)])
        for name in ("w1", "w2"):
            world.worker(name, max_records=2)
        world.advance(60)
        return world.journal.entries

    assert run() == run()
    assert isinstance(Simulation(1).now, float)
