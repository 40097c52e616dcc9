"""One socket and the answers that arrive on it, read with few system calls and within bounds."""

from __future__ import annotations

import os
import select
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from http.client import BadStatusLine, HTTPException, IncompleteRead, RemoteDisconnected
from math import inf
from string import hexdigits

from attrs import frozen

from streamclient.base.reasons import counted
from streamclient.tablestore.connection_limits import (
    BODY_BYTES_MAX,
    CHUNK_HEADS_BYTES_MAX,
    HEADS_BYTES_MAX,
    INTERIM_ANSWERS_MAX,
    MEBIBYTE,
)
from streamclient.wire.signature import read_head

READ_BYTES = 16_384
"""The number of bytes to read when the length of an answer is unknown: a head and all of a small body, or a TLS
record."""

HEAD_BYTES = 2_048
"""The end of a long answer's head is searched within this number of first bytes. The service's heads have 400 bytes."""

RESTED_SECONDS = 1.0
"""The longest rest after which a connection is used again without a check. A service keeps idle connections for
seconds."""

MOST_HEADERS = 100
"""The largest number of headers of an answer, as in ``http.client``."""

INTERIM = range(100, 200)
"""HTTP statuses of interim answers, after which another answer comes."""

BODYLESS = frozenset({204, 304})
"""Statuses whose answers end with the head, even if the head announces a body."""

PIECE_BYTES = 8 * MEBIBYTE
"""The largest number of bytes that one read requests, and for which it allocates memory before they arrive: twice a
whole page."""

SILENCE_SECONDS = 3.0
"""The silence after which a connection that has rested counts as dead, and the read that was sent on it is sent again
on a new connection. By then TCP has sent the request five times. If the service was only slow, it gets the same read
twice."""

_SHOWN = 40
"""The largest number of characters of a malformed number that a message quotes. Such a number may be as long as a
head."""

_HEXADECIMAL = frozenset(hexdigits)


@frozen
class HttpAnswer:
    """One answer of any status."""

    status: int
    headers: Mapping[str, str]
    """Headers by name in lower case, without spaces around the value; the last value of a repeated header."""
    body: bytes
    has_end: bool
    """Whether the body's end was announced, by a length or by chunks. Otherwise the end of the connection ended the
    body, for an unknown reason."""


class SilentError(TimeoutError):
    """A connection that had rested did not answer soon. Its request may be sent again over another connection."""


