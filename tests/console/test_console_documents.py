"""What the console tells of a local server, and what it changes there."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web
from console_tools import Scene
from tablestore import Condition, NoRetryPolicy, OTSServiceError, Row, RowExistenceExpectation

from streamclient.console.app import App
from streamclient.console.tables import MOST_CHANGES
from streamclient.server import Exchange, FaultRule, Latency, ShardSpan
from streamclient.server.envelope import error_body, error_body_json
from streamclient.server.observing import MOST_HEADS, Ring
from streamclient.server.server_documents import MOST_VALUE_BYTES, STATUS_KEY, value_from, value_of
from streamclient.server.server_errors import ServiceError
from streamclient.server.table_views import ranges_of
from streamclient.tablestore import TablestoreStreamApi
from streamclient.worker.lease import LeaseManager
from streamclient.worker.lease.lease_rows import STATUS_TABLE
from tests.patience import until
from tests.stage import put_rows

EVIL = [
    "<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "</pre></script><svg onload=alert(1)>",
    "'\"><b>", "{{7*7}}", "${7*7}", "\u202eevil\u2066", "\x00\x1b[2J\r\n", "&lt;b&gt;", "]]>", "-->", "\u2028\u2029",
    "javascript:alert(1)",
]  # fmt: skip


def names(document: dict[str, Any]) -> list[str]:
    return [each["name"] for each in document["tables"]]


def test_a_newcomer_makes_a_table_puts_a_row_and_sees_its_change(scene: Scene) -> None:
    made = scene.ask("POST", "/api/v1/server/tables", {"name": "clicks", "key": [{"name": "at", "type": "INTEGER"}]})
    columns = [
        {"name": "at", "type": "INTEGER", "text": str(2**63 - 1)},
        {"name": "by", "type": "STRING", "text": "ann"},
    ]
    put = scene.ask("POST", "/api/v1/server/tables/clicks/rows", {"columns": columns})

    assert (made.status, put.status) == (200, 200)
    assert names(scene.get("server/tables")) == ["clicks", "orders"]
    (change,) = scene.get("server/tables/clicks/changes")["changes"]
    assert (change["kind"], change["key"][0]["text"]) == ("PUT", "9223372036854775807")
    (row,) = scene.get("server/tables/clicks/rows")["rows"]
    assert row["columns"] == [{"name": "by", "type": "STRING", "text": "ann", "cut_bytes": 0}]
    found = scene.local.client().get_row("clicks", [("at", 2**63 - 1)])[1]
    assert found.attribute_columns[0][:2] == ("by", "ann"), "an SDK reads it, too"
    assert scene.ask("DELETE", "/api/v1/server/tables/clicks/rows", {"key": row["key"]}).status == 200
    kinds = [each["kind"] for each in scene.get("server/tables/clicks/changes")["changes"]]
    assert kinds == ["DELETE", "PUT"], "newest first"


@pytest.mark.parametrize("value", [0, -(2**63), 1.5, True, False, "", "ü 🙂", b"", b"\x00\xff"])
def test_a_value_comes_back_from_the_page_as_it_was(value: Any) -> None:
    told = json.loads(json.dumps(value_of(value)))

    assert (value_from(told), type(value_from(told))) == (value, type(value))


def test_a_long_value_is_cut_between_characters() -> None:
    told = value_of("ü" * MOST_VALUE_BYTES)

    assert told["text"] == "ü" * (MOST_VALUE_BYTES // 2)
    assert told["cut_bytes"] == MOST_VALUE_BYTES
    assert value_of(b"x" * (MOST_VALUE_BYTES + 3))["cut_bytes"] == 3


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("INTEGER", "1.5"),
        ("INTEGER", str(2**63)),
        ("DOUBLE", "nan"),
        ("BOOLEAN", "yes"),
        ("BINARY", "ä"),
        ("DATE", "1"),
    ],
)
def test_a_text_that_is_not_of_its_type_is_refused_by_name(scene: Scene, kind: str, text: str) -> None:
    columns = [{"name": "id", "type": "STRING", "text": "a"}, {"name": "x", "type": kind, "text": text}]
    answer = scene.ask("POST", "/api/v1/server/tables/orders/rows", {"columns": columns})

    assert (answer.status, answer.content["error"]["code"]) == (400, "value")
    assert scene.get("server/tables/orders/rows")["rows"] == []


def test_rows_come_in_pages(scene: Scene) -> None:
    put_rows(scene.local.client(), "orders", [Row([("id", f"k{number}")], [("n", number)]) for number in range(5)])
    first = scene.get("server/tables/orders/rows?limit=3")
    rest = scene.get(f"server/tables/orders/rows?limit=3&after={first['rows'][-1]['id']}")

    keys = [row["key"][0]["text"] for row in (*first["rows"], *rest["rows"])]
    assert keys == ["k0", "k1", "k2", "k3", "k4"]
    assert (first["has_more"], rest["has_more"]) == (True, False)
    for wrong in ("limit=0", "limit=1000", "after=xy"):
        assert scene.ask("GET", f"/api/v1/server/tables/orders/rows?{wrong}").status == 400


def test_changes_keep_the_newest_and_follow_what_comes(scene: Scene) -> None:
    client = scene.local.client()
    put_rows(client, "orders", [Row([("id", f"k{number}")], [("n", number)]) for number in range(MOST_CHANGES + 10)])
    before = scene.get("server/tables/orders/changes")["changes"]
    scene.local.split("orders")
    for key in ("a", "z"):
        put_rows(client, "orders", [Row([("id", key)], [("n", 1)])])
    after = scene.get("server/tables/orders/changes")["changes"]

    assert len(before) == len(after) == MOST_CHANGES
    assert [change["key"][0]["text"] for change in after[:3]] == ["z", "a", f"k{MOST_CHANGES + 9}"]
    assert after[2:] == before[:-2]


def test_changes_of_a_table_that_was_made_again_are_its_own(scene: Scene) -> None:
    scene.local.put("orders", id="old")
    assert len(scene.get("server/tables/orders/changes")["changes"]) == 1
    scene.local.client().delete_table("orders")
    assert scene.ask("GET", "/api/v1/server/tables/orders/changes").status == 404
    scene.local.create_table("orders", {"id": str})
    scene.local.put("orders", id="new")

    assert [each["key"][0]["text"] for each in scene.get("server/tables/orders/changes")["changes"]] == ["new"]


def test_the_console_meets_no_fault_and_counts_as_no_client(scene: Scene) -> None:
    scene.local.add_fault(FaultRule("*", Latency(3600)))
    before = scene.local.requests()
    scene.ask("POST", "/api/v1/server/tables/orders/rows", {"columns": [{"name": "id", "type": "STRING", "text": "a"}]})
    for path in ("rows", "changes", "story"):
        scene.get(f"server/tables/orders/{path}")

    assert scene.local.requests() == before == ()
    assert scene.local.faults()[0].seen == 0


def test_a_story_follows_splits_and_merges_without_moving_other_shards(scene: Scene) -> None:
    for key in "abcdefgh":
        scene.local.put("orders", id=key)
    (root,) = scene.get("server/tables/orders/story")["bands"]
    split = scene.ask("POST", "/api/v1/server/split", {"table": "orders", "shard_id": root["shard"]}).content
    bands = {band["shard"]: band for band in scene.get("server/tables/orders/story")["bands"]}
    low, high = (bands[shard] for shard in split["shard_ids"])

    assert (root["low"], root["high"], root["closed_micros"]) == (0, 1, None)
    assert bands[root["shard"]]["closed_micros"] == low["opened_micros"] == high["opened_micros"]
    assert (low["low"], low["high"], high["low"], high["high"]) == (0, 0.5, 0.5, 1)
    scene.local.split("orders", low["shard"])
    merged = scene.ask(
        "POST", "/api/v1/server/merge", {"table": "orders", "shard_a": scene.local.shards("orders")[-2].shard_id,
                                         "shard_b": high["shard"]}
    ).content["shard_id"]  # fmt: skip
    later = {band["shard"]: band for band in scene.get("server/tables/orders/story")["bands"]}
    assert {shard: (band["low"], band["high"]) for shard, band in bands.items()}.items() <= {
        shard: (band["low"], band["high"]) for shard, band in later.items()
    }.items()
    assert (later[merged]["low"], later[merged]["high"], len(later[merged]["parents"])) == (0.25, 1, 2)


def test_ranges_of_shards_whose_parents_are_forgotten_cover_the_space() -> None:
    def span(name: str, begin: bytes, end: bytes | None, *parents: str) -> ShardSpan:
        return ShardSpan(name, parents, begin, end, None, None, 0)

    listed = [span("a", b"", b"m", "gone"), span("b", b"m", b"t", "gone"), span("c", b"t", None, "gone"),
              span("d", b"m", b"p", "b"), span("e", b"p", b"t", "b"), span("f", b"p", None, "e", "c")]  # fmt: skip
    ranges = ranges_of(listed)

    assert ranges["a"][1] == ranges["b"][0] == ranges["d"][0]
    assert ranges["d"][1] == ranges["e"][0] == (ranges["b"][0] + ranges["b"][1]) / 2
    assert (ranges["a"][0], ranges["f"]) == (0, (ranges["e"][0], 1))


def test_the_verdict_names_active_faults_and_remembers_the_last(scene: Scene) -> None:
    assert scene.get("verdict")["is_well"]
    rule = {"operation": "GetStreamRecord", "table": "orders", "action": {"kind": "fail", "code": "OTSFlowControl"}}
    fault = scene.ask("POST", "/api/v1/server/faults", rule).content["id"]
    verdict = scene.get("verdict")

    assert (verdict["is_well"], verdict["sentence"]) == (False, "A fault is active: clients meet errors on purpose")
    (trouble,) = verdict["troubles"]
    assert trouble["first_line"] == "fail, code OTSFlowControl for GetStreamRecord of orders"
    assert trouble["command"] == f"streamclient control fault clear {fault}"
    assert scene.ask("DELETE", "/api/v1/server/faults", {"id": fault}).content == {"removed": 1}
    over = scene.get("verdict")
    assert (over["is_well"], over["troubles"], over["last_trouble"]) == (True, [], trouble)


def test_a_fault_that_has_done_all_it_may_is_no_trouble(scene: Scene) -> None:
    scene.local.put("orders", id="a")
    scene.ask("POST", "/api/v1/server/faults", {"times": 1, "action": {"kind": "fail", "code": "OTSServerBusy"}})
    assert not scene.get("verdict")["is_well"]
    with pytest.raises(OTSServiceError):
        scene.local.client(retry_policy=NoRetryPolicy()).list_table()

    assert scene.get("verdict")["is_well"]
    assert scene.get("server/faults")["faults"][0]["struck"] == 1


def test_requests_tell_who_asked_for_what_and_got_which_answer(scene: Scene) -> None:
    with scene.feed("requests") as feed:
        feed.until(lambda documents: "requests" in documents)
        client = scene.local.client(sts_token="worker-1", retry_policy=NoRetryPolicy())
        client.put_row("orders", Row([("id", "a")], [("n", 1)]))
        with pytest.raises(OTSServiceError):
            client.put_row("orders", Row([("id", "a")], []), Condition(RowExistenceExpectation.EXPECT_NOT_EXIST))
        heads = feed.until(lambda documents: len(documents["requests"]["heads"]) == 2)["requests"]["heads"]

    told = [(head["operation"], head["tables"], head["caller"], head["http_status"], head["code"]) for head in heads]
    assert told == [
        ("PutRow", ["orders"], "worker-1", 403, "OTSConditionCheckFail"),
        ("PutRow", ["orders"], "worker-1", 200, ""),
    ]
    assert [head["rows"] for head in heads] == [0, 1]
    assert all(head["millis"] > 0 for head in heads)


def test_the_ring_keeps_the_newest_requests() -> None:
    ring = Ring(lambda: 1)
    ring.begin()
    for number in range(MOST_HEADS + 5):
        ring.note(Exchange("", f"Op{number}", ("t" * 1000,), b"", 404, b"\xff damaged"))

    heads = ring.newest()
    assert (len(heads), heads[0]["operation"], heads[-1]["operation"]) == (MOST_HEADS, f"Op{MOST_HEADS + 4}", "Op5")
    assert (heads[0]["code"], len(heads[0]["tables"][0])) == ("", 255)
    ring.end()
    assert (ring.newest(), ring.since_micros) == ([], None)


@pytest.mark.parametrize("write", [error_body, error_body_json])
def test_the_ring_finds_the_code_of_a_refusal_in_either_form(write: Callable[[ServiceError], bytes]) -> None:
    ring = Ring(lambda: 1)
    ring.begin()
    refusal = ServiceError(400, "OTSParameterInvalid", "the limit is 0")
    ring.note(Exchange("", "DescribeTunnel", (), b"", 400, write(refusal)))

    assert ring.newest()[0]["code"] == "OTSParameterInvalid"


@pytest.mark.parametrize("text", EVIL)
def test_texts_of_others_come_as_json_and_nothing_else(scene: Scene, text: str) -> None:
    scene.local.put("orders", id=text, column=text)
    answer = scene.ask("GET", "/api/v1/server/tables/orders/rows")

    assert answer.headers["Content-Type"].startswith("application/json")
    assert answer.content["rows"][0]["key"][0]["text"] == text
    assert answer.body.isascii()
    wrong = scene.ask("POST", "/api/v1/server/faults", {"operation": text, "action": {"kind": text}})
    assert (wrong.status, wrong.headers["Content-Type"]) == (400, "application/json; charset=utf-8")


@pytest.mark.parametrize(
    ("method", "path", "content", "status"),
    [
        ("GET", "nothing", None, 404),
        ("GET", "server/tables/none/rows", None, 404),
        ("GET", "server/tables/none/story", None, 404),
        ("GET", "feed", None, 400),
        ("GET", "feed?of=verdict&have=x", None, 400),
        ("POST", "server/split", {"table": "none"}, 404),
        ("POST", "server/split", {"table": 5}, 400),
        ("POST", "server/shards", {"table": "orders"}, 404),
        ("POST", "server/advance-clock", {"seconds": -1}, 400),
        ("POST", "server/tables", {"name": "a", "key": [{"name": "b", "type": "FLOAT"}]}, 400),
        ("POST", "server/tables", {"name": "orders", "key": [{"name": "b", "type": "INTEGER"}]}, 400),
        ("POST", "server/tables/none/rows", {"columns": []}, 400),
        ("POST", "server/tables/orders/rows", {"columns": [{"name": "self", "type": "STRING", "text": "a"}]}, 400),
        ("DELETE", "server/tables/orders/rows", {"key": []}, 400),
        ("PUT", "server/tables", {}, 405),
        ("POST", "server/tables", [], 400),
    ],
)
def test_what_cannot_be_done_is_refused_with_a_text(
    scene: Scene, method: str, path: str, content: Any, status: int
) -> None:
    answer = scene.ask(method, f"/api/v1/{path}", content)

    assert answer.status == status
    assert answer.content["error"]["text"]


def row(*names: str) -> dict[str, Any]:
    return {"columns": [{"name": name, "type": "STRING", "text": f"text {at}"} for at, name in enumerate(names)]}


@pytest.mark.parametrize(
    ("asked", "content", "code"),
    [
        (f"GET feed?of=verdict&have={'9' * 5_000}", None, "have"),
        (f"GET server/tables/orders/rows?limit={'9' * 5_000}", None, "limit"),
        *(("DELETE server/faults", {"id": id_}, "argument") for id_ in (math.inf, math.nan, 1.5, True, None, "x")),
        (f"DELETE server/faults?id={'9' * 5_000}", {}, "argument"),
        ("POST server/advance-clock", {"seconds": math.nan}, "argument"),
        ("POST server/faults", {"times": math.inf, "action": {"kind": "cut"}}, "argument"),
        ("POST server/tables/orders/rows", row("id", "x", "id"), "value"),
        ("POST server/tables/orders/rows", row("id", "x", "x"), "value"),
        ("DELETE server/tables/orders/rows", {"key": row("id", "id")["columns"]}, "value"),
    ],
)
def test_wrong_input_is_no_failure_of_the_console(
    scene: Scene, caplog: pytest.LogCaptureFixture, asked: str, content: Any, code: str
) -> None:
    method, path = asked.split()
    fault = scene.local.add_fault(FaultRule("PutRow", Latency(0), times=1))
    answer = scene.ask(method, f"/api/v1/{path}", content)

    assert (answer.status, answer.content["error"]["code"]) == (400, code)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
    assert [each.fault_id for each in scene.local.faults()] == [fault]
    assert scene.get("server/tables/orders/rows")["rows"] == []
    assert scene.ask("DELETE", f"/api/v1/server/faults?id={fault}", {}).content == {"removed": 1}


CHANGE = "POST /api/v1/server/tables HTTP/1.1\nHost: 127.0.0.1:{port}\nContent-Type: application/json"


def test_a_damaged_body_is_refused_and_read_no_further(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    answer = scene.raw(f"{CHANGE}\nContent-Encoding: gzip", b"this is not gzip")

    assert (answer.status, answer.content["error"]["text"]) == (400, "the body is damaged")
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


@pytest.fixture
def handled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What became of requests to the console: 'began' and 'ended', in the order in which they happened."""
    handle, seen = App._handle, list[str]()

    async def noted(app: App, request: Any) -> Any:
        seen.append("began")
        try:
            return await handle(app, request)
        finally:
            seen.append("ended")

    monkeypatch.setattr(App, "_handle", noted)
    return seen


