"""Checks of the order of a channel's pages.

Laws:

* the next token of a page with records differs from the page's own token;
* a channel has either changes or full data, as its tokens say, and all of its records are of that kind;
* the positions of changes increase, and so do the primary keys of full data.

If a page breaks a law, the service or a gateway has a fault: it repeated an old answer, or answered for another
channel. The caller uses no part of such a page, so no record is delivered a second time.
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
    """Return whether ``text`` can be a token. The names of a shard's beginning and end are not tokens."""
    return bool(text) and Position(text).is_iterator


def delivers_changes(token: str) -> bool:
    """Return whether a token certainly belongs to a channel of changes.

    A token in an unknown format does not show the kind of its channel, so the result is ``False``.
    """
    try:
        return decode_token(token).is_stream
    except CodecError:
        return False


def key_of_token(token: str) -> tuple[Any, ...]:
    """Return the primary key at which a channel of full data is read next; empty before the first page.

    Raises:
        CodecError: ``token`` is not a token.
    """
    frame = decode_token(token).primary_key
    return tuple(value for _, value in decode_row(frame).primary_key) if frame else ()


MOST_TOKENS = 8
"""The largest number of tokens of a channel for which the preceding record is remembered: the present token, and the
tokens of pages that are read ahead."""


class ChannelOrder:
    """Refuses a page that does not follow the pages that were read before it. Thread-safe.

    The object remembers, for a few tokens, the last record before the token. It cannot compare a page at another token
    with earlier pages.
    """

    def __init__(self) -> None:
        self._before: dict[str, OrderedDict[str, SequenceInfo]] = {}
        self._lock = threading.Lock()

    def begin(self, channel_id: str, token: str, last: SequenceInfo) -> None:
        """Remember ``last``, the position of the last record before ``token``. Ignore the position of full data."""
        if last == _OF_FULL_DATA:
            return
        with self._lock:
            known = self._before.setdefault(channel_id, OrderedDict())
            known[token] = last
            known.move_to_end(token)
            if len(known) > MOST_TOKENS:
                known.popitem(last=False)

    def follow(self, channel_id: str, token: str, page: TunnelPage) -> None:
        """Compare the page at ``token`` with the page before it, and remember the page's last record.

        Raises:
            TunnelOrderError: the page breaks a law of this module. The page's last record is not remembered.
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
        return before  # an idle log has pages without records, whose next token may change or stay
    if page.next_token == token:
        held = counted(len(records), "record")
        raise TunnelOrderError(
            f"no progress: the page at token {token[:60]} has {held}, and its next token is the same"
        )
    first, last = records.sequence_info(0), records.sequence_info(-1)
    if before is None or first == _OF_FULL_DATA:  # otherwise the channel is known to have changes
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
        return  # a token in another format does not show the kind of its channel
    if is_stream and first == _OF_FULL_DATA:
        raise TunnelOrderError("the page has rows of full data, and the channel has changes: another channel was read")
    if not is_stream and first != _OF_FULL_DATA:
        raise TunnelOrderError("the page has changes, and the channel has full data: another channel was read")


def _require_rising_keys(token: str, page: TunnelPage) -> None:
    try:
        start, first = key_of_token(token), tuple(value for _, value in page.records[0].primary_key)
        following = None if page.is_finished else key_of_token(page.next_token)
        is_old = first < start
        leads_back = following is not None and following <= start
    except (CodecError, TypeError):
        return  # a token in another format, or a key that is a bound of a range, cannot be compared
    if is_old:
        raise TunnelOrderError(f"the page of full data begins with key {first}, before the key {start} asked for")
    if leads_back:
        raise TunnelOrderError(f"no progress: the page of full data at key {start} leads to key {following}")
