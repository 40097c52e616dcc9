"""Step 11: attacks by a page of another site, by a name that points here, by floods; and no secret in any answer."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from attrs import frozen

from streamclient.console.app import FILES, MOST_BODY_BYTES, MOST_FEEDS
from streamclient.console.doors import HEADERS
from streamclient.server.connections import HEADER_TIMEOUT_SECONDS
from tests.console_drill.stand import (
    FLEET_WORD,
    TABLE,
    WAIT_SECONDS,
    Console,
    Server,
    Stand,
    awaited,
    check,
    equal,
    text_of,
)
from tests.console_drill.steps_of_cost import Made, make_rows, shards_of
from tests.console_drill.steps_of_server import put
from tests.stage import make_table

SECRET = "a-secret-of-the-drill"
VALUE = "a-value-of-a-customer"
EVIL_NAME = "evil.example"

HOSTS = ("evil.example", "127.0.0.1.evil.example", "router", "127.0.0.1@evil.example", "[::1")

MARKUP = "<img src=x onerror=alert(1)>\u202e<script>alert(2)</script>"
MARKUP_SHOWN = "<img src=x onerror=alert(1)>\\u202e<script>alert(2)</script>"


@frozen
class Aim:
    """A console under attack, and what shows whether a change got through."""

    console: Console
    reads: Sequence[str]
    """Paths of documents."""
    change: str
    """A path of a change, below /api/v1/."""
    content: Any
    effects: Callable[[], int]


def doors(stand: Stand) -> str:
    """Attack the console of a server and that of a fleet, each with a secret of its own."""
    server = stand.server(secret=SECRET)
    make_table(server.client(), TABLE)
    server.client().put_row(TABLE, *row_with_value())
    put(server.client(), MARKUP, 1)
    make_rows(server, [Made(shard, "worker-1") for shard in shards_of(server)])
    fleet, _ = stand.console(server, FLEET_WORD, "--allow-actions")
    told = []
    for aim in (aim_at_server(server), aim_at_fleet(stand, server, fleet)):
        with slow_head(aim.console) as is_cut:
            counts = [wrong_hosts(aim), requests(aim), secrets(aim), floods(aim)]
            counts.append(by_browser(stand, aim))
            equal(aim.effects(), 0, "changes that got through")
            awaited("the end of a head that never ends", is_cut, 2 * HEADER_TIMEOUT_SECONDS)
        told.append("/".join(map(str, counts)))
    with stand.page(server.console, f"tables/{TABLE}") as page:
        awaited("markup as text", lambda: MARKUP_SHOWN in text_of(page))
        equal(page.locator("img").count(), 0, "images made of a value")
    return (
        f"server {told[0]}, fleet {told[1]} (wrong hosts, requests, answers without a secret, floods, attempts by a "
        f"page of another site); 0 changes got through; markup is text; a slow head is cut"
    )


def row_with_value() -> tuple[Any, ...]:
    from tablestore import Condition, Row, RowExistenceExpectation

    return Row([("id", "a")], [("note", VALUE)]), Condition(RowExistenceExpectation.IGNORE)


def aim_at_server(server: Server) -> Aim:
    reads = ["about", "verdict", *(f"server/{name}" for name in ("tables", "tunnels", "requests", "faults"))]
    reads += [f"server/tables/{TABLE}/{kind}" for kind in ("rows", "changes", "story")]
    content = {"operation": "PutRow", "action": {"kind": "cut"}}
    faults = lambda: len(server.console.get("server/faults")["faults"])  # noqa: E731
    return Aim(server.console, reads, "server/faults", content, faults)


def aim_at_fleet(stand: Stand, server: Server, console: Console) -> Aim:
    (shard,) = shards_of(server)
    below = ("", "?detail=shards", "?detail=groups", "/story", "/moves", "/parked", f"/shards/{shard}")
    reads = ["about", "verdict", "fleets", *(f"fleets/{TABLE}{each}" for each in below)]
    reads.append(f"fleets/{TABLE}/shards/{shard}/records")
    content = {"command": "pause", "shards": [shard], "reason": "an attack"}
    audited = lambda: len(stand.fleet_command(server, "leases", "audit")["records"])  # noqa: E731
    return Aim(console, reads, f"fleets/{TABLE}/actions", content, audited)


# --- requests --------------------------------------------------------------------------------------------------------


def raw(console: Console, head: str, body: bytes = b"") -> tuple[int, dict[str, str], bytes]:
    """Send a head as it is; return status, headers and body of the answer."""
    place = urlsplit(console.base)
    with socket.create_connection((str(place.hostname), place.port or 80), WAIT_SECONDS) as connection:
        text = f"{head}\nConnection: close\nContent-Length: {len(body)}\n\n".replace("\n", "\r\n")
        connection.sendall(text.encode("latin-1") + body)
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        with answer:
            return answer.status, dict(answer.getheaders()), answer.read()


def wrong_hosts(aim: Aim) -> int:
    """Ask every path with a name that is not the console's; return the number of refusals."""
    paths = ["/", "/nothing", "/favicon.ico", *(f"/{name}" for name in FILES)]
    paths += [f"/api/v1/{each}" for each in (*aim.reads, "feed?of=verdict")]
    for path in paths:
        for host in HOSTS:
            status, headers, _ = raw(aim.console, f"GET {path} HTTP/1.1\nHost: {host}\n{key_of(aim)}")
            wanted = (403,) if host == EVIL_NAME else (400, 403)
            check(status in wanted, f"GET {path} for {host} was answered with {status}")
            check(HEADERS.items() <= headers.items(), f"the answer to {path} lacks headers")
    status, _, _ = raw(aim.console, f"GET /api/v1/about HTTP/1.1\nHost: {host_of(aim)}\n{key_of(aim)}")
    equal(status, 200, "the answer to the right host")
    return len(paths) * len(HOSTS)


