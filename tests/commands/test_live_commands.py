"""``tail``, ``run`` and ``tables`` against real HTTP, in processes of their own where signals end them."""

from __future__ import annotations

import itertools
import json
import signal
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from streamclient.base.times import utc_text
from streamclient.cli import main
from streamclient.cli.sample_command import write_sample
from streamclient.errors import DependencyException, ErrorKind
from streamclient.server import FaultRule, LocalTablestore
from streamclient.server.fault_rules import Fail
from streamclient.tablestore import ReadRetry, TablestoreStreamApi
from streamclient.tablestore.following import LIST_SECONDS, FollowedRecord, Interruption, LostRecords, StreamFollower
from streamclient.testing.fakes import FakeStream
from streamclient.worker.lease import LeaseManager
from tests.commands.command_process import TABLES, CommandProcess
from tests.operate.operate_scene import TABLE, Scene, run_cli
from tests.patience import until
from tests.placed_records import make_record


@pytest.fixture
def scene(local: LocalTablestore) -> Scene:
    return Scene(local)


PRINTING = ("run", "print_changes:PrintChanges")


def tail(scene: Scene, *words: str) -> list[Any]:
    ran = run_cli("tail", TABLE, "--endpoint", scene.local.endpoint, "--json", *words)
    assert (ran.code, ran.err) == (0, "")
    return [json.loads(line) for line in ran.out.splitlines()]


def test_tail_shows_a_shard_before_its_children(scene: Scene) -> None:
    scene.write(5)
    parent = scene.shard
    children = scene.split()
    scene.write(5)
    found = tail(scene, "--from", "oldest", "--limit", "10")

    assert [each["shard"] for each in found[:5]] == [parent] * 5
    assert {each["shard"] for each in found[5:]} <= {*children}
    assert [each["columns"][0]["value"] for each in found] == [0, 1, 2, 3, 4] * 2


def test_tail_begins_at_a_time_and_takes_the_beginning_of_an_id(scene: Scene) -> None:
    scene.write(5)
    assert len(tail(scene, "--from", "1h-ago", "--shard", scene.shard[:8], "--limit", "5")) == 5
    low, _ = scene.split()
    ended = tail(scene, "--from", "oldest", "--shard", scene.shard)

    assert len(ended) == 5, "it ends with the shard, which is closed"
    ran = run_cli("tail", TABLE, "--endpoint", scene.local.endpoint, "--shard", f"{low}x")
    assert (ran.code, ran.out) == (2, "")
    assert "has no shard" in ran.err


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_tail_shows_changes_as_they_come_until_it_is_told_to_end(
    scene: Scene, tmp_path: Path, number: signal.Signals
) -> None:
    scene.write(3)
    with closing(CommandProcess(tmp_path, scene.local.endpoint, "tail", TABLE, "--from", "oldest")) as ran:
        until(lambda: len(ran.out) == 3, "what was there")
        scene.write(2, start=3)
        until(lambda: len(ran.out) == 5, "what came")
        ran.process.send_signal(number)

        assert (ran.ended(), ran.err) == (0, [])
    assert "PUT {id='key-04'} n=4" in ran.out[-1]


@pytest.mark.slow
def test_tail_begins_at_what_is_written_from_now_on(scene: Scene, tmp_path: Path) -> None:
    scene.write(3)
    scene.local.advance_clock(10.0)  # however coarse the service tells its time
    with closing(CommandProcess(tmp_path, scene.local.endpoint, "tail", TABLE, "--limit", "2")) as ran:
        until_it_reads(scene)
        scene.write(2, start=3)

        assert (ran.ended(), ran.err) == (0, [])
    assert [line.split()[-1] for line in ran.out] == ["n=3", "n=4"]


def until_it_reads(scene: Scene) -> None:
    """Wait until somebody reads records."""
    until(lambda: any(count.operation == "GetStreamRecord" for count in scene.local.requests()), "a read")


