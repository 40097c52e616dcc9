"""Heads of HTTP answers, read in one pass by what is compiled, or line by line."""

from __future__ import annotations

from http.client import HTTPException
from math import inf

from streamclient.tablestore import channel
from streamclient.tablestore.connection_limits import HEADS_BYTES_MAX


class _Bytes:
    """A channel on which these bytes come, and then the end."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def recv(self, size: int, flags: int = 0) -> bytes:
        came, self.data = self.data[:size], self.data[size:]
        return came


def head_of(data: bytes, *, is_in_one_pass: bool = True) -> object:
    """What a head says, and what is left behind it; or the error."""
    connection = channel.HttpChannel.__new__(channel.HttpChannel)
    connection._channel, connection._ahead, connection._is_much_expected = _Bytes(data), b"", False  # type: ignore[assignment]
    connection._deadline, connection._wait_seconds, connection._heads_left = inf, inf, HEADS_BYTES_MAX
    read_head = channel.read_head
    if not is_in_one_pass:
        channel.read_head = lambda _: None  # type: ignore[assignment]
    try:
        return connection._head(), connection._ahead
    except (HTTPException, OSError) as error:
        return repr(error)
    finally:
        channel.read_head = read_head
