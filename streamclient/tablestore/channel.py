"""One HTTP connection over a socket. It reads responses with few system calls, and bounds their size and duration."""

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
"""The number of bytes that one ``recv`` requests while the length of the response is unknown. They suffice for the
headers and all of a small body, or for one TLS record."""

HEAD_BYTES = 2_048
"""The number of bytes, from the beginning of a long response, in which the channel looks for the end of the headers.
The service's headers have about 400 bytes."""

RESTED_SECONDS = 1.0
"""The longest idle time after which a connection is reused without a check. A service closes a connection only after
several idle seconds."""

MOST_HEADERS = 100
"""The largest number of headers that a response may have. ``http.client`` has the same limit."""

INTERIM = range(100, 200)
"""HTTP statuses of interim responses, such as 100 (Continue). The final response to the request follows later."""

BODYLESS = frozenset({204, 304})
"""HTTP statuses of responses without a body. They end with the headers, even if the headers announce a length."""

PIECE_BYTES = 8 * MEBIBYTE
"""The largest number of bytes that one ``recv`` requests. Python allocates this memory before the bytes arrive. The
largest page of records has half of this size."""

SILENCE_SECONDS = 3.0
"""The seconds within which the response to a repeatable request must begin, on a connection that was idle. Otherwise
the connection counts as dead, and the request is sent again over a new connection. By then TCP has sent the request
five times. If the service was only slow, it receives the same request twice."""

_SHOWN = 40
"""The largest number of characters that an error message quotes of a malformed status line or length."""

_HEXADECIMAL = frozenset(hexdigits)


@frozen
class HttpAnswer:
    """An HTTP response with its body. The status may be a success or an error."""

    status: int
    headers: Mapping[str, str]
    """The headers by their names in lower case. Spaces around the values are removed. If a header is repeated,
    the last value is kept."""
    body: bytes
    has_end: bool
    """Whether the response announced the end of its body, by a length or by chunks. Otherwise the body ended with the
    connection, and the body may have been cut."""


class SilentError(TimeoutError):
    """A connection that was idle did not respond within ``SILENCE_SECONDS``.

    The request may be sent again over another connection.
    """