def requests(aim: Aim) -> int:
    """Send what a page of another site, or a program without the key, could send; return the number of refusals."""
    host, key, json_type = f"Host: {host_of(aim)}", key_of(aim), "Content-Type: application/json"
    read, change = "GET /api/v1/about HTTP/1.1", f"POST /api/v1/{aim.change} HTTP/1.1"
    attacks = {
        f"GET http://{EVIL_NAME}/ HTTP/1.1\n{host}\n{key}": (400, 403),
        f"{read}\n{host}\nHost: {EVIL_NAME}\n{key}": (400,),
        f"{read}\n{key}": (400,),
        f"{read}\n{host}\n{key}\nSec-Fetch-Site: cross-site": (403,),
        f"GET /console.js HTTP/1.1\n{host}\nSec-Fetch-Site: same-site": (403,),
        f"{read}\n{host}": (401,),
        f"{read}\n{host}\nAuthorization: Bearer {SECRET}": (401,),
        f"{change}\n{host}\n{json_type}": (401,),
        f"{change}\n{host}\n{key}\n{json_type}\nOrigin: http://{EVIL_NAME}": (403,),
        f"{change}\n{host}\n{key}\n{json_type}\nOrigin: null": (403,),
        f"{change}\n{host}\n{key}\n{json_type}\nOrigin: http://127.0.0.1:1": (403,),
        f"{change}\n{host}\n{key}\n{json_type}\nSec-Fetch-Site: cross-site": (403,),
        f"{change}\n{host}\n{key}\nContent-Type: text/plain": (415,),
        f"{change}\n{host}\n{key}\nContent-Type: application/x-www-form-urlencoded": (415,),
        f"{change}\n{host}\n{key}": (415,),
    }
    for head, wanted in attacks.items():
        body = json.dumps(aim.content).encode() if head.startswith("POST") else b""
        status, headers, answer = raw(aim.console, head, body)
        check(status in wanted, f"{head!r} was answered with {status}: {answer[:200]!r}")
        check(HEADERS.items() <= headers.items(), f"the answer to {head!r} lacks headers")
    return len(attacks)


