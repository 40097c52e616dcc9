"""``max_channel_parallel``: who may read and process, and that the others wait without a page."""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tunnel_scene import TABLE, Log, Scene, quick

from streamclient import CallLimits, FailurePolicy, ReasonKind
from streamclient.core.tunnel.channel_turns import Turns
from streamclient.metrics import MemoryMetrics, metric_table
from streamclient.records import StreamRecord
from streamclient.tunnel import TunnelClient, TunnelStage, TunnelType
from streamclient.wire.page_parts import TunnelPage
from tests.patience import PATIENCE_SECONDS, until

# --- the decision --------------------------------------------------------------------------------------------------


def test_turns_are_given_in_the_order_of_asking() -> None:
    turns = Turns(2)

    assert [turns.ask(reader) for reader in "abcd"] == [True, True, False, False]
    assert turns.end("b") == ("c",)
    assert not turns.ask("b")
    assert turns.end("a") == ("d",)
    assert turns.end("c") == ("b",)
    assert turns.having == {"d", "b"}


def test_asking_again_keeps_the_turn_or_the_place() -> None:
    turns = Turns(1)
    turns.ask("a")
    turns.ask("b")
    turns.ask("c")

    assert turns.ask("a")
    assert not turns.ask("b")
    assert turns.end("a") == ("b",)


def test_reader_that_gave_up_waiting_gets_no_turn() -> None:
    turns = Turns(1)
    turns.ask("a")
    turns.ask("b")

    assert turns.end("b") == ()
    assert turns.end("a") == ()
    assert turns.having == frozenset()


def test_without_limit_everybody_has_a_turn_at_once() -> None:
    turns = Turns(None)
    assert all(turns.ask(str(number)) for number in range(1_000))


STEPS = st.lists(st.tuples(st.booleans(), st.sampled_from("abcdef")))


@given(st.integers(1, 4), STEPS)
def test_limit_is_never_exceeded_no_turn_lies_idle_and_nobody_is_overtaken(
    most: int, steps: list[tuple[bool, str]]
) -> None:
    turns, queue = Turns(most), list[str]()
    for asks, reader in steps:
        before = turns.having
        if asks:
            had = turns.has(reader)
            queue += [] if had or reader in queue else [reader]
            assert turns.ask(reader) == (had or turns.has(reader))
        else:
            queue = [each for each in queue if each != reader]
            assert turns.end(reader) == tuple(each for each in queue if turns.has(each))
        granted = [each for each in queue if turns.has(each)]

        assert granted == queue[: len(granted)]
        assert turns.having - before <= set(granted)
        queue = queue[len(granted) :]
        assert len(turns.having) <= most
        assert not queue or len(turns.having) == most
        assert all(turns.waits(each) for each in queue)


# --- workers -------------------------------------------------------------------------------------------------------


class WatchedClient(TunnelClient):
    """Keeps the pages that were read, by channel."""

    def __init__(self, client: Any) -> None:
        super().__init__(client)
        self.lock = threading.Lock()
        self.pages: dict[str, list[TunnelPage]] = {}

    def read_records(self, tunnel_id: str, client_id: str, channel_id: str, token: str, **how: Any) -> TunnelPage:
        page = super().read_records(tunnel_id, client_id, channel_id, token, **how)
        with self.lock:
            self.pages.setdefault(channel_id, []).append(page)
        return page

    def channels_with_records(self) -> int:
        with self.lock:
            return sum(any(page.records for page in pages) for pages in self.pages.values())


