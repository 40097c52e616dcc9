"""A mirror against its table, row by row, at the mirror's position; the table and the mirror may go on meanwhile.

How a position is compared although only the present table can be read: first the mirror's position is noted, then its
rows are read, then the table's, and then the stream from that position on. A row that the stream does not name since
then is in the table what it was at the position, so the mirror must have exactly that. The rows that it names have
changed behind the position; they are counted, and left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from typing import Any

from attrs import define, field

from streamclient.base.position import Judged, Position, ReadTrail
from streamclient.base.times import now_micros
from streamclient.copying.differences import (
    Cells,
    Difference,
    DifferenceKind,
    Key,
    Sides,
    key_order,
    paired,
    row_differences,
)
from streamclient.copying.mirror_source import COPY, CopyPlan, SourceTable
from streamclient.core.shard_tree import NOT_SHOWN, ShardTree
from streamclient.destinations.commit import Commit, MergingDestination, last_of
from streamclient.destinations.folding.row_changes import CLOCKS_MARGIN_MICROS, RowCells, TableRule, cells_of
from streamclient.destinations.proof.row_proof import readable_rows
from streamclient.destinations.rows.column_types import encoded
from streamclient.errors import (
    DependencyException,
    DisorderError,
    ErrorKind,
    StreamClientException,
    TrimmedDataException,
)
from streamclient.model import CheckpointPosition, Shard
from streamclient.records import StreamRecord, place_of, readable_position
from streamclient.tablestore.ranges import record_of
from streamclient.tablestore.read_retry import ReadRetry, Repeater
from streamclient.tablestore.stream_api import RecordPage

_EMPTY_READS = 100
"""Reads without records from one place: the service may skip, but a shard that never comes to its tip is a fault."""

SHOWN_MAX = 10_000
"""Differences that are kept; all are counted."""


_SIDES = Sides("table", "mirror")


@define
class Comparison:
    """What a comparison found."""

    position: Mapping[str, str]
    """The mirror's, by shard: every shard of the stream up to where it was compared."""
    rows: int = 0
    """Rows that were compared."""
    changed: int = 0
    """Rows that were left out, since they have changed behind the mirror's position."""
    pending: int = 0
    """Changes of the stream behind that position, at the end of the comparison."""
    count: int = 0
    """Differences."""
    differences: list[Difference] = field(factory=list)
    """The first of them."""
    unreadable: list[str] = field(factory=list)
    """Files of the mirror that cannot be read; the rows that they held are missing."""

    def note(self, difference: Difference) -> None:
        """Count a difference, and keep it if there are not too many."""
        self.count += 1
        if len(self.differences) < SHOWN_MAX:
            self.differences.append(difference)

    @property
    def is_equal(self) -> bool:
        """Whether no row differs, and everything could be read."""
        return self.count == 0 and not self.unreadable

    def __str__(self) -> str:
        places = "; ".join(f"{shard} at {readable_position(end)}" for shard, end in sorted(self.position.items()))
        behind = (
            "nothing is behind that position"
            if not self.pending
            else f"the table has {self.pending} changes behind that position, so {self.changed} rows were left out"
        )
        found = f"{self.count or 'no'} difference{'s' if self.count > 1 else ''}"
        found += "".join(f"; {text}" for text in self.unreadable)
        return f"{self.rows} rows compared at {places or 'the beginning'}: {found}; {behind}"


