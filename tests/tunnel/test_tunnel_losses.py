"""Records that a tunnel may have skipped without an error: suspected, told once, counted."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from attrs import evolve
from tunnel_scene import TABLE, Log, Scene, quick

from streamclient.base.times import MICROS_PER_HOUR, now_micros
from streamclient.metrics import MemoryMetrics, metric_table
from streamclient.server import Fail, FaultRule, LocalTablestore
from streamclient.tablestore.read_retry import ReadRetry
from streamclient.tunnel import TunnelClient, TunnelType, TunnelWorker, TunnelWorkerConfig, tunnel_coordinator
from streamclient.tunnel.log_watch import LogFacts, LogWatch, Suspicion, facts_of_log
from streamclient.worker.runtime import Runtime
from tests.patience import until

DAY_MICROS = 24 * MICROS_PER_HOUR
NOON = 1_767_268_800_000_000
SECOND = 1_000_000


@pytest.fixture
def scene() -> Iterator[Scene]:
    """A service that skips what a tunnel lost, as the documentation says it may."""
    with LocalTablestore(tunnels_skip_lost_log=True) as local:
        yield Scene(local)


def later_worker(scene: Scene, tunnel_id: str, log: Log, metrics: MemoryMetrics, hours: int) -> TunnelWorker:
    """A worker whose clock is ahead by these hours, as the server's is."""
    config = TunnelWorkerConfig(
        heartbeat_interval_seconds=1,
        heartbeat_timeout_seconds=10,
        checkpoint_interval_millis=100,
        client_config=quick(metrics=metrics),
    )
    runtime = Runtime(wall_micros=lambda: now_micros() + hours * MICROS_PER_HOUR)
    return TunnelWorker(tunnel_id, scene.tunnels, log, config, runtime=runtime)


@pytest.mark.slow
@pytest.mark.parametrize("is_throttled", [False, True])
def test_records_that_the_service_skipped_are_suspected_once(
    scene: Scene, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, is_throttled: bool
) -> None:
    """Also if the service is too busy for the first search."""
    tunnel_id, log, metrics = scene.tunnel(TunnelType.STREAM), Log(), MemoryMetrics()
    scene.put(1)
    with scene.worker(tunnel_id, log):
        until(lambda: len(log.records) == 1, "the first record")
    scene.put(2)  # which nobody reads
    scene.local.advance_clock(25 * 3_600)
    scene.put(3)
    if is_throttled:
        monkeypatch.setattr(tunnel_coordinator, "LOOK_SECONDS", 0.2)
        scene.local.add_fault(FaultRule("DescribeTable", Fail("OTSServerBusy"), times=1))
    with caplog.at_level(logging.WARNING, "streamclient"), later_worker(scene, tunnel_id, log, metrics, 25) as worker:
        until(lambda: [record.key["id"] for record in log.records] == [1, 3], "the record that is left")
        until(lambda: metrics.value(metric_table.SUSPECTED_LOSSES, cause="position") == 1, "the position's suspicion")
        until(lambda: metrics.value(metric_table.SUSPECTED_LOSSES, cause="gap") == 1, "the gap's suspicion")
        scene.put(4)
        until(lambda: len(log.records) == 3, "one record more")
        (status,) = worker.channel_statuses().values()
    told = [record.getMessage() for record in caplog.records if "may have lost records" in record.getMessage()]

    assert len(told) == 2
    assert all("the table keeps records for 1 d" in text for text in told)
    assert metrics.value(metric_table.SUSPECTED_LOSSES, cause="gap") == 1
    assert status.lag_seconds is not None
    assert status.time_to_loss_seconds is None or status.time_to_loss_seconds > 0


def descriptions(scene: Scene) -> int:
    """The number of times that the table was described."""
    return sum(count.requests for count in scene.local.requests() if count.operation == "DescribeTable")


