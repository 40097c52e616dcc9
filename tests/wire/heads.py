"""Heads of HTTP answers, read in one pass by what is compiled, or line by line."""

from __future__ import annotations

from http.client import HTTPException

from streamclient.tablestore import http


class _Bytes:
    """A channel on which these bytes come, and then the end."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def recv(self, size: int, flags: int = 0) -> bytes:
        came, self.data = self.data[:size], self.data[size:]
        return came


def head_of(data: bytes, *, is_in_one_pass: bool = True) -> object:
    """What a head says, and what is left behind it; or the error."""
    connection = http._Connection.__new__(http._Connection)
    connection._channel, connection._ahead, connection._is_much_expected = _Bytes(data), b"", False  # type: ignore[assignment]
    read_head = http.read_head
    if not is_in_one_pass:
        http.read_head = lambda _: None  # type: ignore[assignment]
    try:
        return connection._head(), connection._ahead
    except (HTTPException, OSError) as error:
        return repr(error)
    finally:
        http.read_head = read_head
