"""What a console of fleets tells, what it costs, and what becomes of it while the service is away."""

from __future__ import annotations

import shlex
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from console_tools import Feed
from fleet_console import FleetConsole, every_path, parked_record, timeless

from streamclient import ClientConfig, StreamConfig, Worker
from streamclient.console import feeds
from streamclient.interfaces import IRecordProcessor, ProcessRecordsInput
from streamclient.model import Pause
from streamclient.operate import fleet_following, fleet_watch
from streamclient.operate.next_records import change_document
from streamclient.server import Fail, FaultRule, LocalTablestore
from streamclient.tablestore.instance import LOCAL_ACCESS_KEY_SECRET
from streamclient.worker.parking import FileParkingStore, TableParkingStore
from tests.operate.operate_scene import STATUS, TABLE, closed_family, read_shard, run_cli
from tests.patience import FOREVER_SECONDS, until

SECRET = "a-secret-of-this-test"


@pytest.fixture
def opened() -> Iterator[Callable[..., FleetConsole]]:
    """Start a Tablestore with a fleet's tables, and a console of the fleet."""
    with ExitStack() as stack:

        def start(secret: str = SECRET, **options: Any) -> FleetConsole:
            local = stack.enter_context(LocalTablestore(access_key_secret=secret))
            return stack.enter_context(FleetConsole(local, **options))

        yield start


@pytest.fixture
def console(opened: Callable[..., FleetConsole]) -> FleetConsole:
    return opened(secret=LOCAL_ACCESS_KEY_SECRET)


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """No reading comes by itself after the first."""
    monkeypatch.setattr(fleet_following, "INTERVAL_SECONDS", FOREVER_SECONDS)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """One reading comes after the other."""
    monkeypatch.setattr(fleet_following, "INTERVAL_SECONDS", 0.01)
    monkeypatch.setattr(fleet_following, "INTERVAL_ROUNDS", 0)


def pause(by: str = "bob@ops") -> Pause:
    return Pause("p1", by, "a reason", None)


# --- documents -----------------------------------------------------------------------------------------------------


def test_documents_of_a_fleet_are_what_commands_print(console: FleetConsole) -> None:
    parent, first, second = closed_family(console.fleet)
    console.fleet.put_lease(first, parents=[parent], pause=pause())
    console.fleet.put_worker("w1")
    told = console.get(f"fleets/{TABLE}")
    printed = console.command("top", "--once", "--json").document

    assert [shard.pop("id") for shard in told["shards"]] == [shard["shard"] for shard in printed["shards"]]
    assert [worker.pop("id") for worker in told["workers"]] == ["w1"]
    new = {name: told.pop(name) for name in ("read_micros", "problem", "next_seconds", "lag")}
    assert timeless(told) == timeless(printed)
    assert (new["problem"], len(new["lag"])) == (None, 1)
    assert new["read_micros"] == told["now_micros"]
    grouped = console.get(f"fleets/{TABLE}?detail=groups")
    assert "shards" not in grouped
    assert timeless(grouped["groups"]) == timeless(
        console.command("top", "--once", "--json", "--groups").document["groups"]
    )
    assert console.ask("GET", f"/api/v1/fleets/{TABLE}?detail=none").status == 400

    lease = console.get(f"fleets/{TABLE}/shards/{second}")
    assert list(lease.pop("commands")) == ["pause", "resume", "move", "release"], "no store, so nothing is parked"
    assert timeless(lease) == timeless(console.command("leases", "show", second, "--json").document)
    explained = console.command("explain", second, "--observe", "0", "--json").document
    assert timeless(lease["explanation"]) == timeless(explained["shards"][0])


