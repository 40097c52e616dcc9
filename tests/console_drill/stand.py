"""The stand of a step: servers, consoles, workers and commands as processes, and pages of a Chromium."""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from attrs import define, field, frozen
from tablestore import OTSClient

from streamclient.server import DEFAULT_ACCESS_KEY_ID, DEFAULT_ACCESS_KEY_SECRET
from streamclient.testing.fleet import WorkerProcess

STREAMCLIENT = ("-m", "streamclient")

LOGGER = "streamclient-drill"
"""The logger of the drill's own clients."""

INSTANCE = "local"
SECRET_VARIABLE = "TABLESTORE_ACCESS_KEY_SECRET"

WAIT_SECONDS = 60.0
"""The longest wait for what must come. What the script promises within less is checked with the time that it took."""

LOOK_SECONDS = 0.02
"""The pause between two looks: short beside the second within which pages must follow."""


class NotSeen(AssertionError):
    """What a step had to see, and did not."""


def check(condition: object, what: str) -> None:
    """Require a condition; ``what`` is the text of the failure."""
    if not condition:
        raise NotSeen(what)


def equal(seen: object, wanted: object, what: str) -> None:
    """Require equality, and tell both sides if there is none."""
    check(seen == wanted, f"{what}: {seen!r}, wanted {wanted!r}")


def within(limit: float, what: str, condition: Callable[[], object], longest: float | None = None) -> float:
    """Wait for a condition; return the seconds that it took, which must be at most ``limit``."""
    began, most = time.monotonic(), max(limit, WAIT_SECONDS if longest is None else longest)
    while not condition():
        if time.monotonic() - began > most:
            raise NotSeen(f"{what}: not within {most:g} s")
        pause(LOOK_SECONDS)
    seconds = time.monotonic() - began
    check(seconds <= limit, f"{what}: after {seconds:.2f} s, wanted within {limit:g} s")
    return seconds


def awaited(what: str, condition: Callable[[], object], longest: float | None = None) -> float:
    """Wait for a condition without a limit of its own; return the seconds that it took."""
    most = WAIT_SECONDS if longest is None else longest
    return within(most, what, condition, most)


def pause(seconds: float) -> None:
    """Let time pass that the script names."""
    threading.Event().wait(seconds)


@frozen
class Answer:
    """The answer to one request of a program."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def content(self) -> Any:
        return json.loads(self.body)


@frozen
class Console:
    """The address of a console as a command printed it, asked as programs ask."""

    printed: str
    """With its key after #, if it has one."""

    @property
    def base(self) -> str:
        return self.printed.partition("#")[0]

    @property
    def key(self) -> str:
        return self.printed.partition("#key=")[2]

    def ask(self, method: str, path: str, content: Any = None, **headers: str) -> Answer:
        """Send one request; ``path`` is below the address."""
        place = urlsplit(self.base)
        connection = http.client.HTTPConnection(str(place.hostname), place.port or 80, timeout=WAIT_SECONDS)
        sent = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        body = None if content is None else json.dumps(content)
        if body is not None:
            sent["Content-Type"] = "application/json"
        with closing(connection):
            connection.request(method, place.path + path, body, {**sent, **headers})
            answer = connection.getresponse()
            return Answer(answer.status, dict(answer.getheaders()), answer.read())

    def get(self, path: str) -> Any:
        """Return the document at a path below /api/v1/."""
        answer = self.ask("GET", f"api/v1/{path}")
        equal(answer.status, 200, f"the answer to GET {path} ({answer.body[:300].decode('utf-8', 'replace')})")
        return answer.content

    def post(self, path: str, content: Any) -> Any:
        """Change something; return what was answered."""
        answer = self.ask("POST", f"api/v1/{path}", content)
        equal(answer.status, 200, f"the answer to POST {path} ({answer.body[:300].decode('utf-8', 'replace')})")
        return answer.content


