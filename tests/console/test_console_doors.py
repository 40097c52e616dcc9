"""Attacks on the console: each is refused, and gets through where its rule is off, so the rule is what stops it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from typing import Any

import pytest
from attrs import frozen
from console_tools import Answered, Scene
from multidict import CIMultiDict

from streamclient.console.app import MOST_BODY_BYTES, MOST_FEEDS
from streamclient.console.doors import HEADERS, ConsoleDoors, ConsoleError, DoorRule
from streamclient.server import DEFAULT_ACCESS_KEY_SECRET, connections
from streamclient.server.auth import Doors

HOST = "Host: 127.0.0.1:{port}"
CHANGE = f"POST /api/v1/server/faults HTTP/1.1\n{HOST}\n"
FAULT = b'{"operation": "PutRow", "action": {"kind": "cut"}}'
SECRET = "a-secret-of-this-test"


@frozen
class Attack:
    """One request that must not get through."""

    rule: DoorRule
    head: str
    status: int
    body: bytes = b""
    secret: str | None = None
    doors: Mapping[str, Any] = {}


ATTACKS = {
    "name that points here": Attack(DoorRule.HOST, "GET / HTTP/1.1\nHost: evil.example", 403),
    "name without dots": Attack(DoorRule.HOST, "GET / HTTP/1.1\nHost: router:{port}", 403),
    "whole address as target": Attack(DoorRule.TARGET, f"GET http://evil.example/ HTTP/1.1\n{HOST}", 400),
    "read by another site": Attack(
        DoorRule.SITE, f"GET /api/v1/about HTTP/1.1\n{HOST}\nSec-Fetch-Site: cross-site", 403
    ),
    "script of another site": Attack(
        DoorRule.SITE, f"GET /console.js HTTP/1.1\n{HOST}\nSec-Fetch-Site: same-site", 403
    ),
    "change by another origin": Attack(
        DoorRule.ORIGIN, f"{CHANGE}Content-Type: application/json\nOrigin: http://evil.example", 403, FAULT
    ),
    "change by a null origin": Attack(
        DoorRule.ORIGIN, f"{CHANGE}Content-Type: application/json\nOrigin: null", 403, FAULT
    ),
    "change by a neighbour's port": Attack(
        DoorRule.ORIGIN, f"{CHANGE}Content-Type: application/json\nOrigin: http://127.0.0.1:1", 403, FAULT
    ),
    "form": Attack(DoorRule.JSON, f"{CHANGE}Content-Type: application/x-www-form-urlencoded", 415, FAULT),
    "text": Attack(DoorRule.JSON, f"{CHANGE}Content-Type: text/plain", 415, FAULT),
    "no type": Attack(DoorRule.JSON, CHANGE.rstrip("\n"), 415, FAULT),
    "read without key": Attack(DoorRule.KEY, f"GET /api/v1/about HTTP/1.1\n{HOST}", 401, secret=SECRET),
    "wrong key": Attack(
        DoorRule.KEY, f"GET /api/v1/about HTTP/1.1\n{HOST}\nAuthorization: Bearer {SECRET}", 401, secret=SECRET
    ),
    "change without key": Attack(DoorRule.KEY, f"{CHANGE}Content-Type: application/json", 401, FAULT, SECRET),
    "large body": Attack(
        DoorRule.BODY, f"{CHANGE}Content-Type: application/json", 413, FAULT + b" " * (MOST_BODY_BYTES + 1)
    ),
    "change of what is only shown": Attack(
        DoorRule.READ_ONLY, f"{CHANGE}Content-Type: application/json", 403, FAULT, doors={"allows_changes": False}
    ),
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_an_attack_is_refused_and_gets_through_without_its_rule(opened: Callable[..., Scene], attack: Attack) -> None:
    guarded = opened(secret=attack.secret, **attack.doors)
    bare = opened(attack.rule, attack.secret, **attack.doors)

    refused = guarded.raw(attack.head, attack.body)
    code = attack.rule.name.lower().replace("_", "-")
    assert (refused.status, refused.content["error"]["code"]) == (attack.status, code)
    assert guarded.local.faults() == ()
    assert bare.raw(attack.head, attack.body).status == 200
    assert len(bare.local.faults()) == (attack.body != b"")


def test_every_rule_has_an_attack() -> None:
    assert {attack.rule for attack in ATTACKS.values()} | {
        DoorRule.HEADERS,
        DoorRule.FEEDS,
        DoorRule.PROXY,
    } == set(DoorRule)


@pytest.mark.parametrize("path", ["server/tables", "server/faults", "server/split", "feed", "nothing"])
@pytest.mark.parametrize("method", ["POST", "DELETE", "PUT"])
def test_a_console_that_only_shows_refuses_every_change(opened: Callable[..., Scene], method: str, path: str) -> None:
    answer = opened(allows_changes=False).ask(method, f"/api/v1/{path}", {})

    assert (answer.status, answer.content["error"]["code"]) == (403, "read-only")


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("https://ops.example", 200),
        ("https://ops.example:8443", 200),
        ("https://127.0.0.1:{port}", 200),
        ("http://127.0.0.1:{port}", 200),
        ("https://ops.example.evil.example", 403),
        ("ftp://ops.example", 403),
        ("https://127.0.0.1:1", 403),
        ("null", 403),
    ],
)
def test_behind_a_proxy_its_own_names_may_change_things_and_no_others(
    opened: Callable[..., Scene], origin: str, status: int
) -> None:
    proxied = opened(is_behind_proxy=True, hosts=Doors(["ops.example"]))
    head = f"{CHANGE}Content-Type: application/json\nOrigin: {origin}"

    assert proxied.raw(head, FAULT).status == status
    is_own = origin == "http://127.0.0.1:{port}"
    assert opened(hosts=Doors(["ops.example"])).raw(head, FAULT).status == (200 if is_own else 403)


def test_a_user_is_believed_only_behind_a_proxy() -> None:
    headers = CIMultiDict([("X-User", "ann\u202e"), ("Y-User", "bob")])

    def who(**options: Any) -> str:
        return ConsoleDoors(Doors(()), **options).who(headers)

    assert who(who_header="X-User", is_behind_proxy=True) == "ann\\u202e", "as the log would show it"
    assert who(who_header="X-User") == who(is_behind_proxy=True) == ""
    assert who(who_header="X-User", rules=frozenset(DoorRule) - {DoorRule.PROXY}) != "", "the rule is what stops it"
    assert who(who_header="Z-User", is_behind_proxy=True) == ""


WRONG_HOSTS = [
    "evil.example", "evil.example:{port}", "127.0.0.1.evil.example", "localhost.evil.example", "evil.localhost.example",
    "127.0.0.1@evil.example", "evil.example#127.0.0.1", "router", "[::1", "127.0.0.1:port", "127.0.0.1, evil.example",
    "0x7f000001.example", "localhost/evil",
]  # fmt: skip


@pytest.mark.parametrize("host", WRONG_HOSTS)
@pytest.mark.parametrize("path", ["/", "/console.js", "/api/v1/about", "/api/v1/feed?of=verdict", "/nothing"])
def test_a_wrong_host_is_refused_at_every_path(scene: Scene, host: str, path: str) -> None:
    assert scene.raw(f"GET {path} HTTP/1.1\nHost: {host}").status in (400, 403)


@pytest.mark.parametrize("host", ["127.0.0.1:{port}", "localhost:{port}", "console.localhost", "[::1]:{port}"])
def test_addresses_and_localhost_are_let_in(scene: Scene, host: str) -> None:
    assert scene.raw(f"GET /api/v1/about HTTP/1.1\nHost: {host}").status == 200


def test_no_host_and_two_hosts_are_refused(scene: Scene) -> None:
    assert scene.raw("GET / HTTP/1.1\nAccept: */*").status == 400
    assert scene.raw(f"GET / HTTP/1.1\n{HOST}\nHost: evil.example").status == 400


@pytest.mark.parametrize("hosts", [[], ["127.0.0.1", "127.0.0.1"], ["127.0.0.1", "evil.example"]])
def test_the_doors_count_hosts_themselves(hosts: list[str]) -> None:
    """Newer versions of aiohttp refuse these before; older ones do not."""
    headers = CIMultiDict([("Host", host) for host in hosts])

    with pytest.raises(ConsoleError, match="one Host header"):
        ConsoleDoors(Doors(())).check("GET", "/", headers)


def test_every_answer_forbids_frames_and_foreign_readers(opened: Callable[..., Scene]) -> None:
    guarded, bare = opened(), opened(DoorRule.HEADERS)
    heads = [f"GET /{path} HTTP/1.1\n{HOST}" for path in ("", "console.css", "api/v1/about", "nothing", "favicon.ico")]
    answers = [
        *(guarded.raw(head) for head in heads),
        guarded.raw("GET / HTTP/1.1\nHost: evil.example"),
        guarded.raw(f"OPTIONS /api/v1/about HTTP/1.1\n{HOST}\nContent-Type: application/json"),
        guarded.raw("this is not HTTP"),
    ]
    for answer in answers:
        assert HEADERS.items() <= answer.headers.items(), answer
        assert not [name for name in answer.headers if name.lower().startswith(("access-control", "set-cookie"))]
    assert "Content-Security-Policy" not in bare.raw(heads[0]).headers
    with guarded.feed("verdict") as feed:
        assert HEADERS.items() <= dict(feed._answer.getheaders()).items()


def test_the_policy_allows_no_script_but_the_own_files(scene: Scene) -> None:
    policy = HEADERS["Content-Security-Policy"]
    page = scene.ask("GET", "/").body.decode()

    assert "unsafe" not in policy
    for name in ("default-src", "frame-ancestors", "base-uri", "form-action", "trusted-types"):
        assert f"{name} 'none'" in policy
    assert "<script>" not in page
    assert " style=" not in page
    assert "http://" not in page
    assert "//" not in page.replace("<!", "")


def test_more_feeds_than_a_person_opens_are_refused(opened: Callable[..., Scene]) -> None:
    for scene, last in ((opened(), 503), (opened(DoorRule.FEEDS), 200)):
        with ExitStack() as stack:
            feeds = [stack.enter_context(scene.feed("verdict")) for _ in range(MOST_FEEDS + 1)]
            assert [feed.status for feed in feeds] == [200] * MOST_FEEDS + [last]


def test_a_head_that_does_not_end_is_cut(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEADER_TIMEOUT_SECONDS", 0.05)
    with scene.connect() as silent, scene.connect() as slow:
        slow.sendall(b"GET / HTTP/1.1\r\nHost: 127")
        for connection in (silent, slow):
            with suppress(ConnectionResetError):
                assert connection.recv(1) == b""


def test_bytes_that_are_no_request_get_an_answer_and_no_traceback(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        answer = scene.raw("\x16\x03\x01 hello")

    assert (answer.status, answer.content["error"]["code"]) == (400, "http")
    assert [record for record in caplog.records if record.exc_info] == []


def test_a_page_of_its_own_and_a_program_may_change_things(scene: Scene) -> None:
    own = f"{CHANGE}Content-Type: application/json\nOrigin: http://127.0.0.1:{{port}}\nSec-Fetch-Site: same-origin"

    assert scene.raw(own, FAULT).status == 200
    assert scene.raw(f"{CHANGE}Content-Type: application/json; charset=utf-8", FAULT).status == 200
    assert len(scene.local.faults()) == 2


def test_only_a_loopback_server_with_the_public_secret_needs_no_key(opened: Callable[..., Scene]) -> None:
    public, own = opened(), opened(secret=SECRET)

    assert public.console.doors.key is None
    assert public.console.address == f"http://127.0.0.1:{public.console.port}/"
    assert own.console.address.startswith(f"http://127.0.0.1:{own.console.port}/#key=")
    assert own.get("about")["instance"] == "local"
    assert own.ask("GET", "/").status == 200, "the page itself must load, to read the key from its address"


def test_two_consoles_have_two_keys_of_128_bits(opened: Callable[..., Scene]) -> None:
    keys = {opened(secret=SECRET).console.doors.key or "" for _ in range(2)}

    assert len(keys) == 2
    assert {len(key) for key in keys} == {22}, "16 bytes in base64"


def every_answer(scene: Scene) -> list[Answered]:
    """What every path answers, with and without a fault, and to changes that cannot be."""
    paths = ["about", "verdict", "server/tables", "server/tunnels", "server/requests", "server/faults"]
    paths += [f"server/tables/orders/{kind}" for kind in ("rows", "changes", "story")]
    names = ("split", "merge", "trim", "faults", "tables", "tables/none/rows", "advance-clock", "nothing")
    answers = [scene.ask("GET", f"/api/v1/{path}") for path in paths]
    answers += [scene.ask("POST", f"/api/v1/server/{name}", {"name": "orders"}) for name in names]
    return [*answers, scene.ask("DELETE", "/api/v1/server/faults", {})]


def test_no_answer_has_a_secret(opened: Callable[..., Scene]) -> None:
    scene = opened(secret=SECRET)
    scene.local.client().list_table()
    with pytest.raises(Exception, match="Signature"):
        scene.local.client().__class__(scene.local.endpoint, scene.local.access_key_id, "wrong", "local").list_table()
    scene.local.put("orders", id="a", amount=1)
    answers = every_answer(scene)
    key = scene.console.doors.key

    assert len(answers) > 10
    assert key is not None
    for answer in answers:
        for secret in (SECRET, key, DEFAULT_ACCESS_KEY_SECRET):
            assert secret.encode() not in answer.body
