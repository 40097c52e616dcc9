"""The bytes of each hostile answer, sent in place of the honest one, and what becomes of the connection."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from enum import Enum

from attrs import field, frozen

from streamclient.wire import schema
from tests.hostile.exchange import PageHistory, PageSeen, Reply, Request, Sealer, sealed_like

ENDLESS_BYTES = 32 << 20
"""Sent of what has no end: far more than lies in the buffers of two sockets. A client that takes all of it takes any
number of interim answers, or of chunks of a byte."""

AT_ONCE = 1_000
"""Of these in one piece."""

SLOW_BYTES = 40
"""A client that waits for each of them waits three times its time-out; then the rest comes at once."""

HTML = b"<html><head><title>gateway</title></head><body>The upstream said nothing.</body></html>"


class End(Enum):
    """What becomes of the connection."""

    KEPT = "kept"
    CLOSED = "closed"
    TORN = "closed without the end of TLS"
    LEFT = "held open until the client leaves"
    DEAD = "held open until the client leaves, whatever it asks"


@frozen
class Wait:
    """A pause within an answer: the client waits for a byte, and gets it in time."""


@frozen
class Script:
    """What is sent, and what becomes of the connection."""

    steps: Iterable[bytes | Wait]
    end: End = End.CLOSED
    must_leave: bool = False
    """Whether the client has to give up before all of it was sent."""


@frozen
class Meeting:
    """A request that meets the fault."""

    request: Request
    reply: Reply
    """The honest answer."""
    page: PageSeen | None
    history: PageHistory
    sealer: Sealer
    dice: random.Random = field(repr=False)

    def some(self) -> int:
        """A place within the body, or its beginning if it has but a byte."""
        return self.dice.randrange(len(self.reply.body)) if self.reply.body else 0

    def sealed(self, body: bytes) -> Script:
        """Another body, signed, on a connection that stays."""
        reply = sealed_like(self.reply, self.sealer, self.request.operation, body)
        return Script([reply.whole()], End.KEPT)

    def refused(self, status: int, code: str, text: str) -> Script:
        """As the service refuses."""
        kind = schema.TunnelError if self.request.operation.startswith("tunnel/") else schema.Error
        body = bytes(kind(code=code, message=text).SerializeToString())
        return Script([self.sealer.seal(self.request.operation, body, status=status).whole()], End.KEPT)


Play = Callable[[Meeting], Script | None]
"""``None`` where the request has no such answer, as the page before the first one."""


def _gateway(status: int, more: str = "") -> Play:
    head = f"HTTP/1.1 {status} Gateway\r\nContent-Type: text/html\r\n{more}Content-Length: {len(HTML)}\r\n\r\n".encode()
    return lambda meeting: Script([head + HTML], End.KEPT)


def _cut_head(meeting: Meeting) -> Script:
    head = meeting.reply.head(f"Content-Length: {len(meeting.reply.body)}")
    return Script([head[: len(head) // 2]])


def _cut_body(meeting: Meeting) -> Script | None:
    whole = meeting.reply.whole()
    missing = len(meeting.reply.body) - meeting.some()
    return Script([whole[:-missing]]) if missing else None


def _cut_between(meeting: Meeting) -> Script | None:
    page = meeting.page
    if page is None or page.count < 2:
        return None
    body = page.cut(meeting.dice.randrange(1, page.count))
    return Script([meeting.reply.head(f"Content-Length: {len(body)}") + body], End.KEPT)


def _cut_range(meeting: Meeting) -> Script | None:
    """A page of rows is one field: the cut leaves them, and takes the key to go on from."""
    page = meeting.page
    if page is None or not page.following:
        return None
    body = page.cut(page.count)
    return Script([meeting.reply.head(f"Content-Length: {len(body)}") + body], End.KEPT)


def _between(meeting: Meeting) -> Script | None:
    return _cut_range(meeting) if meeting.request.operation == "GetRange" else _cut_between(meeting)


def _lengthless(cut: bytes, meeting: Meeting, end: End = End.CLOSED) -> Script:
    return Script([meeting.reply.head("Connection: close") + cut], end)


def _lengthless_between(meeting: Meeting, end: End = End.CLOSED) -> Script | None:
    between = _between(meeting)
    if between is None:
        return None
    body = b"".join(step for step in between.steps if isinstance(step, bytes)).partition(b"\r\n\r\n")[2]
    return _lengthless(body, meeting, end)


def _torn(meeting: Meeting) -> Script:
    between = _lengthless_between(meeting, End.TORN)
    return between or _lengthless(meeting.reply.body[: meeting.some()], meeting, End.TORN)


def _no_content(meeting: Meeting) -> Script:
    return Script([meeting.sealer.seal(meeting.request.operation, b"", status=204).head()], End.KEPT)


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def _chunked(meeting: Meeting, rest: Iterable[bytes], end: End, *, must_leave: bool = False) -> Script:
    def steps() -> Iterator[bytes | Wait]:
        yield meeting.reply.head("Transfer-Encoding: chunked")
        yield from rest

    return Script(steps(), end, must_leave)


def _endless(piece: bytes) -> list[bytes]:
    many = piece * AT_ONCE
    return [many] * (ENDLESS_BYTES // len(many))


def _interim(meeting: Meeting) -> Script:
    return Script(_endless(b"HTTP/1.1 102 Processing\r\n\r\n"), End.CLOSED, must_leave=True)


def _slow(meeting: Meeting) -> Script:
    def steps() -> Iterator[bytes | Wait]:
        whole = meeting.reply.whole()
        for place in range(min(SLOW_BYTES, len(whole))):
            yield whole[place : place + 1]
            yield Wait()
        yield whole[SLOW_BYTES:]

    return Script(steps(), End.KEPT, must_leave=True)


def _absurd_length(meeting: Meeting) -> Script:
    return Script([meeting.reply.head("Content-Length: 1000000000000000") + meeting.reply.body], End.LEFT)


def _error_as_success(meeting: Meeting) -> Script:
    kind = schema.TunnelError if meeting.request.operation.startswith("tunnel/") else schema.Error
    return meeting.sealed(bytes(kind(code="OTSInternalServerError", message="Internal error.").SerializeToString()))


def _wrong_digest(meeting: Meeting) -> Script:
    body = meeting.reply.body
    made = meeting.sealer.seal(meeting.request.operation, body, digest_of=body + b"\0")
    return Script([made.whole()], End.KEPT)


def _repeated(meeting: Meeting) -> Script | None:
    earlier = [] if meeting.page is None else meeting.history.before(meeting.page)
    return meeting.sealed(earlier[-1].body) if earlier else None


def _old(meeting: Meeting) -> Script | None:
    first = None if meeting.page is None else meeting.history.first(meeting.page)
    return None if first is None or first.body == meeting.reply.body else meeting.sealed(first.body)


def _elsewhere(meeting: Meeting) -> Script | None:
    other = None if meeting.page is None else meeting.history.elsewhere(meeting.page)
    return None if other is None else meeting.sealed(other.body)


def _back(meeting: Meeting) -> Script | None:
    page = meeting.page
    first = None if page is None else meeting.history.first(page)
    if page is None or first is None or not page.count or first.asked == page.asked:
        return None
    return meeting.sealed(page.going_to(first.asked))


def _staying(meeting: Meeting) -> Script | None:
    page = meeting.page
    return meeting.sealed(page.going_to(page.asked)) if page is not None and page.count else None


PLAYS: dict[str, Play] = {
    "cut head": _cut_head,
    "cut body": _cut_body,
    "cut between records": _between,
    "no length, cut": lambda meeting: _lengthless(meeting.reply.body[: meeting.some()], meeting),
    "no length, cut between records": _lengthless_between,
    "TLS cut": _torn,
    "empty body": lambda meeting: Script([meeting.reply.head("Content-Length: 0")], End.KEPT),
    "status 204": _no_content,
    "chunk without end": lambda meeting: _chunked(meeting, [_chunk(meeting.reply.body)], End.CLOSED),
    "1xx without end": _interim,
    "chunks without end": lambda meeting: _chunked(meeting, _endless(_chunk(b"x")), End.CLOSED, must_leave=True),
    "absurd chunk": lambda meeting: _chunked(meeting, [b"7fffffffffffffff\r\n" + meeting.reply.body], End.LEFT),
    "absurd length": _absurd_length,
    "slow": _slow,
    "silence": lambda meeting: Script([], End.LEFT),
    "forgotten": lambda meeting: Script([], End.DEAD) if meeting.request.is_kept else None,
    "429": lambda meeting: meeting.refused(429, "OTSFlowControl", "Too many requests."),
    "429 of a gateway": _gateway(429, "Retry-After: 1\r\n"),
    "503": lambda meeting: meeting.refused(503, "OTSServerUnavailable", "Server is not available."),
    "502 of a gateway": _gateway(502),
    "200 of a gateway": _gateway(200),
    "error with 200": _error_as_success,
    "wrong digest": _wrong_digest,
    "repeated page": _repeated,
    "old page": _old,
    "page of another shard": _elsewhere,
    "page that goes back": _back,
    "page that stays": _staying,
}
"""By the name of the answer."""
