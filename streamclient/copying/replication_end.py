"""The end time of a replication: records that were written after it are neither copied nor passed by a checkpoint.

Laws:

1. *A cut is in the order of the log.* A shard or channel is copied up to its first record after the end time. Later
   records are not copied, even if a slower clock gave one of them an earlier time.
2. *No stored position is after a record that was left out.* So a later run with a later end time copies these records.

A stream permits a position before any record, so a cut page of a stream is read again with fewer records. A tunnel
permits positions between its own pages only. If a page has records on both sides of the end time, the records before it
are copied, and the stored position stays before the page. No stored position then shows that they were copied, and
``ChannelEnds`` remembers it for this process.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from attrs import define, evolve, field
from tablestore import OTSClient

from streamclient.records import StreamRecord, place_of
from streamclient.tunnel import TunnelClient
from streamclient.tunnel.tunnel_order import ChannelOrder
from streamclient.wire import schema
from streamclient.wire.page_parts import TunnelPage
from streamclient.wire.record_decoding import PurePythonCodec

_INSIDE_PAGE = "#end"
"""The end of a position inside a page of a tunnel. The service does not know such a position."""


def wanted_count(records: Sequence[StreamRecord], end_micros: int) -> int:
    """Return the number of records before the first record that was written after the end time.

    Records of copied rows have the time 0, so they are all wanted.
    """
    times = (place_of(records, index).timestamp_micros for index in range(len(records)))
    return next((index for index, micros in enumerate(times) if micros > end_micros), len(records))


@define(eq=False)
class ChannelEnds:
    """The channels of a tunnel that this process has met the end time in, and those that it has copied. Thread-safe."""

    _found: set[tuple[str, str]] = field(init=False, factory=set)
    """Channels, each with the position of its first record after the end time."""
    _copied: set[str] = field(init=False, factory=set)
    _lock: threading.Lock = field(init=False, factory=threading.Lock)

    def found(self, channel_id: str, position: str) -> None:
        """Record that the first record after the end time is at ``position``."""
        with self._lock:
            self._found.add((channel_id, position))

    def is_end(self, channel_id: str, position: str) -> bool:
        """Return whether the first record after the end time is known to be at ``position``."""
        with self._lock:
            return (channel_id, position) in self._found

    def written(self, channel_id: str, position: str) -> None:
        """Record that all records before ``position`` are in the destination."""
        with self._lock:
            if (channel_id, position) in self._found:
                self._copied.add(channel_id)

    @property
    def copied(self) -> frozenset[str]:
        """The channels of which this process knows that all records up to the end time are in the destination."""
        with self._lock:
            return frozenset(self._copied)


def is_storable(position: str) -> bool:
    """Return whether the service knows ``position``, so that it may be a checkpoint."""
    return not position.endswith(_INSIDE_PAGE)


class EndingTunnelClient(TunnelClient):
    """A client that shows each channel of a tunnel as if no record was written after the end time."""

    def __init__(self, client: OTSClient, end_micros: int | None, ends: ChannelEnds) -> None:
        super().__init__(client)
        self._end_micros = end_micros
        self._ends = ends

    def read_records(
        self,
        tunnel_id: str,
        client_id: str,
        channel_id: str,
        token: str,
        *,
        order: ChannelOrder | None = None,
        raises_at_once: bool = False,
    ) -> TunnelPage:
        """Return the page at ``token`` up to the end time. At the end time, the page is empty, and the token stays."""
        if self._ends.is_end(channel_id, token):
            answer = schema.ReadRecordsResponse(next_token=token, may_more_record=False)
            return PurePythonCodec().decode_tunnel_page(bytes(answer.SerializeToString()))
        names = (tunnel_id, client_id, channel_id, token)
        page = super().read_records(*names, order=order, raises_at_once=raises_at_once)
        if self._end_micros is None or (count := wanted_count(page.records, self._end_micros)) == len(page.records):
            return page
        following = f"{token}{_INSIDE_PAGE}" if count else token
        self._ends.found(channel_id, following)
        return evolve(page, records=page.records[:count], next_token=following, may_more_record=False)
