"""The columns that only this package has on a lease row. The Java client does not know them.

Java workers leave these columns unchanged when they update a row, and drop them when they create a row again. So the
columns are hints: a worker that finds none of them continues from the checkpoint. Laws:

* the lease stays readable, whatever these columns contain; a column that cannot be read is logged, and counts as
  absent;
* one exception: a later version may forbid reading the shard. So if the content is of a later version, the whole row is
  refused;
* a prepared checkpoint is stored together with the checkpoint that the row has then. If a Java worker moves the
  checkpoint afterwards, it leaves the columns of the prepared checkpoint unchanged. These columns are then out of date,
  and count as absent.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from attrs import asdict, frozen

from streamclient.base.kept_formats import FORMAT_COLUMN, FORMAT_MEMBER, KeptFormat, parse_json
from streamclient.model import Lease, Pause, PendingCheckpoint, Progress, RecordOrder
from streamclient.records import SequenceInfo

PENDING = "PendingCheckpoint"
PENDING_STATE = "PendingState"
PENDING_RECORDS = "PendingRecords"
PENDING_EPOCH = "PendingEpoch"
PENDING_BESIDE = "PendingBeside"
"""The column that holds the row's checkpoint at the time when the pending checkpoint was prepared."""
PENDING_LAST = "PendingLast"
"""The column that holds two positions: of the batch's last record, and the prepared position. A worker that does not
know this column leaves it unchanged when it prepares another checkpoint. The prepared position in this column then
differs from the column ``PENDING``. This shows that this column is out of date."""

PAUSE = "Pause"
PAUSE_TAKEN = "PauseTaken"

ORDERS = "RecordOrders"
"""The column that holds the operators' orders about records, as a JSON list."""

PROGRESS_MICROS = "ProgressMicros"
PROGRESS_RECORDS = "ProgressRecords"
PROGRESS_BYTES = "ProgressBytes"

LEASE_FORMAT = KeptFormat("the lease row")
PAUSE_FORMAT = KeptFormat("the pause")
ORDER_FORMAT = KeptFormat("the order about records")

ACCEPTS_END = "accepts_end"
"""The member of a pause's JSON object with which an operator accepts the end of the shard."""

_PENDING_TYPES: Mapping[str, tuple[type, ...]] = {
    PENDING: (str,),
    PENDING_STATE: (bytearray, bytes),
    PENDING_RECORDS: (int,),
    PENDING_EPOCH: (int,),
    PENDING_BESIDE: (str,),
}
_PROGRESS_TYPES: Mapping[str, tuple[type, ...]] = {
    PROGRESS_MICROS: (int,),
    PROGRESS_RECORDS: (int,),
    PROGRESS_BYTES: (int,),
}
_PAUSE_TYPES: Mapping[str, tuple[type, ...]] = {
    "request_id": (str,),
    "by": (str,),
    "reason": (str,),
    "until_micros": (int, type(None)),
}

_ORDER_TYPES: Mapping[str, tuple[type, ...]] = {
    "request_id": (str,),
    "by": (str,),
    "reason": (str,),
    "at_micros": (int,),
    "until_micros": (int,),
    "record_ids": (list,),
    "parking_table": (str,),
    "parking_directory": (str,),
}

OWN_COLUMNS = frozenset({FORMAT_COLUMN, *_PENDING_TYPES, PENDING_LAST, PAUSE, PAUSE_TAKEN, ORDERS, *_PROGRESS_TYPES})
"""The names of all columns that only this package has on a lease row."""


@frozen
class OwnColumns:
    """The content of this package's own columns in one lease row, or the reasons why it cannot be used."""

    fields: Mapping[str, Any]
    """The values for a ``Lease``. The keys are names of its fields. A field with its default value is left out."""
    problems: str = ""
    """A text that names the columns that cannot be read, and the reasons; empty if all can be read."""
    refusal: str = ""
    """The reason why the whole row is refused, because its version is unknown; empty for other rows."""


NOTHING = OwnColumns({})


class _UnknownVersionError(ValueError):
    """The content of a column has an unknown version."""


def read_own(cells: Mapping[str, Any], checkpoint: str) -> OwnColumns:
    """Read this package's own columns from the ``cells`` of a row whose checkpoint is ``checkpoint``. Never raises."""
    if cells.keys().isdisjoint(OWN_COLUMNS):
        return NOTHING
    if refusal := LEASE_FORMAT.problem(cells.get(FORMAT_COLUMN)):
        return OwnColumns({}, refusal=refusal)
    fields: dict[str, Any] = {}
    problems: list[str] = []
    for read in (_read_pending, _read_pause, _read_orders, _read_progress):
        try:
            fields.update(read(cells, checkpoint))
        except _UnknownVersionError as error:
            return OwnColumns({}, refusal=str(error))
        except ValueError as error:
            problems.append(str(error))
    return OwnColumns(fields, "; ".join(problems))


def _read_pending(cells: Mapping[str, Any], checkpoint: str) -> dict[str, Any]:
    if cells.keys().isdisjoint(_PENDING_TYPES):
        return {}
    _check(cells, _PENDING_TYPES, "column")
    if not cells[PENDING]:
        raise ValueError(f"column {PENDING} is empty")
    if cells[PENDING_BESIDE] != checkpoint:
        return {}
    state, records, epoch = bytes(cells[PENDING_STATE]), cells[PENDING_RECORDS], cells[PENDING_EPOCH]
    last = _read_last(cells.get(PENDING_LAST), cells[PENDING])
    return {"pending": PendingCheckpoint(cells[PENDING], state, records, epoch, last)}