def test_a_follower_forgets_shards_that_left_the_listing() -> None:
    """It goes on for as long as somebody watches."""
    stream = FakeStream("orders", ["a"])
    stop, now = threading.Event(), itertools.count(step=LIST_SECONDS + 1)
    follower = StreamFollower(stream, stream.stream_id, stop=stop, monotonic=lambda: next(now))
    changes = follower.changes()
    stream.append("a", make_record("a"))
    next(changes)
    stream.split("a", "b", "c")
    stream.append("b", make_record("b"))
    next(changes)
    stream.split("b", "d", "e")
    stream.append("d", make_record("d"))
    next(changes)
    assert {*follower.known} == {*"abcde"}
    stream.remove("a")
    stream.remove("b")
    stream.append("e", make_record("e"))

    assert next(changes) == FollowedRecord("e", make_record("e"))
    stream.append("c", make_record("c"))
    next(changes)
    assert {*follower.known} == {*"cde"}


def test_a_follower_of_one_shard_ends_with_it_although_it_left_the_listing() -> None:
    stream = FakeStream("orders", ["a"])
    stream.append("a", make_record("a"))
    stream.close("a")
    follower = StreamFollower(stream, stream.stream_id, shard_ids=["a"])
    changes = follower.changes()
    next(changes)
    stream.remove("a")

    assert list(changes) == []


def test_a_follower_outlives_an_outage_and_says_so_among_the_changes(scene: Scene) -> None:
    scene.write(2)
    streams = TablestoreStreamApi(scene.client, retry=ReadRetry(retries=0))
    stop = threading.Event()
    changes = StreamFollower(streams, scene.stream_id, stop=stop).changes()
    assert isinstance(next(changes), FollowedRecord)
    next(changes)
    scene.local.add_fault(FaultRule(operation="GetStreamRecord", times=1, action=Fail("OTSServerBusy")))
    interrupted = next(changes)
    scene.write(1, start=2)
    after = next(changes)

    assert isinstance(interrupted, Interruption)
    assert interrupted.error.kind is ErrorKind.THROTTLED
    assert isinstance(after, FollowedRecord)
    stop.set()
    assert list(changes) == []


def test_a_follower_names_a_loss_and_goes_on_behind_it(scene: Scene) -> None:
    scene.write(4)
    changes = StreamFollower(scene.streams, scene.stream_id).changes()
    follower = [next(changes) for _ in range(4)]
    scene.write(3, start=4)
    scene.local.trim(TABLE, keep_last=1)
    found = [next(changes), next(changes)]

    assert all(isinstance(each, FollowedRecord) for each in follower)
    assert found[0] == LostRecords(scene.shard)
    assert isinstance(found[1], FollowedRecord)
    assert found[1].record.columns[0].value == 6


