"""Records that retention took: what was lost is named exactly, and nobody goes on silently."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from typing import Any

import pytest

from streamclient import CallLimits, ClientConfig, Prefetch, StreamConfig, Worker
from streamclient.base.position import Position
from streamclient.base.reasons import ReasonKind
from streamclient.errors import StreamClientException, TrimmedDataException
from streamclient.interfaces import ProcessRecordsInput, ShutdownInput
from streamclient.model import ShardState, ShutdownReason, TrimmedDataPolicy, TrimmedRange
from streamclient.records import SequenceInfo
from streamclient.server import LocalTablestore
from streamclient.tablestore import RecordPage
from streamclient.testing.fakes import FakeStream
from streamclient.testing.simulation.workers import SimulatedWorker
from streamclient.worker.fetcher import MOST_PAGES_SEARCHED
from tests.patience import until
from tests.placed_records import make_record
from tests.simulation.scene import Journal, RecordingProcessor
from tests.worker.stage import Stage, keys, make_table, put

HOUR = 3_600_000_000
START = 1_600_000_000_000_000
"""The wall clock of a simulation at its second zero."""


def many(count: int, start: int = 0) -> list[Any]:
    return [make_record(f"k{number}", START + number * 1_000_000) for number in range(start, start + count)]


def trimmed(*, kept: int = 2, **config: Any) -> tuple[Stage, SimulatedWorker]:
    """The first worker stored a checkpoint behind four records and died; some of six later ones are kept."""
    world = Stage("a", "other", **config)
    world.stream.append("a", *many(4))
    first = world.worker("first")
    world.until(lambda: world.journal.accepted["a"] == keys(4), 20)
    world.advance(1)
    first.kill()
    world.journal.by_shard.clear()
    world.journal.accepted.clear()
    world.stream.append("a", *many(6, 4))
    world.stream.trim("a", 10 - kept)
    return world, world.worker("second")


def halted(world: Stage, worker: SimulatedWorker) -> TrimmedRange:
    world.until(lambda: bool(worker.statuses().get("a") and worker.statuses()["a"].lost), 120)
    lost = worker.statuses()["a"].lost
    assert lost is not None
    return lost


def accept(world: Stage, worker: SimulatedWorker) -> TrimmedRange:
    """In a thread of its own, as a program does, while the simulation goes on."""
    found: list[TrimmedRange] = []
    world.simulation._pool("operator", 1).submit(lambda: found.append(worker.worker.accept_loss("a")))
    world.until(lambda: found != [], 10)
    return found[0]


def test_the_lost_range_is_named_from_the_last_processed_to_the_first_record_left(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.ERROR):
        world, worker = trimmed()
        lost = halted(world, worker)

    assert lost == TrimmedRange(
        shard_id="a",
        position="a@4",
        last_processed_micros=START + 3_000_000,
        last_processed=None,
        first_left=SequenceInfo(1, START + 8_000_000, 0),
    )
    status = worker.statuses()["a"]
    assert status.reason == (
        "records after position a@4 are past the stream's retention and lost: from after the record of "
        "2020-09-13T12:26:43.000Z up to before the record 1/1600000008000000/0 of 2020-09-13T12:26:48.000Z, the oldest "
        "one left; to go on there, call worker.accept_loss('a'), or set trimmed_data_policy to RESTART_AT_OLDEST"
    )
    assert status.reason_kind is ReasonKind.DECISION
    assert str(lost) in caplog.text
    world.advance(60)
    assert worker.statuses()["a"].state is ShardState.SHUTDOWN_COMPLETE
    assert world.journal.shutdowns("a") == [ShutdownReason.PROCESS_RESTART]
    assert world.journal.delivered("a") == []
    assert world.owner("a") == "second"


def test_the_worker_that_processed_the_last_record_names_its_place() -> None:
    world = Stage("a", prefetch=Prefetch(prefetch_bytes=0))
    world.stream.append("a", *many(6))

    def process(processor: RecordingProcessor, given: ProcessRecordsInput) -> None:
        world.journal.checkpoint_batch(processor, given)
        world.stream.trim("a", 6)

    world.journal.on_process = process
    worker = world.worker(max_records=2)
    lost = halted(world, worker)

    assert lost.last_processed == SequenceInfo(1, START + 1_000_000, 0)
    assert lost.first_left is None
    assert str(lost).endswith("up to before the next record to come, as no record is left")


def skip(stream: FakeStream, pages: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ``pages`` pages without records come before the oldest record, as those of the service may."""
    oldest, read = stream.get_shard_iterator, stream.get_stream_record

    def get_stream_record(iterator: str, limit: int | None = None) -> RecordPage:
        is_skipped = iterator.endswith("~")
        return RecordPage((), Position(iterator[:-1]), may_more_record=True) if is_skipped else read(iterator, limit)

    monkeypatch.setattr(stream, "get_shard_iterator", lambda *given: oldest(*given) + "~" * pages)
    monkeypatch.setattr(stream, "get_stream_record", get_stream_record)


