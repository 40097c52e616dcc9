"""The deliveries of a fleet, written down by its processors and judged afterwards.

A processor wrapped in ``DeliveryRecorder`` writes one line per batch to a file, before the wrapped processor sees the
batch, so that the line survives a ``kill -9`` of the process. ``judge`` compares the lines of all workers with the
stream itself. ``judge`` turns the lines into facts of a ``History``, and applies laws that simulations also apply.
"""

from __future__ import annotations

import json
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from attrs import frozen

from streamclient.base.position import Position
from streamclient.interfaces import InitializationInput, IRecordProcessor, ProcessRecordsInput, ShutdownInput
from streamclient.model import Lease, Shard
from streamclient.records import KeyValue, SequenceInfo, StreamRecord, readable_position
from streamclient.tablestore.stream_api import StreamApi
from streamclient.testing.history import LOST, ORDER, PARENTS, Delivered, Fact, History, ReaderBegan, ancestors
from streamclient.worker.handing_over import shut_down

LONGEST_SHARD_PAGES = 100_000
"""The largest number of pages that ``read_history`` reads of one shard. At one page per millisecond these reads
take 100 s, longer than any test."""


def key_text(primary_key: Sequence[tuple[str, KeyValue]]) -> str:
    """Return a primary key as text. Equal keys have equal texts."""
    return json.dumps([[name, value.hex() if isinstance(value, bytes) else value] for name, value in primary_key])


@frozen
class Delivery:
    """One batch that a worker of the fleet gave to a processor."""

    worker: str
    shard_id: str
    life: str
    """The id of the processor object that got the batch. Each call of ``initialize`` begins a new ``life``."""
    at_nanos: int
    """The time at which the processor got the batch, in monotonic nanoseconds of the machine."""
    records: tuple[tuple[str, SequenceInfo], ...]
    """The key text and the ``sequence_info`` of each record, in order."""
    epoch: int = 0
    """The epoch of the shard's lease when the worker delivered the batch."""


class DeliveryRecorder(IRecordProcessor):
    """A processor that writes down every batch, and passes the batch to the wrapped processor.

    Without a wrapped processor, the recorder itself checkpoints the batch.
    """

    def __init__(self, worker: str, lines: IO[str], wrapped: IRecordProcessor | None = None) -> None:
        self._worker = worker
        self._lines = lines
        self._wrapped = wrapped
        self._shard_id = ""
        self._life = ""
        self._epoch = 0

    def initialize(self, initialization_input: InitializationInput) -> None:
        """Remember the shard and the epoch, and begin a new ``life``. An epoch may have several lives."""
        info = initialization_input.shard_info
        self._shard_id, self._epoch = info.shard_id, info.epoch
        self._life = f"{info.lease_identifier}/{uuid.uuid4().hex[:8]}"
        if self._wrapped is not None:
            self._wrapped.initialize(initialization_input)

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        """Write a line about the batch to the file, flush the file, and pass the batch on."""
        delivery = Delivery(
            self._worker,
            self._shard_id,
            self._life,
            time.monotonic_ns(),
            recorded(process_records_input.records),
            self._epoch,
        )
        write_delivery(self._lines, delivery)
        if self._wrapped is not None:
            self._wrapped.process_records(process_records_input)
        else:
            process_records_input.checkpointer.checkpoint()

    def shutdown(self, shutdown_input: ShutdownInput) -> None:
        """Shut down the wrapped processor. Without a wrapped processor, checkpoint the end of an ended shard."""
        if self._wrapped is not None:
            shut_down(self._wrapped, shutdown_input)
        elif shutdown_input.shutdown_reason.value == "TERMINATE":
            shutdown_input.checkpointer.checkpoint()


def recorded(records: Sequence[StreamRecord]) -> tuple[tuple[str, SequenceInfo], ...]:
    """Return the key text and the ``sequence_info`` of each record, as ``Delivery`` holds them."""
    return tuple((key_text(record.primary_key), record.sequence_info) for record in records)


def write_delivery(lines: IO[str], delivery: Delivery) -> None:
    """Write the line of one batch to ``lines``, and flush the line to the operating system."""
    entries = [[key, info.epoch, info.timestamp_micros, info.row_index] for key, info in delivery.records]
    origin = {"worker": delivery.worker, "shard": delivery.shard_id, "life": delivery.life, "epoch": delivery.epoch}
    lines.write(json.dumps({**origin, "at": delivery.at_nanos, "records": entries}) + "\n")
    lines.flush()


def read_deliveries(paths: Iterable[Path]) -> list[Delivery]:
    """Return all deliveries in the files ``paths``, ordered by time. Lines that a kill cut off are left out."""
    found = []
    for path in paths:
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                found.append(_delivery(json.loads(line)))
            except json.JSONDecodeError:
                continue
    return sorted(found, key=lambda delivery: delivery.at_nanos)


def _delivery(entry: Mapping[str, Any]) -> Delivery:
    records = tuple((key, SequenceInfo(epoch, micros, row)) for key, epoch, micros, row in entry["records"])
    return Delivery(entry["worker"], entry["shard"], entry["life"], entry["at"], records, entry["epoch"])


@frozen
class ShardHistory:
    """A shard and all its records, read directly from the stream."""

    shard: Shard
    records: tuple[StreamRecord, ...]


def read_history(stream_api: StreamApi, stream_id: str) -> list[ShardHistory]:
    """Read all shards of the stream directly, without leases; return each shard with all its records."""
    shards = stream_api.describe_stream(stream_id).shards
    return [ShardHistory(shard, tuple(_shard_records(stream_api, stream_id, shard.shard_id))) for shard in shards]


