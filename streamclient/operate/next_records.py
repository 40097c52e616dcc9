"""The head of a shard, which is its next unread record. A small read at the shard's checkpoint returns it.

``HeadReader`` remembers each head until the shard's checkpoint moves.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Container, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from attrs import frozen

from streamclient.base.position import Position
from streamclient.errors import DependencyException, StreamClientError, TrimmedDataException
from streamclient.model import CheckpointPosition
from streamclient.operate.facts import HeadFacts
from streamclient.operate.site import text_of
from streamclient.records import RecordColumn, StreamRecord
from streamclient.tablestore.stream_api import StreamApi
from streamclient.worker.parking.parked_frames import record_id as id_of
from streamclient.worker.parking.parked_frames import sequence_of

MOST_EMPTY_PAGES = 100
"""The largest number of consecutive pages without records that a read follows. The service may return several pages
without records, each with another position, before the next record. So their number does not prove that no record
follows."""

RECORDS_PER_SEARCH = 100
MOST_PAGES_SEARCHED = 20
"""The largest number of pages that a search for one record reads, each with ``RECORDS_PER_SEARCH`` records. This
number suffices, because a search begins at the time of the record, or a little earlier, and few records of a shard have
the same time in microseconds."""

PARALLEL_READS = 8
"""The largest number of parallel reads. With it, a thousand heads are read quickly, and the load on the service is
small beside the load of the fleet."""

QUIET_SECONDS = 5.0
"""The seconds for which a shard is not read again after a read that found no record, or that failed. For this time, the
result of that read counts."""


@frozen
class ShardHead:
    """The result of a read at a position: the first record, or ``None`` without a record."""

    record: StreamRecord | None
    is_end: bool = False
    """True if the shard is closed and has no record after the position."""


def read_head(streams: StreamApi, stream_id: str, shard_id: str, checkpoint: str) -> ShardHead:
    """Read the first record at a checkpoint, by one or two requests, and one more for each page without records.

    Raises:
        TrimmedDataException: the stream's retention has removed records at the checkpoint.
        DependencyException: ``MOST_EMPTY_PAGES`` pages have no record, and it is not known whether a record follows.
    """
    if checkpoint == CheckpointPosition.SHARD_END:
        return ShardHead(None, is_end=True)
    is_oldest = checkpoint == CheckpointPosition.TRIM_HORIZON
    text = streams.get_shard_iterator(stream_id, shard_id) if is_oldest else checkpoint
    for _ in range(MOST_EMPTY_PAGES):
        page = streams.get_stream_record(text, 1)
        if page.records:
            return ShardHead(page.records[0])
        if page.next_position == Position.SHARD_END:
            return ShardHead(None, is_end=True)
        if page.next_position.text == text:
            return ShardHead(None)
        text = page.next_position.text
    raise DependencyException(
        f"shard {shard_id} returned {MOST_EMPTY_PAGES} pages without a record and goes on after them, so it is not "
        "known whether a record waits; try again later"
    )


def read_next(
    streams: StreamApi, stream_id: str, shard_id: str, checkpoint: str, count: int, *, first_id: str = ""
) -> list[StreamRecord]:
    """Read at most ``count`` records, beginning at the record ``first_id`` or, without it, at the checkpoint.

    Raises:
        TrimmedDataException: the stream's retention has removed records at this position.
    """
    if checkpoint == CheckpointPosition.SHARD_END:
        return []
    records: list[StreamRecord] = []
    is_oldest, empty_pages = checkpoint == CheckpointPosition.TRIM_HORIZON, 0
    first = sequence_of(first_id) if first_id else None
    if first is not None:
        text = streams.get_shard_iterator(stream_id, shard_id, first.timestamp_micros)
    else:
        text = streams.get_shard_iterator(stream_id, shard_id) if is_oldest else checkpoint
    while len(records) < count and empty_pages < MOST_EMPTY_PAGES:
        page = streams.get_stream_record(text, count - len(records))
        records += [record for record in page.records if first is None or record.sequence_info >= first]
        empty_pages = 0 if page.records else empty_pages + 1
        if page.next_position == Position.SHARD_END or page.next_position.text == text:
            break
        text = page.next_position.text
    return records[:count]


def find_record(streams: StreamApi, stream_id: str, shard_id: str, record_id: str) -> StreamRecord | None:
    """Return the record with the id ``record_id``, or ``None`` if the shard does not have it.

    Raises:
        ValueError: ``record_id`` is not the id of a record.
    """
    wanted = sequence_of(record_id)
    text = streams.get_shard_iterator(stream_id, shard_id, wanted.timestamp_micros)
    for _ in range(MOST_PAGES_SEARCHED):
        page = streams.get_stream_record(text, RECORDS_PER_SEARCH)
        for record in page.records:
            if record.sequence_info >= wanted:
                return record if id_of(record) == record_id else None
        if page.next_position == Position.SHARD_END or page.next_position.text == text:
            break
        text = page.next_position.text
    return None


@frozen
class _Remembered:
    checkpoint: str
    facts: HeadFacts
    read_at: float


class HeadReader:
    """Reads the heads of one stream's shards, and remembers them. For one thread; its reads run in parallel."""

    def __init__(self, streams: StreamApi, stream_id: str, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._streams = streams
        self.stream_id = stream_id
        self._monotonic = monotonic
        self._remembered: dict[str, _Remembered] = {}

    def known(self, shard_id: str, checkpoint: str) -> HeadFacts | None:
        """Return the shard's head if it is known without a read; ``None`` if not.

        While the checkpoint stays the same, the next unread record stays the same, too.
        """
        memory = self._remembered.get(shard_id)
        if memory is None or memory.checkpoint != checkpoint:
            return None
        # A head without a record is read again after ``QUIET_SECONDS``: a record may have come, a failed read may
        # succeed, and an incomplete page may have seemed to show the end of a shard.
        is_finished = checkpoint == CheckpointPosition.SHARD_END
        is_lasting = memory.facts.next_record_micros is not None or memory.facts.is_trimmed or is_finished
        return memory.facts if is_lasting or self._monotonic() - memory.read_at < QUIET_SECONDS else None

    def forget_all_but(self, shard_ids: Container[str]) -> None:
        """Forget the remembered heads of all shards not in ``shard_ids``, so that the memory of heads does not grow."""
        self._remembered = {key: memory for key, memory in self._remembered.items() if key in shard_ids}

    def read(self, checkpoints: Mapping[str, str]) -> dict[str, HeadFacts]:
        """Return the head of each shard in ``checkpoints``. Heads that are not known are read in parallel."""
        heads = {key: head for key, text in checkpoints.items() if (head := self.known(key, text)) is not None}
        missing = [(key, text) for key, text in checkpoints.items() if key not in heads]
        if missing:
            with ThreadPoolExecutor(min(PARALLEL_READS, len(missing))) as pool:
                read = list(pool.map(lambda position: self._look(*position), missing))
            heads.update((key, head) for (key, _), head in zip(missing, read, strict=True))
        return heads

    def read_some(self, checkpoints: Mapping[str, str], most: int) -> dict[str, HeadFacts]:
        """Read at most ``most`` heads; return all remembered heads, even those of earlier checkpoints.

        Shards that were never read come first, then the shards that were read longest ago.
        """
        stale = [key for key, text in checkpoints.items() if self.known(key, text) is None]
        stale.sort(key=lambda key: self._remembered[key].read_at if key in self._remembered else float("-inf"))
        self.read({key: checkpoints[key] for key in stale[:most]})
        return {key: self._remembered[key].facts for key in checkpoints if key in self._remembered}

    def _look(self, shard_id: str, checkpoint: str) -> HeadFacts:
        try:
            head = read_head(self._streams, self.stream_id, shard_id, checkpoint)
            record = head.record
            micros = None if record is None else record.sequence_info.timestamp_micros
            facts = HeadFacts(next_record_micros=micros, is_end=head.is_end)
        except TrimmedDataException:
            facts = HeadFacts(is_trimmed=True)
        except StreamClientError as error:
            facts = HeadFacts(problem=text_of(error))
        self._remembered[shard_id] = _Remembered(checkpoint, facts, self._monotonic())
        return facts


# --- for programs --------------------------------------------------------------------------------------------------


def change_document(shard_id: str, record: StreamRecord) -> Mapping[str, Any]:
    """Return a record as a document for JSON. Values of bytes have the form ``{"base64": text}``."""
    sequence = record.sequence_info
    document = {
        "shard": shard_id,
        "sequence": str(sequence),
        "time_micros": sequence.timestamp_micros,
        "type": record.record_type.value,
        "key": {name: _plain(value) for name, value in record.primary_key},
        "columns": [_column(column) for column in record.columns],
    }
    if record.original_columns is not None:
        document["original_columns"] = [_column(column) for column in record.original_columns]
    return document


def _column(column: RecordColumn) -> Mapping[str, Any]:
    return {
        "name": column.name,
        "operation": column.operation.value,
        "value": _plain(column.value),
        "timestamp_millis": column.timestamp_millis,
    }


def _plain(value: Any) -> Any:
    return {"base64": base64.b64encode(value).decode()} if isinstance(value, bytes | bytearray) else value