def _read_last(text: object, value: str) -> SequenceInfo | None:
    """Return the position of a batch's last record from ``text``; ``None`` if ``text`` does not belong to ``value``.

    ``value`` is the prepared position, which is the end of the batch.
    """
    sequence, _, position = text.partition(" ") if isinstance(text, str) else ("", "", "")
    numbers = sequence.split("/")
    if position != value or len(numbers) != 3 or not all(number.isdecimal() for number in numbers):
        return None
    return SequenceInfo(*map(int, numbers))


def _read_progress(cells: Mapping[str, Any], checkpoint: str) -> dict[str, Any]:
    if cells.keys().isdisjoint(_PROGRESS_TYPES):
        return {}
    _check(cells, _PROGRESS_TYPES, "column")
    return {"progress": Progress(cells[PROGRESS_MICROS], cells[PROGRESS_RECORDS], cells[PROGRESS_BYTES])}


def _read_pause(cells: Mapping[str, Any], checkpoint: str) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if PAUSE in cells:
        fields["pause"] = parse_pause(cells[PAUSE])
    if PAUSE_TAKEN in cells:
        _check(cells, {PAUSE_TAKEN: (str,)}, "column")
        fields["pause_taken"] = cells[PAUSE_TAKEN]
    return fields


def _read_orders(cells: Mapping[str, Any], checkpoint: str) -> dict[str, Any]:
    return {"orders": parse_orders(cells[ORDERS])} if ORDERS in cells else {}


def parse_orders(text: object) -> tuple[RecordOrder, ...]:
    """Return the orders that the text of a cell holds; raise ``ValueError`` if it does not hold orders."""
    told = _parsed(text)
    if not isinstance(told, list) or not all(isinstance(order, dict) for order in told):
        raise ValueError(f"column {ORDERS} holds {text!r}, which is not a JSON list of objects")
    orders = []
    for order in told:
        _require_known(ORDER_FORMAT, order)
        _check(order, _ORDER_TYPES, f"{ORDERS} member")
        if not all(isinstance(record_id, str) for record_id in order["record_ids"]):
            raise ValueError(f"{ORDERS} member record_ids holds {order['record_ids']!r}, which are not texts")
        fields = {name: order[name] for name in _ORDER_TYPES}
        orders.append(RecordOrder(**{**fields, "record_ids": tuple(order["record_ids"])}))
    return tuple(orders)


def format_orders(orders: tuple[RecordOrder, ...]) -> str:
    """Return the text of a cell that holds ``orders``, a JSON list.

    Equal orders must give equal texts, because conditional writes compare the texts.
    """
    return json.dumps([asdict(order) for order in orders], ensure_ascii=False, sort_keys=True)


def _parsed(text: object) -> Any:
    try:
        return parse_json(text) if isinstance(text, str) else None
    except ValueError:
        return None


def parse_pause(text: object) -> Pause:
    """Return the pause that the text of a cell holds; raise ``ValueError`` if it does not hold a pause."""
    told = _parsed(text)
    if not isinstance(told, dict):
        raise ValueError(f"column {PAUSE} holds {text!r}, which is not a JSON object")
    _require_known(PAUSE_FORMAT, told)
    _check(told, _PAUSE_TYPES, f"{PAUSE} member")
    return Pause(**{name: told[name] for name in _PAUSE_TYPES}, accepts_end=told.get(ACCEPTS_END) is True)


def format_pause(pause: Pause) -> str:
    """Return ``pause`` as the JSON text for its cell. Older workers ignore the member ``accepts_end`` of the text."""
    return json.dumps(pause.as_plain(), ensure_ascii=False, sort_keys=True)


def _require_known(kept: KeptFormat, told: Mapping[str, Any]) -> None:
    if problem := kept.problem(told.get(FORMAT_MEMBER)):
        raise _UnknownVersionError(problem)


def _check(told: Mapping[str, Any], types: Mapping[str, tuple[type, ...]], what: str) -> None:
    """Raise ``ValueError`` for a value that is missing or has another type. A boolean does not count as an integer."""
    for name, expected in types.items():
        if name not in told:
            raise ValueError(f"{what} {name} is missing")
        if type(told[name]) not in expected:
            raise ValueError(f"{what} {name} holds {told[name]!r}, which is not of type {expected[0].__name__}")


def _pending_cells(lease: Lease) -> Mapping[str, object]:
    pending = lease.pending
    if pending is None:
        return dict.fromkeys((*_PENDING_TYPES, PENDING_LAST))
    return {
        PENDING: pending.value,
        PENDING_STATE: bytearray(pending.state),
        PENDING_RECORDS: pending.records,
        PENDING_EPOCH: pending.epoch,
        PENDING_BESIDE: lease.checkpoint,
        PENDING_LAST: None if pending.last is None else f"{pending.last} {pending.value}",
    }


def _progress_cells(lease: Lease) -> Mapping[str, object]:
    progress = lease.progress
    if progress is None:
        return dict.fromkeys(_PROGRESS_TYPES)
    return {
        PROGRESS_MICROS: progress.record_micros,
        PROGRESS_RECORDS: progress.records,
        PROGRESS_BYTES: progress.bytes,
    }


OWN_CELLS: Mapping[str, Callable[[Lease], Mapping[str, object]]] = {
    "pending": _pending_cells,
    "pause": lambda lease: {PAUSE: None if lease.pause is None else format_pause(lease.pause)},
    "pause_taken": lambda lease: {PAUSE_TAKEN: lease.pause_taken or None},
    "progress": _progress_cells,
    "orders": lambda lease: {ORDERS: format_orders(lease.orders) if lease.orders else None},
}
"""The functions that return this package's own columns of a lease, one function for each field. The keys are the names
of the lease's fields. The value of a column to remove is ``None``."""