def compare(source: SourceTable, destination: MergingDestination) -> Comparison:
    """Compare a table with its mirror. Needs about 150 bytes of memory for each row.

    Raises:
        ConfigurationError: the destination is the mirror of another table.
        StreamClientException: the table is not copied yet, or has another stream than when it was copied, or the stream
            does not hold the changes since the mirror's position any more.
    """
    rule = source.rule()
    lasts = last_of(destination.log(), destination.application)
    plan = _plan(lasts, source)
    stream = {shard: last for shard, last in lasts.items() if not _is_own(shard)}
    found = Comparison({shard: last.end for shard, last in stream.items()})
    mirror: dict[Key, bytes | None] = {}
    repeated: dict[Key, None] = {}
    for one in _rows(destination, rule, found.unreadable.append):
        if one.key in mirror:
            repeated[one.key] = None
        mirror[one.key] = _digest(_living(one, rule, now_micros()))
    for key in repeated:
        found.note(Difference(DifferenceKind.REPEATED, key, sides=_SIDES))
    differing: dict[Key, RowCells | None] = {}
    compared: set[Key] = set()
    rows = _living_rows(source, rule)
    digests = ((key, mirror.pop(key)) for key in sorted(mirror, key=key_order))
    for key, row, digest in paired(rows, digests):
        if row is not None or digest is not None:
            compared.add(key)
        if digest != _digest(None if row is None else row.cells):
            differing[key] = row
    changed = _changed_since(source, rule, plan, stream, found)
    found.changed = len(changed)
    found.rows = len(compared - changed)
    _explain(found, {key: row for key, row in differing.items() if key not in changed}, destination, rule)
    return found


def _is_own(shard: str) -> bool:
    return shard == COPY or shard.startswith(f"{COPY}/") or shard == "expiry"


def _plan(lasts: Mapping[str, Commit], source: SourceTable) -> CopyPlan:
    if COPY not in lasts:
        raise StreamClientException("there is nothing to compare: the mirror does not exist yet, or is out of sight")
    plan = CopyPlan.from_text(lasts[COPY].end)
    source.stream_of(plan)
    left = [name for name in plan.pieces if name not in lasts or lasts[name].end != CheckpointPosition.SHARD_END]
    if left:
        raise StreamClientException(
            f"the table is not copied yet ({len(plan.pieces) - len(left)} of {len(plan.pieces)} pieces are): there is "
            "no position at which both could be compared"
        )
    return plan


def _rows(destination: MergingDestination, rule: TableRule, tell: Callable[[str], object]) -> Iterator[RowCells]:
    for table in readable_rows(destination, tell):
        yield from cells_of(table, rule.key)


def _row_of(record: StreamRecord, rule: TableRule) -> RowCells:
    key = dict(record.primary_key)
    row = RowCells(tuple(key[name] for name in rule.key), exists=True)
    for cell in record.columns:
        assert cell.value is not None
        row.cells.setdefault(cell.name, {})[cell.timestamp_millis or 0] = cell.value
    return row


def _living_rows(source: SourceTable, rule: TableRule) -> Iterator[tuple[Key, RowCells]]:
    for record in map(record_of, source.scan(rule).rows()):
        row = _row_of(record, rule)
        if _living(row, rule, now_micros()) is not None:
            yield row.key, row


def _living(row: RowCells, rule: TableRule, now: int) -> Cells | None:
    """Of the versions that the table keeps now, those that are surely not expired in either of both.

    By a bound that lies a little behind the time ``now``.
    """
    row.keep_newest(rule.max_versions, row.cells)
    if rule.ttl_millis is not None:
        before = (now + CLOCKS_MARGIN_MICROS) // 1_000 - rule.ttl_millis
        row.written_millis = max(row.written_millis, before)
        row.expire(before)
    return row.cells if row.exists else None


def _digest(cells: Cells | None) -> bytes | None:
    if cells is None:
        return None
    plain = (
        part
        for name, versions in sorted(cells.items())
        for version, value in sorted(versions.items())
        for part in (name, version, value)
    )
    return blake2b(encoded(plain), digest_size=16).digest()


def _explain(
    found: Comparison, differing: Mapping[Key, RowCells | None], destination: MergingDestination, rule: TableRule
) -> None:
    """Name the columns of rows that differ: by one bound for both, as what one of them had may have expired since."""
    there: dict[Key, RowCells | None] = dict.fromkeys(differing)
    if differing:
        rows = _rows(destination, rule, lambda text: None)
        there |= {row.key: row for row in rows if row.key in differing}
    now = now_micros()

    def living(row: RowCells | None) -> Cells | None:
        return None if row is None else _living(row, rule, now)

    for key in sorted(differing, key=key_order):
        for one in row_differences(key, living(differing[key]), living(there[key]), _SIDES):
            found.note(one)