def host_of(aim: Aim) -> str:
    return urlsplit(aim.console.base).netloc


def key_of(aim: Aim) -> str:
    return f"Authorization: Bearer {aim.console.key}"


def floods(aim: Aim) -> int:
    """Open more feeds than there may be, and send a body that is too large; return the number of refusals."""
    place = urlsplit(aim.console.base)
    with ExitStack() as stack:
        statuses = []
        for _ in range(MOST_FEEDS + 1):
            connection = http.client.HTTPConnection(str(place.hostname), place.port or 80, timeout=WAIT_SECONDS)
            stack.callback(connection.close)
            connection.request("GET", "/api/v1/feed?of=verdict", headers=dict([key_of(aim).split(": ")]))
            statuses.append(stack.enter_context(closing(connection.getresponse())).status)
    equal(statuses, [200] * MOST_FEEDS + [503], "the answers to feeds")
    head = f"POST /api/v1/{aim.change} HTTP/1.1\nHost: {host_of(aim)}\n{key_of(aim)}\nContent-Type: application/json"
    status, _, _ = raw(aim.console, head, json.dumps(aim.content).encode() + b" " * MOST_BODY_BYTES)
    equal(status, 413, "the answer to a large body")
    return 2


@contextmanager
def slow_head(console: Console) -> Iterator[Callable[[], bool]]:
    """Begin a request and never end its head; yields whether the console has cut the connection."""
    place = urlsplit(console.base)
    with socket.create_connection((str(place.hostname), place.port or 80), WAIT_SECONDS) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: 127")
        connection.settimeout(0.0)

        def is_cut() -> bool:
            try:
                return connection.recv(1) == b""
            except BlockingIOError:
                return False
            except ConnectionResetError:
                return True

        yield is_cut


def secrets(aim: Aim) -> int:
    """Search every answer for the secret, the key and a customer's value; return the number of answers."""
    changes = (aim.change, "server/tables/none/rows", "server/nothing", f"fleets/{TABLE}/parked/replay")
    asked = [("GET", path, None) for path in (*aim.reads, "nothing", "fleets/none", "feed?of=nothing&have=0")]
    asked += [("POST", path, {"reason": "the drill looks"}) for path in changes]
    for method, path, content in asked:
        answer = aim.console.ask(method, f"api/v1/{path}", content)
        check(answer.status < 500, f"{method} {path} was answered with {answer.status}")
        hidden = [SECRET, aim.console.key, *([VALUE] if aim.change.startswith("fleets/") else [])]
        found = [each for each in hidden if each.encode() in answer.body]
        equal(found, [], f"secrets in the answer to {method} {path}")
    return len(asked)


# --- by a page of another site ---------------------------------------------------------------------------------------

ATTEMPTS = 8

PAGE = """<!DOCTYPE html><title>evil</title><body><iframe name="sink"></iframe><script>
const base = %(base)s, change = %(change)s, content = %(content)s, found = {};
const load = (node) => new Promise((loaded, failed) => {
  node.onload = () => loaded("got through"); node.onerror = failed; document.body.append(node); });
const made = (tag, attributes) => Object.assign(document.createElement(tag), attributes);
const attempts = {
  read: async () => (await fetch(base + "api/v1/about"), "got through"),
  "read without CORS": async () => (await fetch(base + "api/v1/about", { mode: "no-cors" }), "got through"),
  script: () => load(made("script", { src: base + "console.js" })),
  module: () => load(made("script", { src: base + "console.js", type: "module" })),
  style: () => load(made("link", { href: base + "console.css", rel: "stylesheet" })),
  "write without CORS": async () => (await fetch(base + change, { method: "POST", mode: "no-cors", body: content }),
    "got through"),
  "write as JSON": async () => (await fetch(base + change, { method: "POST", body: content,
    headers: { "Content-Type": "application/json" } }), "got through"),
  form: async () => {
    const form = made("form", { action: base + change, method: "POST", enctype: "text/plain", target: "sink" });
    form.append(made("input", { name: content.slice(0, -1) + ', "x": "', value: '"}' }));
    document.body.append(form);
    form.submit();
    return "sent";
  },
};
(async () => {
  document.body.append(made("iframe", { src: base, name: "framed" }));
  const nobody = "<script>fetch(" + JSON.stringify(base + change) + ", { method: 'POST', mode: 'no-cors', body: '{}' })"
    + ".finally(() => parent.postMessage('sent', '*'))<\\/script>";
  document.body.append(made("iframe", { sandbox: "allow-scripts", srcdoc: nobody }));
  await new Promise((sent) => addEventListener("message", sent, { once: true }));
  for (const name in attempts) try { found[name] = await attempts[name](); } catch { found[name] = "blocked"; }
  document.title = JSON.stringify(found);
})();
</script>"""