class HttpChannel:
    """An HTTP connection over one socket. It carries one request and its response at a time."""

    def __init__(self, channel: socket.socket, wait_seconds: float, attempt_seconds: float) -> None:
        """Wrap the connected socket ``channel``, and bound each wait for it by ``wait_seconds``.

        If an exchange takes too long, its error names ``attempt_seconds`` as the longest duration.
        """
        self._channel = channel
        self._usual_wait, self._attempt_seconds = wait_seconds, attempt_seconds
        self._ahead = b""
        """Bytes that were received and are not parsed yet."""
        self._all = _waits_in_the_kernel(channel, wait_seconds)
        self._wait_seconds = wait_seconds
        self._deadline = inf
        self._heads_left = 0
        """The number of bytes that this response may still use for headers and for lines around chunks."""
        self._is_much_expected = False
        self._has_input_within = _input_waiter(channel)
        self.is_new: bool = True
        self.used_at: float = time.monotonic()

    @property
    def is_dropped(self) -> bool:
        """Whether the socket has input although no request was sent. Usually the peer has closed the connection."""
        return self._has_input_within(0)

    def exchange(self, message: bytes, deadline: float, *, is_doubted: bool) -> tuple[HttpAnswer, bool]:
        """Send the request ``message``; return the response, and whether the connection may carry another request.

        The response must be complete at ``deadline``, a time of the monotonic clock. If ``is_doubted``, the connection
        may be dead, and the response must also begin within ``SILENCE_SECONDS``.
        """
        self._deadline, self._heads_left = deadline, HEADS_BYTES_MAX
        try:
            if self.is_new:  # connecting has used a part of the time until the deadline
                self._hurry()
                self.is_new = False
            sent = self._channel.send(message)
            if sent < len(message):
                self._send_rest(message, sent)
            if is_doubted and not self._has_input_within(SILENCE_SECONDS):
                raise SilentError(f"a connection that was idle did not answer within {SILENCE_SECONDS:g} s")
            answer = self._answer()
        except BlockingIOError as error:  # Python's error for a time-out that the kernel applied
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
        """Shorten the next wait so that it ends by the deadline. Raise ``TimeoutError`` if the deadline has passed.

        The usual exchange needs no call of this method. It goes over a kept connection, its response arrives in one
        piece, and its only wait for the response ends before the deadline anyway.
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
                raise HTTPException(f"more than {INTERIM_ANSWERS_MAX} interim answers came before the final answer")
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
        """Read the lines of the headers, or of a chunked body's trailer, without the empty line after them."""
        head, end, after = self._ahead.partition(b"\r\n\r\n")
        if head and end and len(head) <= self._heads_left:  # the usual case: all headers arrived in one piece
            self._ahead = after
            self._heads_left -= len(head)
            lines = head.decode("latin-1").split("\r\n")
        else:
            lines = list(iter(self._line, ""))
        if len(lines) > MOST_HEADERS:
            raise HTTPException(f"the answer has more than {MOST_HEADERS} headers")
        return lines

    def _beginning(self) -> bytes:
        """Read the first bytes of a response.

        If the previous body on this connection was long, read only the headers, so that one read can fetch the body.
        """
        size = READ_BYTES
        if self._is_much_expected:
            head, end, _ = self._channel.recv(HEAD_BYTES, socket.MSG_PEEK).partition(b"\r\n\r\n")
            size = len(head) + len(end) if end else HEAD_BYTES
        return self._channel.recv(size)

    def _line(self) -> str:
        """Read the next line of the headers, or of the lines around chunks; return it without its line end."""
        while b"\n" not in self._ahead and len(self._ahead) <= self._heads_left:
            came = self._more(READ_BYTES)
            if not came:
                raise IncompleteRead(self._ahead)
            self._ahead += came
        line, _, self._ahead = self._ahead.partition(b"\n")
        self._heads_left -= len(line) + 1
        if self._heads_left < 0:
            raise HTTPException(f"an answer has more than {HEADS_BYTES_MAX} bytes of headers, or too many chunks")
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
        """Read the next ``size`` bytes of a body; for a chunk, ``total`` is the size of all chunks up to this one."""
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
        """Read a body that ends with the connection."""
        parts, total = [], 0
        came, self._ahead = self._ahead or self._more(READ_BYTES), b""
        while came:
            parts.append(came)
            total += len(came)
            _require_fitting(total)
            came = self._more(READ_BYTES)
        return b"".join(parts)


def _input_waiter(channel: socket.socket) -> Callable[[float], bool]:
    """Return a function that waits for input, at most for the given seconds, and returns whether input came."""
    if not hasattr(select, "poll"):  # Windows has no poll, but its select accepts every socket
        return lambda seconds: channel.fileno() < 0 or bool(select.select([channel], [], [], seconds)[0])
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    return lambda seconds: bool(poll.poll(seconds * 1_000))


def _waits_in_the_kernel(channel: socket.socket, seconds: float) -> int:
    """Let the kernel apply the socket's time-out, if possible. Return the flags for reads of a body.

    The kernel's time-out saves a system call before each read. The flag ``MSG_WAITALL`` lets one call read a whole
    body. Over TLS, on Windows (whose kernel expects milliseconds) and if the kernel refuses, Python applies the
    time-out, and the flags are 0.
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
    """Let the kernel end each wait for the socket after ``seconds``, but not before a microsecond.

    The reason is that the kernel takes 0 as an infinite time-out.
    """
    whole = 0 if seconds == inf else max(1, round(seconds * 1_000_000))
    limit = struct.pack("@ll", *divmod(whole, 1_000_000))  # the layout of C's struct timeval
    for direction in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        channel.setsockopt(socket.SOL_SOCKET, direction, limit)


def _length(text: str) -> int:
    try:
        if text.isascii() and text.isdigit():  # int() alone would accept signs, spaces, underscores
            return int(text)
    except ValueError:  # more digits than int() accepts
        pass
    raise _no_length(text)


def _chunk_length(text: str) -> int:
    if not text or not _HEXADECIMAL.issuperset(text):
        raise _no_length(text)
    return int(text, 16)


def _no_length(text: str) -> HTTPException:
    return HTTPException(f"the length of an answer's body is malformed: {text[:_SHOWN]!r}")


def _require_fitting(size: int) -> None:
    if size > BODY_BYTES_MAX:
        raise HTTPException(f"an answer's body, of at least {size} bytes, is longer than {BODY_BYTES_MAX} bytes")