def test_a_client_that_leaves_in_the_middle_of_its_body_is_no_failure(
    handled: list[str], opened: Callable[..., Scene], caplog: pytest.LogCaptureFixture
) -> None:
    scene = opened()
    with scene.connect() as connection:
        head = CHANGE.replace("{port}", str(scene.console.port)).replace("\n", "\r\n")
        connection.sendall(f'{head}\r\nContent-Length: 100\r\n\r\n{{"name": "cl'.encode())
        until(lambda: handled == ["began"], "the console reads the request")
    until(lambda: handled == ["began", "ended"], "the console gives the request up")

    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
    assert names(scene.get("server/tables")) == ["orders"]


def test_a_viewer_that_leaves_before_its_feed_begins_is_no_failure(
    opened: Callable[..., Scene], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def gone(response: web.StreamResponse, request: web.BaseRequest) -> None:
        raise ConnectionResetError("Cannot write to closing transport")

    scene = opened()
    with monkeypatch.context() as patched, scene.connect() as connection:
        patched.setattr(web.StreamResponse, "prepare", gone)
        connection.sendall(
            f"GET /api/v1/feed?of=verdict HTTP/1.1\r\nHost: 127.0.0.1:{scene.console.port}\r\n\r\n".encode()
        )
        assert connection.recv(1) == b""

    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
    assert scene.get("verdict")["is_well"]


def test_tunnels_are_listed_with_their_channels(scene: Scene) -> None:
    from streamclient.tunnel import TunnelClient, TunnelType

    TunnelClient(scene.local.client()).create_tunnel("orders", "daily", TunnelType.STREAM)
    (tunnel,) = scene.get("server/tunnels")["tunnels"]

    assert (tunnel["name"], tunnel["table"], tunnel["kind"]) == ("daily", "orders", "Stream")


def test_the_clock_and_the_stream_are_changed_as_by_the_admin_surface(scene: Scene) -> None:
    scene.local.put("orders", id="a")
    assert scene.ask("POST", "/api/v1/server/trim", {"table": "orders"}).content == {"trimmed": 1}
    assert scene.ask("POST", "/api/v1/server/advance-clock", {"seconds": 3600}).status == 200
    assert scene.get("server/faults")["advanced_seconds"] == 3600
    assert scene.ask("POST", "/api/v1/server/expire-iterators", {"table": "orders"}).status == 200
    scene.local.client().list_table()
    assert scene.get("server/requests")["counts"][0]["requests"] == 1
    assert scene.ask("DELETE", "/api/v1/server/requests", {}).status == 200
    assert scene.get("server/requests")["counts"] == []


def test_the_tables_of_fleets_are_named_with_their_status_tables(scene: Scene) -> None:
    """So that the page can show the command ``streamclient console TABLE:STATUS``."""
    assert STATUS_TABLE.key == STATUS_KEY
    assert scene.get("server/tables")["fleets_hint"] == []
    client = scene.local.client()
    scene.local.create_table("clicks", {"id": str})
    for status in ("fleet_a", "fleet_b", "unused"):
        LeaseManager(client, status, "none").create_lease_table_if_not_exists()
    for table, status in (("orders", "fleet_a"), ("clicks", "fleet_a"), ("orders", "fleet_b")):
        stream = TablestoreStreamApi(client).list_stream(table)[0].stream_id
        for shard in ("s1", "s2"):
            client.put_row(status, Row([("StreamId", stream), ("StatusType", "LeaseKey"), ("StatusValue", shard)], []))
    client.put_row("fleet_b", Row([("StreamId", "gone_5"), ("StatusType", "x"), ("StatusValue", "y")], []))

    hint = scene.get("server/tables")["fleets_hint"]
    assert [each["id"] for each in hint] == ["clicks:fleet_a", "orders:fleet_a", "orders:fleet_b"]
    assert hint[0] == {"id": "clicks:fleet_a", "table": "clicks", "status_table": "fleet_a"}