class HttpChannel:
    """One socket, which carries one exchange at a time."""

    def __init__(self, channel: socket.socket, wait_seconds: float, attempt_seconds: float) -> None:
        """Bound each wait by ``wait_seconds``. Errors of exchanges that take too long name ``attempt_seconds``."""
        self._channel = channel
        self._usual_wait, self._attempt_seconds = wait_seconds, attempt_seconds
        self._ahead = b""
        """Bytes that were received and are not used yet."""
        self._all = _waits_in_the_kernel(channel, wait_seconds)
        self._wait_seconds = wait_seconds
        self._deadline = inf
        self._heads_left = 0
        """The number of bytes that may still arrive as heads and around chunks."""
        self._is_much_expected = False
        self._has_input_within = _input_waiter(channel)
        self.is_new: bool = True
        self.used_at: float = time.monotonic()

    @property
    def is_dropped(self) -> bool:
        """Whether the socket has unexpected input, which usually means the end of the connection."""
        return self._has_input_within(0)

    def exchange(self, message: bytes, deadline: float, *, is_doubted: bool) -> tuple[HttpAnswer, bool]:
        """Send ``message``; return the answer and whether the connection may be used again.

        If ``is_doubted``, the connection must answer within ``SILENCE_SECONDS``.
        """
        self._deadline, self._heads_left = deadline, HEADS_BYTES_MAX
        try:
            if self.is_new:  # connecting has used a part of the time
                self._hurry()
                self.is_new = False
            sent = self._channel.send(message)
            if sent < len(message):
                self._send_rest(message, sent)
            if is_doubted and not self._has_input_within(SILENCE_SECONDS):
                raise SilentError(f"a rested connection did not answer within {SILENCE_SECONDS:g} s")
            answer = self._answer()
        except BlockingIOError as error:  # the kernel's error for its own time-out
            waited = self._wait_seconds
            self._hurry()
            raise TimeoutError(f"timed out: nothing came for {waited:.3g} s") from error
        if self._wait_seconds != self._usual_wait:
            self._wait_at_most(self._usual_wait)
        self.used_at = time.monotonic()
        return answer

    def close(self) -> None:
        """Close the socket. A second call is harmless."""
        self._channel.close()

    def _hurry(self) -> None:
        """Let the next wait end by the deadline.

        The first wait of an exchange over a kept connection ends by the deadline anyway. So the usual answer, which
        arrives in one piece, needs no look at the clock.
        """
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"timed out: the answer was not complete within {self._attempt_seconds:.3g} s")
        if left < self._wait_seconds:
            self._wait_at_most(left)

    def _wait_at_most(self, seconds: float) -> None:
        if self._all:
            _set_kernel_time_out(self._channel, seconds)
        else:
            self._channel.settimeout(None if seconds == inf else seconds)
        self._wait_seconds = seconds

    def _send_rest(self, message: bytes, sent: int) -> None:
        while sent < len(message):
            self._hurry()
            sent += self._channel.send(memoryview(message)[sent:])

    def _more(self, size: int, flags: int = 0) -> bytes:
        self._hurry()
        return self._channel.recv(size, flags)

    def _answer(self) -> tuple[HttpAnswer, bool]:
        version, status, headers = self._head()
        interim = 0
        while status in INTERIM:
            interim += 1
            if interim > INTERIM_ANSWERS_MAX:
                raise HTTPException(f"more than {INTERIM_ANSWERS_MAX} interim answers came before the one that counts")
            self._hurry()
            version, status, headers = self._head()
        length, coding = headers.get("content-length"), headers.get("transfer-encoding")
        has_end = True
        try:
            if status in BODYLESS:
                body = b""
            elif coding is not None and "chunked" in coding.lower():
                body = b"".join(self._chunks())
            elif length is not None:
                body = self._exactly(_length(length))
            else:
                body, has_end = self._rest(), False
        except (MemoryError, OverflowError) as error:
            announced = "unknown length" if length is None else counted(length, "byte")
            raise HTTPException(f"there is no memory for an answer's body of {announced}") from error
        asks_to_close = headers.get("connection", "" if version == "HTTP/1.1" else "close").lower() == "close"
        is_kept = has_end and not asks_to_close and not self._ahead
        self._is_much_expected = len(body) > READ_BYTES and bool(self._all)
        return HttpAnswer(status, headers, body, has_end), is_kept

    def _head(self) -> tuple[str, int, dict[str, str]]:
        if not self._ahead:
            self._ahead = self._beginning()
            if not self._ahead:
                raise RemoteDisconnected("the connection was closed without an answer")
        usual = read_head(self._ahead)
        if usual is not None:
            status, headers, after = usual
            self._ahead = self._ahead[after:]
            return "HTTP/1.1", status, headers
        lines = self._lines()
        version, _, rest = lines[0].partition(" ") if lines else ("", "", "")
        if not version.startswith("HTTP/1.") or not rest[:3].isdecimal():
            raise BadStatusLine(lines[0][:_SHOWN] if lines else "")
        parts = [line.partition(":") for line in lines[1:]]
        return version, int(rest[:3]), {name.lower(): value.strip() for name, _, value in parts}

    def _lines(self) -> list[str]:
        """Read the head of an answer, or the trailer of a chunked answer, without the empty line at its end."""
        head, end, after = self._ahead.partition(b"\r\n\r\n")
        if head and end and len(head) <= self._heads_left:  # the head arrived in one piece, as it mostly does
            self._ahead = after
            self._heads_left -= len(head)
            lines = head.decode("latin-1").split("\r\n")
        else:
            lines = list(iter(self._line, ""))
        if len(lines) > MOST_HEADERS:
            raise HTTPException(f"the answer has more than {MOST_HEADERS} headers")
        return lines

    def _beginning(self) -> bytes:
        """Read the first bytes.

        If a long answer is expected, read only its head, so that the body comes in one piece.
        """
        size = READ_BYTES
        if self._is_much_expected:
            head, end, _ = self._channel.recv(HEAD_BYTES, socket.MSG_PEEK).partition(b"\r\n\r\n")
            size = len(head) + len(end) if end else HEAD_BYTES
        return self._channel.recv(size)

    def _line(self) -> str:
        """Read the next line, without its end."""
        while b"\n" not in self._ahead and len(self._ahead) <= self._heads_left:
            came = self._more(READ_BYTES)
            if not came:
                raise IncompleteRead(self._ahead)
            self._ahead += came
        line, _, self._ahead = self._ahead.partition(b"\n")
        self._heads_left -= len(line) + 1
        if self._heads_left < 0:
            raise HTTPException(f"an answer has more than {HEADS_BYTES_MAX} bytes of heads, or too many chunks")
        return line.decode("latin-1").rstrip("\r")

    def _chunks(self) -> Iterator[bytes]:
        self._heads_left += CHUNK_HEADS_BYTES_MAX
        total = 0
        while size := _chunk_length(self._line().partition(";")[0].strip()):
            total += size
            yield self._exactly(size, total)
            if self._line():
                raise HTTPException("a chunk of the answer is longer than it says")
        self._lines()

    def _exactly(self, size: int, total: int = 0) -> bytes:
        """Read the next ``size`` bytes, a part of a body of at least ``total`` bytes."""
        _require_fitting(max(size, total))
        data, self._ahead = self._ahead[:size], self._ahead[size:]
        if len(data) == size:
            return data
        parts, missing = [data] if data else [], size - len(data)
        most = PIECE_BYTES if self._all else READ_BYTES
        while missing:
            came = self._more(min(missing, most), self._all)
            if not came:
                raise IncompleteRead(b"".join(parts), missing)
            parts.append(came)
            missing -= len(came)
        return b"".join(parts)

    def _rest(self) -> bytes:
        """Read all bytes up to the end of the connection."""
        parts, total = [], 0
        came, self._ahead = self._ahead or self._more(READ_BYTES), b""
        while came:
            parts.append(came)
            total += len(came)
            _require_fitting(total)
            came = self._more(READ_BYTES)
        return b"".join(parts)


