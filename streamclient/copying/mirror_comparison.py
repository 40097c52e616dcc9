"""The comparison of a mirror with its table, row by row, while both may change.

A mirror equals its table at the mirror's position, but only the present table can be read. So the comparison notes the
mirror's position. It reads the rows of the mirror, the rows of the table, and at last the stream after that position.
If the stream has no change of a row after the position, mirror and table must be equal in this row. Rows with later
changes are counted and left out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from hashlib import blake2b

from attrs import define, field

from streamclient.base.position import Judged, Position, ReadTrail
from streamclient.base.reasons import counted
from streamclient.base.times import MICROS_PER_MILLI, now_micros, utc_text
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
from streamclient.copying.mirror_listing import LISTED, Listing
from streamclient.copying.mirror_writer import EXPIRY
from streamclient.copying.source_table import COPY, CopyPlan, SourceTable
from streamclient.core.shard_tree import NOT_SHOWN, ListedEnds
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
from streamclient.model import CheckpointPosition
from streamclient.records import StreamRecord, place_of, readable_position
from streamclient.tablestore.ranges import key_from, record_of
from streamclient.tablestore.stream_api import RecordPage

SHOWN_MAX = 10_000
"""The largest number of differences that a ``Comparison`` keeps. It counts further differences without keeping them."""

_SIDES = Sides("table", "mirror")


@define
class Comparison:
    """The result of a comparison of a mirror with its table."""

    position: Mapping[str, str]
    """The mirror's position when the comparison began: the end of each shard's last commit. The keys are shard ids."""
    rows: int = 0
    """The number of compared rows, without the rows that were left out."""
    changed: int = 0
    """The number of rows that were left out because they have changed after the mirror's position."""
    pending: int = 0
    """The number of changes that the comparison has read from the stream after the mirror's position."""
    count: int = 0
    """The number of all differences, including the differences that are not in ``differences``."""
    differences: list[Difference] = field(factory=list)
    """The first ``SHOWN_MAX`` differences."""
    unreadable: list[str] = field(factory=list)
    """Messages about files of the mirror that cannot be read. The rows of these files count as missing."""

    def note(self, difference: Difference) -> None:
        """Count ``difference``, and keep it among the first ``SHOWN_MAX``."""
        self.count += 1
        if len(self.differences) < SHOWN_MAX:
            self.differences.append(difference)

    @property
    def is_equal(self) -> bool:
        """Whether no compared row differs, and all files of the mirror could be read."""
        return self.count == 0 and not self.unreadable

    def __str__(self) -> str:
        shards = "; ".join(f"{shard} at {readable_position(end)}" for shard, end in sorted(self.position.items()))
        pending = (
            "no change is after that position"
            if not self.pending
            else f"the table has {counted(self.pending, 'change')} after that position, left out: "
            f"{counted(self.changed, 'row')}"
        )
        differences = f"{self.count or 'no'} difference{'s' if self.count > 1 else ''}"
        differences += "".join(f"; {text}" for text in self.unreadable)
        return f"{counted(self.rows, 'row')} compared at {shards or 'the beginning'}: {differences}; {pending}"


def compare(source: SourceTable, destination: MergingDestination) -> Comparison:
    """Compare a table with its mirror. The comparison needs about 150 bytes of memory for each row.

    Raises:
        ConfigurationError: the destination is the mirror of another table.
        StreamClientException: the table is not copied completely yet, or its stream was replaced after the copy, or the
            stream no longer has all changes after the mirror's position.
    """
    rule = source.rule()
    lasts = last_of(destination.log(), destination.application)
    plan = _plan(lasts, source)
    stream = {shard: last for shard, last in lasts.items() if not is_own(shard)}
    found = Comparison({shard: last.end for shard, last in stream.items()})
    mirror: dict[Key, bytes | None] = {}
    repeated: dict[Key, None] = {}
    for each in _rows(destination, rule, found.unreadable.append):
        if each.key in mirror:
            repeated[each.key] = None
        mirror[each.key] = _digest(_living(each, rule, now_micros()))
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


def is_own(shard: str) -> bool:
    """Return whether ``shard`` is a name under which a mirror commits its own state, and not a shard of the stream."""
    return shard in (COPY, EXPIRY) or shard.startswith(f"{COPY}/")


def readable_end(shard: str, end: str) -> str:
    """Return the end of a commit as text for people.

    If the commit stores the mirror's own state, the text describes this state. Otherwise the text is a position.
    """
    if not is_own(shard) or end == CheckpointPosition.SHARD_END:
        return readable_position(end)
    try:
        if shard == COPY:
            plan = CopyPlan.from_text(end)
            return f"changes since {utc_text(plan.start_micros)}, {counted(len(plan.pieces), 'piece')} to copy"
        if shard == LISTED:
            listed = Listing.from_text(end)
            return f"{counted(len(listed.places), 'shard')} without changes at {utc_text(listed.micros)}"
        if shard == EXPIRY:
            return f"expired cells up to {utc_text(int(end) * MICROS_PER_MILLI)}"
        key = key_from(end) or ()
        return f"rows before key {', '.join(map(repr, key))}" if key else "no row yet"
    except (StreamClientException, LookupError, TypeError, ValueError):  # ``end`` is damaged, or has a later format
        return readable_position(end)


