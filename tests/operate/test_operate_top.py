"""``streamclient top``: what a screen shows, what it costs, and that it ends when asked."""

from __future__ import annotations

import io
import json
import os
import pty
import select
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from attrs import evolve
from operate_facts import END, NOW, facts, row, waiting, worker
from operate_scene import STATUS, TABLE, Scene

from streamclient.base.position import Position
from streamclient.cli.top_screens import LISTED, FailedScreen, _screens, _show_plain, plain_screen
from streamclient.cli.top_tables import causes, worker_rows
from streamclient.core import leases as rule
from streamclient.core.costs import Cost
from streamclient.errors import ConfigurationError
from streamclient.model import Progress
from streamclient.operate import situations
from streamclient.operate.collection import FleetReader
from streamclient.operate.facts import FleetFacts, HeadFacts, Process
from streamclient.operate.fleet_watch import HEADS_PER_REFRESH, FleetWatch
from streamclient.operate.next_records import MOST_EMPTY_PAGES, QUIET_SECONDS, HeadReader
from streamclient.operate.overview import Overview, headline, overview, overview_document
from streamclient.operate.site import Site
from streamclient.operate.targets import TargetReader
from streamclient.server import Fail, FaultRule
from streamclient.tablestore import RecordPage
from streamclient.testing.fakes import FakeStream
from tests.patience import PATIENCE_SECONDS, until
from tests.placed_records import make_record

if TYPE_CHECKING:
    from pathlib import Path


def options(scene: Scene) -> list[str]:
    return ["--endpoint", scene.local.endpoint, "--data-table", TABLE, "--status-table", STATUS]


def fleet() -> tuple[FleetFacts, FleetFacts]:
    before = facts(row("s1", "w1", progress=Progress(1, 100, 1)), row("s2", "w2"), now_micros=NOW - 2_000_000)
    now = facts(
        row("s1", "w1", progress=Progress(2, 340, 2)),
        row("s2", "w2"),
        row("s3", "w2", checkpoint=END),
        row("s4", "w1"),
        workers=[worker("w1", trouble="no scan succeeded"), worker("w2", shards={"s2": "processor failed once"})],
        heads={"s1": waiting(60), "s2": waiting(3_600), "s4": HeadFacts()},
    )
    return before, now


def test_shards_nearest_to_loss_come_first_and_finished_ones_are_only_counted() -> None:
    before, now = fleet()
    view = overview(now, before)

    assert [line.shard_id for line in view.shards] == ["s2", "s1", "s4"]
    assert plain_screen(view).startswith(f"{view.verdict['sentence']}\n"), "the verdict comes first"
    assert (view.finished, view.moving) == (1, 0)
    assert headline(view) == ("orders: 2 workers, 0 of 3 shards move, 1 finished, 120 records/s, longest lag 1 h")


@pytest.mark.parametrize(("read_seconds", "told"), [(60, "at most 1 h"), (3_600, "1 h"), (7_200, "2 h")])
def test_the_longest_lag_is_a_bound_only_if_no_shard_surely_has_it(read_seconds: float, told: str) -> None:
    """The next record of one shard cannot be read; its checkpoint shows that its lag is at most an hour."""
    known = Progress(record_micros=NOW - 3_600_000_000, records=1, bytes=1)
    rows = (row("s1", "w1"), row("s2", "w1", progress=known))
    heads = {"s1": waiting(read_seconds), "s2": HeadFacts(problem="throttled")}
    view = overview(facts(*rows, workers=[worker("w1")], heads=heads))

    assert headline(view).endswith(f", longest lag {told}")


def test_rates_come_from_progress_between_two_screens() -> None:
    before, now = fleet()
    first, second = overview(now), overview(now, before)

    assert [line.records_per_second for line in first.shards] == [None, None, None]
    assert {line.shard_id: line.records_per_second for line in second.shards}["s1"] == 120
    assert second.rate_of("w1") == 120


