"""JSON documents of a running server for the console: tables, rows, changes, tunnels, faults, requests, a verdict.

The verdict says whether all is well. Each item of a list has an ``id``, which stays the same from one document to the
next. Times are microseconds since 1970.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypedDict

import attrs

from streamclient.records import ColumnValue, KeyValue
from streamclient.server.control import Control
from streamclient.server.fault_json import rule_to_json
from streamclient.server.keys import encode_key
from streamclient.server.observing import MOST_NAME_CHARACTERS, Ring
from streamclient.server.table_views import ChangeView
from streamclient.wire.plainbuffer import KeyBound

MOST_VALUE_BYTES = 4_096
"""The largest number of bytes of a value that a document contains. So a document with large values stays small."""

INTEGERS = range(-(2**63), 2**63)

MOST_STREAMS_LOOKED_UP = 20
"""The largest number of streams that ``fleets_document`` looks up in one status table. Each look-up costs a read, and a
local server seldom has more fleets."""

STATUS_KEY = (("StreamId", "STRING"), ("StatusType", "STRING"), ("StatusValue", "STRING"))
"""The key columns of a status table, in which the workers of a fleet keep their leases."""

Document = dict[str, Any]


class Value(TypedDict):
    """One value of a row, as text, because a browser's numbers cannot hold 64-bit integers. BINARY is base64."""

    type: Literal["INTEGER", "DOUBLE", "STRING", "BOOLEAN", "BINARY"]
    text: str
    cut_bytes: int
    """The number of bytes that the document omits at the end of the value."""


_REMOVED: Mapping[str, Any] = {"type": "removed", "text": "", "cut_bytes": 0}


def tables_document(control: Control) -> Document:
    """Return the JSON object that describes all tables with their key columns, ordered by table name."""
    keys = {view: [{"name": name, "type": kind} for name, kind in view.key] for view in control.tables()}
    return {"tables": [{"id": view.name, **attrs.asdict(view), "key": key} for view, key in keys.items()]}


def fleets_document(control: Control) -> list[Document]:
    """Return a document for each fleet on this server, with the names of the fleet's table and status table.

    A status table is a table with the key columns ``STATUS_KEY``. The first key column of a lease's row is the id of a
    stream. The id consists of the name of the stream's table and a number, so it shows the fleet's table.
    """
    views = control.tables()
    names = {view.name for view in views}
    found = []
    for status in [view.name for view in views if view.key == STATUS_KEY]:
        after: bytes | None = None
        for _ in range(MOST_STREAMS_LOOKED_UP):
            row = next(iter(control.rows(status, after, 1)), None)
            if row is None:
                break
            stream_id = str(row.key[0][1])
            table, _, number = stream_id.rpartition("_")
            if table in names and number.isdecimal():
                found.append({"id": f"{table}:{status}", "table": table, "status_table": status})
            after = encode_key((stream_id, *(KeyBound.INF_MAX for _ in STATUS_KEY[1:])))
    return found


def rows_document(control: Control, table: str, after: bytes | None, limit: int) -> Document:
    """Return a JSON object with at most ``limit`` rows of a table, after the encoded key ``after``.

    The id of each row is its encoded key.

    Raises:
        ServiceError: the table does not exist.
    """
    views = control.rows(table, after, limit + 1)
    rows = [
        {"id": row.encoded_key.hex(), "key": _named(row.key), "columns": _named(row.columns.items())}
        for row in views[:limit]
    ]
    return {"rows": rows, "has_more": len(views) > limit}


def change_document(view: ChangeView) -> Document:
    """Return one stream record as a JSON object, with its shard, time, type, key and columns."""
    record = view.record
    columns = [
        {"name": column.name, **(value_of(column.value) if column.value is not None else _REMOVED)}
        for column in record.columns
    ]
    return {
        "id": f"{view.shard_id} {view.position}",
        "shard": view.shard_id,
        "at_micros": view.timestamp_micros,
        "kind": record.record_type.value,
        "key": _named(record.primary_key),
        "columns": columns,
    }


def tunnels_document(control: Control) -> Document:
    """Return the JSON object that describes all tunnels with their channels."""
    return {"tunnels": [{"id": view.tunnel_id, **attrs.asdict(view)} for view in control.tunnels()]}


def faults_document(control: Control) -> Document:
    """Return all fault rules as a JSON object.

    Each rule has the number of requests that matched the rule, and the number of requests that met the rule's fault.
    """
    return {
        "faults": [
            {"id": status.fault_id, "seen": status.seen, "struck": status.struck, "rule": rule_to_json(status.rule)}
            for status in control.faults()
        ]
    }


def requests_document(control: Control, ring: Ring) -> Document:
    """Return a JSON object with the newest requests in ``ring``, and the counters by operation and table."""
    counts = [{"id": f"{count.operation} {count.table}", **attrs.asdict(count)} for count in control.requests()]
    return {"heads": ring.newest(), "counts": counts, "since_micros": ring.since_micros}


