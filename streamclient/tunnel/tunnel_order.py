"""Laws for the pages of every channel: each token leads on, records of the log rise, keys of full data rise.

A channel has full data or the log, as its tokens say, and its records are of the same kind.

If a page breaks a law, the service or a gateway is out of order: an old answer came again, or an answer for another
channel. No part of the page is used, so no record is delivered twice because of it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

from streamclient.base.position import Position
from streamclient.base.reasons import counted
from streamclient.errors import CodecError, DisorderError
from streamclient.records import SequenceInfo
from streamclient.tunnel.tunnel_errors import TunnelOrderError
from streamclient.wire.page_parts import TunnelPage
from streamclient.wire.plainbuffer import decode_row
from streamclient.wire.tunnel import decode_token

_OF_FULL_DATA = SequenceInfo(0, 0, 0)


def is_token(text: str) -> bool:
    """Return whether a text can be a token. The names of the first and the last position of a shard cannot."""
    return bool(text) and Position(text).is_iterator


def delivers_changes(token: str) -> bool:
    """Return whether a token may belong to a channel of changes.

    A token in an unknown format may belong to any channel.
    """
    try:
        return decode_token(token).is_stream
    except CodecError:
        return False


def key_of_token(token: str) -> tuple[Any, ...]:
    """Return the key at which a channel of full data is read next; empty before the first page.

    Raises:
        CodecError: ``token`` is not a token.
    """
    frame = decode_token(token).primary_key
    return tuple(value for _, value in decode_row(frame).primary_key) if frame else ()


MOST_TOKENS = 8
"""The largest number of tokens per channel whose preceding record is remembered: the present token, and the tokens of
pages read ahead."""


class ChannelOrder:
    """Notices a page that does not follow the pages that were read before it. Thread-safe.

    It remembers the last record before each of a few tokens. A page at another token cannot be compared, and counts as
    in order.
    """

    def __init__(self) -> None:
        self._before: dict[str, OrderedDict[str, SequenceInfo]] = {}
        self._lock = threading.Lock()

    def begin(self, channel_id: str, token: str, last: SequenceInfo) -> None:
        """Set the last record before a token."""
        if last == _OF_FULL_DATA:
            return
        with self._lock:
            known = self._before.setdefault(channel_id, OrderedDict())
            known[token] = last
            known.move_to_end(token)
            if len(known) > MOST_TOKENS:
                known.popitem(last=False)

    def follow(self, channel_id: str, token: str, page: TunnelPage) -> None:
        """Compare the page at a token with its predecessor, and remember the end of the page.

        Raises:
            TunnelOrderError: the page leads nowhere, or does not rise. It is not remembered.
        """
        with self._lock:
            known = self._before.get(channel_id)
            before = None if known is None else known.get(token)
        last = _last_of(token, page, before)
        if last is not None:
            self.begin(channel_id, page.next_token, last)


def _last_of(token: str, page: TunnelPage, before: SequenceInfo | None) -> SequenceInfo | None:
    if not is_token(page.next_token):
        raise TunnelOrderError(f"the page at token {token[:60]} names no next token, but {page.next_token!r}")
    records = page.records
    if not records:
        return before  # a log goes on without records, by the same token or another one
    if page.next_token == token:
        held = counted(len(records), "record")
        raise TunnelOrderError(
            f"no progress: the page at token {token[:60]} has {held}, and its next token is the same"
        )
    first, last = records.sequence_info(0), records.sequence_info(-1)
    if before is None or first == _OF_FULL_DATA:  # else the channel has had changes before
        _require_kind(token, first)
    if first == _OF_FULL_DATA:
        _require_rising_keys(token, page)
        return None
    if before is not None and first <= before:
        raise TunnelOrderError(f"the page begins with record {first}, and records up to {before} were read before it")
    try:
        records.require_order()
    except DisorderError as error:
        raise TunnelOrderError(str(error)) from error
    return last


def _require_kind(token: str, first: SequenceInfo) -> None:
    try:
        is_stream = decode_token(token).is_stream
    except CodecError:
        return  # nothing is known of a token in another format
    if is_stream and first == _OF_FULL_DATA:
        raise TunnelOrderError("the page has rows of full data, and the channel has changes: it is another channel's")
    if not is_stream and first != _OF_FULL_DATA:
        raise TunnelOrderError("the page has changes, and the channel has full data: it is another channel's")


def _require_rising_keys(token: str, page: TunnelPage) -> None:
    try:
        start, first = key_of_token(token), tuple(value for _, value in page.records[0].primary_key)
        following = None if page.is_finished else key_of_token(page.next_token)
        is_old = first < start
        leads_back = following is not None and following <= start
    except (CodecError, TypeError):
        return  # nothing is known of a token in another format, or of keys with a bound
    if is_old:
        raise TunnelOrderError(f"the page of full data begins with key {first}, before the key {start} asked for")
    if leads_back:
        raise TunnelOrderError(f"no progress: the page of full data at key {start} leads to key {following}")