def test_workers_are_shown_with_their_health_and_their_leases() -> None:
    _, now = fleet()
    lonely = evolve(now, workers={})

    assert worker_rows(overview(now)) == [
        ("w1", "running", "2", "2", "-", "no scan succeeded"),
        ("w2", "running", "2", "1", "-", "well"),
    ]
    assert worker_rows(overview(lonely))[0][-1] == "no session row"
    silent = evolve(
        now, workers={"w1": worker("w1", trouble="no scan succeeded", beat=11.0), "w2": worker("w2", beat=99.0)}
    )
    assert [cells[-1] for cells in worker_rows(overview(silent))] == ["unknown", "unknown"], "what they said is old"
    held = evolve(now, workers={"w1": worker("w1", process=Process.STOPPED), "w2": worker("w2", process=Process.GONE)})
    states = [(cells[1], cells[-1]) for cells in worker_rows(overview(held))]
    assert states == [("stopped", "unknown"), ("gone", "unknown")], "although their last heartbeats are young"


def test_a_shard_that_does_not_move_says_why() -> None:
    _, now = fleet()
    view = overview(now)
    why = dict(zip([line.shard_id for line in view.shards], causes(view.shards), strict=True))

    assert why["s2"] == "processor failed once"
    assert why["s4"] == "its owner is unwell: no scan succeeded"
    assert "\n  processor failed once\n" in plain_screen(view)


def test_a_fleet_that_counts_its_requests_says_what_they_cost() -> None:
    _, now = fleet()
    cost = Cost(seconds=60, stream_requests=240, status_table_requests=10)
    counted = overview(evolve(now, workers={"w1": worker("w1", cost=cost)}))
    told = "cost per hour: stream 14,400 requests and 0 read units, status table 600 requests, "

    assert any(line.startswith(told) for line in plain_screen(counted).splitlines())
    assert overview_document(counted)["totals"]["cost_an_hour"]["stream_requests"] == 14_400
    assert overview_document(overview(now))["totals"]["cost_an_hour"] is None
    assert len(plain_screen(counted, 60, 24).splitlines()) <= 24


LONG = (
    "processor failed 41 times: process_records: OperationalError: connection to server at db.internal failed: timeout"
)


def test_the_screen_has_as_many_shards_as_lines_and_a_cause_is_whole() -> None:
    _, now = fleet()
    view = overview(evolve(now, workers={**now.workers, "w2": worker("w2", shards={"s2": LONG})}))
    roomy, low = plain_screen(view, 80, 40), plain_screen(view, 80, 22)

    assert max(len(line) for line in roomy.splitlines()) <= 80
    assert all(f"\n{shard} " in roomy for shard in ("s1", "s2", "s4"))
    assert LONG in " ".join(roomy.split())
    assert "\ns2 " in low
    assert LONG in " ".join(low.split())
    assert "\ns4 " not in low
    assert len(low.splitlines()) <= 21
    assert low.splitlines()[-1] == "(1 more: a higher terminal or --json shows them)"
    assert "\ns2 " in plain_screen(view, 80, 1), "one at least"
    sentence = view.verdict["sentence"]
    assert roomy.startswith(sentence[:60])
    assert "what to do: " in low, "the remedy has room, however long the cause is"


def test_many_workers_leave_room_for_the_shards_and_those_that_are_unwell_come_first() -> None:
    many = {f"w{number:03}": worker(f"w{number:03}") for number in range(100)}
    view = overview(facts(row("s1", "w050"), workers=[*many.values(), worker("w999", trouble="no scan succeeded")]))
    lines = plain_screen(view, 80, 30).splitlines()

    assert len(lines) <= 29
    assert any(line.startswith("s1 ") for line in lines)
    shown = [line.split()[0] for line in lines if line.startswith("w")]
    assert (shown[0], len(shown)) == ("w999", 7)
    assert "(94 more: --json shows them)" in lines
    assert sum(line.startswith("w") for line in plain_screen(view, 80).splitlines()) == 101


def test_a_verdict_leaves_room_for_the_shards_however_long_it_is() -> None:
    stuck = {f"s{letter}": f"cause {letter}: {LONG * 4}" for letter in "abcdef"}
    view = overview(facts(*(row(key, "w1") for key in stuck), workers=[worker("w1", shards=stuck)]))
    screen, whole = plain_screen(view, 80, 24).splitlines(), plain_screen(view, 80)
    begin = next(number for number, line in enumerate(screen) if line.startswith("orders: 1 worker"))

    assert begin == 8
    assert sum("what to do: " in line for line in screen) >= 1
    assert screen[2].endswith("…")
    assert any(line.startswith("sa ") for line in screen)
    assert whole.count("also: ") == 5
    assert "And 5 more troubles." in " ".join(whole.split())