def unread(stream_api: StreamApi, stream_id: str, leases: Sequence[Lease]) -> list[str]:
    """Return one line of text for each shard that the fleet has not read to its present end.

    Such a shard has no lease yet, or its stored checkpoint is before a record or before the end of the shard.
    """
    by_shard = {lease.lease_key: lease for lease in leases}
    found = []
    for shard in stream_api.describe_stream(stream_id).shards:
        lease = by_shard.get(shard.shard_id)
        if lease is None:
            found.append(f"{shard.shard_id} has no lease yet")
        elif not lease.is_finished and _has_more(stream_api, lease):
            where = readable_position(lease.checkpoint)
            found.append(f"{shard.shard_id} is unread from {where} (owner {lease.owner or 'none'})")
    return found


def _has_more(stream_api: StreamApi, lease: Lease) -> bool:
    position = Position(lease.checkpoint)
    if not position.is_iterator:
        position = Position(stream_api.get_shard_iterator(lease.stream_id, lease.lease_key))
    for _ in range(LONGEST_SHARD_PAGES):
        page = stream_api.get_stream_record(position.text, limit=1)
        if page.records or page.next_position.is_shard_end:
            return True
        if page.next_position == position:
            return False
        position = page.next_position  # the service skips a part of the shard with each page without records
    raise RuntimeError(f"shard {lease.lease_key} has more than {LONGEST_SHARD_PAGES} pages")


def _shard_records(stream_api: StreamApi, stream_id: str, shard_id: str) -> Iterable[StreamRecord]:
    position = Position(stream_api.get_shard_iterator(stream_id, shard_id))
    for _ in range(LONGEST_SHARD_PAGES):
        page = stream_api.get_stream_record(position.text)
        yield from page.records
        if page.next_position.is_shard_end or (page.next_position == position and not page.records):
            return
        position = page.next_position
    raise RuntimeError(f"shard {shard_id} has more than {LONGEST_SHARD_PAGES} pages")


@frozen
class Verdict:
    """The result of judging a fleet's deliveries. Its lists describe violations in sentences."""

    changes: int
    delivered: int
    """The number of records handed to processors. A record that was delivered twice counts twice."""
    distinct: int
    """The number of different records handed to processors."""
    broken: Mapping[str, Sequence[str]]
    """The descriptions of the violations, by the name of the law."""

    @property
    def lost(self) -> Sequence[str]:
        """Descriptions of the changes that no processor got."""
        return self.broken.get(LOST, ())

    @property
    def out_of_order(self) -> Sequence[str]:
        """Descriptions of the changes that a processor got twice, or before an older change of the same key."""
        return self.broken.get(ORDER, ())

    @property
    def children_before_parents(self) -> Sequence[str]:
        """Descriptions of the shards that were read before all changes of their ancestors were delivered."""
        return self.broken.get(PARENTS, ())

    @property
    def is_clean(self) -> bool:
        """Whether no law is broken."""
        return not self.broken

    @property
    def problems(self) -> list[str]:
        """Descriptions of all violations, each after the name of its law."""
        return [f"{law}: {text}" for law, texts in self.broken.items() for text in texts]


def judge(history: Sequence[ShardHistory], deliveries: Sequence[Delivery]) -> Verdict:
    """Check ``deliveries`` against the stream's ``history``, and return the violations of laws.

    ``deliveries`` must be ordered by time. The laws are in ``streamclient.testing.history``.
    """
    told = as_history(history, deliveries)
    broken: dict[str, list[str]] = {}
    for found in told.broken():
        broken.setdefault(found.law, []).append(found.text)
    return Verdict(
        changes=sum(len(shard.records) for shard in history),
        delivered=sum(len(delivery.records) for delivery in deliveries),
        distinct=len({(one.shard_id, *record) for one in deliveries for record in one.records}),
        broken=broken,
    )


def as_history(history: Sequence[ShardHistory], deliveries: Sequence[Delivery]) -> History:
    """Return the stream's records and the deliveries as a ``History`` of facts.

    The changes of a key are numbered across all its shards, because ``sequence_info`` is comparable only within a
    shard.
    """
    parents = {shard.shard.shard_id: shard.shard.parent_shard_ids for shard in history}
    last: Counter[str] = Counter()
    numbers: dict[tuple[str, str, SequenceInfo], int] = {}
    written: dict[str, list[tuple[str, int]]] = {}
    for shard in sorted(history, key=lambda each: len(ancestors(each.shard.shard_id, parents))):
        name = shard.shard.shard_id
        changes = written[name] = []
        for record in shard.records:
            key = key_text(record.primary_key)
            last[key] += 1
            numbers[name, key, record.sequence_info] = last[key]
            changes.append((key, last[key]))
    return History(parents, written, tuple(_facts(deliveries, numbers)))


def _facts(deliveries: Sequence[Delivery], numbers: Mapping[tuple[str, str, SequenceInfo], int]) -> Iterator[Fact]:
    """Yield a ``Delivered`` for each delivery, and a ``ReaderBegan`` before the first delivery of each ``life``.

    ``numbers`` maps the shard, key text and ``sequence_info`` of a record to its number among the changes of the key.
    A delivered record that is not in the stream gets the number 0.
    """
    begun: set[str] = set()
    for one in deliveries:
        if one.life not in begun:
            begun.add(one.life)
            yield ReaderBegan(one.life, one.worker, one.shard_id, one.epoch)
        keys = [key for key, _ in one.records]
        yield Delivered(one.life, one.shard_id, keys, [numbers.get((one.shard_id, *each), 0) for each in one.records])
