"""Following a stream without leases: every change of every shard, parents before children, for one reader that looks.

Nothing is stored, nobody else is told, and whoever stops begins anew. Work is what workers are for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from threading import Event

from attrs import frozen

from streamclient.core.position import Position
from streamclient.errors import DependencyException, TrimmedDataException
from streamclient.model import Shard
from streamclient.records import StreamRecord
from streamclient.stream.api import StreamApi

LIST_SECONDS = 5.0
"""Between two listings of the shards, and at once when one has ended: its children wait for nothing else."""

IDLE_SECONDS = 0.5
"""Between two rounds in which nothing came: what a person who watches does not notice."""

RECORDS_PER_READ = 100


@frozen
class FollowedRecord:
    """A change, and the shard that it was read from."""

    shard_id: str
    record: StreamRecord


@frozen
class LostRecords:
    """The stream forgot records before they were read; reading goes on at the oldest one left."""

    shard_id: str


@frozen
class Interruption:
    """The service did not answer; the follower goes on trying."""

    error: DependencyException


Followed = FollowedRecord | LostRecords | Interruption


class StreamFollower:
    """Reads a stream in the calling thread. Setting ``stop`` ends it at the next change.

    Args:
        streams: reads the stream.
        stream_id: which one.
        since_micros: begin at records written at or after this time, microseconds since 1970; ``None`` begins at the
            oldest record that is kept. Shards that open later are read from their beginning.
        shard_ids: only these shards, whatever becomes of their parents; all by default.
    """

    def __init__(
        self,
        streams: StreamApi,
        stream_id: str,
        *,
        since_micros: int | None = None,
        shard_ids: Collection[str] | None = None,
        stop: Event | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._streams = streams
        self._stream_id = stream_id
        self._since_micros = since_micros
        self._shard_ids = None if shard_ids is None else frozenset(shard_ids)
        self._stop = Event() if stop is None else stop
        self._monotonic = monotonic
        self._shards: dict[str, Shard] = {}
        self._first: frozenset[str] = frozenset()
        self._places: dict[str, str] = {}
        self._ended: set[str] = set()
        self._listed_at = 0.0

    def changes(self) -> Iterator[Followed]:
        """Changes in the order of each shard, a child's after all of its parents', until stopped.

        With ``shard_ids``, also until all of these shards are closed and read to their ends.

        Raises:
            DependencyException: a read failed for good; passing trouble is an ``Interruption`` among the changes.
        """
        self._list()
        self._first = frozenset(self._shards)
        while not self._stop.is_set() and not self._is_done():
            came = False
            try:
                for change in self._round():
                    came = True
                    yield change
                    if self._stop.is_set():
                        return
            except DependencyException as error:
                if not error.retriable:
                    raise
                yield Interruption(error)
                came = False
            if not came:
                self._stop.wait(IDLE_SECONDS)

    def _round(self) -> Iterator[Followed]:
        """A page of each shard that may be read; then a look for new shards, if it is time."""
        ended = len(self._ended)
        for shard_id in self._open_places():
            yield from self._read(shard_id)
        if len(self._ended) > ended or self._monotonic() - self._listed_at > LIST_SECONDS:
            self._list()

    def _is_done(self) -> bool:
        return self._shard_ids is not None and self._shard_ids <= self._ended

    @property
    def known(self) -> Collection[str]:
        """Shards that the stream listed last, and those that are still read."""
        return self._shards.keys()

    def _list(self) -> None:
        """Shards that left the listing are forgotten, but for those that are still read, or were named."""
        described = self._streams.describe_stream(self._stream_id)
        left = {shard_id: shard for shard_id, shard in self._shards.items() if shard_id in self._places}
        self._shards = {**left, **{shard.shard_id: shard for shard in described.shards}}
        self._ended &= self._shards.keys() | (self._shard_ids or frozenset())
        self._listed_at = self._monotonic()

    def _open_places(self) -> list[str]:
        """Shards to read now, after looking up where those begin that may begin."""
        for shard_id, shard in self._shards.items():
            if shard_id not in self._places and shard_id not in self._ended and self._may_begin(shard):
                self._places[shard_id] = self._beginning(shard_id)
        return list(self._places)

    def _may_begin(self, shard: Shard) -> bool:
        if self._shard_ids is not None:
            return shard.shard_id in self._shard_ids
        # A parent that the stream does not list any more has nothing left to read.
        return not (shard.parent_shard_ids & self._shards.keys() - self._ended)

    def _beginning(self, shard_id: str) -> str:
        is_new = shard_id not in self._first
        since = None if is_new else self._since_micros
        return self._streams.get_shard_iterator(self._stream_id, shard_id, since)

    def _read(self, shard_id: str) -> Iterator[Followed]:
        try:
            page = self._streams.get_stream_record(self._places[shard_id], RECORDS_PER_READ)
        except TrimmedDataException:
            self._places[shard_id] = self._streams.get_shard_iterator(self._stream_id, shard_id)
            yield LostRecords(shard_id)
            return
        if page.next_position == Position.SHARD_END:
            del self._places[shard_id]
            self._ended.add(shard_id)
        else:
            self._places[shard_id] = page.next_position.text
        for record in page.records:
            yield FollowedRecord(shard_id, record)
