"""A mirror that cannot merge says so."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from attrs import evolve

from streamclient import Backoff
from streamclient.cli.mirror_command import _state
from streamclient.copying import Mirror
from streamclient.copying.mirror_writer import MirrorWriter
from streamclient.destinations.memory_destination import MemoryDestination
from streamclient.server import LocalTablestore
from streamclient.testing.contracts.destination_contract import change, store
from tests.mirror.mirroring import LIMITS, QUICK, caught_up, make_table, put, running
from tests.mirror.test_mirror import RULE, beginning, state_of
from tests.patience import PATIENCE_SECONDS, until


def test_a_mirror_that_cannot_merge_says_at_once_what_fails_and_is_unhealthy_if_it_lasts(
    local: LocalTablestore,
) -> None:
    client = local.client()
    make_table(client)
    refuses, is_merging, is_looked_at = threading.Event(), threading.Event(), threading.Event()

    class Refuses(MemoryDestination):
        def merge(self, keys: Any, fold: Any, commits: Any) -> None:
            if refuses.is_set():
                is_merging.set()
                is_looked_at.wait(PATIENCE_SECONDS)
                raise OSError("a rule of the table\n  forbids it")
            super().merge(keys, fold, commits)

    # The worker itself may be unhealthy by so short a limit.
    settings = {"backoff": Backoff(restart_backoff_min_millis=10, restart_backoff_max_millis=10)}
    quick = evolve(QUICK, **settings, max_duration_before_last_successful_renew_or_take_lease=1)
    mirror = Mirror(client, "orders", "status", Refuses(), client_config=quick, limits=LIMITS)
    with running(mirror):
        put(client, 1)
        caught_up(mirror)
        (shard,) = local.shards("orders")
        what = f"shard {shard.shard_id}: no changes were merged for "
        refuses.set()
        put(client, 2)
        assert is_merging.wait(PATIENCE_SECONDS)
        worker = mirror.worker
        assert worker is not None
        until(lambda: worker.shard_statuses()[shard.shard_id].lag_seconds == 0.0, "the end of what is to be read")
        assert (mirror.lag_seconds or 0.0) > 0.0, "what is read is not merged"
        is_looked_at.set()
        until(lambda: bool(mirror.trouble), "the trouble")
        assert mirror.trouble.startswith(what)
        assert "(OSError: a rule of the table" in mirror.trouble
        until(lambda: what in mirror.health.reason, "ill health")
        assert not mirror.health.is_healthy
        line = _state(mirror)
        assert line.startswith("lag ")
        assert " s, UNHEALTHY: " in line
        assert r"(OSError: a rule of the table\n forbids it)  1 shard here" in line
        refuses.clear()
        caught_up(mirror)
        until(lambda: not mirror.trouble and what not in mirror.health.reason, "health")
        until(lambda: mirror.lag_seconds == 0.0, "no lag")


class Slow(MemoryDestination):
    """Takes its time, as far as the writer is asked, and may fail."""

    writer: MirrorWriter
    times: list[float]
    told: list[str]
    error: Exception | None = None
    seconds = 0.0
    is_down = False

    def last_commits(self, shards: Any) -> Any:
        if self.is_down:
            raise OSError("nobody answers")
        return super().last_commits(shards)

    def merge(self, keys: Any, fold: Any, commits: Any) -> None:
        # The clock itself stays: a processor that looks at it meanwhile would wait no longer.
        self.told.append(self.writer.unmerged.trouble(["shard-1"], self.times[-1] + self.seconds, 60.0))
        if self.error is not None:
            raise self.error
        super().merge(keys, fold, commits)


@pytest.fixture
def slow() -> Iterator[Slow]:
    state = state_of(Slow)
    assert isinstance(state, Slow)
    state.times, state.told = [0.0], []
    state.writer = MirrorWriter(None, state, RULE, clock=lambda: state.times[-1])  # type: ignore[arg-type]
    state.writer.start()
    yield state
    state.writer.close()


def test_trouble_of_a_shard_lasts_from_processor_to_processor_until_somebody_has_merged(slow: Slow) -> None:
    unmerged, slow.error = slow.writer.unmerged, OSError("no room")

    def trouble(limit_seconds: float = 60.0) -> str:
        return unmerged.trouble(["shard-1"], slow.times[-1], limit_seconds)

    def fail() -> None:
        shard = slow.writer.begin(beginning("shard-1"))
        slow.writer.offer(shard, [change(1)], "after 1")
        with pytest.raises(OSError, match="no room"):
            slow.writer.flush(shard, is_end=False)
        slow.writer.leave(shard)

    fail()
    assert trouble(0.0) == ""
    slow.times.append(50.0)
    fail()
    assert (trouble(), trouble(0.0)) == ("", "shard shard-1: no changes were merged for 50 s (OSError: no room)")
    slow.times.append(61.0)
    fail()
    assert trouble() == "shard shard-1: no changes were merged for 61 s (OSError: no room)"
    assert unmerged.trouble(["shard-2"], 61.0, 0.0) == "", "it is told of shards that the process has"
    assert unmerged.lag_seconds("shard-1", change(1).sequence_info.timestamp_micros + 5_000_000) == 5.0
    stored = store(MemoryDestination(slow.place), None, [change(1)], shard="shard-1", end="after 1")
    slow.is_down = True
    slow.times.append(70.0)
    with pytest.raises(OSError, match="nobody answers"):
        slow.writer.begin(beginning("shard-1", cut=stored))
    assert trouble() == "shard shard-1: no changes were merged for 70 s (OSError: nobody answers)"
    slow.is_down = False
    # An earlier owner's batch turns out to be stored, so nothing is left to be tried again.
    slow.writer.begin(beginning("shard-1", cut=stored))
    assert (trouble(0.0), unmerged.lag_seconds("shard-1", 0)) == ("", None)


def test_a_merge_that_only_takes_long_is_no_trouble_for_ten_minutes(slow: Slow) -> None:
    shard = slow.writer.begin(beginning("shard-1"))
    for number, seconds in enumerate((500.0, 601.0)):
        slow.seconds = seconds
        slow.writer.offer(shard, [change(number)], f"after {number}")
        slow.writer.flush(shard, is_end=False)

    assert slow.told == ["", "a merge has been under way for 601 s"]
    assert slow.writer.unmerged.trouble(["shard-1"], slow.times[-1], 0.0) == ""
