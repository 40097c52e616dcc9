"""What a fleet delivered, written down by its processors and judged afterwards.

A processor wrapped in ``DeliveryRecorder`` leaves one line per batch in a file, before the wrapped processor sees the
batch, so that the line survives a ``kill -9`` of the process. ``judge`` compares the lines of all workers with the
stream itself: what was lost, what came out of order within a key, and which child was read before its parents ended.
"""

from __future__ import annotations

import json
import time
import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from attrs import field, frozen

from streamclient.core.position import Position
from streamclient.interfaces import InitializationInput, IRecordProcessor, ProcessRecordsInput, ShutdownInput
from streamclient.model import Lease, Shard
from streamclient.records import KeyValue, SequenceInfo, StreamRecord, readable_position
from streamclient.stream.api import StreamApi

LONGEST_SHARD_PAGES = 100_000
"""Bound of one shard's replay: at a page per millisecond a minute and a half, far beyond any test."""


def key_text(primary_key: Sequence[tuple[str, KeyValue]]) -> str:
    """One text per primary key, equal for equal keys."""
    return json.dumps([[name, value.hex() if isinstance(value, bytes) else value] for name, value in primary_key])


@frozen
class Delivery:
    """One batch that a processor was given."""

    worker: str
    shard_id: str
    life: str
    """One per processor object: inside it, records only go forward."""
    at_nanos: int
    """Monotonic nanoseconds, comparable between processes of one machine."""
    records: tuple[tuple[str, SequenceInfo], ...]
    """Key text and sequence of each record, in order."""
    epoch: int = 0
    """Of the acquisition."""


class DeliveryRecorder(IRecordProcessor):
    """Writes down every batch, then hands it to the wrapped processor (or, with none, checkpoints it)."""

    def __init__(self, worker: str, lines: IO[str], wrapped: IRecordProcessor | None = None) -> None:
        self._worker = worker
        self._lines = lines
        self._wrapped = wrapped
        self._shard_id = ""
        self._life = ""
        self._epoch = 0

    def initialize(self, initialization_input: InitializationInput) -> None:
        """Remember the shard. One acquisition may see several processors, each with a life of its own."""
        info = initialization_input.shard_info
        self._shard_id, self._epoch = info.shard_id, info.epoch
        self._life = f"{info.lease_identifier}/{uuid.uuid4().hex[:8]}"
        if self._wrapped is not None:
            self._wrapped.initialize(initialization_input)

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        """Write the line, flush it to the system, then process."""
        self._lines.write(self._line(process_records_input.records))
        self._lines.flush()
        if self._wrapped is not None:
            self._wrapped.process_records(process_records_input)
        else:
            process_records_input.checkpointer.checkpoint()

    def shutdown(self, shutdown_input: ShutdownInput) -> None:
        """Pass on; without a wrapped processor, record the end of an ended shard."""
        if self._wrapped is not None:
            self._wrapped.shutdown(shutdown_input)
        elif shutdown_input.shutdown_reason.value == "TERMINATE":
            shutdown_input.checkpointer.checkpoint()

    def _line(self, records: Sequence[StreamRecord]) -> str:
        entries = []
        for record in records:
            info = record.sequence_info
            entries.append([key_text(record.primary_key), info.epoch, info.timestamp_micros, info.row_index])
        origin = {"worker": self._worker, "shard": self._shard_id, "life": self._life, "epoch": self._epoch}
        return json.dumps({**origin, "at": time.monotonic_ns(), "records": entries}) + "\n"


def read_deliveries(paths: Iterable[Path]) -> list[Delivery]:
    """All deliveries of these files, by time. A last line cut short by a kill is left out."""
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
    """One shard as the stream itself tells it."""

    shard: Shard
    records: tuple[StreamRecord, ...]


def read_history(stream_api: StreamApi, stream_id: str) -> list[ShardHistory]:
    """Every record of the stream, shard by shard, read directly and without leases."""
    shards = stream_api.describe_stream(stream_id).shards
    return [ShardHistory(shard, tuple(_shard_records(stream_api, stream_id, shard.shard_id))) for shard in shards]


def unread(stream_api: StreamApi, stream_id: str, leases: Sequence[Lease]) -> list[str]:
    """What the fleet has still to read or checkpoint, one line per shard; empty once it has caught up."""
    by_shard = {lease.lease_key: lease for lease in leases}
    found = []
    for shard in stream_api.describe_stream(stream_id).shards:
        lease = by_shard.get(shard.shard_id)
        if lease is None:
            found.append(f"{shard.shard_id} has no lease yet")
        elif not lease.is_finished and _has_more(stream_api, lease):
            where = readable_position(lease.checkpoint)
            found.append(f"{shard.shard_id} is unread from {where} (owner {lease.owner or 'nobody'})")
    return found


