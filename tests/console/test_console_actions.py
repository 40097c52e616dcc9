"""Orders from a page: planned, confirmed, carried out as by the command, audited; refused where something changed."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

import pytest
from fleet_console import WHO, FleetConsole, parked_record, timeless

from streamclient.core import leases as rule
from streamclient.core.worker_info import WorkerInfo
from streamclient.interfaces import IRecordProcessor, ProcessRecordsInput
from streamclient.server import LocalTablestore
from streamclient.worker.parking import FileParkingStore
from streamclient.worker.parking.parked_documents import document_of
from tests.operate.operate_scene import TABLE, read_shard, run_cli

BY = f"{WHO} (console)"


@pytest.fixture
def opened() -> Iterator[Callable[..., FleetConsole]]:
    with ExitStack() as stack:

        def start(**options: Any) -> FleetConsole:
            local = stack.enter_context(LocalTablestore())
            return stack.enter_context(FleetConsole(local, **options))

        yield start


@pytest.fixture
def console(opened: Callable[..., FleetConsole]) -> FleetConsole:
    return opened()


def planned(console: FleetConsole, command: str, *shards: str, **options: Any) -> dict[str, Any]:
    answer = console.act(command, *shards, **options)
    assert answer.status == 200, answer
    content: dict[str, Any] = answer.content
    return content


def test_a_pause_is_planned_confirmed_written_and_audited(console: FleetConsole) -> None:
    shard = read_shard(console.fleet)
    before = console.fleet.cells()
    plan = planned(console, "pause", shard, **{"for": "15m"})

    assert console.fleet.cells() == before, "a plan writes nothing"
    assert plan["report"]["status"] == "planned"
    printed = console.command("leases", "pause", shard, "--for", "15m", "--reason", "a test", "--dry-run", "--json")
    assert _shape(plan["report"]) == _shape(printed.document)
    done = console.act("pause", shard, plan=plan["plan"], **{"for": "15m"})
    assert (done.status, done.content["report"]["status"]) == (200, "done")
    lease = console.fleet.lease(shard)
    assert lease.pause is not None
    assert (lease.pause.by, lease.pause.reason) == (BY, "a test")
    (row,) = console.fleet.audit()
    assert (row["who"], row["reason"], row["outcome"], row["shard"]) == (BY, "a test", "done", shard)
    assert row["command"] == f"pause {shard} --for 15m"


def test_a_command_that_the_page_shows_does_the_same(console: FleetConsole) -> None:
    shard = read_shard(console.fleet)
    words = planned(console, "pause", shard)["command"]
    assert shlex.split(words)[0] == "streamclient"
    ran = run_cli(*shlex.split(words)[1:], "--no-wait")

    assert (ran.code, ran.err) == (0, "")
    assert console.fleet.lease(shard).pause is not None
    resumed = planned(console, "resume", shard)
    assert console.act("resume", shard, plan=resumed["plan"]).content["report"]["status"] == "done"
    assert console.fleet.lease(shard).pause is None


def test_move_release_and_park_are_orders_as_well(console: FleetConsole, tmp_path: Path) -> None:
    shard = read_shard(console.fleet, owner="w1")
    for name in ("w1", "w2"):
        console.fleet.put_worker(name, info=WorkerInfo(obeys_orders=True))
    plan = planned(console, "move", shard, to="w2")
    assert console.act("move", shard, plan=plan["plan"], to="w2").content["report"]["status"] == "done"
    assert console.fleet.lease(shard).stealer == "w2"
    refused = planned(console, "release", shard)["report"]
    assert [refusal["hindrance"] for refusal in refused["refusals"]] != []
    with FleetConsole(
        console.local, console.fleet, store=FileParkingStore(tmp_path), parking_directory=str(tmp_path)
    ) as with_store:
        halted = planned(with_store, "park", shard)["report"]
        assert "name the record" in halted["refusals"][0]["reason"]
    assert console.act("park", shard).content["error"]["code"] == "no-parking"


def test_a_lease_that_moves_between_plan_and_confirmation_is_not_changed(console: FleetConsole) -> None:
    shard = read_shard(console.fleet)
    plan = planned(console, "pause", shard)
    console.fleet.send(rule.take(console.fleet.lease(shard), "w9"))
    before = console.fleet.cells()
    answer = console.act("pause", shard, plan=plan["plan"])

    assert (answer.status, answer.content["error"]["code"]) == (409, "changed")
    assert console.fleet.cells() == before, "neither the lease nor an audit row is written"
    again = planned(console, "pause", shard)
    assert again["plan"] != plan["plan"]
    assert console.act("pause", shard, plan=again["plan"]).content["report"]["status"] == "done"


def test_a_plan_for_another_order_or_reason_is_refused(console: FleetConsole) -> None:
    shard = read_shard(console.fleet)
    plan = planned(console, "pause", shard)["plan"]
    for answer in (
        console.act("pause", shard, plan=plan, reason="another"),
        console.act("pause", shard, plan=plan, **{"for": "1h"}),
        console.act("resume", shard, plan=plan),
        console.act("pause", plan=plan, all=True),
    ):
        assert (answer.status, answer.content["error"]["code"]) == (409, "changed")
    assert console.fleet.lease(shard).pause is None
    assert console.fleet.audit() == []


@pytest.mark.parametrize(
    ("content", "code"),
    [
        *(({"command": name, "shards": ["s"]}, "command") for name in ("skip", "rewind", "reset", "accept-end", "", 5)),
        ({"command": "pause", "shards": ["s"], "reason": " "}, "reason"),
        ({"command": "pause", "shards": ["s"], "reason": 7}, "argument"),
        ({"command": "pause", "shards": ["s"], "reason": "x" * 1001}, "argument"),
        ({"command": "pause", "shards": "s"}, "shards"),
        ({"command": "pause", "shards": [5]}, "shards"),
        ({"command": "pause", "shards": ["s"] * 1001}, "shards"),
        ({"command": "pause", "shards": []}, "argument"),
        ({"command": "pause", "shards": ["s"], "options": {"all": True}}, "argument"),
        ({"command": "pause", "shards": ["s"], "options": {"for": "soon"}}, "argument"),
        ({"command": "pause", "shards": ["s"], "options": {"for": "3000000d"}}, "argument"),
        ({"command": "pause", "shards": ["s"], "options": {"for": "9" * 200 + "d"}}, "argument"),
        ({"command": "pause", "shards": ["s"], "options": {"for": math.nan}}, "argument"),
        ({"command": "pause", "shards": ["s"], "options": {"worker": "\ud800"}}, "argument"),
        ({"command": "pause", "shards": ["s"], "reason": "a \ud800"}, "argument"),
        ({"command": "pause", "shards": ["s", "\udfff"]}, "shards"),
        ({"command": "release", "shards": ["s"], "options": {"pause": "2d"}}, "argument"),
        ({"command": "release", "shards": ["s"], "options": {"pause": "99999999999999999d"}}, "argument"),
        ({"command": "pause", "shards": ["s"], "options": {"yes": True}}, "options"),
        ({"command": "pause", "shards": ["s"], "options": ["for"]}, "options"),
        ({"command": "move", "shards": ["s"]}, "options"),
        ({"command": "move", "shards": ["s", "t"], "options": {"to": "w"}}, "shards"),
        ({"command": "release", "shards": []}, "shards"),
        ({"command": "pause", "shards": ["s"], "plan": 5}, "argument"),
    ],
)
def test_what_a_page_may_not_order_is_refused_before_anything_is_read(
    console: FleetConsole, content: dict[str, Any], code: str
) -> None:
    console.local.reset_requests()
    answer = console.ask("POST", f"/api/v1/fleets/{TABLE}/actions", {"reason": "a test", **content})

    assert (answer.status, answer.content["error"]["code"]) == (400, code)
    assert console.request_count == 0


def test_a_console_that_only_shows_orders_nothing_and_reads_nothing(opened: Callable[..., FleetConsole]) -> None:
    console = opened(allows_actions=False)
    console.local.reset_requests()
    answers = [
        console.act("pause", "s"),
        console.parked("replay", cause="x"),
        console.parked("discard", cause="x"),
        console.ask("DELETE", f"/api/v1/fleets/{TABLE}", {}),
        console.ask("POST", "/api/v1/nothing", {}),
    ]

    assert {(answer.status, answer.content["error"]["code"]) for answer in answers} == {(403, "read-only")}
    assert console.request_count == 0


def test_a_proxy_names_the_operator(opened: Callable[..., FleetConsole]) -> None:
    console = opened(doors={"is_behind_proxy": True, "who_header": "X-User"})
    shard = read_shard(console.fleet)
    content = {"command": "pause", "shards": [shard], "reason": "why"}
    path = f"/api/v1/fleets/{TABLE}/actions"
    plan = console.ask("POST", path, content, **{"X-User": "bob"}).content["plan"]
    done = console.ask("POST", path, {**content, "plan": plan}, **{"X-User": "bob"})

    assert done.content["report"]["status"] == "done"
    assert console.fleet.audit()[0]["who"] == "bob (console)"


# --- parked records ------------------------------------------------------------------------------------------------


class Replayed(IRecordProcessor):
    """Notes the keys that it gets; fails for one."""

    got: ClassVar[list[Any]] = []

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        (record,) = process_records_input.records
        if record.primary_key[0][1] == "bad":
            raise ValueError("still no")
        self.got.append((record.primary_key[0][1], record.sequence_info.timestamp_micros))
        process_records_input.checkpointer.checkpoint()


@pytest.fixture
def parking(opened: Callable[..., FleetConsole], tmp_path: Path) -> tuple[FleetConsole, FileParkingStore]:
    Replayed.got = []
    store = FileParkingStore(tmp_path)
    console = opened(store=store, parking_directory=str(tmp_path), processor=Replayed, processor_name="shop:Replayed")
    stream = console.fleet.stream_id
    store.park([parked_record(key, number, stream) for number, key in enumerate(("a", "b", "a", "bad"), 1)])
    store.park([parked_record("a", 9, stream, error="KeyError: 3"), parked_record("z", 1, "other_1")])
    return console, store


def left(console: FleetConsole, store: FileParkingStore) -> list[tuple[Any, int]]:
    return [(parked.record.primary_key[0][1], parked.index) for parked in store.parked(console.fleet.stream_id)]


def test_a_replay_of_a_cause_gets_whole_keys_and_tells_what_is_left(
    parking: tuple[FleetConsole, FileParkingStore],
) -> None:
    console, store = parking
    cause = console.get(f"fleets/{TABLE}/parked")["causes"][0]["id"]
    plan = console.parked("replay", cause=cause).content
    assert (plan["report"]["records"], Replayed.got) == (5, [])
    done = console.parked("replay", plan=plan["plan"], cause=cause).content["report"]

    assert sorted(Replayed.got) == [("a", 1), ("a", 3), ("a", 9), ("b", 2)]
    assert (done["replayed"], [rest["key"] for rest in done["left"]]) == (4, [[["id", "bad"]]])
    assert left(console, store) == [("bad", 4)]
    (row,) = console.fleet.audit()
    assert (row["who"], row["command"], row["outcome"]) == (BY, "parked replay", "1 records left")
    assert f"--cause {cause}" in plan["command"]
    assert "--processor shop:Replayed" in plan["command"]


def test_a_replay_of_a_record_begins_with_the_first_of_its_key(parking: tuple[FleetConsole, FileParkingStore]) -> None:
    console, store = parking
    record = next(each.record_id for each in store.parked(console.fleet.stream_id) if each.index == 3)
    plan = console.parked("replay", record=record).content["plan"]
    console.parked("replay", plan=plan, record=record)

    assert Replayed.got == [("a", 1), ("a", 3)]
    assert sorted(left(console, store)) == [("a", 9), ("b", 2), ("bad", 4)]


def test_a_replay_of_records_of_two_fleets_is_refused(
    parking: tuple[FleetConsole, FileParkingStore], tmp_path: Path
) -> None:
    """Two fleets may have parked at the same moment."""
    console, _ = parking
    record = parked_record("b", 5, console.fleet.stream_id)
    file = next(path for path in tmp_path.rglob("*.jsonl") if "other" not in str(path))
    lines = [
        json.dumps({"parked": {**document_of(record), "record_id": f"{fleet}-1", "fleet": fleet}}) for fleet in "xy"
    ]
    file.write_text("".join(f"{line}\n" for line in [*file.read_text().splitlines(), *lines]))
    answer = console.parked("replay", key=[["id", "b"]])

    assert (answer.status, answer.content["error"]["code"]) == (409, "two-fleets")
    assert "those of the status tables 'x' and 'y'" in answer.content["error"]["text"]


def test_a_discard_takes_exactly_what_was_planned(parking: tuple[FleetConsole, FileParkingStore]) -> None:
    console, store = parking
    by_key = console.parked("discard", key=[["id", "a"]]).content
    store.park([parked_record("a", 12, console.fleet.stream_id)])
    refused = console.parked("discard", plan=by_key["plan"], key=[["id", "a"]])
    assert (refused.status, refused.content["error"]["code"]) == (409, "changed")
    assert len(left(console, store)) == 6
    record = next(each.record_id for each in store.parked(console.fleet.stream_id) if each.index == 12)
    plan = console.parked("discard", record=record).content
    assert f"--record {record}" in plan["command"]
    done = console.parked("discard", plan=plan["plan"], record=record).content["report"]

    assert done["discarded"] == [record]
    assert sorted(left(console, store)) == [("a", 1), ("a", 3), ("a", 9), ("b", 2), ("bad", 4)]
    assert json.loads(json.dumps(console.fleet.audit()[0]["before"])) == {"parked": [record], "records": 1}


def test_a_replay_without_a_processor_shows_the_command(opened: Callable[..., FleetConsole], tmp_path: Path) -> None:
    store = FileParkingStore(tmp_path)
    console = opened(store=store, parking_directory=str(tmp_path))
    store.park([parked_record("a", 1, console.fleet.stream_id)])
    answer = console.parked("replay", key=[["id", "a"]])

    assert (answer.status, answer.content["error"]["code"]) == (409, "no-processor")
    assert f"streamclient parked replay --directory {tmp_path}" in answer.content["error"]["advice"]
    assert console.parked("discard", key=[["id", "b"]]).content["error"]["code"] == "not-parked"
    assert console.parked("discard").content["error"]["code"] == "argument"
    assert console.parked("discard", key=[["id", "a"]], cause="x").content["error"]["code"] == "argument"


def _shape(report: dict[str, Any]) -> Any:
    """A report without the ids and times that are new in each plan."""
    told = timeless(report, "request_id")
    for change in told["changes"]:
        change["effect"] = change["effect"].partition(" until ")[0]
        change["after"]["pause"].pop("by")
    return told