class Screen(io.StringIO):
    """What a terminal was sent."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("terminal", ["xterm", "dumb"])
def test_without_rich_a_screen_takes_the_place_of_the_one_before(
    monkeypatch: pytest.MonkeyPatch, terminal: str
) -> None:
    """Nothing scrolls: each begins at the first line, and its lines end before the last one of the terminal."""
    _, now = fleet()
    screen = Screen()
    for name, value in (("TERM", terminal), ("COLUMNS", "80"), ("LINES", "22")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stdout", screen)
    _show_plain(iter([overview(now), FailedScreen("cannot be read", None)]), LISTED)
    sent = screen.getvalue()

    if terminal == "dumb":
        assert "\x1b" not in sent
        return
    first, second = sent.split("\x1b[H")[1:]
    assert first.startswith("\x1b[J")
    assert "\n\x1b[J" in second
    shown = [*first.split("\n")[:-1], *second.split("\n")[:-1]]
    assert all(line.endswith("\x1b[K") for line in shown), "what stood there is erased"
    assert "s2" in first
    assert first.count("\n") < 22


def test_once_prints_a_screen_or_a_document(scene: Scene) -> None:
    scene.write(3)
    scene.put_lease(scene.shard, "w1")
    scene.put_worker("w1")
    plain = scene.run("top", "--once")
    document = scene.run("top", "--once", "--json").document

    assert plain.first_line == "orders: all is well: 1 shard moves."
    assert plain.out.splitlines()[1].startswith("orders: 1 worker, 1 of 1 shard moves, 0 finished, longest lag ")
    assert document["verdict"]["sentence"] == plain.first_line
    assert document["totals"]["shards"] == 1
    assert document["workers"][0]["session"]["state"] == "running"
    assert set(document["shards"][0]) == {
        "shard",
        "owner",
        "situation",
        "moves",
        "first_line",
        "lag_seconds",
        "lag_is_bound",
        "records_per_second",
        "seconds_to_loss",
    }


def test_a_refresh_costs_two_scans_and_few_reads(scene: Scene) -> None:
    """As documented: rows and workers; heads only of what is not known, and never more than the budget."""
    scene.write(3)
    parent = scene.shard
    children = scene.split()
    scene.put_lease(parent, "w1")
    for child in children:
        scene.put_lease(child, parents=[parent])
    watch = FleetWatch(Site(scene.client, TABLE, STATUS))
    watch.next()
    scene.local.reset_requests()
    view = watch.next()
    counts = {count.operation: count.requests for count in scene.local.requests()}

    assert counts == {"GetRange": 2}
    assert view.shards[0].lag_seconds is not None


def test_heads_are_looked_up_in_turn_within_the_budget(scene: Scene) -> None:
    scene.write(3)
    for number in range(HEADS_PER_REFRESH + 5):
        scene.put_lease(f"missing-{number:02}", checkpoint=scene.iterator())
    collector = FleetReader(Site(scene.client, TABLE, STATUS))
    found = collector.collect()
    checkpoints = {key: lease.checkpoint for key, lease in found.leases.items()}
    reader = collector.head_reader(scene.stream_id)

    assert len(reader.read_some(checkpoints, HEADS_PER_REFRESH)) == HEADS_PER_REFRESH
    assert len(reader.read_some(checkpoints, HEADS_PER_REFRESH)) == HEADS_PER_REFRESH + 5


def test_a_moving_shard_keeps_its_last_known_lag_until_its_turn_comes(scene: Scene) -> None:
    scene.write(5)
    first, second = scene.iterator(), scene.iterator(after=2)
    reader = FleetReader(Site(scene.client, TABLE, STATUS)).head_reader(scene.stream_id)
    old = reader.read_some({scene.shard: first}, 1)

    assert reader.read_some({scene.shard: second}, 0) == old
    assert reader.read_some({scene.shard: second}, 1) != old


def test_a_head_that_could_not_be_read_is_not_the_one_of_before(scene: Scene) -> None:
    """What was read is over: nothing waited then. It is read again after a while, not at each refresh."""
    scene.write(5)
    now = [0.0]
    reader = HeadReader(Site(scene.client, TABLE, STATUS).streams, scene.stream_id, lambda: now[0])
    end = scene.iterator(after=5)
    assert reader.read_some({scene.shard: end}, 1)[scene.shard] == HeadFacts()
    scene.local.add_fault(FaultRule(operation="GetStreamRecord", action=Fail("OTSNoPermissionAccess")))
    now[0] = QUIET_SECONDS
    assert "OTSNoPermissionAccess" in reader.read_some({scene.shard: end}, 1)[scene.shard].problem
    scene.local.clear_faults()
    assert "OTSNoPermissionAccess" in reader.read_some({scene.shard: end}, 1)[scene.shard].problem
    now[0] = 2 * QUIET_SECONDS
    assert reader.read_some({scene.shard: end}, 1)[scene.shard] == HeadFacts()


def skipping(pages: int) -> FakeStream:
    """A stream that returns so many empty pages, each with another position, before its three records."""
    stream = FakeStream("orders", ["a"])
    stream.append("a", *[make_record(f"k{number}", number + 1) for number in range(3)])
    skips, read = iter(range(pages)), stream.get_stream_record

    def get_stream_record(iterator: str, limit: int | None = None) -> RecordPage:
        at, number = iterator.partition("+")[0], next(skips, None)
        return read(at, limit) if number is None else RecordPage((), Position(f"{at}+{number}"))

    stream.get_stream_record = get_stream_record  # type: ignore[method-assign]
    return stream


def test_a_head_after_a_skipped_part_is_found_or_unknown_but_never_denied() -> None:
    """Else the shard would count as caught up, and a record that is named as passed."""
    near, far = skipping(MOST_EMPTY_PAGES - 1), skipping(MOST_EMPTY_PAGES)
    known = HeadReader(near, near.stream_id).read({"a": "a@0"})["a"]
    unknown = HeadReader(far, far.stream_id).read({"a": "a@0"})["a"]

    assert known == HeadFacts(next_record_micros=1)
    assert "shard a returned 100 pages without a record and goes on after them" in unknown.problem


def test_records_after_a_skipped_part_count_in_the_distance_to_a_target() -> None:
    stream = skipping(0)
    reader, read = TargetReader(stream, stream.stream_id), stream.get_stream_record
    skips = iter([RecordPage((), Position(f"a@0+{number}")) for number in range(7)])

    def get_stream_record(iterator: str, limit: int | None = None) -> RecordPage:
        return read(iterator, limit) if iterator == "a@2" else next(skips, None) or read(iterator, limit)

    stream.get_stream_record = get_stream_record  # type: ignore[method-assign]
    assert str(reader.distance("a", "a@0", "a@2")) == "2 records"


def test_a_screen_as_text_cuts_nothing() -> None:
    _, now = fleet()
    assert "\n  processor failed once\n" in plain_screen(overview(now))
    assert overview_document(overview(now))["totals"]["finished"] == 1


def test_an_interval_must_leave_the_service_in_peace(scene: Scene) -> None:
    assert "at least 0.2, not 0.01" in scene.run("top", "--interval", "0.01").err


@pytest.mark.parametrize(("data_table", "status_table"), [("typo", STATUS), (TABLE, "typo"), (TABLE, TABLE)])
def test_what_is_wrong_for_good_ends_it_before_the_first_screen(
    scene: Scene, data_table: str, status_table: str
) -> None:
    """It would be wrong at every refresh. Later it may be mended while somebody watches."""
    screens = _screens(FleetWatch(Site(scene.client, data_table, status_table)), "what", 0.0)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        next(screens)


def test_a_passing_trouble_is_a_screen_from_the_first_one_on(scene: Scene) -> None:
    scene.local.add_fault(FaultRule(operation="GetRange", table=STATUS, action=Fail("OTSServerBusy")))
    screens = _screens(FleetWatch(Site(scene.client, TABLE, STATUS)), "what", 0.0)

    failed = next(screens)
    assert isinstance(failed, FailedScreen)
    assert failed.text.startswith("what: cannot be read at the moment: status table")
    assert failed.text.endswith(situations.THROTTLED.advice), "it says what to do"
    scene.local.clear_faults()
    again = next(screens)
    assert isinstance(again, Overview)
    assert again.verdict["troubles"][0]["situation"] == "no-worker"
    scene.client.delete_table(STATUS)
    failed = next(screens)
    assert isinstance(failed, FailedScreen)
    assert "what: cannot be read at the moment" in failed.text
    told = failed.document["verdict"]["troubles"][0]
    assert (told["kind"], told["since_is_seen"]) == ("unreadable", True)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_live_output_goes_on_until_a_signal(scene: Scene, tmp_path: Path, number: signal.Signals) -> None:
    """One JSON document per line; a refresh that fails is a line, too, and does not end it."""
    scene.put_lease(scene.shard)
    command = [sys.executable, "-m", "streamclient.cli.main", "top", "--json", "--interval", "0.2", *options(scene)]
    lines = tmp_path / "lines"
    with lines.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.PIPE, text=True, env=dict(os.environ))
        try:
            until(lambda: len(lines.read_text().splitlines()) >= 2, "two screens")
            scene.client.delete_table(STATUS)
            until(lambda: "problem" in lines.read_text(), "a screen that failed")
            process.send_signal(number)
            _, err = process.communicate(timeout=PATIENCE_SECONDS)
        finally:
            process.kill()
            process.wait(PATIENCE_SECONDS)

    documents = [json.loads(line) for line in lines.read_text().splitlines()]
    assert process.returncode == 0
    assert err == ""
    assert documents[0]["totals"]["shards"] == 1
    assert STATUS in documents[-1]["problem"]


@pytest.mark.slow
def test_on_a_terminal_rich_draws_the_screen(scene: Scene) -> None:
    """Through a pseudo-terminal: the live screen, and tables of other commands."""
    pytest.importorskip("rich")
    scene.put_lease(scene.shard, "w1")
    code, listed = on_a_terminal(["leases", "list", *options(scene)], stop_at=None)
    assert code == 0
    assert "OWNER" in listed
    code, live = on_a_terminal(["top", "--interval", "0.2", *options(scene)], stop_at="TIME TO LOSS")

    assert code == 0
    assert "\x1b[?1049h" in live, "it uses the alternate screen"
    assert "orders: 1 worker" in live


def on_a_terminal(words: list[str], *, stop_at: str | None) -> tuple[int, str]:
    """Run a command on a terminal of 200 columns; interrupt it once it has printed something."""
    master, slave = pty.openpty()
    environment = {**os.environ, "COLUMNS": "200", "LINES": "40", "TERM": "xterm"}
    process = subprocess.Popen(
        [sys.executable, "-m", "streamclient.cli.main", *words],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=environment,
    )
    os.close(slave)
    seen = ""
    try:
        while select.select([master], [], [], PATIENCE_SECONDS)[0]:
            try:
                seen += os.read(master, 65_536).decode(errors="replace")
            except OSError:  # the other end is closed
                break
            if stop_at is not None and stop_at in seen:
                process.send_signal(signal.SIGINT)
                stop_at = None
        return process.wait(PATIENCE_SECONDS), seen
    finally:
        process.kill()
        process.wait(PATIENCE_SECONDS)
        os.close(master)


def test_what_left_the_status_table_is_forgotten_and_a_new_stream_has_a_new_reader(scene: Scene) -> None:
    """A reader lives as long as its worker, or as somebody watches."""
    scene.write(3)
    scene.put_lease(scene.shard)
    scene.put_lease("long-gone", checkpoint=scene.iterator())
    reader = FleetReader(Site(scene.client, TABLE, STATUS))
    reader.collect(None)
    heads = reader.head_reader(scene.stream_id)
    assert heads.known("long-gone", scene.iterator()) is not None
    scene.send(rule.delete(scene.lease("long-gone")))
    reader.collect(None)

    assert heads.known("long-gone", scene.iterator()) is None
    assert heads.known(scene.shard, "TRIM_HORIZON") is not None
    assert reader.head_reader("another-stream") is not heads