def test_next_records_are_those_after_the_checkpoint_and_values_are_shown_on_wish_alone(
    opened: Callable[..., FleetConsole],
) -> None:
    for shows in (False, True):
        console = opened(shows_values=shows)
        fleet = console.fleet
        fleet.write(6)
        fleet.client.put_row(TABLE, _row("key-99", secret="s" * 5_000))
        fleet.put_lease(fleet.shard, checkpoint=fleet.iterator(after=5))
        records = console.get(f"fleets/{TABLE}/shards/{fleet.shard}/records")["records"]
        found = fleet.streams.get_stream_record(fleet.iterator(after=5), 10).records
        expected = [change_document(fleet.shard, record) for record in found]

        assert [record["key"] for record in records] == [{"id": "key-05"}, {"id": "key-99"}]
        if shows:
            assert records[0]["columns"] == [{**column, "cut_bytes": 0} for column in expected[0]["columns"]]
            (cut,) = records[1]["columns"]
            assert (cut["value"], cut["cut_bytes"]) == ("s" * 4_096, 5_000 - 4_096)
        else:
            assert [set(column) for column in records[0]["columns"]] == [{"name", "operation", "timestamp_millis"}]
        limited = console.get(f"fleets/{TABLE}/shards/{fleet.shard}/records?limit=1")["records"]
        assert limited == records[:1]
        for wrong in ("0", "9" * 5_000):
            path = f"/api/v1/fleets/{TABLE}/shards/{fleet.shard}/records?limit={wrong}"
            assert console.ask("GET", path).status == 400


def test_the_story_shows_owners_and_what_does_not_move(console: FleetConsole) -> None:
    parent, first, second = closed_family(console.fleet)
    console.fleet.put_lease(first, "w1", parents=[parent], checkpoint=console.fleet.iterator(first, after=3))
    console.fleet.put_lease(second, parents=[parent], pause=pause())
    console.fleet.put_worker("w1")
    story = console.get(f"fleets/{TABLE}/story")
    bands = {band["shard"]: band for band in story["bands"]}

    assert set(bands) == {first, second}, "the finished one was closed before the first reading"
    assert (bands[first]["owner"], bands[first]["moves"]) == ("w1", True)
    assert (bands[second]["situation"], bands[second]["moves"]) == ("paused", False)
    assert [line["id"] for line in story["shards"]] == list(bands)


def test_the_verdict_of_several_fleets_begins_with_the_worst(opened: Callable[..., FleetConsole]) -> None:
    console = opened()
    quiet = console.site("quiet_status")
    bad = read_shard(console.fleet, pause=pause())
    console.pages.close()
    with FleetConsole(console.local, console.fleet, sites={"quiet": quiet, TABLE: console.site()}) as both:
        verdict = both.get("verdict")
        lines = {line["id"]: line for line in both.get("fleets")["fleets"]}
        with both.feed(f"verdict,fleets,fleet:{TABLE},nothing,fleet:none") as feed:
            told = feed.until(lambda documents: "error" not in documents.get(f"fleet:{TABLE}", {"error": 1}))

    assert not verdict["is_well"]
    ids = [trouble["id"] for trouble in verdict["troubles"]]
    assert len(ids) == len(set(ids)) == 2
    assert {trouble["fleet"] for trouble in verdict["troubles"]} == {"quiet", TABLE}
    assert verdict["troubles"][0]["kind"] == "unreadable", "the status table of the fleet quiet does not exist"
    assert "does not exist" in lines["quiet"]["problem"]
    assert (lines[TABLE]["shards"], lines[TABLE]["moving"], lines[TABLE]["is_well"]) == (1, 0, False)
    assert verdict["sentence"].endswith("1 more of 2 fleets is not well.")
    assert verdict["troubles"][1]["shards"] == [bad]
    assert {told[topic]["error"]["code"] for topic in ("nothing", "fleet:none")} == {"topic"}