def test_an_error_for_good_ends_a_follower(scene: Scene) -> None:
    changes = StreamFollower(scene.streams, scene.stream_id).changes()
    scene.write(1)
    next(changes)
    scene.client.delete_table(TABLE)

    with pytest.raises(DependencyException, match="OTS"):
        list(changes)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_run_consumes_until_a_signal_and_ends_in_order(
    scene: Scene, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    write_sample("print_changes", tmp_path)
    scene.write(3)
    words = [*PRINTING, *TABLES, "--worker", "w1", "--log", "info"]
    with closing(CommandProcess(tmp_path, scene.local.endpoint, *words)) as ran:
        until(lambda: sum("PUT" in line for line in [*ran.out]) == 3, "three changes")
        ran.process.send_signal(number)

        assert ran.ended() == code
    (lease,) = LeaseManager(scene.client, "st", scene.stream_id).list_leases()

    err = "".join(ran.err)
    assert err.startswith(f"worker w1 reads table {TABLE}; Ctrl-C ends it\n")
    assert "let go, because no other worker can take it" in err, "no other worker was there"
    assert err.endswith("INFO worker w1 has ended\n")
    assert lease.checkpoint == scene.iterator(after=3)
    assert lease.checkpoint not in err, "positions in the log are readable"


@pytest.mark.slow
@pytest.mark.parametrize("beginning", ["latest", "a time"])
def test_run_begins_where_it_is_told_to(scene: Scene, tmp_path: Path, beginning: str) -> None:
    write_sample("print_changes", tmp_path)
    scene.write(3)
    scene.local.advance_clock(3_600.0)
    if beginning == "a time":
        scene.write(1, start=3)
        written = scene.streams.get_stream_record(scene.iterator(after=3)).records[0].sequence_info.timestamp_micros
        beginning = utc_text(written - 60_000_000)
    scene.local.reset_requests()
    with closing(CommandProcess(tmp_path, scene.local.endpoint, *PRINTING, *TABLES, "--from", beginning)) as ran:
        until_it_reads(scene)
        scene.write(1, start=4)
        until(lambda: "n=4" in "".join(ran.out), "the last change")
        ran.process.send_signal(signal.SIGINT)
        ran.ended()

    assert [n for n in range(5) if f"n={n}" in "".join(ran.out)] == ([4] if beginning == "latest" else [3, 4])


@pytest.mark.slow
def test_run_ends_with_the_sentence_of_a_worker_that_cannot_work(scene: Scene, tmp_path: Path) -> None:
    code, err = run_that_cannot_work(scene, tmp_path, "text")

    assert code == 1
    assert err[-1].startswith("streamclient run: ")
    assert "table 'other' cannot be the status table: " in err[-1]
    assert "".join(err).count("cannot be the status table") == 1, "it is said once"


@pytest.mark.slow
def test_run_that_logs_json_ends_with_one_document_of_what_the_worker_cannot_do(scene: Scene, tmp_path: Path) -> None:
    code, err = run_that_cannot_work(scene, tmp_path, "json")
    (told,) = [each for each in map(json.loads, err) if "cannot be the status table" in json.dumps(each)]

    assert code == 1
    assert told == json.loads(err[-1])
    assert told["message"].startswith("streamclient run: ")
    assert (told["level"], told["logger"]) == ("error", "streamclient")
    assert not {"stack", "error", "error_type"} & told.keys(), "it is foreseen, and no fault of the program"


def run_that_cannot_work(scene: Scene, folder: Path, log_format: str) -> tuple[int, list[str]]:
    """The exit code and the lines on standard error of a worker whose status table is a table of data."""
    write_sample("print_changes", folder)
    assert run_cli("tables", "create", "other", "--endpoint", scene.local.endpoint).code == 0
    words = [*PRINTING, "--data-table", TABLE, "--status-table", "other", "--log-format", log_format]
    with closing(CommandProcess(folder, scene.local.endpoint, *words)) as ran:
        return ran.ended(), ran.err


BROKEN = """
from streamclient.worker import stream_run

def fail(*given):
    raise ZeroDivisionError("a fault of the program")

stream_run.find_stream_id = fail
"""


@pytest.mark.slow
@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_fault_that_nobody_foresaw_ends_run_with_one_traceback(scene: Scene, tmp_path: Path, log_format: str) -> None:
    """The log has the stack, and the last line the sentence."""
    write_sample("print_changes", tmp_path)
    with (tmp_path / "print_changes.py").open("a") as program:
        program.write(BROKEN)
    with closing(CommandProcess(tmp_path, scene.local.endpoint, *PRINTING, *TABLES, "--log-format", log_format)) as ran:
        assert ran.ended() == 1

    assert "".join(ran.err).count("Traceback (most recent call last)") == 1, ran.err
    assert "streamclient run: " in ran.err[-1]
    assert "a fault of the program" in ran.err[-1]
    assert "Traceback" not in ran.err[-1]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["tail", TABLE, "--limit", "0"], "--limit must be at least 1, not 0"),
        (["tail", TABLE, "--from", "yesterday"], "a time is written like"),
        (["tail", "nothing"], "table 'nothing' does not exist"),
        (["tail", "quiet"], "table 'quiet' has no stream; `streamclient tables stream` enables it"),
        (["tables", "describe", "nothing"], "table 'nothing' does not exist"),
        (["tables", "drop", "nothing", "--yes"], "table 'nothing' does not exist"),
        (["tables", "stream", "nothing"], "table 'nothing' does not exist"),
        (["tables", "drop", TABLE], "deletes its rows and its stream; add --yes"),
        (["tables", "stream", TABLE, "--off"], "drops its records; add --yes"),
        (["tables", "create", "x", "--key", "id:TEXT"], "--key must be NAME:TYPE with a type of STRING"),
        (["tables", "create", "x", "--hours", "0"], "expiration_time_hours must be"),
        (["tables", "create", "x", "--no-stream", "--hours", "48"], "--hours is for a stream, and --no-stream leaves"),
        (["tables", "create", "x", "--no-stream", "--origin", "a"], "--origin is for a stream, and --no-stream leaves"),
        (["tables", "stream", TABLE, "--off", "--yes", "--hours", "48"], "--hours is for a stream, and --off leaves"),
        (["tables", "create", TABLE], "OTSObjectAlreadyExist"),
        (["run", "json:nothing", "--data-table", TABLE, "--status-table", "st"], "names no factory"),
        (["parked", "list", "--table", "nothing"], "the table 'nothing' of parked records does not exist"),
        (["parked", "list", "--table", TABLE], "cannot hold parked records: its primary key is"),
        (["leases", "list", "--data-table", TABLE, "--status-table", TABLE], "cannot be the status table"),
        (["leases", "list", "--data-table", TABLE, "--status-table", "nothing"], "the table does not exist"),
    ],
)
def test_what_cannot_work_is_one_line_that_begins_with_the_command(scene: Scene, words: list[str], reason: str) -> None:
    run_cli("tables", "create", "quiet", "--no-stream", "--endpoint", scene.local.endpoint)
    ran = run_cli(*words, "--endpoint", scene.local.endpoint)
    command = " ".join(words[:2]) if words[0] in ("tables", "parked", "leases") else words[0]

    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert ran.err.startswith(f"streamclient {command}: ")
    assert reason in ran.err
    assert "nothing" not in scene.client.list_table(), "nothing is made by looking for it"


