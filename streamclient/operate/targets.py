"""The positions that an operator names, and their direction and distance from a shard's checkpoint."""

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
"""The largest number of records to count. If there are more, this number is a lower bound."""

COUNT_SECONDS = 10.0
"""The seconds after which counting ends, because an operator waits for the result."""

RECORDS_PER_READ = 1_000


class TargetDirection(Enum):
    """The direction from a checkpoint to the target position of a command."""

    BACK = "back"
    SAME = "same"
    FORTH = "forth"
    """The target is after the checkpoint: the records between them would never be delivered."""


@frozen
class Distance:
    """The number of records between a checkpoint and a target after it."""

    records: int
    is_more: bool = False
    """True if counting ended early; the distance is then ``records`` or more."""

    def __str__(self) -> str:
        noun = "record" if self.records == 1 and not self.is_more else "records"
        return f"{'at least ' if self.is_more else ''}{self.records} {noun}"


class TargetReader:
    """A reader that looks positions up in one stream. Thread-safe; it never writes."""

    def __init__(self, streams: StreamApi, stream_id: str, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._streams = streams
        self._stream_id = stream_id
        self._monotonic = monotonic

    def resolve(self, shard_id: str, text: str, now_micros: int) -> Target:
        """Return the position that ``text`` names: ``oldest``, ``latest``, ``end``, ``iterator:...`` or a time.

        Raises:
            ConfigurationError: the text is invalid, or the iterator belongs to another shard or is past retention.
            DependencyException: the service refused a call.
        """
        if text == "oldest":
            return Target(checkpoint=CheckpointPosition.TRIM_HORIZON, text="the oldest record that is kept")
        if text == "end":
            return Target(checkpoint=CheckpointPosition.SHARD_END, text="the end of the shard")
        if text.startswith(ITERATOR_PREFIX):
            return self._iterator(shard_id, text.removeprefix(ITERATOR_PREFIX))
        micros = now_micros if text == "latest" else parse_moment(text, now_micros)
        name = f"the first record after {utc_text(micros)}"
        iterator = self._streams.get_shard_iterator(self._stream_id, shard_id, micros)
        # At the beginning, keep TRIM_HORIZON: workers take an iterator in a child's row as proof that its parent was
        # finished.
        is_beginning = self.direction(shard_id, CheckpointPosition.TRIM_HORIZON, iterator) is TargetDirection.SAME
        return Target(checkpoint=CheckpointPosition.TRIM_HORIZON if is_beginning else iterator, text=name)

    def direction(self, shard_id: str, checkpoint: str, target: str) -> TargetDirection:
        """Return the direction from ``checkpoint`` to ``target``, by comparing the next record at each position."""
        at_target = self._next(shard_id, target)
        try:
            at_checkpoint = self._next(shard_id, checkpoint)
        except TrimmedDataException:
            return TargetDirection.BACK  # the records at the checkpoint are lost already
        if at_checkpoint == at_target:
            return TargetDirection.SAME
        if at_checkpoint is None or at_target is None:
            return TargetDirection.BACK if at_checkpoint is None else TargetDirection.FORTH
        return TargetDirection.FORTH if at_checkpoint < at_target else TargetDirection.BACK

    def distance(self, shard_id: str, checkpoint: str, target: str) -> Distance:
        """Count the records between a checkpoint and a target after it, by reading all of them.

        Stop after ``COUNT_AT_MOST`` records or ``COUNT_SECONDS``.
        """
        at_target = self._next(shard_id, target)
        count, deadline = 0, self._monotonic() + COUNT_SECONDS
        is_oldest = checkpoint == CheckpointPosition.TRIM_HORIZON
        text = self._streams.get_shard_iterator(self._stream_id, shard_id) if is_oldest else checkpoint
        while count < COUNT_AT_MOST and self._monotonic() < deadline:
            page = self._streams.get_stream_record(text, RECORDS_PER_READ)
            for record in page.records:
                if at_target is not None and record.sequence_info >= at_target:
                    return Distance(count)
                count += 1
            if page.next_position == Position.SHARD_END or page.next_position.text == text:
                return Distance(count)
            text = page.next_position.text
        return Distance(count, is_more=True)

    def ends(self, shard_id: str, checkpoint: str) -> bool:
        """Return whether the service says that the shard is closed and has an end after ``checkpoint``.

        Read from the checkpoint on. Return ``False`` also if the end is not reached within ``COUNT_AT_MOST`` records
        and ``COUNT_SECONDS``.
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
                f"the iterator belongs to shard {other} of stream {stream_id}, not to {shard_id} of {self._stream_id}"
            )
        try:
            self._streams.get_stream_record(text, 1)
        except TrimmedDataException:
            raise ConfigurationError("the iterator is past the stream's retention; use --to oldest") from None
        return Target(checkpoint=text, text="the given iterator")


def _named_in(iterator: str) -> tuple[str, str] | None:
    """Return the stream and the shard that an iterator names; ``None`` if the iterator does not have the known form."""
    try:
        data = base64.b64decode(iterator, validate=True)
        stream_end = 1 + data[0]
        shard_end = stream_end + 1 + data[stream_end]
        return data[1:stream_end].decode(), data[stream_end + 1 : shard_end].decode()
    except (binascii.Error, ValueError, IndexError):
        return None