def test_parked_records_come_by_cause_and_without_values(opened: Callable[..., FleetConsole], tmp_path: Any) -> None:
    store = FileParkingStore(tmp_path)
    for shows in (False, True):
        console = opened(store=store, parking_directory=str(tmp_path), shows_values=shows)
        stream = console.fleet.stream_id
        store.park([parked_record(f"k{number}", number, stream, amount="hidden") for number in range(1, 4)])
        store.park([parked_record("k9", 9, stream, error="KeyError: 7")])
        document = console.get(f"fleets/{TABLE}/parked")

        assert document["count"] == 4
        assert [(cause["records"], cause["error"]) for cause in document["causes"]] == [
            (3, "ValueError: no 'x'"),
            (1, "KeyError: 7"),
        ]
        first = document["records"][0]
        assert (first["key"], first["cause"]) == ([["id", "k9"]], document["causes"][1]["id"])
        assert not [record for record in document["records"] if "frame" in record]
        assert [column["value"] for column in document["records"][1].get("columns", [])] == ["hidden"] * shows
        words = ("parked", "show", "--directory", str(tmp_path), "--json", "--stream", stream)
        printed = {record["record_id"]: record for record in run_cli(*words).document}
        for record in document["records"]:
            same = {name: each for name, each in printed[record["record_id"]].items() if name != "frame"}
            assert same.items() <= record.items()
        store.remove(list(store.parked(stream)))


@pytest.mark.parametrize("kind", ["table", "directory"])
def test_a_read_only_console_gives_commands_that_work_as_they_are(
    opened: Callable[..., FleetConsole], tmp_path: Any, kind: str
) -> None:
    first = opened(secret=LOCAL_ACCESS_KEY_SECRET)
    local, stream = first.local, first.fleet.stream_id
    store = FileParkingStore(tmp_path) if kind == "directory" else TableParkingStore(local.client(), "parked")
    named: dict[str, Any] = {"parking_directory": str(tmp_path)} if kind == "directory" else {"parking_table": "parked"}
    replayed = f"{Replayed.__module__}:{Replayed.__name__}"
    rights = {"store": store, "processor": Replayed, "processor_name": replayed, **named}
    with FleetConsole(local, first.fleet, allows_actions=False, **rights) as console:
        store.park([parked_record("k1", 1, stream), parked_record("k2", 2, stream, error="KeyError: 7")])
        document = console.get(f"fleets/{TABLE}/parked")
        causes = {cause["cause"][:5]: cause["id"] for cause in document["causes"]}
        for action, cause in (("discard", causes["Value"]), ("replay", causes["KeyEr"])):
            run_as_shown(f"{document['commands'][action]} --cause {cause}")

    assert list(store.parked(stream)) == []


def test_a_read_only_console_gives_commands_about_leases_that_work(
    opened: Callable[..., FleetConsole], tmp_path: Any
) -> None:
    first = opened(secret=LOCAL_ACCESS_KEY_SECRET)
    shard = read_shard(first.fleet)
    rights = {"store": FileParkingStore(tmp_path), "parking_directory": str(tmp_path)}
    with FleetConsole(first.local, first.fleet, allows_actions=False, **rights) as console:
        path = f"fleets/{TABLE}/shards/{shard}"
        commands = console.get(path)["commands"]
        run_as_shown(commands["pause"])
        paused = console.get(path)["lease"]["pause"]
        (trouble,) = console.get("verdict")["troubles"]
        run_as_shown(trouble["command"])
        left = console.get(path)["lease"]["pause"]
        run_as_shown(commands["pause"])
        run_as_shown(commands["resume"])

    common = f"--reason WHY --data-table {TABLE} --status-table {STATUS} --endpoint {first.local.endpoint}"
    assert commands == {
        "pause": f"streamclient leases pause {shard} {common}",
        "resume": f"streamclient leases resume {shard} {common}",
        "move": f"streamclient leases move {shard} --to WORKER {common}",
        "release": f"streamclient leases release {shard} {common}",
        "park": f"streamclient leases park {shard} --parking-directory {tmp_path} {common}",
    }
    assert (paused["reason"], left) == ("WHY", None)
    assert "park" not in first.get(path)["commands"], "a console without a store parks nothing"


