"""Plain requests, which have the form that every SDK sends. The server answers them without a task of the event loop.

The form is ``POST /Operation HTTP/1.1``, headers that each occur at most once, and a body of known length. A request
in another form, whether wrong or only unusual, goes to aiohttp unchanged, with all later bytes of its connection.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from email.utils import formatdate
from http import HTTPStatus

from attrs import frozen

from streamclient.server.auth import Doors
from streamclient.server.envelope import MAX_BODY_BYTES
from streamclient.server.fault_rules import NO_HARM
from streamclient.server.http_service import Answer, Service
from streamclient.server.server_errors import ServiceError

SERVER_SOFTWARE = "streamclient"
"""The value of the header ``Server`` in every answer."""

_HEAD = re.compile(
    # Letters only. This excludes the paths of the admin surface, and paths that need decoding.
    rb"POST (/[A-Za-z]+(?:/[A-Za-z]+)?) HTTP/1\.1"
    rb"((?:\r\n[A-Za-z][A-Za-z0-9-]*: ?[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?)+)\r\n\r\n"
)
_HEADER = re.compile(r"\r\n([^:]+): ?([^\r]+)")
_MOST_HEAD_BYTES = 4_096
"""The largest size, in bytes, of the request line and headers of a plain request together. A request with a larger head
goes to aiohttp, which has limits of its own."""

_LENGTH = re.compile(r"[0-9]{1,8}")

_ELSEWHERE = frozenset({"connection", "expect", "te", "trailer", "transfer-encoding", "upgrade"})
"""Headers that change how the connection is used. A request with one of these headers is not plain. Only
``Connection: keep-alive`` is allowed in a plain request."""


@frozen
class RequestHead:
    """The path and headers of a plain request, with the sizes of its head and its body."""

    path: str
    headers: Mapping[str, str]
    head_bytes: int
    body_bytes: int

    @property
    def size(self) -> int:
        """The number of bytes of the whole request."""
        return self.head_bytes + self.body_bytes


class PlainHttp:
    """The handling of plain HTTP requests for one service. Only the event loop's thread may use it."""

    def __init__(self, service: Service, doors: Doors) -> None:
        self._service = service
        self._doors = doors
        self._written = 0
        self._end = b""

    @property
    def is_open(self) -> bool:
        """Whether this object answers requests. ``False`` while fault rules exist.

        A fault may delay an answer, and this object cannot wait. So aiohttp answers requests while fault rules exist.
        """
        return self._service.faults.is_empty

    def head_of(self, data: bytes) -> RequestHead | None:
        """Return the head of the request with which ``data`` begins.

        Return ``None`` if the head is incomplete or the request is not plain.
        """
        match = _HEAD.match(data, 0, _MOST_HEAD_BYTES)
        if match is None:
            return None
        lines = _HEADER.findall(match[2].decode("ascii"))
        headers = {name.lower(): value for name, value in lines}
        length = headers.get("content-length", "")
        if len(headers) < len(lines) or not _LENGTH.fullmatch(length) or int(length) > MAX_BODY_BYTES:
            return None
        if not _ELSEWHERE.isdisjoint(headers) and not _is_kept_alive(headers):
            return None
        return RequestHead(match[1].decode("ascii"), headers, match.end(), int(length))

    def answer(self, head: RequestHead, body: bytes) -> bytes:
        """Execute a request; return the whole HTTP answer, with its status line and headers."""
        try:
            self._doors.check(head.headers)
            # A fault rule that was added meanwhile takes effect at the next request, because this object cannot wait.
            admitted = self._service.admit(head.path, head.headers, body, harm=NO_HARM)
        except ServiceError as error:
            return self._response(self._service.refuse(head.path, head.headers, error))
        return self._response(self._service.execute(admitted))

    def failure(self, error: ServiceError) -> bytes:
        """Return the whole HTTP answer that refuses a request with ``error``."""
        return self._response(self._service.refuse("", {}, error))

    def _response(self, answer: Answer) -> bytes:
        lines = [f"HTTP/1.1 {answer.status} {_phrase(answer.status)}\r\n"]
        lines += [f"{name}: {value}\r\n" for name, value in answer.headers.items()]
        lines.append(f"Content-Length: {len(answer.body)}\r\n")
        if answer.body:
            lines.append("Content-Type: application/octet-stream\r\n")
        return b"".join(["".join(lines).encode("utf-8", "surrogateescape"), self._common_end(), answer.body])

    def _common_end(self) -> bytes:
        """Return the headers ``Date`` and ``Server``, with the empty line after them. Make them once a second."""
        now = int(time.time())
        if now != self._written:
            self._written = now
            date = formatdate(now, usegmt=True)
            self._end = f"Date: {date}\r\nServer: {SERVER_SOFTWARE}\r\n\r\n".encode("ascii")
        return self._end


def _is_kept_alive(headers: Mapping[str, str]) -> bool:
    others = _ELSEWHERE - {"connection"}
    return others.isdisjoint(headers) and headers["connection"].lower() == "keep-alive"


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""
