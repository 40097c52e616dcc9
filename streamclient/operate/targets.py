"""Positions that an operator names: looked up, compared with where a shard stands, and what lies in between counted."""

from __future__ import annotations

import base64
import binascii
import time
from collections.abc import Callable
from enum import Enum

from attrs import frozen

from streamclient.base.position import Position
from streamclient.base.times import parse_moment, utc_text
from streamclient.errors import ConfigurationError, TrimmedDataException
from streamclient.model import CheckpointPosition
from streamclient.operate.next_records import read_head
from streamclient.operate.plans import Target
from streamclient.records import SequenceInfo
from streamclient.tablestore.stream_api import StreamApi

ITERATOR_PREFIX = "iterator:"

COUNT_AT_MOST = 100_000
"""Records that are counted before the answer is "at least so many"."""

COUNT_SECONDS = 10.0
"""The same bound in time, of a person who waits."""

RECORDS_PER_READ = 1_000


class TargetDirection(Enum):
    """Where a target lies, seen from a checkpoint."""

    BACK = "back"
    SAME = "same"
    FORTH = "forth"
    """Records lie in between that would never be delivered."""


@frozen
class Distance:
    """What lies between a checkpoint and a target in front of it."""

    records: int
    is_more: bool = False
    """Counting was given up."""

    def __str__(self) -> str:
        noun = "record" if self.records == 1 and not self.is_more else "records"
        return f"{'at least ' if self.is_more else ''}{self.records} {noun}"


class TargetReader:
    """Looks positions up in one stream. All reads; thread-safe."""

    def __init__(self, streams: StreamApi, stream_id: str, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._streams = streams
        self._stream_id = stream_id
        self._monotonic = monotonic

    def resolve(self, shard_id: str, text: str, now_micros: int) -> Target:
        """The position that ``oldest``, ``latest``, ``end``, ``iterator:...`` or a time names.

        Raises:
            ConfigurationError: the text is none of them, or the iterator is not one of this shard.
            DependencyException: the service refused.
        """
        if text == "oldest":
            return Target(checkpoint=CheckpointPosition.TRIM_HORIZON, text="the oldest record that is kept")
        if text == "end":
            return Target(checkpoint=CheckpointPosition.SHARD_END, text="the end of the shard")
        if text.startswith(ITERATOR_PREFIX):
            return self._iterator(shard_id, text.removeprefix(ITERATOR_PREFIX))
        micros = now_micros if text == "latest" else parse_moment(text, now_micros)
        said = f"what is written after {utc_text(micros)}"
        iterator = self._streams.get_shard_iterator(self._stream_id, shard_id, micros)
        # Workers take an iterator in a child's row for a sign that its parent was finished once.
        is_beginning = self.direction(shard_id, CheckpointPosition.TRIM_HORIZON, iterator) is TargetDirection.SAME
        return Target(checkpoint=CheckpointPosition.TRIM_HORIZON if is_beginning else iterator, text=said)

    def direction(self, shard_id: str, checkpoint: str, target: str) -> TargetDirection:
        """Whether ``target`` lies before or behind ``checkpoint``, by the next record at each."""
        there = self._next(shard_id, target)
        try:
            here = self._next(shard_id, checkpoint)
        except TrimmedDataException:
            return TargetDirection.BACK  # whatever was there is lost already
        if here == there:
            return TargetDirection.SAME
        if here is None or there is None:
            return TargetDirection.BACK if here is None else TargetDirection.FORTH
        return TargetDirection.FORTH if here < there else TargetDirection.BACK

    def distance(self, shard_id: str, checkpoint: str, target: str) -> Distance:
        """How many records lie between a checkpoint and a target in front of it.

        Reads them all, up to ``COUNT_AT_MOST`` records or ``COUNT_SECONDS``.
        """
        there = self._next(shard_id, target)
        count, deadline = 0, self._monotonic() + COUNT_SECONDS
        is_oldest = checkpoint == CheckpointPosition.TRIM_HORIZON
        text = self._streams.get_shard_iterator(self._stream_id, shard_id) if is_oldest else checkpoint
        while count < COUNT_AT_MOST and self._monotonic() < deadline:
            page = self._streams.get_stream_record(text, RECORDS_PER_READ)
            for record in page.records:
                if there is not None and record.sequence_info >= there:
                    return Distance(count)
                count += 1
            is_over = page.next_position == Position.SHARD_END or page.next_position.text == text
            if is_over or (not page.records and not page.may_more_record):
                return Distance(count)
            text = page.next_position.text
        return Distance(count, is_more=True)

    def ends(self, shard_id: str, checkpoint: str) -> bool:
        """Whether the service says that the shard is closed and ends behind a checkpoint.

        Reads to that end, up to ``COUNT_AT_MOST`` records or ``COUNT_SECONDS``; if it is not met by then, it says no.
        """
        if checkpoint == CheckpointPosition.SHARD_END:
            return True
        count, deadline = 0, self._monotonic() + COUNT_SECONDS
        is_oldest = checkpoint == CheckpointPosition.TRIM_HORIZON
        text = self._streams.get_shard_iterator(self._stream_id, shard_id) if is_oldest else checkpoint
        while count < COUNT_AT_MOST and self._monotonic() < deadline:
            page = self._streams.get_stream_record(text, RECORDS_PER_READ)
            if page.next_position.is_shard_end:
                return True
            if page.next_position.text == text:
                return False
            count, text = count + len(page.records), page.next_position.text
        return False

    def _next(self, shard_id: str, checkpoint: str) -> SequenceInfo | None:
        record = read_head(self._streams, self._stream_id, shard_id, checkpoint).record
        return None if record is None else record.sequence_info

    def _iterator(self, shard_id: str, text: str) -> Target:
        named = _named_in(text)
        if named is not None and named != (self._stream_id, shard_id):
            stream_id, other = named
            raise ConfigurationError(
                f"the iterator is one of shard {other} of stream {stream_id}, not of {shard_id} of {self._stream_id}"
            )
        try:
            self._streams.get_stream_record(text, 1)
        except TrimmedDataException:
            raise ConfigurationError("the iterator is past the stream's retention; use --to oldest") from None
        return Target(checkpoint=text, text="the given iterator")


def _named_in(iterator: str) -> tuple[str, str] | None:
    """Stream and shard in an iterator of the form that the service is known to give; ``None`` for any other form."""
    try:
        data = base64.b64decode(iterator, validate=True)
        stream_end = 1 + data[0]
        shard_end = stream_end + 1 + data[stream_end]
        return data[1:stream_end].decode(), data[stream_end + 1 : shard_end].decode()
    except (binascii.Error, ValueError, IndexError):
        return None