def run_as_shown(command: str) -> None:
    """Run a command line that a page shows for copying."""
    program, *words = shlex.split(command)
    ran = run_cli(*words)
    assert (program, ran.code) == ("streamclient", 0), (ran.out, ran.err)


class Replayed(IRecordProcessor):
    """Takes every record."""

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        process_records_input.checkpointer.checkpoint()


def test_a_look_at_parked_records_makes_no_table(opened: Callable[..., FleetConsole]) -> None:
    first = opened()
    local = first.local
    store = TableParkingStore(local.client(), "parked")
    which = f"--table parked --endpoint {local.endpoint} --stream {first.fleet.stream_id}"
    with FleetConsole(local, first.fleet, store=store, parking_table="parked") as console:
        read_shard(console.fleet)
        assert console.get(f"fleets/{TABLE}/parked") == {
            "count": 0,
            "causes": [],
            "records": [],
            "commands": {
                "replay": f"streamclient parked replay {which} --processor MODULE:NAME",
                "discard": f"streamclient parked discard {which}",
            },
        }
        console.get(f"fleets/{TABLE}/shards/{console.fleet.shard}")
        assert console.parked("discard", cause="x").content["error"]["code"] == "not-parked"

    assert "parked" not in local.client().list_table()


def test_without_a_store_the_page_is_told_which_option_names_one(console: FleetConsole) -> None:
    read_shard(console.fleet)
    answer = console.ask("GET", f"/api/v1/fleets/{TABLE}/parked")

    assert (answer.status, answer.content["error"]["code"]) == (404, "no-parking")
    assert "--parking-table" in answer.content["error"]["advice"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "nothing", 404),
        ("GET", "fleets/none", 404),
        ("GET", "fleets/none/story", 404),
        ("GET", f"fleets/{TABLE}/nothing", 404),
        ("GET", f"fleets/{TABLE}/shards/none", 404),
        ("GET", f"fleets/{TABLE}/shards/none/records", 404),
        ("POST", f"fleets/{TABLE}", 404),
        ("POST", f"fleets/{TABLE}/parked", 404),
        ("POST", "fleets/none/actions", 404),
        ("DELETE", f"fleets/{TABLE}/actions", 404),
    ],
)
def test_what_is_not_there_is_refused_with_a_text(console: FleetConsole, method: str, path: str, status: int) -> None:
    answer = console.ask(method, f"/api/v1/{path}", None if method == "GET" else {"reason": "x"})

    assert answer.status == status
    assert answer.content["error"]["text"]


def test_about_tells_the_page_what_it_may(opened: Callable[..., FleetConsole], tmp_path: Any) -> None:
    console = opened(store=FileParkingStore(tmp_path), shows_values=True, allows_actions=False)
    about = console.get("about")

    assert (about["mode"], about["fleets"], about["instance"]) == ("fleet", [TABLE], "local")
    assert [about[name] for name in ("allows_actions", "shows_values", "can_replay", "has_parking")] == [
        False,
        True,
        False,
        True,
    ]


# --- with real workers ---------------------------------------------------------------------------------------------


class Reading(IRecordProcessor):
    """Checkpoints whatever comes."""

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        process_records_input.checkpointer.checkpoint()


def worker(console: FleetConsole, name: str) -> Worker:
    stream = StreamConfig(client=console.local.client(), data_table_name=TABLE, status_table_name=STATUS)
    config = ClientConfig(taker_interval_millis=200, renewer_interval_millis=200)
    return Worker(name, config, stream, Reading)