def test_a_table_is_made_described_switched_and_dropped(local: LocalTablestore) -> None:
    def say(*words: str) -> Any:
        ran = run_cli("tables", *words, "--endpoint", local.endpoint, "--json")
        assert (ran.code, ran.err) == (0, ""), ran
        return ran.document

    say("create", "t", "--key", "city", "--key", "day:integer", "--column", "n:INTEGER", "--origin", "n")
    described = say("describe", "t")
    assert described["key"] == [{"name": "city", "type": "STRING"}, {"name": "day", "type": "INTEGER"}]
    assert (described["expiration_hours"], described["origin_columns"]) == (24, ["n"])
    assert len(described["shards"]) == 1
    assert say("stream", "t", "--off", "--yes")["stream"] is None
    assert say("list") == {"tables": [{"table": "t", "stream": None, "since_micros": None}]}
    stream = say("stream", "t", "--hours", "48")["stream"]
    assert say("list")["tables"] == [{"table": "t", "stream": stream, "since_micros": int(stream.removeprefix("t_"))}]
    assert say("drop", "t", "--yes") == {"table": "t", "dropped": True}
    assert say("list") == {"tables": []}


def test_options_stand_on_either_side_of_an_action(local: LocalTablestore) -> None:
    here = ["--endpoint", local.endpoint]

    assert main.main(["tables", *here, "--json", "list"]) == 0
    assert main.main(["tables", "list", *here, "--json"]) == 0
    assert run_cli("tables", "--endpoint", "http://127.0.0.1:1", "list", *here).code == 0, "the nearer one counts"


def test_a_sample_is_not_written_over(tmp_path: Path) -> None:
    first = run_cli("sample", "console", "--directory", str(tmp_path))
    again = run_cli("sample", "console", "--directory", str(tmp_path))

    assert first.code == 0
    assert (again.code, again.err.count("exists already; --force overwrites it")) == (2, 1)
    assert run_cli("sample", "console", "--directory", str(tmp_path), "--force").code == 0
    assert run_cli("sample", "console", "--directory", "/dev/null/x").code == 2