@frozen
class Server:
    """A running ``streamclient server``."""

    endpoint: str
    console: Console
    first_line_seconds: float
    process: subprocess.Popen[str]
    secret: str = DEFAULT_ACCESS_KEY_SECRET

    def client(self, caller: str = "", **options: Any) -> OTSClient:
        """Return a client of the official SDK; the console tells callers apart by the security token."""
        words = (self.endpoint, DEFAULT_ACCESS_KEY_ID, self.secret, INSTANCE)
        return OTSClient(*words, sts_token=caller or None, logger_name=LOGGER, **options)

    def admin(self, name: str, **arguments: Any) -> Any:
        """Split, merge, trim and the like, by the console's API."""
        return self.console.post(f"server/{name}", arguments)

    def request_count(self) -> int:
        """Return the number of requests that the server has counted."""
        return sum(int(each["requests"]) for each in self.console.get("server/requests")["counts"])


@frozen
class Ran:
    """What a command printed."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)


@define
class Stand:
    """Everything that one step has started; it ends with the step."""

    browser: Any
    directory: Path
    minutes: float = 10.0
    """The length of the look through a proxy."""
    starts: int = 10
    """The number of measured starts of each kind of server."""
    _stack: ExitStack = field(factory=ExitStack)

    def __enter__(self) -> Stand:
        self.directory.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    # --- processes -------------------------------------------------------------------------------------------------

    def server(self, *options: str, console: bool = True, secret: str = DEFAULT_ACCESS_KEY_SECRET) -> Server:
        """Start a server on free ports, and read the lines that it prints."""
        ports = ("--port", "0", *(("--console-port", "0") if console else ()))
        began = time.monotonic()
        process = self._started("server", *ports, *options, **{SECRET_VARIABLE: secret})
        first = self._line(process)
        seconds = time.monotonic() - began
        check(first.startswith("listening on http://"), f"the first line is {first!r}")
        second = self._line(process) if console else ""
        check(not console or second.startswith("console at http://"), f"the second line is {second!r}")
        address = Console(second.removeprefix("console at "))
        return Server(first.removeprefix("listening on "), address, seconds, process, secret)

    def end(self, process: subprocess.Popen[str]) -> int:
        """Ask a process to end; return its exit code."""
        process.terminate()
        return process.wait(WAIT_SECONDS)

    def console(self, server: Server, *words: str, **environment: str) -> tuple[Console, subprocess.Popen[str]]:
        """Start ``streamclient console`` on a free port."""
        words = ("console", *words, "--endpoint", server.endpoint, "--port", "0")
        process = self._started(*words, **{SECRET_VARIABLE: server.secret, **environment})
        line = self._line(process)
        check(line.startswith("console at http://"), f"the console's line is {line!r}")
        return Console(line.removeprefix("console at ")), process

    def command(self, server: Server | None, *words: str, **environment: str) -> Ran:
        """Run a command to its end."""
        given = {}
        if server is not None:
            given = {"TABLESTORE_ENDPOINT": server.endpoint, SECRET_VARIABLE: server.secret}
        done = subprocess.run(
            [sys.executable, *STREAMCLIENT, *words],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, **given, **environment, "COLUMNS": "200"},
            timeout=10 * WAIT_SECONDS,
        )
        return Ran(done.returncode, done.stdout, done.stderr)

    def fleet_command(self, server: Server, *words: str) -> Any:
        """Run a command about the fleet of ``orders``; return its document."""
        ran = self.command(server, *words, *FLEET, "--json")
        check(ran.out, f"streamclient {' '.join(words)}: {ran.err}")
        return ran.document

    def worker(self, server: Server, name: str, factory: str, *options: str, **environment: str) -> WorkerProcess:
        """Start ``streamclient run`` with a processor of this drill."""
        words = [*STREAMCLIENT, "run", f"tests.console_drill.processors:{factory}", "--worker", name, *FLEET]
        log = self.directory / f"{name}.log"
        process = WorkerProcess(
            name, [*words, "--endpoint", server.endpoint, *options], log, {**environment, "PYTHONUNBUFFERED": "1"}
        )
        self._stack.callback(process.kill)
        return process

    def java(self, command: Sequence[str]) -> Ran:
        """Run a program in Java to its end."""
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10 * WAIT_SECONDS)
        return Ran(done.returncode, done.stdout, done.stderr)

    def _started(self, *words: str, **environment: str) -> subprocess.Popen[str]:
        log = self._stack.enter_context((self.directory / f"{words[0]}.log").open("a", encoding="utf-8"))
        process = subprocess.Popen(
            [sys.executable, *STREAMCLIENT, *words],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, **environment},
        )
        self._stack.callback(_ended, process)
        return process

    def _line(self, process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        line = process.stdout.readline().rstrip("\n")
        check(line, f"a process printed nothing; it wrote {self._said()!r}")
        return line

    def _said(self) -> str:
        return "".join(path.read_text(encoding="utf-8")[-1_000:] for path in sorted(self.directory.glob("*.log")))

    # --- pages -----------------------------------------------------------------------------------------------------

    @contextmanager
    def page(self, console: Console, place: str = "", complaints: str = "", **options: Any) -> Iterator[Any]:
        """Open a page; it must ask for nothing from elsewhere, and the browser must have nothing to complain of.

        ``complaints`` is a pattern of messages that the step expects.
        """
        context = self.browser.new_context(**{"viewport": {"width": 1440, "height": 1000}, **options})
        page = context.new_page()
        page.set_default_timeout(WAIT_SECONDS * 1_000)
        messages: list[str] = []
        foreign: list[str] = []
        page.on("console", lambda message: messages.append(message.text))
        page.on("pageerror", lambda error: messages.append(str(error)))
        page.on("request", lambda request: foreign.append(request.url))
        try:
            page.goto(console.printed if console.key else f"{console.base}#/{place}")
            page.get_by_text("live").first.wait_for()
            if console.key:
                go(page, place)
            page.locator("#page h1").first.wait_for()
            yield page
        except Exception:
            self.picture(page, f"{self.directory.name}-failed")
            raise
        finally:
            context.close()
        unwanted = [text for text in messages if not complaints or not re.search(complaints, text)]
        equal(unwanted, [], "the browser's complaints")
        elsewhere = [url for url in foreign if not url.startswith((console.base, "data:", "blob:"))]
        equal(elsewhere, [], "requests to elsewhere")

    def picture(self, page: Any, name: str) -> Path:
        """Keep what a page shows for a person who looks at it later."""
        path = self.directory.parent / "pictures" / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=str(path), full_page=True)
        return path


TABLE, STATUS = "orders", "orders_status"
FLEET = ("--data-table", TABLE, "--status-table", STATUS)
FLEET_WORD = f"{TABLE}:{STATUS}"
LEASE_SECONDS = 6
QUICK = ("--lease-duration", str(LEASE_SECONDS))
"""Short leases: a worker that is stopped counts as dead within seconds."""


def go(page: Any, place: str) -> None:
    """Go to a page of the console that is open: a place stands after #/."""
    page.evaluate(f"location.hash = {json.dumps('#/' + place)}")
    page.locator("#page h1").first.wait_for()


def text_of(page: Any) -> str:
    """Return the text that a page shows, with plain spaces."""
    return re.sub(r"\s+", " ", str(page.locator("#page").inner_text()))


def without_numbers(text: str) -> str:
    """Return a text without what differs between two moments, and without the marks of commands in it.

    Two moments differ in numbers, in the first try, which is told as "once", and in how a failure goes on. A sentence
    may begin with another word before.
    """
    text = re.sub(r"; (the )?next .*?(\.(?= |$)|$)", ".", re.sub(r"[\s`]+", " ", text).lower())
    return re.sub(r"\d+(\.\d+)?( times\b)?|\bonce\b", "#", text).strip()


def _ended(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.kill()
    process.wait(WAIT_SECONDS)
    if process.stdout is not None:
        process.stdout.close()