def test_a_feed_follows_real_workers(console: FleetConsole, hasty: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_watch, "STREAM_SECONDS", 0.0)  # a split is in the next reading
    console.fleet.write(20)
    topics = f"verdict,fleets,fleet:{TABLE},moves:{TABLE},story:{TABLE}"
    with console.feed(topics) as feed, worker(console, "w1"):

        def is_read(documents: dict[str, Any]) -> bool:
            shards = documents.get(f"fleet:{TABLE}", {}).get("shards") or [{"owner": "", "moves": False}]
            return shards[0]["owner"] == "w1" and shards[0]["moves"] and documents["verdict"].get("is_well", False)

        told = feed.until(is_read)
        (listed,) = told[f"fleet:{TABLE}"]["workers"]
        assert (listed["worker"], listed["life"]) == ("w1", "living")
        console.fleet.split()
        console.fleet.write(20)
        told = feed.until(lambda documents: documents[f"fleet:{TABLE}"]["totals"]["finished"] == 1)
        feed.until(lambda documents: "w1" in {lane["id"] for lane in documents[f"moves:{TABLE}"]["lanes"]})
        feed.until(lambda documents: len(documents[f"story:{TABLE}"]["bands"]) == 3)
        assert feed.kinds.count("patch") > 0
        assert told["fleets"]["fleets"][0]["workers"] == 1


# --- cost ----------------------------------------------------------------------------------------------------------


def test_an_unwatched_console_asks_for_nothing(
    console: FleetConsole, hasty: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "LINGER_SECONDS", 0.05)
    read_shard(console.fleet)
    console.local.reset_requests()
    console.get("about")
    assert console.request_count == 0
    follower = console.pages._fleets[TABLE].follower
    for _ in range(2):
        with console.feed(f"fleet:{TABLE}") as feed:
            first = feed.until(lambda documents: "shards" in documents.get(f"fleet:{TABLE}", {}))
            seen = first[f"fleet:{TABLE}"]["read_micros"]
            feed.until(lambda documents, seen=seen: documents[f"fleet:{TABLE}"]["read_micros"] > seen)  # type: ignore[misc]
        until(lambda: not follower._is_wanted, "the end of the readings")
        with follower._reading:  # the last one has ended
            asked = console.request_count
        for _ in range(20):
            console.get("about")
        assert console.request_count == asked


def test_ten_viewers_cost_what_one_does(console: FleetConsole, unhurried: None) -> None:
    read_shard(console.fleet)
    with ExitStack() as stack:

        def looks() -> Feed:
            feed = stack.enter_context(console.feed(f"verdict,fleet:{TABLE}"))
            feed.until(lambda documents: "shards" in documents.get(f"fleet:{TABLE}", {}))
            return feed

        looks()
        asked = console.request_count
        for _ in range(9):
            looks()
        with console.feed(f"story:{TABLE}") as other:  # another document of the same reading
            other.until(lambda documents: "bands" in documents.get(f"story:{TABLE}", {}))
        console.get(f"fleets/{TABLE}")
        console.get("verdict")
        assert console.request_count == asked


def test_a_fleet_that_nobody_follows_is_not_read(opened: Callable[..., FleetConsole], unhurried: None) -> None:
    console = opened()
    read_shard(console.fleet)
    with FleetConsole(console.local, console.fleet, sites={TABLE: console.site(), "other": console.site()}) as both:
        other = both.pages._fleets["other"].follower
        with both.feed(f"fleet:{TABLE}") as feed:
            feed.until(lambda documents: "shards" in documents.get(f"fleet:{TABLE}", {}))
            assert (other.reading.view, other._thread) == (None, None)
            with both.feed("fleets") as all_of_them:
                unread: dict[str, Any] = {"fleets": [{"shards": None}]}
                all_of_them.until(
                    lambda documents: all(each["shards"] for each in documents.get("fleets", unread)["fleets"])
                )
        assert other.reading.view is not None