def _input_waiter(channel: socket.socket) -> Callable[[float], bool]:
    """Return a function that waits for input, for a given time at most, and returns whether input came."""
    if not hasattr(select, "poll"):  # Windows; its select accepts sockets with any number
        return lambda seconds: channel.fileno() < 0 or bool(select.select([channel], [], [], seconds)[0])
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    return lambda seconds: bool(poll.poll(seconds * 1_000))


def _waits_in_the_kernel(channel: socket.socket, seconds: float) -> int:
    """Let the kernel keep the socket's time-out. Return ``MSG_WAITALL`` if the kernel can do so, else 0.

    This saves a call before each read, and with the flag one call reads a whole body. Python keeps the time-out if the
    kernel cannot, over TLS, and on Windows, which would read the seconds as milliseconds.
    """
    if not isinstance(channel, ssl.SSLSocket) and os.name == "posix":
        try:
            _set_kernel_time_out(channel, seconds)
        except OSError:
            pass
        else:
            channel.settimeout(None)
            return socket.MSG_WAITALL
    channel.settimeout(None if seconds == inf else seconds)
    return 0


def _set_kernel_time_out(channel: socket.socket, seconds: float) -> None:
    """Set the time-out of each wait. Without a limit the time-out is infinite; the kernel's number for that is 0."""
    whole = 0 if seconds == inf else max(1, round(seconds * 1_000_000))
    limit = struct.pack("@ll", *divmod(whole, 1_000_000))  # a struct timeval
    for direction in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        channel.setsockopt(socket.SOL_SOCKET, direction, limit)


def _length(text: str) -> int:
    try:
        if text.isascii() and text.isdigit():  # Python would accept signs, spaces and underscores, too.
            return int(text)
    except ValueError:  # more digits than Python reads
        pass
    raise _no_length(text)


def _chunk_length(text: str) -> int:
    if not text or not _HEXADECIMAL.issuperset(text):
        raise _no_length(text)
    return int(text, 16)


def _no_length(text: str) -> HTTPException:
    return HTTPException(f"the answer says {text[:_SHOWN]!r} where the length of its body belongs")


def _require_fitting(size: int) -> None:
    if size > BODY_BYTES_MAX:
        raise HTTPException(f"an answer's body of {size} bytes or more is longer than {BODY_BYTES_MAX}")
