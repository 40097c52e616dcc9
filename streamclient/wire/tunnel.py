"""The tokens of the Tunnel Service, and the decoding of its pages.

A token contains the next position of a channel. It is the base64 text of a message, or the literal ``finished``. The
Java and Go clients decode a token only to learn whether it belongs to a channel of changes. They fail if they cannot
decode it.
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
"""The version of tokens that ``Token.encode`` writes. Version 2 only adds ``total_count`` to version 1, so
``decode_token`` reads both versions."""


@frozen
class Token:
    """The content of a token: the next position of a channel, and the progress up to this position.

    The position in a channel of changes is an iterator. The position in a channel of full data is a key.
    """

    iterator: str = ""
    primary_key: bytes = b""
    """The key at which the next page of full data starts, as a PlainBuffer row; empty before the first page."""
    timestamp: int = 0
    """The time of the change that the channel has reached, by the service's clock. Only the service knows the unit."""
    total_count: int = 0
    """The number of records of the channel before this position."""

    @property
    def is_stream(self) -> bool:
        """Whether the token belongs to a channel of changes, by the rule of the official clients."""
        return self.iterator != ""

    def encode(self) -> str:
        """Return the token as the base64 text that requests and responses contain."""
        content = schema.TokenContent(timestamp=self.timestamp, total_count=self.total_count)
        if self.iterator:
            content.iterator = self.iterator
        if self.primary_key:
            content.primary_key = self.primary_key
        token = schema.Token(version=_VERSION, content=content.SerializeToString())
        return base64.b64encode(token.SerializeToString()).decode("ascii")


def decode_token(text: str) -> Token:
    """Return the content of the token ``text``, which must not be ``finished``.

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
    """Decode the body of a ReadRecords response. If any part is corrupt, raise a ``CodecError``."""
    return default_codec().decode_tunnel_page(body)