# --- what has changed behind the position -----------------------------------------------------------------------------


def _changed_since(
    source: SourceTable, rule: TableRule, plan: CopyPlan, lasts: Mapping[str, Commit], found: Comparison
) -> set[Key]:
    """Keys of the rows that the stream names behind the position."""
    repeater = Repeater(ReadRetry(), source.stop)
    stream_id = plan.stream_id
    changed: set[Key] = set()
    done: set[str] = set()
    while True:
        described = repeater.call("DescribeStream", lambda: source.api.describe_stream(stream_id))
        shards: Sequence[Shard] = [one for one in described.shards if one.shard_id not in done]
        if not shards:
            return changed
        for shard in shards:
            done.add(shard.shard_id)
            last = lasts.get(shard.shard_id)
            place = CheckpointPosition.TRIM_HORIZON if last is None else last.end
            if place == CheckpointPosition.SHARD_END:
                continue
            if place == CheckpointPosition.TRIM_HORIZON:
                since = None if last is not None else plan.start_micros
                place = _call(repeater, source.api.get_shard_iterator, stream_id, shard.shard_id, since)
            for record in _records_from(source, repeater, place, (stream_id, shard.shard_id)):
                found.pending += 1
                key = dict(record.primary_key)
                changed.add(tuple(key[name] for name in rule.key))


def _records_from(
    source: SourceTable, repeater: Repeater, place: str, shard: tuple[str, str]
) -> Iterator[StreamRecord]:
    """The records behind a place of a shard, given by its stream and its id, up to the tip or the end of the shard."""
    empty, trail = 0, ReadTrail()
    while empty < _EMPTY_READS:
        # An attempt after a page in doubt begins where the trail says, which is not always the same place.
        place, page, taken = repeater.call("GetStreamRecord", _Believed(source, place, trail, shard))
        if page.records:
            trail.take(place, place_of(page.records, -1))
        yield from page.records[taken:]
        if page.next_position.is_shard_end or (not page.records and page.next_position.text == place):
            return
        empty = 0 if page.records else empty + 1
        place = page.next_position.text


@define
class _Believed:
    """Reads a page that can be true: it goes on, and the list of shards shows the end of the shard if it says so."""

    source: SourceTable
    place: str
    trail: ReadTrail
    shard: tuple[str, str]

    def __call__(self) -> tuple[str, RecordPage, int]:
        """Where it was read, the page, and how many of its records were taken before."""
        (stream_id, shard_id), is_shown = self.shard, False
        while True:
            page, judged = self._judged()
            if judged.why:
                self.place = self.trail.turn(self.place)
                raise self._unread(judged.why)
            if judged.is_way:
                self.place = page.next_position.text
            elif is_shown or not page.next_position.is_shard_end:
                return self.place, page, judged.taken
            elif not ShardTree.of(self.source.api.describe_stream(stream_id).shards).shows_end(shard_id):
                raise self._unread(NOT_SHOWN)
            else:
                is_shown = True  # and read once more, as the page may have been cut before the shard closed

    def _judged(self) -> tuple[RecordPage, Judged]:
        try:
            page = self.source.api.get_stream_record(self.place)
        except DisorderError as error:
            return RecordPage((), Position.SHARD_END), Judged(str(error))
        except TrimmedDataException:
            if not self.trail.goes_back:
                raise
            self.place = self.trail.forget_way()
            return self._judged()
        place = partial(place_of, page.records)
        return page, self.trail.judge(self.place, page.next_position.text, len(page.records), place)

    def _unread(self, why: str) -> DependencyException:
        return DependencyException(f"shard {self.shard[1]} cannot be read: {why}", kind=ErrorKind.TRANSIENT)


def _call(repeater: Repeater, read: Any, *arguments: Any) -> Any:
    return repeater.call(read.__name__, lambda: read(*arguments))