def _has_more(stream_api: StreamApi, lease: Lease) -> bool:
    position = Position(lease.checkpoint)
    if not position.is_iterator:
        position = Position(stream_api.get_shard_iterator(lease.stream_id, lease.lease_key))
    page = stream_api.get_stream_record(position.text, limit=1)
    return bool(page.records) or page.next_position.is_shard_end


def _shard_records(stream_api: StreamApi, stream_id: str, shard_id: str) -> Iterable[StreamRecord]:
    position = Position(stream_api.get_shard_iterator(stream_id, shard_id))
    for _ in range(LONGEST_SHARD_PAGES):
        page = stream_api.get_stream_record(position.text)
        yield from page.records
        if page.next_position.is_shard_end or (page.next_position == position and not page.records):
            return
        position = page.next_position
    raise RuntimeError(f"shard {shard_id} has more than {LONGEST_SHARD_PAGES} pages")


def shared_epochs(deliveries: Sequence[Delivery]) -> list[str]:
    """Epochs of a shard under which more than one worker was given records: there must be none."""
    workers: dict[tuple[str, int], set[str]] = defaultdict(set)
    for delivery in deliveries:
        workers[delivery.shard_id, delivery.epoch].add(delivery.worker)
    return [
        f"epoch {epoch} of {shard_id} was that of {', '.join(sorted(names))}"
        for (shard_id, epoch), names in sorted(workers.items())
        if len(names) > 1
    ]


@frozen
class Verdict:
    """What was right and wrong with a fleet's deliveries; the lists hold readable descriptions."""

    changes: int
    delivered: int
    """Records handed to processors, repeats included: delivery is at least once."""
    lost: list[str] = field(factory=list)
    out_of_order: list[str] = field(factory=list)
    children_before_parents: list[str] = field(factory=list)

    @property
    def is_clean(self) -> bool:
        """Whether nothing was lost, out of order, or read before its parents."""
        return not (self.lost or self.out_of_order or self.children_before_parents)


def judge(history: Sequence[ShardHistory], deliveries: Sequence[Delivery]) -> Verdict:
    """Compare deliveries, by time, with the stream's own history."""
    first_seen = _first_seen(deliveries)
    return Verdict(
        changes=sum(len(shard.records) for shard in history),
        delivered=sum(len(delivery.records) for delivery in deliveries),
        lost=_lost(history, first_seen),
        out_of_order=_repeated_backwards(deliveries) + _first_seen_out_of_order(first_seen),
        children_before_parents=_early_children(history, first_seen),
    )


FirstSeen = dict[tuple[str, str, SequenceInfo], int]
"""(shard, key, sequence) -> place in the order of first deliveries."""


def _first_seen(deliveries: Sequence[Delivery]) -> FirstSeen:
    seen: FirstSeen = {}
    for delivery in deliveries:
        for key, sequence in delivery.records:
            seen.setdefault((delivery.shard_id, key, sequence), len(seen))
    return seen


def _identities(shard: ShardHistory) -> list[tuple[str, str, SequenceInfo]]:
    return [(shard.shard.shard_id, key_text(record.primary_key), record.sequence_info) for record in shard.records]


def _lost(history: Sequence[ShardHistory], seen: FirstSeen) -> list[str]:
    return [str(identity) for shard in history for identity in _identities(shard) if identity not in seen]


def _repeated_backwards(deliveries: Sequence[Delivery]) -> list[str]:
    """Inside one processor's life a shard's records only go forward."""
    newest: dict[tuple[str, str], SequenceInfo] = {}
    found = []
    for delivery in deliveries:
        for key, sequence in delivery.records:
            place = (delivery.life, key)
            if place in newest and sequence <= newest[place]:
                found.append(f"{key} {sequence} after {newest[place]} by one processor of {delivery.shard_id}")
            newest[place] = sequence
    return found


def _first_seen_out_of_order(seen: FirstSeen) -> list[str]:
    """A key's changes are first seen in the order in which they were made, whatever was repeated."""
    newest: dict[str, SequenceInfo] = {}
    found = []
    for _, key, sequence in sorted(seen, key=seen.__getitem__):
        if key in newest and sequence < newest[key]:
            found.append(f"{key} {sequence} first seen after {newest[key]}")
        newest[key] = max(sequence, newest.get(key, sequence))
    return found


def _early_children(history: Sequence[ShardHistory], seen: FirstSeen) -> list[str]:
    places: dict[str, list[int]] = defaultdict(list)
    for identity, place in seen.items():
        places[identity[0]].append(place)
    found = []
    for shard in history:
        child = shard.shard.shard_id
        for parent in sorted(shard.shard.parent_shard_ids):
            if places[child] and places[parent] and min(places[child]) < max(places[parent]):
                found.append(f"{child} was read before its parent {parent} had ended")
    return found
