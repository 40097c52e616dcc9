"""Consoles beside a local Tablestore and of fleets, asked with raw bytes, as JSON, and by feeds."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from types import TracebackType
from typing import TYPE_CHECKING, Any

from attrs import evolve, frozen

from streamclient.console.doors import DoorRule
from streamclient.console.listening import ConsoleServer, PageServer
from streamclient.server import LocalTablestore
from tests.patience import PATIENCE_SECONDS

if TYPE_CHECKING:
    from typing_extensions import Self


@frozen
class Answered:
    """An answer as it came."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def content(self) -> Any:
        return json.loads(self.body)


class Asked:
    """A running console, and how it is asked."""

    def __init__(self, console: PageServer) -> None:
        self.console = console

    def __enter__(self) -> Self:
        self.console.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.console.stop()

    @property
    def key_header(self) -> dict[str, str]:
        key = self.console.doors.key
        return {} if key is None else {"Authorization": f"Bearer {key}"}

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.console.port), PATIENCE_SECONDS)

    def raw(self, head: str, body: bytes = b"") -> Answered:
        """Send a head and a body as they are; ``{port}`` in the head is the console's."""
        text = head.replace("{port}", str(self.console.port)).replace("\n", "\r\n")
        with self.connect() as connection:
            connection.sendall(f"{text}\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode("latin-1"))
            connection.sendall(body)
            return read_answer(connection)

    def ask(self, method: str, path: str, content: Any = None, **headers: str) -> Answered:
        """Ask as a program does."""
        connection = http.client.HTTPConnection("127.0.0.1", self.console.port, timeout=PATIENCE_SECONDS)
        with closing(connection):
            body = None if content is None else json.dumps(content)
            sent = {} if method == "GET" else {"Content-Type": "application/json"}
            connection.request(method, path, body, {**sent, **self.key_header, **headers})
            answer = connection.getresponse()
            return Answered(answer.status, dict(answer.getheaders()), answer.read())

    def get(self, path: str) -> Any:
        """The document at a path of the API."""
        answer = self.ask("GET", f"/api/v1/{path}")
        assert answer.status == 200, answer
        return answer.content

    def feed(self, topics: str) -> Feed:
        return Feed(self, topics)


class Scene(Asked):
    """A running local Tablestore and its console; ``doors`` are options of its doors."""

    def __init__(self, local: LocalTablestore, rules: frozenset[DoorRule] = frozenset(DoorRule), **doors: Any) -> None:
        super().__init__(ConsoleServer(local, rules=rules))
        self.local = local
        self.console.doors = evolve(self.console.doors, **doors)

    @property
    def observer_count(self) -> int:
        return len(self.local.control._service.observers)


class Feed:
    """A feed that is read; documents are kept up to date by its patches."""

    def __init__(self, scene: Asked, topics: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", scene.console.port, timeout=PATIENCE_SECONDS)
        self._connection.request("GET", f"/api/v1/feed?of={topics}", headers=scene.key_header)
        self._answer = self._connection.getresponse()
        self.status = self._answer.status
        self.documents: dict[str, Any] = {}
        self.kinds: list[str] = []
        """What came: document or patch."""

    def __enter__(self) -> Feed:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._answer.close()
        self._connection.close()

    def until(self, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Read on until the documents are as wanted; the connection's time-out ends a wait in vain."""
        messages = self._messages()
        while not condition(self.documents):
            message = next(messages)
            if "patch" in message:
                self.kinds.append("patch")
                self.documents[message["of"]] = patched(self.documents[message["of"]], message["patch"])
            else:
                self.kinds.append("document")
                self.documents[message["of"]] = message["document"]
        return self.documents

    def _messages(self) -> Iterator[Any]:
        while line := self._answer.readline():
            if line.startswith(b"data: "):
                yield json.loads(line.removeprefix(b"data: "))
        raise AssertionError("the feed ended")


def patched(old: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """A document after a patch, as the page makes it."""
    made = {**old, **patch["set"]}
    for name in patch["gone"]:
        del made[name]
    for name, rows in patch["rows"].items():
        known = {row["id"]: row for row in (*old[name], *rows["changed"])}
        made[name] = [known[each] for each in rows["ids"]]
    return made


def read_answer(connection: socket.socket) -> Answered:
    answer = http.client.HTTPResponse(connection)
    answer.begin()
    with answer:
        return Answered(answer.status, dict(answer.getheaders()), answer.read())