def test_the_event_loop_makes_no_call_of_the_service(console: FleetConsole, hasty: None) -> None:
    shard = read_shard(console.fleet)
    threads: set[str] = set()
    site = console.pages._fleets[TABLE].site
    send = site.client.connection.send_receive
    site.client.connection.send_receive = lambda *request: (
        threads.add(threading.current_thread().name),
        send(*request),
    )[1]
    for path in every_path(shard):
        console.ask("GET", f"/api/v1/{path}")
    console.act("pause", shard)
    with console.feed(f"verdict,fleet:{TABLE}") as feed:
        feed.until(lambda documents: "shards" in documents.get(f"fleet:{TABLE}", {}))

    assert threads
    assert f"console-{console.console.port}" not in threads


# --- the service is away -------------------------------------------------------------------------------------------


def test_while_the_service_is_away_the_last_good_data_stay_with_the_problem(console: FleetConsole, hasty: None) -> None:
    shard = read_shard(console.fleet)
    topic = f"fleet:{TABLE}"
    with console.feed(f"verdict,fleets,{topic}") as feed:
        before = feed.until(lambda documents: "shards" in documents.get(topic, {}))[topic]
        fault = console.local.add_fault(FaultRule("*", Fail("OTSAuthFailed", http_status=403)))
        told = feed.until(lambda documents: documents[topic]["problem"] is not None)
        away = told[topic]
        assert "OTSAuthFailed" in away["problem"]
        assert [line["shard"] for line in away["shards"]] == [shard]
        assert away["read_micros"] >= before["read_micros"]
        told = feed.until(lambda documents: not documents["verdict"]["is_well"])
        assert told["verdict"]["troubles"][0]["kind"] == "unreadable"
        feed.until(lambda documents: documents["fleets"]["fleets"][0]["problem"] is not None)
        console.local.remove_fault(fault)
        back = feed.until(lambda documents: documents[topic]["problem"] is None)[topic]
        assert back["read_micros"] > away["read_micros"]


def test_a_fleet_that_could_never_be_read_is_told_as_such(opened: Callable[..., FleetConsole], hasty: None) -> None:
    console = opened()
    with FleetConsole(console.local, console.fleet, sites={"lost": console.site("missing")}) as lost:
        answer = lost.ask("GET", "/api/v1/fleets/lost")
        with lost.feed("fleet:lost,verdict") as feed:
            told = feed.until(
                lambda documents: documents.get("fleet:lost", {"error": {"code": ""}})["error"]["code"] == "unreadable"
            )

    assert (answer.status, answer.content["error"]["code"]) == (503, "unreadable")
    assert "missing cannot be read: the table does not exist" in told["fleet:lost"]["error"]["text"]


# --- secrets and values --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_away", [False, True])
def test_no_answer_has_a_secret_or_a_value(opened: Callable[..., FleetConsole], tmp_path: Any, is_away: bool) -> None:
    store = FileParkingStore(tmp_path)
    console = opened(store=store, parking_directory=str(tmp_path))
    fleet = console.fleet
    fleet.client.put_row(TABLE, _row("key-01", amount="a-value-of-a-customer"))
    shard = fleet.shard
    fleet.put_lease(shard, checkpoint="TRIM_HORIZON")
    store.park([parked_record("k1", 1, fleet.stream_id, amount="a-value-of-a-customer")])
    if is_away:
        console.local.add_fault(FaultRule("*", Fail("OTSAuthFailed", http_status=403)))
    answers = [console.ask("GET", f"/api/v1/{path}") for path in every_path(shard)]
    answers += [console.act(command, shard) for command in ("pause", "release", "park", "move", "skip")]
    answers += [console.parked(action, cause="x") for action in ("replay", "discard")]
    answers += [console.ask("GET", "/api/v1/about", Authorization="Bearer wrong"), console.ask("GET", "/")]
    key = console.console.doors.key

    assert key is not None
    for answer in answers:
        for secret in (SECRET, key, "a-value-of-a-customer"):
            assert secret.encode() not in answer.body, answer
    assert sum(answer.status == 200 for answer in answers) > (1 if is_away else 10)


def _row(key: str, **columns: Any) -> Any:
    from tablestore import Row

    return Row([("id", key)], list(columns.items()))