class Gate:
    """A callback that holds every call until it is opened, and counts who is inside."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.opened = threading.Event()
        self.lock = threading.Lock()
        self.inside = 0
        self.most_inside = 0

    def __call__(self, records: Sequence[StreamRecord]) -> None:
        with self.lock:
            self.inside += 1
            self.most_inside = max(self.most_inside, self.inside)
        assert self.opened.wait(PATIENCE_SECONDS)
        self.log(records)
        with self.lock:
            self.inside -= 1


def four_channels(scene: Scene) -> str:
    scene.tunnels = WatchedClient(scene.ots)
    for place in (10, 20, 30):
        scene.local.split(TABLE, at=place)
    tunnel_id = scene.tunnel(TunnelType.STREAM)
    scene.put(*range(40))
    return tunnel_id


@pytest.mark.slow
@pytest.mark.parametrize("most", [1, 2])
def test_no_more_channels_are_read_and_processed_than_allowed(scene: Scene, most: int) -> None:
    tunnel_id = four_channels(scene)
    gate = Gate(Log())
    with scene.worker(tunnel_id, gate, max_channel_parallel=most) as worker:
        until(lambda: gate.inside == most and len(worker.channel_statuses()) == 4)
        reason = f"waits for its turn: max_channel_parallel={most} channels are in work"
        until(lambda: [status.reason for status in worker.channel_statuses().values()].count(reason) == 4 - most)
        waiting = [status for status in worker.channel_statuses().values() if status.reason == reason]
        assert {status.reason_kind for status in waiting} == {ReasonKind.READING}
        assert isinstance(scene.tunnels, WatchedClient)
        assert scene.tunnels.channels_with_records() == most, "who waits has read nothing"

        gate.opened.set()
        until(lambda: gate.log.values() == scene.written)
    assert gate.most_inside == most


@pytest.mark.slow
def test_without_a_limit_all_channels_are_processed_at_once(scene: Scene) -> None:
    tunnel_id = four_channels(scene)
    gate = Gate(Log())
    with scene.worker(tunnel_id, gate):
        until(lambda: gate.inside == 4)
        gate.opened.set()
        until(lambda: gate.log.values() == scene.written)


@pytest.mark.slow
def test_one_turn_for_all_channels_delivers_everything_once(scene: Scene) -> None:
    """Full data and changes, through splits, with one channel at a time."""
    scene.put(*range(300))
    tunnel_id = scene.tunnel(TunnelType.BASE_AND_STREAM)
    log = Log()
    with scene.worker(tunnel_id, log, max_channel_parallel=1):
        until(lambda: scene.stage() is TunnelStage.PROCESS_STREAM)
        scene.put(*range(300))
        scene.local.split(TABLE, at=100)
        scene.local.split(TABLE, at=200)
        scene.put(*range(300))
        until(lambda: log.values() == scene.written)

    assert len(log.records) == 900


@pytest.mark.slow
def test_channel_that_fails_leaves_its_turn_to_the_others_while_it_pauses(scene: Scene) -> None:
    tunnel_id = four_channels(scene)
    log, is_mended = Log(), threading.Event()
    failures: list[int] = []

    def refuse_one_channel(records: Sequence[StreamRecord]) -> None:
        if any(int(record.key["id"]) < 10 for record in records) and not is_mended.is_set():
            failures.append(len(records))
            raise RuntimeError("the destination refuses it")
        log(records)

    with scene.worker(tunnel_id, refuse_one_channel, max_channel_parallel=1):
        until(lambda: set(log.values()) == set(range(10, 40)) and len(failures) >= 3)
        is_mended.set()
        until(lambda: log.values() == scene.written)


@pytest.mark.slow
def test_waiting_channel_is_handed_over_although_another_ones_call_does_not_return(scene: Scene) -> None:
    scene.local.split(TABLE, at=10)
    tunnel_id = scene.tunnel(TunnelType.STREAM)
    held_back = Gate(Log())
    quick_log = Log()
    with scene.worker(tunnel_id, held_back, max_channel_parallel=1) as first:
        # The service moves the last channel: the call that does not return is one of the first channel.
        until(lambda: len(first.channel_statuses()) == 2)
        scene.put(1)
        until(lambda: held_back.inside == 1)
        scene.put(15)
        with scene.worker(tunnel_id, quick_log):
            until(lambda: [record.key["id"] for record in quick_log.records] == [15])
            assert held_back.inside == 1
            held_back.opened.set()


@pytest.mark.slow
def test_reading_that_waits_for_its_turn_is_no_stalled_reading(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    """A limit on reads counts from the read's beginning, not from the channel's wish to read."""
    tunnel_id = four_channels(scene)
    gate = Gate(Log())
    config = quick(limits=CallLimits(read_limit_millis=3_000, slow_processor_warning_millis=100))
    with scene.worker(tunnel_id, gate, max_channel_parallel=1, client_config=config) as worker:
        until(lambda: gate.inside == 1 and len(worker.channel_statuses()) == 4)
        until(lambda: max(each.user_code_seconds for each in worker.channel_statuses().values()) > 3.5)
        gate.opened.set()
        until(lambda: gate.log.values() == scene.written)

    assert "process_records has been running" in caplog.text, "calls are watched"
    assert "is given up" not in caplog.text


@pytest.mark.slow
def test_a_call_over_its_limit_gives_the_channel_up_and_is_counted(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    tunnel_id, gate, metrics = scene.tunnel(TunnelType.STREAM), Gate(Log()), MemoryMetrics()
    scene.put(1)
    config = quick(metrics=metrics, limits=CallLimits(user_code_limit_millis=200))
    with scene.worker(tunnel_id, gate, client_config=config):
        until(lambda: metrics.value(metric_table.STALLS) == 0, "it is counted from the beginning")
        until(lambda: metrics.value(metric_table.STALLS) == 1)
        gate.opened.set()
        until(lambda: gate.log.values() == scene.written)

    assert re.search("channel .* is given up: process_records has been running", caplog.text)


@pytest.mark.slow
@pytest.mark.parametrize("retries", [0, 3])
def test_what_is_repeated_after_a_failure_waits_for_a_turn_too(scene: Scene, retries: int) -> None:
    """Whether the batch is read again by a new processor, or stayed in memory for the same one."""
    tunnel_id = four_channels(scene)
    gate, has_failed = Gate(Log()), threading.Event()

    def fail_once(records: Sequence[StreamRecord]) -> None:
        if not has_failed.is_set():
            has_failed.set()
            raise RuntimeError("once")
        gate(records)

    policy = FailurePolicy(retries=retries, first_pause_millis=20, longest_pause_millis=20)
    config = quick(failure_policy=policy)
    with scene.worker(tunnel_id, fail_once, max_channel_parallel=1, client_config=config) as worker:
        until(lambda: gate.inside == 1 and len(worker.channel_statuses()) == 4)
        reason = "waits for its turn"
        until(lambda: sum(reason in each.reason for each in worker.channel_statuses().values()) == 3)
        gate.opened.set()
        until(lambda: gate.log.values() == scene.written)
    assert gate.most_inside == 1


@pytest.mark.slow
def test_channels_with_many_pages_take_turns_page_by_page_and_nothing_is_read_ahead(scene: Scene) -> None:
    watched = scene.tunnels = WatchedClient(scene.ots)
    scene.local.split(TABLE, at=10_000)
    tunnel_id = scene.tunnel(TunnelType.STREAM)
    scene.put(*range(2_500), *range(10_000, 12_500))  # the local server's pages have 1,000 changes
    gate = Gate(Log())
    with scene.worker(tunnel_id, gate, max_channel_parallel=1) as worker:
        until(lambda: max((each.user_code_seconds for each in worker.channel_statuses().values()), default=0) > 0.3)
        until(lambda: any("waits for its turn" in each.reason for each in worker.channel_statuses().values()))
        assert [len(pages) for pages in watched.pages.values()] == [1]
        gate.opened.set()
        until(lambda: gate.log.values() == scene.written)

    batches = [key for key, _ in itertools.groupby(int(r.key["id"]) >= 10_000 for r in gate.log.records)]
    assert len(batches) == 6, "the channels alternate"