class FaultVerdict:
    """The verdict on a local server: all is well while no fault is active.

    The object remembers the last fault that ended.
    """

    def __init__(self) -> None:
        self._since: dict[int, int] = {}
        self._troubles: list[dict[str, Any]] = []
        self._last: dict[str, Any] | None = None

    def of(self, faults: Iterable[Mapping[str, Any]], now_micros: int, watched_since_micros: int | None) -> Document:
        """Return the verdict at ``now_micros`` as a document; ``faults`` are the items of ``faults_document``.

        ``watched_since_micros`` is the time since which the console notes requests; ``None`` if it notes no requests.
        """
        present = {fault["id"]: fault for fault in faults if not _is_spent(fault)}
        over = [trouble for trouble in self._troubles if trouble["id"] not in present]
        self._last = over[-1] if over else self._last
        self._since = {fault_id: self._since.get(fault_id, now_micros) for fault_id in present}
        self._troubles = [_fault_trouble(fault, self._since[fault_id]) for fault_id, fault in present.items()]
        count = len(self._troubles)
        first = f"{count} faults are active" if count > 1 else "A fault is active"
        return {
            "is_well": not count,
            "sentence": f"{first}: clients meet errors on purpose" if count else "All is well: no fault is active",
            "troubles": self._troubles,
            "last_trouble": self._last,
            "complete_since_micros": now_micros if watched_since_micros is None else watched_since_micros,
        }


def _is_spent(fault: Mapping[str, Any]) -> bool:
    times = fault["rule"].get("times")
    return times is not None and fault["struck"] >= times


def _fault_trouble(fault: Mapping[str, Any], since_micros: int) -> dict[str, Any]:
    rule = fault["rule"]
    action = {name: value for name, value in rule["action"].items() if name != "kind"}
    details = "".join(f", {name} {value}" for name, value in action.items())
    return {
        "id": fault["id"],
        "kind": "fault",
        "fleet": "",
        "shard": None,
        "worker": None,
        "situation": "fault is active",
        "first_line": f"{rule['action']['kind']}{details} for {rule['operation']} of {rule.get('table', 'all tables')}",
        "advice": "Remove the fault when the test is over.",
        "command": f"streamclient control fault clear {fault['id']}",
        "since_micros": since_micros,
        "since_is_seen": True,
        "waiting_shards": 0,
        "records_waiting": None,
        "seconds_to_loss": None,
    }


def value_of(value: ColumnValue) -> Value:
    """Return a column's or key's value as a document, truncated after ``MOST_VALUE_BYTES``."""
    if isinstance(value, bool):
        return Value(type="BOOLEAN", text=str(value).lower(), cut_bytes=0)
    if isinstance(value, int):
        return Value(type="INTEGER", text=str(value), cut_bytes=0)
    if isinstance(value, float):
        return Value(type="DOUBLE", text=repr(value), cut_bytes=0)
    data = value.encode("utf-8", "backslashreplace") if isinstance(value, str) else bytes(value)
    kept = data[:MOST_VALUE_BYTES]
    cut_bytes = len(data) - len(kept)
    if isinstance(value, str):
        return Value(type="STRING", text=kept.decode("utf-8", "ignore"), cut_bytes=cut_bytes)
    return Value(type="BINARY", text=base64.b64encode(kept).decode("ascii"), cut_bytes=cut_bytes)


def value_from(content: Mapping[str, Any]) -> ColumnValue:
    """Return the value that a document in the form of ``value_of`` contains.

    Raises:
        ValueError: the type is unknown, or the text is not a value of this type.
    """
    kind, text = content.get("type"), content.get("text")
    if not isinstance(text, str):
        raise ValueError("a value needs a type and a text")
    try:
        return _READERS[str(kind)](text)
    except KeyError:
        raise ValueError(f"the type of a value must be one of {', '.join(_READERS)}") from None
    except (ValueError, binascii.Error):
        raise ValueError(f"{text[:MOST_NAME_CHARACTERS]!r} is not of type {kind}") from None


def _integer(text: str) -> int:
    number = int(text)
    if number not in INTEGERS:
        raise ValueError("more than 64 bits")
    return number


def _double(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("not a number")
    return number


_READERS: Mapping[str, Callable[[str], ColumnValue]] = {
    "INTEGER": _integer,
    "STRING": str,
    "BINARY": lambda text: base64.b64decode(text, validate=True),
    "BOOLEAN": lambda text: {"true": True, "false": False}[text] if text in ("true", "false") else bool(int("no")),
    "DOUBLE": _double,
}


def columns_of(content: Mapping[str, Any], name: str) -> dict[str, ColumnValue]:
    """Return the columns in the list ``content[name]``: ``[{"name": text, "type": "STRING", "text": text}]``.

    Raises:
        TypeError: ``content[name]`` is not a list of columns.
        ValueError: a type is unknown, a text is not a value of its type, or two columns have the same name.
    """
    listed = content.get(name)
    if not isinstance(listed, list) or not all(
        isinstance(each, dict) and isinstance(each.get("name"), str) for each in listed
    ):
        raise TypeError(f"{name} must be a list of columns, each with a name, a type and a text")
    columns = {column["name"]: value_from(column) for column in listed}
    if len(columns) < len(listed):
        raise ValueError(f"{name} must name each column once")
    return columns


def _named(columns: Iterable[tuple[str, KeyValue | ColumnValue]]) -> list[Document]:
    return [{"name": name, **value_of(value)} for name, value in columns]