@pytest.mark.slow
def test_a_worker_that_has_lost_nothing_suspects_nothing_when_its_channel_is_opened_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The position at which it first opened the channel is older than the retention by then."""
    monkeypatch.setattr(tunnel_coordinator, "LOOK_SECONDS", 0.0)
    tunnel_id, log, metrics = scene.tunnel(TunnelType.STREAM), Log(), MemoryMetrics()
    scene.put(0)
    with scene.worker(tunnel_id, log):
        until(lambda: len(log.records) == 1, "the record before the worker")
    hours = [0]
    runtime = Runtime(wall_micros=lambda: now_micros() + hours[0] * MICROS_PER_HOUR)
    config = TunnelWorkerConfig(
        heartbeat_interval_seconds=1,
        heartbeat_timeout_seconds=11 * 3_600,
        checkpoint_interval_millis=100,
        client_config=quick(metrics=metrics),
    )
    scene.local.reset_requests()
    with TunnelWorker(tunnel_id, scene.tunnels, log, config, runtime=runtime):
        until(lambda: descriptions(scene) == 1, "the first search")
        for number in range(1, 6):
            scene.put(number)
            until(lambda number=number: len(log.records) == number + 1, "a record that is read at once")  # type: ignore[misc]
            until(lambda number=number: is_stored(scene, number + 1), "its checkpoint")  # type: ignore[misc]
            scene.local.advance_clock(5 * 3_600)
            hours[0] += 5
        scene.local.advance_clock(12 * 3_600)  # the session runs out
        hours[0] += 12
        until(lambda: descriptions(scene) > 1, "the search after the channel was opened again")
        scene.put(6)
        until(lambda: len(log.records) == 7, "the last record")

    assert [metrics.value(metric_table.SUSPECTED_LOSSES, cause=each.value) for each in Suspicion] == [None, None]


def is_stored(scene: Scene, count: int) -> bool:
    """Whether the checkpoint of the one channel covers so many changes."""
    return [channel.record_count for channel in scene.tunnels.describe_tunnel(TABLE, "t").channels] == [count]


@pytest.mark.slow
def test_tunnel_worker_tells_how_long_the_table_keeps_what_is_unread(scene: Scene) -> None:
    tunnel_id, log, metrics = scene.tunnel(TunnelType.STREAM), Log(), MemoryMetrics()
    scene.put(1)
    with scene.worker(tunnel_id, log):
        until(lambda: len(log.records) == 1, "the first record")
    scene.put(2)
    scene.local.advance_clock(23 * 3_600)
    with later_worker(scene, tunnel_id, Blocked(), metrics, 23) as worker:
        until(
            lambda: any(
                status.time_to_loss_seconds is not None and 0 < status.time_to_loss_seconds <= 3_600
                for status in worker.channel_statuses().values()
            ),
            "the time to loss",
        )
    assert metrics.value(metric_table.SUSPECTED_LOSSES, cause="position") in (None, 0)


class Blocked(Log):
    """Fails with each batch, so that the channel stands still."""

    def __call__(self, records: object) -> None:
        raise RuntimeError("not yet")


@pytest.mark.slow
def test_rows_of_full_data_have_no_lag(scene: Scene) -> None:
    scene.put(*range(3))
    tunnel_id, log = scene.tunnel(TunnelType.BASE_DATA), Log()
    lags: list[float | None] = []

    def consume(records: object) -> None:
        lags.extend(status.lag_seconds for status in worker.channel_statuses().values())
        log(records)  # type: ignore[arg-type]  # records as any callback gets them

    worker = scene.worker(tunnel_id, consume)
    with worker:
        until(lambda: len(log.records) == 3, "the rows")

    assert lags
    assert set(lags) <= {None, 0.0}


# --- the watch by itself -------------------------------------------------------------------------------------------


class Told(list[tuple[Suspicion, str]]):
    def __call__(self, cause: Suspicion, text: str) -> None:
        self.append((cause, text))


def watch(told: Told, *opened: str, **facts: object) -> LogWatch:
    made = LogWatch(lambda: NOON, told)
    for channel_id in opened:
        made.opened(channel_id)
    made.learned(evolve(LogFacts(DAY_MICROS), **facts))
    return made


@pytest.mark.parametrize(
    ("position", "first", "is_suspected"),
    [
        (NOON - DAY_MICROS - SECOND, NOON - 5 * SECOND, True),
        (NOON - DAY_MICROS - SECOND, NOON - DAY_MICROS, True),
        (NOON - DAY_MICROS - 2 * SECOND, NOON - DAY_MICROS - SECOND, False),
        (NOON - DAY_MICROS, NOON - 5 * SECOND, False),
        (NOON - DAY_MICROS - SECOND, 0, False),
    ],
    ids=["gap", "gap up to the end of the retention", "more was kept", "within the retention", "a row of full data"],
)
def test_a_gap_is_suspected_only_across_the_end_of_the_retention(position: int, first: int, is_suspected: bool) -> None:
    told = Told()
    watch(told, "c").page_came("c", position, first)

    assert [cause for cause, _ in told] == [Suspicion.GAP] * is_suspected


def test_each_channel_and_cause_is_told_once() -> None:
    told = Told()
    old = {"a": NOON - 2 * DAY_MICROS, "b": NOON - 3 * DAY_MICROS, "fresh": NOON}
    watched = watch(told, *old, consumed_micros=old)
    watched.learned(watched.facts)
    for _ in range(2):
        for channel in ("a", "b", "fresh"):
            watched.page_came(channel, old[channel], NOON - SECOND)

    assert sorted((cause.value, text.split()[1]) for cause, text in told) == [
        ("gap", "a"),
        ("gap", "b"),
        ("position", "a"),
        ("position", "b"),
    ]


def test_a_page_that_comes_before_the_facts_is_judged_afterwards() -> None:
    told = Told()
    watched = LogWatch(lambda: NOON, told)
    watched.opened("c")
    watched.page_came("c", None, NOON - SECOND)
    assert told == []
    watched.learned(LogFacts(DAY_MICROS, {"c": NOON - 2 * DAY_MICROS}))

    assert [cause for cause, _ in told] == [Suspicion.POSITION, Suspicion.GAP]


def test_a_channel_is_judged_when_it_is_opened_and_no_other() -> None:
    told = Told()
    old = {"a": NOON - 2 * DAY_MICROS, "b": NOON - 2 * DAY_MICROS}
    watched = watch(told, consumed_micros=old)
    assert told == [], "channels of other clients, and finished ones"
    watched.opened("b")
    watched.closed("b")
    watched.learned(watched.facts)

    assert [(cause, text.split()[1]) for cause, text in told] == [(Suspicion.POSITION, "b")]


def test_a_channel_that_is_opened_again_is_judged_by_a_position_that_was_read_after_it_was_closed() -> None:
    told = Told()
    now = [NOON]
    watched = LogWatch(lambda: now[0], told)
    watched.learned(LogFacts(DAY_MICROS, {"c": NOON}))
    watched.opened("c")
    now[0] = NOON + 3 * DAY_MICROS
    watched.closed("c")
    watched.opened("c")
    watched.page_came("c", None, now[0] - SECOND)
    watched.learned(LogFacts(DAY_MICROS, {"c": now[0] - 2 * SECOND}))
    assert told == []

    watched.closed("c")
    watched.opened("c")
    watched.learned(LogFacts(DAY_MICROS, {"c": now[0] - DAY_MICROS - SECOND}))
    assert [cause for cause, _ in told] == [Suspicion.POSITION]


def test_positions_that_were_forgotten_judge_no_channel_that_another_client_had() -> None:
    told = Told()
    watched = watch(told, consumed_micros={"c": NOON - 2 * DAY_MICROS})
    watched.forget_positions()
    watched.opened("c")
    watched.learned(LogFacts(DAY_MICROS, {"c": NOON}))

    assert told == []


def test_an_open_channel_is_not_judged_by_its_checkpoint_beyond_which_it_is_read() -> None:
    """A processor may store checkpoints seldom."""
    told = Told()
    now = [NOON]
    watched = LogWatch(lambda: now[0], told)
    watched.opened("c")
    facts = LogFacts(DAY_MICROS, {"c": NOON})
    watched.learned(facts)
    now[0] = NOON + 2 * DAY_MICROS
    watched.learned(facts)

    assert told == []


@pytest.mark.parametrize("position", [None, NOON - 2 * DAY_MICROS])
def test_what_came_before_the_retention_was_known_is_judged_when_it_is_known(position: int | None) -> None:
    """By the position at the opening: by then, the reader has stored a later one."""
    told = Told()
    watched = LogWatch(lambda: NOON, told)
    watched.opened("c")
    watched.learned(LogFacts(None, {"c": NOON - 2 * DAY_MICROS}, is_partial=True))
    watched.page_came("c", position, NOON - SECOND)
    assert told == []
    watched.learned(LogFacts(DAY_MICROS, {"c": NOON - SECOND}))

    assert [cause for cause, _ in told] == [Suspicion.POSITION, Suspicion.GAP]


@pytest.mark.parametrize("facts", [LogFacts(), LogFacts(is_partial=True)])
def test_a_known_retention_stays_known(facts: LogFacts) -> None:
    told = Told()
    watched = watch(told, "c")
    watched.learned(facts)
    watched.page_came("c", NOON - 2 * DAY_MICROS, NOON - SECOND)

    assert [cause for cause, _ in told] == [Suspicion.GAP]


def test_a_page_after_a_position_that_only_the_service_knows_is_judged_by_it() -> None:
    told = Told()
    watch(told, "c", consumed_micros={"c": NOON - 2 * DAY_MICROS}).page_came("c", None, NOON - SECOND)

    assert [cause for cause, _ in told] == [Suspicion.POSITION, Suspicion.GAP]


def test_without_a_known_retention_nothing_is_suspected() -> None:
    told = Told()
    watched = LogWatch(lambda: NOON, told)
    watched.opened("c")
    watched.learned(LogFacts(None, {"c": 1}))
    watched.page_came("c", 1, NOON)

    assert told == []


def test_a_caller_who_may_not_describe_the_table_learns_nothing_and_goes_on(scene: Scene) -> None:
    tunnel_id = scene.tunnel(TunnelType.STREAM)
    known = facts_of_log(scene.tunnels, tunnel_id)
    scene.local.add_fault(FaultRule("DescribeTable", Fail("OTSNoPermissionAccess")))

    assert known.retention_micros == DAY_MICROS
    assert facts_of_log(scene.tunnels, tunnel_id) == LogFacts()
    assert facts_of_log(scene.tunnels, "other") == LogFacts()


@pytest.mark.parametrize("operation", ["tunnel/list", "tunnel/describe", "DescribeTable"])
def test_facts_that_a_busy_service_does_not_tell_are_partial(scene: Scene, operation: str) -> None:
    tunnel_id = scene.tunnel(TunnelType.STREAM)
    tunnels = TunnelClient(scene.ots, retry=ReadRetry(retries=0))
    scene.local.add_fault(FaultRule(operation, Fail("OTSServerBusy"), times=1))

    assert facts_of_log(tunnels, tunnel_id) == LogFacts(is_partial=True)
    assert facts_of_log(tunnels, tunnel_id) == LogFacts(DAY_MICROS)