@pytest.mark.parametrize(
    ("skips", "kept", "first", "says"),
    [
        (1, 2, SequenceInfo(1, START + 8_000_000, 0), "the oldest one left"),
        (MOST_PAGES_SEARCHED - 1, 2, SequenceInfo(1, START + 8_000_000, 0), "the oldest one left"),
        (MOST_PAGES_SEARCHED, 2, None, "up to before the oldest record left, not known yet"),
        (MOST_PAGES_SEARCHED - 1, 0, None, "as no record is left"),
    ],
)
def test_the_oldest_record_is_searched_behind_pages_without_records(
    skips: int, kept: int, first: SequenceInfo | None, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, worker = trimmed(kept=kept)
    skip(world.stream, skips, monkeypatch)
    lost = halted(world, worker)

    assert (lost.first_left, lost.is_first_left_known) == (first, skips < MOST_PAGES_SEARCHED)
    assert str(lost).endswith(says)
    accept(world, worker)
    world.until(lambda: world.journal.accepted["a"] == keys(kept, 10 - kept), 120)


def test_nothing_known_of_the_last_record_is_said_as_such() -> None:
    lost = TrimmedRange("a", "i9", None, None, None)
    assert "from after a position with no processed record known before it" in str(lost)


@pytest.mark.parametrize("rest_seconds", [0.0, 60.0])
def test_an_accepted_loss_lets_the_shard_go_on_at_the_oldest_record(rest_seconds: float) -> None:
    """At once, while the old processor is still being closed, or later."""
    world, worker = trimmed()
    lost = halted(world, worker)
    world.advance(rest_seconds)

    assert accept(world, worker) == lost
    world.until(lambda: world.journal.accepted["a"] == keys(2, 8), 30)
    world.advance(1)
    status = worker.statuses()["a"]
    assert (status.reason, status.lost, status.checkpoint) == ("", None, "a@10")
    assert world.journal.by_shard["a"][:2] == [
        ("initialize", "a@4"),
        ("shutdown", ShutdownReason.PROCESS_RESTART),
    ]
    assert ("initialize", "TRIM_HORIZON") in world.journal.by_shard["a"]


def test_a_late_checkpoint_of_the_closing_processor_does_not_undo_the_decision() -> None:
    """It lies before the loss."""
    world, worker = trimmed()
    go_on = threading.Event()

    def shutdown(processor: RecordingProcessor, given: ShutdownInput) -> None:
        world.simulation.wait(go_on, 1_000)
        given.checkpointer.checkpoint()

    world.journal.on_shutdown = shutdown
    halted(world, worker)
    accept(world, worker)
    go_on.set()
    world.until(lambda: world.journal.accepted["a"] == keys(2, 8), 30)

    assert [what for what in world.journal.by_shard["a"] if what[0] == "initialize"] == [
        ("initialize", "a@4"),
        ("initialize", "TRIM_HORIZON"),
    ]


def test_what_was_accepted_stays_accepted_until_a_checkpoint_is_stored() -> None:
    """A processor that fails before it stored anything must not bring the old position back."""
    world, worker = trimmed()
    halted(world, worker)
    world.refuse(ValueError("not yet"), times=2)
    world.journal.on_shutdown = lambda processor, given: None
    accept(world, worker)
    world.until(lambda: world.journal.accepted["a"] == keys(2, 8), 60)

    assert worker.statuses()["a"].lost is None


def test_the_next_worker_meets_the_same_loss_and_stops_too() -> None:
    """Until somebody decides: a restart is no decision."""
    world, worker = trimmed()
    lost = halted(world, worker)
    world.stop(worker)

    assert halted(world, world.worker("third")) == lost
    world.advance(60)
    assert world.journal.delivered("a") == []


def test_there_is_no_loss_to_accept_where_none_was_met() -> None:
    world, worker = trimmed()
    halted(world, worker)
    errors: list[Exception] = []

    def ask(shard_id: str) -> None:
        try:
            worker.worker.accept_loss(shard_id)
        except StreamClientException as error:
            errors.append(error)

    for shard_id in ("other", "unknown"):
        world.simulation._pool("operator", 1).submit(ask, shard_id)
    world.until(lambda: len(errors) == 2, 60)

    assert "shard other has no loss to accept on worker second" in str(errors)
    assert worker.statuses()["a"].lost is not None


def test_an_unreadable_stream_delays_the_report_and_does_not_falsify_it() -> None:
    world, worker = trimmed()
    world.stream.fail_reads(
        "a", *[TrimmedDataException("trimmed"), StreamClientException("busy"), TrimmedDataException("trimmed")]
    )

    assert halted(world, worker).first_left == SequenceInfo(1, START + 8_000_000, 0)


@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError()])
def test_a_search_for_the_oldest_record_that_raises_what_elsewhere_ends_a_program_is_made_again(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shard would wait for its end without end, and call itself about to find out."""
    world, worker = trimmed()
    find, errors = world.stream.get_shard_iterator, [error]

    def get_shard_iterator(*given: Any) -> str:
        if errors:
            raise errors.pop()
        return find(*given)

    monkeypatch.setattr(world.stream, "get_shard_iterator", get_shard_iterator)
    assert halted(world, worker).first_left == SequenceInfo(1, START + 8_000_000, 0)
    assert errors == []


def test_a_search_for_the_oldest_record_that_never_ends_is_named_and_loses_the_lease(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = Stage("a", limits=CallLimits(read_limit_millis=60_000))
    world.write("a", 1)
    worker = world.worker()
    world.until(lambda: world.journal.accepted["a"] == keys(1), 20)
    pool = world.simulation.pool("w1-fetch")

    def hang(iterator: str, limit: int | None = None) -> RecordPage:
        """Let no thread look for what is left."""
        pool.is_frozen = True
        raise TrimmedDataException("trimmed")

    monkeypatch.setattr(world.stream, "get_stream_record", hang)
    world.until(lambda: pool.is_frozen, 20)
    world.advance(0.5)
    assert worker.statuses()["a"].reason == "records were lost; finding out which"
    with caplog.at_level(logging.ERROR):
        world.advance(30)
        waiting = r"records were lost; finding out which; reading has waited \d\d s for a free thread of the fetch pool"
        assert re.fullmatch(waiting, worker.statuses()["a"].reason)
        world.advance(60)

    assert re.search(r"its consumer stalled.* free thread of the fetch pool, over the limit of 60 s", caplog.text)
    assert world.journal.shutdowns("a")[0] in (ShutdownReason.STOLEN, ShutdownReason.ZOMBIE)


def test_a_policy_may_accept_every_loss_and_then_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        world, worker = trimmed(trimmed_data_policy=TrimmedDataPolicy.RESTART_AT_OLDEST)
        world.until(lambda: world.journal.accepted["a"] == keys(2, 8), 60)

    (reported,) = [record.getMessage() for record in caplog.records if "and lost" in record.getMessage()]
    assert "(policy RESTART_AT_OLDEST)" in reported
    world.advance(1)
    assert worker.statuses()["a"].lost is None
    assert world.checkpoint("a") == "a@10"


# --- lag and retention ------------------------------------------------------------------------------------------------


def test_a_shard_that_is_caught_up_has_no_lag(world: Stage) -> None:
    world.stream.append("a", *many(3))
    worker = world.worker()
    world.advance(20)
    status = worker.statuses()["a"]

    assert (status.lag_seconds, status.time_to_loss_seconds, status.forecast, status.reason) == (
        *(0.0, None),
        *("caught up", ""),
    )


def test_a_shard_that_does_not_move_says_how_long_its_records_last(world: Stage) -> None:
    """The stream keeps them for a day; the oldest unread one is three hours old."""
    now_micros = world.simulation.runtime().wall_micros()
    world.stream.append("a", *(make_record(f"k{n}", now_micros - 3 * HOUR + n) for n in range(5)))
    world.refuse(ValueError("no"))
    worker = world.worker()
    world.advance(120)
    status = worker.statuses()["a"]

    assert status.lag_seconds == pytest.approx(3 * 3_600 + 120, abs=2)
    assert status.time_to_loss_seconds == pytest.approx(21 * 3_600 - 120, abs=2)
    assert status.forecast == "stands still: records are lost in about 21 h"


def test_a_shard_that_catches_up_says_when(world: Stage) -> None:
    """A minute of records for each ten seconds."""
    now_micros = world.simulation.runtime().wall_micros()
    world.stream.append("a", *(make_record(f"k{n}", now_micros - HOUR + n * 60_000_000) for n in range(61)))
    world.dawdle(10.0)
    worker = world.worker(max_records=1)
    world.advance(300)
    status = worker.statuses()["a"]

    assert status.lag_seconds == pytest.approx(3_600 - 5 * 300, abs=90)
    assert status.forecast in ("catches up in about 7 min", "catches up in about 8 min")


def test_a_paused_shard_goes_on_ageing(world: Stage) -> None:
    """It has no consumer; its stored progress tells how old its unread records may be."""
    now_micros = world.simulation.runtime().wall_micros()
    world.stream.append("a", *(make_record(f"k{n}", now_micros - HOUR + n) for n in range(3)))
    worker = world.worker()
    world.until(lambda: len(world.journal.accepted["a"]) == 3, 20)
    worker.worker.pause("a", reason="looking")
    world.advance(60)
    status = worker.statuses()["a"]

    assert (status.state, status.reason_kind) == (ShardState.PAUSED, ReasonKind.PAUSED)
    assert status.lag_seconds == pytest.approx(3_660, abs=30)
    assert status.time_to_loss_seconds == pytest.approx(23 * 3_600 - 60, abs=30)


QUICK = ClientConfig(renewer_interval_millis=500, taker_interval_millis=500)


@pytest.mark.slow
def test_on_a_server_that_trims_the_loss_is_exact_and_accepting_it_goes_on(local: LocalTablestore) -> None:
    """Over HTTP: read some, stop, write more, let retention take a part, start again."""
    client = local.client()
    make_table(client, kind="INTEGER")

    def write(numbers: range) -> None:
        for number in numbers:
            put(client, number, n=1)

    journal = Journal()
    found = lambda: [number for accepted in list(journal.accepted.values()) for number in accepted]  # noqa: E731
    config = StreamConfig(client=client, data_table_name="orders", status_table_name="status")
    write(range(5))
    with Worker("w1", QUICK, config, journal.make):
        until(lambda: found() == list(range(5)))
    local.advance_clock(25 * 3_600)
    write(range(5, 12))
    local.trim("orders", keep_last=3)
    with Worker("w1", QUICK, config, journal.make) as worker:
        until(lambda: any(status.lost for status in worker.shard_statuses().values()))
        (status,) = worker.shard_statuses().values()
        assert status.lost is not None
        assert status.lost.first_left is not None
        assert status.lost.last_processed_micros is not None
        # The server's clock moved on by a day between the last processed record and the first one that is left.
        assert status.lost.first_left.timestamp_micros - status.lost.last_processed_micros > 25 * HOUR
        accepted = worker.accept_loss(status.shard_id)
        assert accepted == status.lost
        until(lambda: found() == [*range(5), 9, 10, 11])
        until(lambda: worker.shard_statuses()[status.shard_id].forecast == "caught up")
