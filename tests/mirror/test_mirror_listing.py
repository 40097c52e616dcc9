"""A mirror that stood still for longer than the stream keeps changes: what may be lost is said, and only that."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from streamclient.base.times import MICROS_PER_HOUR
from streamclient.copying import Mirror
from streamclient.copying.mirror_listing import LISTED, Listing, ShardWatch
from streamclient.copying.source_table import COPY, CopyPlan, SourceTable
from streamclient.destinations.memory_destination import MemoryDestination, MemoryPlace
from streamclient.errors import StreamClientException
from streamclient.server import LocalTablestore
from tests.mirror.mirroring import LIMITS, QUICK, caught_up, make_table, put, running
from tests.mirror.test_mirror import SetClock
from tests.patience import until


class Orders:
    """A table of two shards on a clock that jumps, and the place of its mirror."""

    def __init__(self, local: LocalTablestore, clock: SetClock) -> None:
        self.local, self.clock, self.client = local, clock, local.client()
        self.place = MemoryPlace()
        make_table(self.client)
        self.left, self.right = local.split("orders", at=50)

    def pass_hours(self, hours: float) -> None:
        self.clock.shift_micros += round(hours * MICROS_PER_HOUR)

    def mirror(self, to: MemoryDestination | None = None) -> Mirror:
        to = to or MemoryDestination(self.place)
        return Mirror(self.client, "orders", "status", to, client_config=QUICK, limits=LIMITS)

    def mirrored(self) -> None:
        with running(self.mirror()) as mirror:
            caught_up(mirror)

    def refused(self) -> str:
        """Why a run of the mirror ends; empty if it does not."""
        mirror, errors = self.mirror(), list[StreamClientException]()

        def run() -> None:
            try:
                mirror.run()
            except StreamClientException as error:
                errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        until(lambda: mirror.is_copied or bool(errors), "the start or the end of the mirror")
        mirror.shutdown()
        thread.join()
        return "".join(map(str, errors))

    def watch(self, to: MemoryDestination) -> ShardWatch:
        last = to.last_commits([COPY])[COPY]
        assert last is not None
        return ShardWatch(SourceTable(self.client, "orders"), to, CopyPlan.from_text(last.end))

    def was_tried_again(self, looks: int = 40) -> bool:
        self.pass_hours(0.02)
        return self.listings() == looks

    def listings(self) -> int:
        return sum(commit.shard == LISTED for entry in self.place.entries for commit in entry.commits)


@pytest.fixture
def orders(monkeypatch: pytest.MonkeyPatch) -> Iterator[Orders]:
    clock = SetClock()
    for module in ("mirror_listing", "mirroring", "source_table", "mirror_copy", "mirror_comparison", "mirror_writer"):
        monkeypatch.setattr(f"streamclient.copying.{module}.now_micros", clock.now_micros)
    with LocalTablestore(clock=clock) as local:
        yield Orders(local, clock)


def test_a_shard_that_was_opened_too_long_ago_is_not_read_as_if_nothing_of_it_were_lost(orders: Orders) -> None:
    """Its parent has lost nothing, and it is read from the oldest record that is left."""
    put(orders.client, 1, ("a", 1))
    put(orders.client, 90, ("a", 1))
    orders.mirrored()
    orders.local.split("orders", orders.right, at=80)
    put(orders.client, 70, ("a", "lost"))
    orders.pass_hours(30)
    put(orders.client, 71, ("a", "left"))

    for _ in range(2):
        said = orders.refused()
        assert said.startswith("no process of the mirror looked at the stream for 30.0 h, and the stream keeps changes")
        assert "was opened meanwhile, and its first changes may be gone; begin a new mirror" in said


def test_a_mirror_that_stood_still_not_too_long_goes_on_with_shards_that_are_new(orders: Orders) -> None:
    put(orders.client, 90, ("a", 1))
    orders.mirrored()
    orders.local.split("orders", orders.right, at=80)
    put(orders.client, 70, ("a", 1))
    orders.pass_hours(20)
    with running(orders.mirror()) as mirror:
        caught_up(mirror)
        found = mirror.verify()

    assert (found.rows, found.count) == (2, 0)


def test_the_mirror_of_a_table_without_changes_starts_again_after_any_time(orders: Orders) -> None:
    put(orders.client, 1, ("a", 1))
    orders.pass_hours(1)
    for _ in range(3):
        with running(orders.mirror()) as mirror:
            caught_up(mirror)
            assert (mirror.verify().rows, mirror.verify().count) == (1, 0)
            assert mirror.position().keys().isdisjoint([orders.left, orders.right])
        orders.pass_hours(60)


def test_a_shard_of_which_nothing_was_merged_and_whose_changes_are_gone_ends_the_run(orders: Orders) -> None:
    put(orders.client, 1, ("a", 1))
    orders.mirrored()
    put(orders.client, 90, ("a", "lost"))
    orders.pass_hours(30)

    assert orders.refused().startswith(f"changes of shard {orders.right} left the stream before any of them was merged")


def test_the_shards_are_looked_at_while_the_mirror_runs(orders: Orders) -> None:
    """So a stop counts from the last look; a process that was frozen for too long says itself what that means."""

    class Fails(MemoryDestination):
        left = 0

        def commit(self, rows: Any, commits: Any) -> None:
            if self.left and commits[0].shard == LISTED:
                self.left -= 1
                raise OSError("no room")
            super().commit(rows, commits)

    put(orders.client, 1, ("a", 1))
    to = Fails(orders.place)
    with running(orders.mirror(to)) as mirror:
        caught_up(mirror)
        assert orders.listings() == 1
        for looks in range(2, 40):
            orders.pass_hours(1.5)
            until(lambda looks=looks: orders.listings() == looks, "another look")
        to.left = 1
        orders.pass_hours(1.5)
        until(lambda: not to.left, "a look that fails")
        until(orders.was_tried_again, "another one, a minute later")
        assert mirror.health.is_healthy
        orders.local.split("orders", orders.right, at=80)
        orders.pass_hours(30)
        until(lambda: not mirror.health.is_healthy, "a look at the new shards")
        assert "looked at the stream for 30." in mirror.health.reason


def test_of_two_processes_that_look_at_once_one_stores_what_it_saw(orders: Orders) -> None:
    class Slow(MemoryDestination):
        before: Callable[[], None] = staticmethod(lambda: None)

        def commit(self, rows: Any, commits: Any) -> None:
            self.before()
            super().commit(rows, commits)

    orders.mirrored()
    first, second = orders.watch(Slow(orders.place)), orders.watch(MemoryDestination(orders.place))
    orders.pass_hours(2)
    first.destination.before = second.look  # type: ignore[attr-defined]
    first.look()
    assert orders.listings() == 2

    def fails() -> None:
        raise StreamClientException("no room")

    orders.pass_hours(2)
    first.destination.before = fails  # type: ignore[attr-defined]
    with pytest.raises(StreamClientException, match="no room"):
        first.look()
    assert orders.listings() == 2


def test_a_mirror_of_an_earlier_version_goes_on(orders: Orders) -> None:
    """Its log does not say which shards there were; with the first changes that were merged, it says so from now on."""
    put(orders.client, 1, ("a", 1))
    orders.mirrored()
    for entry in list(orders.place.entries):
        if any(commit.shard == LISTED for commit in entry.commits):
            orders.place.entries.remove(entry)
    orders.pass_hours(30)
    orders.mirrored()

    last = MemoryDestination(orders.place).last_commits([LISTED])[LISTED]
    assert last is not None
    assert Listing.of(last) is not None