def _plan(lasts: Mapping[str, Commit], source: SourceTable) -> CopyPlan:
    if COPY not in lasts:
        raise StreamClientException("there is nothing to compare: the mirror does not exist yet, or is out of sight")
    plan = CopyPlan.from_text(lasts[COPY].end)
    source.stream_of(plan)
    left = [name for name in plan.pieces if name not in lasts or lasts[name].end != CheckpointPosition.SHARD_END]
    if left:
        raise StreamClientException(
            f"the table is not copied yet ({len(plan.pieces) - len(left)} of {len(plan.pieces)} pieces are): compare "
            "table and mirror when all pieces are copied"
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
    """Return the cells of ``row`` that cannot have expired at ``now``; ``None`` if the whole row may have expired."""
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
    """Find the columns in which rows of the table and the mirror differ, and note these differences in ``found``.

    The keys of ``differing`` are the keys of the rows that differ. The values are the rows in the table; ``None`` for a
    row that the table lacks. Cells that may have expired are left out.
    """
    there: dict[Key, RowCells | None] = dict.fromkeys(differing)
    if differing:
        rows = _rows(destination, rule, lambda text: None)
        there |= {row.key: row for row in rows if row.key in differing}
    now = now_micros()

    def living(row: RowCells | None) -> Cells | None:
        return None if row is None else _living(row, rule, now)

    for key in sorted(differing, key=key_order):
        for difference in row_differences(key, living(differing[key]), living(there[key]), _SIDES):
            found.note(difference)


# --- reading the changes after the mirror's position ------------------------------------------------------------------


def _changed_since(
    source: SourceTable, rule: TableRule, plan: CopyPlan, lasts: Mapping[str, Commit], found: Comparison
) -> set[Key]:
    """Return the keys of all rows that have changes in the stream after the mirror's position.

    ``lasts`` has the mirror's last commit of each shard, by shard id. The changes are counted in ``found.pending``.
    """
    changed: set[Key] = set()
    done: set[str] = set()
    ends = ListedEnds()
    while True:
        described = source.describe_stream(plan.stream_id)
        ends.listed(described.shards, time.monotonic())
        shard_ids = [shard.shard_id for shard in described.shards if shard.shard_id not in done]
        if not shard_ids:
            return changed
        for shard_id in shard_ids:
            done.add(shard_id)
            last = lasts.get(shard_id)
            if last is not None and last.end == CheckpointPosition.SHARD_END:
                continue
            position = source.position_at(shard_id, plan) if last is None else last.end
            for record in _records_from(source, position, (plan.stream_id, shard_id), ends):
                found.pending += 1
                key = dict(record.primary_key)
                changed.add(tuple(key[name] for name in rule.key))


def _records_from(
    source: SourceTable, position: str, shard: tuple[str, str], ends: ListedEnds
) -> Iterator[StreamRecord]:
    """Yield all records after ``position`` in a shard. ``shard`` is the pair of the stream's id and the shard's id."""
    trail = ReadTrail()
    while True:
        # After a doubtful page, ``trail`` may choose another position for the next attempt.
        position, page, taken = source.repeated("GetStreamRecord", _Believed(source, position, trail, shard, ends))
        if page.records:
            trail.take(position, place_of(page.records, -1))
        yield from page.records[taken:]
        if page.next_position.is_shard_end or (not page.records and page.next_position.text == position):
            return
        position = page.next_position.text  # also after an empty page: the service skips a part of the shard


@define
class _Believed:
    """A call that reads the next page of a shard, and refuses a page that must be wrong.

    A page must be wrong if it leads to no later position, or if it ends the shard but no listing shows this end.
    """

    source: SourceTable
    position: str
    trail: ReadTrail
    shard: tuple[str, str]
    ends: ListedEnds

    def __call__(self) -> tuple[str, RecordPage, int]:
        """Return the page's position, the page, and the number of its first records that were already read."""
        _, shard_id = self.shard
        while True:
            read_at = time.monotonic()
            page, judged = self._judged()
            if judged.why:
                self.position = self.trail.turn(self.position)
                raise self._unread(judged.why)
            if judged.is_way:
                self.position = page.next_position.text
            elif not page.next_position.is_shard_end or self.ends.confirms(shard_id, read_at, self._list):
                return self.position, page, judged.taken
            elif not self.ends.shows_end(shard_id):
                raise self._unread(NOT_SHOWN)

    def _list(self) -> None:
        stream_id, _ = self.shard
        self.ends.listed(self.source.api.describe_stream(stream_id).shards, time.monotonic())

    def _judged(self) -> tuple[RecordPage, Judged]:
        try:
            page = self.source.api.get_stream_record(self.position)
        except DisorderError as error:
            return RecordPage((), Position.SHARD_END), Judged(str(error))
        except TrimmedDataException:
            if not self.trail.goes_back:
                raise
            self.position = self.trail.forget_way()
            return self._judged()
        place = partial(place_of, page.records)
        return page, self.trail.judge(self.position, page.next_position.text, len(page.records), place)

    def _unread(self, why: str) -> DependencyException:
        return DependencyException(f"shard {self.shard[1]} cannot be read: {why}", kind=ErrorKind.TRANSIENT)
