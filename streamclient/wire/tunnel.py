"""Tokens and pages of the Tunnel Service.

A token names the next position of a channel: the base64 text of a message, or the literal ``finished``. Both official
clients read a token only to learn whether it belongs to a stream channel, and fail if they cannot read the token.
"""

from __future__ import annotations

import base64
import binascii

from attrs import frozen

from streamclient.errors import CodecError
from streamclient.wire import schema
from streamclient.wire.page_parts import TunnelPage
from streamclient.wire.record_decoding import default_codec

_VERSION = 2
"""The version of tokens. Version 2 added ``total_count`` and changed nothing else, so one reader serves both
versions."""


@frozen
class Token:
    """The next position.

    A stream channel has an iterator. A channel of full data has a key, or no position before its first page.
    """

    iterator: str = ""
    primary_key: bytes = b""
    """The PlainBuffer row of the next start key; empty before the first page."""
    timestamp: int = 0
    """The channel's progress in time, by the service's clock. Only the service knows the unit."""
    total_count: int = 0
    """The number of records read so far."""

    @property
    def is_stream(self) -> bool:
        """Whether the token belongs to a stream channel, by the rule of the official clients."""
        return self.iterator != ""

    def encode(self) -> str:
        """Return the text for the wire."""
        content = schema.TokenContent(timestamp=self.timestamp, total_count=self.total_count)
        if self.iterator:
            content.iterator = self.iterator
        if self.primary_key:
            content.primary_key = self.primary_key
        token = schema.Token(version=_VERSION, content=content.SerializeToString())
        return base64.b64encode(token.SerializeToString()).decode("ascii")


def decode_token(text: str) -> Token:
    """Read a token that is not ``finished``.

    Raises:
        CodecError: the text is not a token of version 1 or 2.
    """
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise CodecError(f"expected a token, got {text[:60]!r}: {error}") from error
    token = schema.parse(schema.Token, data)
    if token.version not in (1, _VERSION):
        raise CodecError(f"a token of version {token.version}, expected 1 or 2")
    content = schema.parse(schema.TokenContent, token.content)
    return Token(content.iterator, content.primary_key, content.timestamp, content.total_count)


def decode_tunnel_page(body: bytes) -> TunnelPage:
    """Decode a ReadRecords response body; any corrupt part raises ``CodecError`` for the whole page."""
    return default_codec().decode_tunnel_page(body)