class Elsewhere:
    """Another site: it serves the evil page, and is open itself, so that the same attempts succeed against it."""

    def __init__(self) -> None:
        self.page = ""
        self.written = 0
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Open,), {"site": self}))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="another-site")

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def __enter__(self) -> Elsewhere:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Open(BaseHTTPRequestHandler):
    """Answers every request with what was asked for, and lets everybody read."""

    site: Elsewhere

    def do_GET(self) -> None:
        if self.path == "/evil":
            self._send("text/html", self.site.page)
        elif self.path.endswith(".js"):
            self._send("text/javascript", "1;")
        else:
            self._send("text/css" if self.path.endswith(".css") else "text/html", "")

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        self.site.written += 1
        self._send("application/json", "{}")

    def do_OPTIONS(self) -> None:
        self._send("text/plain", "")

    def _send(self, kind: str, text: str) -> None:
        self.send_response(200)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(text.encode()))}.items():
            self.send_header(name, value)
        for name in ("Origin", "Headers", "Methods"):
            self.send_header(f"Access-Control-Allow-{name}", "*")
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def by_browser(stand: Stand, aim: Aim) -> int:
    """Let a page of another site attack a site that is open, which it must be able to, and the console."""
    with Elsewhere() as site:
        found, frame = attacked(stand, site, f"http://127.0.0.1:{site.port}/", aim)
        equal({name for name, result in found.items() if result == "blocked"}, set(), "attempts blocked without rules")
        check(site.written >= 4, f"only {site.written} changes got through without rules")
        found, frame = attacked(stand, site, aim.console.base, aim)
        sent = {"form"}  # a page is not told what became of a form
        equal({name for name, result in found.items() if result == "blocked"}, set(found) - sent, "blocked attempts")
        check("streamclient" not in frame, "the console shows itself in a frame of another site")
        page = stand.browser.new_page()
        answer = page.goto(f"http://{EVIL_NAME}:{urlsplit(aim.console.base).port}/")
        equal(answer.status, 403, "the answer to a name that points here")
        page.close()
    return len(found) + 2


def attacked(stand: Stand, site: Elsewhere, base: str, aim: Aim) -> tuple[dict[str, str], str]:
    """Open the evil page; return what each attempt came to, and the text of the frame with the console."""
    content = json.dumps(aim.content)
    told = {"base": base, "change": f"api/v1/{aim.change}", "content": content}
    site.page = PAGE % {name: json.dumps(text) for name, text in told.items()}
    page = stand.browser.new_page()
    page.goto(f"http://{EVIL_NAME}:{site.port}/evil")
    awaited("the attempts of the evil page", lambda: page.title().startswith("{"))
    found: dict[str, str] = json.loads(page.title())
    equal(len(found), ATTEMPTS, "the number of attempts")
    frame = next(each for each in page.frames if each.name == "framed")
    text = str(frame.locator("body").inner_text())
    page.close()
    return found, text
