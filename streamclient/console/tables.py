"""The documents of a local Tablestore's console: tables, rows, changes, shards, tunnels, faults and requests.

Everything is read in the server's process, not by its protocol: the console meets no fault and counts as no client.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import attrs

from streamclient._version import __version__
from streamclient.base.times import MICROS_PER_HOUR, MICROS_PER_SECOND
from streamclient.console.doors import ConsoleError
from streamclient.console.feeds import ROUND_SECONDS, Document
from streamclient.console.story import StoryBook
from streamclient.errors import ConfigurationError
from streamclient.model import Shard
from streamclient.records import ColumnValue, KeyValue
from streamclient.server.admin import Admin
from streamclient.server.fault_json import rule_to_json
from streamclient.server.observing import Exchange
from streamclient.server.server_errors import ServiceError
from streamclient.wire import schema

if TYPE_CHECKING:
    from streamclient.server.local import LocalTablestore
    from streamclient.server.table_views import ChangeView, ShardSpan

MOST_HEADS = 500
"""The number of requests that the console remembers: a few screens, and about a hundred kilobytes."""

MOST_CHANGES = 200
"""The number of changes of a table that a page shows."""

MOST_ROWS = 100
"""The number of rows that one page of a table has at most."""

MOST_VALUE_BYTES = 4_096
"""The bytes of a value that are shown; a document stays small, however large the values are."""

MOST_NAME_CHARACTERS = 255
"""The characters of a caller or a table that a head keeps: as many as a table's name may have."""

INTEGERS = range(-(2**63), 2**63)

_KEY_TYPES: Mapping[str, type[int | str | bytes]] = {"INTEGER": int, "STRING": str, "BINARY": bytes}


class Value(TypedDict):
    """One value; ``text`` keeps 64-bit integers, which a browser's numbers lose, and has BINARY as base64."""

    type: Literal["INTEGER", "DOUBLE", "STRING", "BOOLEAN", "BINARY"]
    text: str
    cut_bytes: int
    """The number of bytes that were left out at the end."""


class NotedRequest(TypedDict):
    """One request that was executed or refused."""

    id: int
    at_micros: int
    operation: str
    tables: list[str]
    caller: str
    http_status: int
    code: str
    millis: float
    rows: int


class Ring:
    """The newest requests, filled by the server's thread and read by the console's."""

    def __init__(self, now_micros: Callable[[], int]) -> None:
        self._now_micros = now_micros
        self._heads: deque[NotedRequest] = deque(maxlen=MOST_HEADS)
        self._last_id = 0
        self.since_micros: int | None = None
        """The time since which requests are noted; ``None`` without a viewer."""

    def begin(self) -> None:
        """Forget all requests, and note those that come from now on."""
        self._heads.clear()
        self.since_micros = self._now_micros()

    def end(self) -> None:
        """Forget all requests."""
        self._heads.clear()
        self.since_micros = None

    def note(self, exchange: Exchange) -> None:
        """Note one request."""
        self._last_id += 1
        self._heads.append(
            NotedRequest(
                id=self._last_id,
                at_micros=self._now_micros(),
                operation=exchange.operation,
                tables=[name[:MOST_NAME_CHARACTERS] for name in exchange.tables],
                caller=exchange.caller[:MOST_NAME_CHARACTERS],
                http_status=exchange.http_status,
                code="" if exchange.http_status < 400 else _code_of(exchange.answer),
                millis=round(exchange.seconds * 1000, 3),
                rows=exchange.rows,
            )
        )

    def newest(self) -> list[NotedRequest]:
        """Return the noted requests, newest first."""
        return list(self._heads.copy())[::-1]


class LocalPages:
    """The documents of one local Tablestore, and the changes that its page may make. Used by one thread."""

    def __init__(self, local: LocalTablestore) -> None:
        self._local = local
        self._control = local.control
        self._admin = Admin(local.control, local.access_key_secret)
        self._changes: dict[str, _ChangeLog] = {}
        self._verdict = _FaultVerdict()
        self.ring = Ring(lambda: self._control.now_micros)
        self._of_server: Mapping[str, Callable[[], Document]] = {
            "about": self._about,
            "verdict": self._verdict_now,
            "tables": self._tables,
            "tunnels": self._tunnels,
            "faults": self._faults,
            "requests": self._requests,
        }
        self._of_table: Mapping[str, Callable[[str], Document]] = {
            "rows": self.rows,
            "changes": self._table_changes,
            "story": self._story,
        }

    def document(self, topic: str) -> Document:
        """Return the document of a topic, such as ``tables`` or ``changes:orders``; a refusal is a document, too."""
        kind, _, table = topic.partition(":")
        try:
            if kind in self._of_table and table:
                return self._of_table[kind](table)
            if kind in self._of_server and not table:
                return self._of_server[kind]()
        except ServiceError as error:
            return refused(error).document()
        return ConsoleError(404, "topic", f"there is no document {topic[:MOST_NAME_CHARACTERS]}").document()

    # Documents

    def _about(self) -> Document:
        return {
            "version": __version__,
            "endpoint": self._local.endpoint,
            "instance": self._local.instance,
            "uses": ["local"],
            "mode": "changes allowed",
            "interval_millis": round(ROUND_SECONDS * 1000),
        }

    def _tables(self) -> Document:
        keys = {view: [{"name": name, "type": kind} for name, kind in view.key] for view in self._control.tables()}
        return {"tables": [{"id": view.name, **attrs.asdict(view), "key": key} for view, key in keys.items()]}

    def rows(self, table: str, after: str | None = None, limit: int = MOST_ROWS) -> Document:
        """Return at most ``limit`` rows of a table, after the row with the id ``after``.

        Raises:
            ConsoleError: ``after`` is not the id of a row.
            ServiceError: the table does not exist.
        """
        try:
            key = None if after is None else bytes.fromhex(after)
        except ValueError:
            raise ConsoleError(400, "after", "after is not the id of a row") from None
        views = self._control.rows(table, key, limit + 1)
        return {
            "rows": [
                {"id": row.encoded_key.hex(), "key": _named(row.key), "columns": _named(row.columns.items())}
                for row in views[:limit]
            ],
            "has_more": len(views) > limit,
        }

    def _table_changes(self, table: str) -> Document:
        found = self._changes.get(table)
        log = _ChangeLog() if found is None else found
        new = self._control.changes(table, log.positions, MOST_CHANGES)  # raises before an unknown name is kept
        self._changes[table] = log
        log.positions = new.positions
        # The records of a table that was deleted and made again are gone; its shards have other ids.
        kept = [change for change in log.newest if change["shard"] in new.positions]
        log.newest = ([_change(record) for record in reversed(new.records)] + kept)[:MOST_CHANGES]
        return {"changes": log.newest}

    def _story(self, table: str) -> Document:
        spans = self._control.spans(table)
        view = next(view for view in self._control.tables() if view.name == table)
        # To whole seconds, as the document would change with every look else; up, as a shard may have opened just now.
        now = -(-self._control.now_micros // MICROS_PER_SECOND) * MICROS_PER_SECOND
        book = StoryBook()
        book.saw(
            [Shard(span.shard_id, *span.parent_ids) for span in spans],
            {},
            now,
            ranges=ranges_of(spans),
            opened={span.shard_id: span.opened_micros for span in spans if span.opened_micros is not None},
            closed={span.shard_id: span.closed_micros for span in spans if span.closed_micros is not None},
        )
        loss = now - (view.retention_hours or 0) * MICROS_PER_HOUR
        first = min((span.opened_micros for span in spans if span.opened_micros is not None), default=loss)
        story = book.story(max(first, loss), now, loss)
        shards = {shard.shard_id: shard for shard in self._control.shards(table)}
        lines = [
            {"id": span.shard_id, "keys": shards[span.shard_id].key_range, "records": span.record_count}
            for span in spans
            if span.shard_id in shards
        ]
        return {**story, "shards": lines}

    def _tunnels(self) -> Document:
        return {"tunnels": [{"id": view.tunnel_id, **attrs.asdict(view)} for view in self._control.tunnels()]}

    def _faults(self) -> Document:
        return {
            "faults": [
                {"id": status.fault_id, "seen": status.seen, "struck": status.struck, "rule": rule_to_json(status.rule)}
                for status in self._control.faults()
            ],
            "advanced_seconds": self._control.advanced_seconds,
        }

    def _requests(self) -> Document:
        found = self._control.requests()
        counts = [{"id": f"{count.operation} {count.table}", **attrs.asdict(count)} for count in found]
        return {"heads": self.ring.newest(), "counts": counts, "since_micros": self.ring.since_micros}

    def _verdict_now(self) -> Document:
        return self._verdict.of(self._faults()["faults"], self._control.now_micros, self.ring.since_micros)

    # Changes

    def change(self, method: str, name: str, arguments: Mapping[str, Any]) -> Any:
        """Carry out a change that the admin surface has, too; return its answer.

        Raises:
            ConsoleError: there is no such change, or it cannot be carried out as asked.
        """
        try:
            return self._admin.call(method, name, arguments)
        except KeyError:
            raise ConsoleError(404, "path", f"there is no {method} {name[:MOST_NAME_CHARACTERS]}") from None
        except ServiceError as error:
            raise refused(error) from error
        except (ValueError, TypeError) as error:
            raise ConsoleError(400, "argument", str(error)) from error

    def create_table(self, arguments: Mapping[str, Any]) -> Document:
        """Create a table with a stream: ``{"name": text, "key": [{"name": text, "type": "STRING"}]}``."""
        name, key = arguments.get("name"), arguments.get("key")
        if not isinstance(name, str) or not isinstance(key, list) or not all(isinstance(part, dict) for part in key):
            raise ConsoleError(400, "argument", "a new table has a name, and a key: a list of names and types")
        kinds = {str(part.get("name", "")): _KEY_TYPES.get(str(part.get("type"))) for part in key}
        if None in kinds.values() or len(kinds) < len(key):
            text = "key columns have different names, and a type: INTEGER, STRING or BINARY"
            raise ConsoleError(400, "argument", text)
        _carried_out(lambda: self._local.create_table(name, {at: kind for at, kind in kinds.items() if kind}))
        return {"name": name}

    def put_row(self, table: str, arguments: Mapping[str, Any]) -> Document:
        """Put a row: ``{"columns": [{"name": text, "type": "STRING", "text": text}]}``, the key included."""
        columns = _columns(arguments, "columns")
        _carried_out(lambda: self._local.put(table, **columns))
        return {"put": 1}

    def delete_row(self, table: str, arguments: Mapping[str, Any]) -> Document:
        """Delete a row: ``{"key": [{"name": text, "type": "STRING", "text": text}]}``."""
        key: dict[str, Any] = _columns(arguments, "key")
        _carried_out(lambda: self._local.delete(table, **key))
        return {"deleted": 1}


class _ChangeLog:
    """The changes of one table that a page shows, newest first, and the positions after them."""

    def __init__(self) -> None:
        self.positions: Mapping[str, int] | None = None
        self.newest: list[dict[str, Any]] = []


class _FaultVerdict:
    """Whether all is well with a local server: it is, unless faults are active. Remembers the last fault."""

    def __init__(self) -> None:
        self._since: dict[int, int] = {}
        self._troubles: list[dict[str, Any]] = []
        self._last: dict[str, Any] | None = None
        self._complete_since = 0

    def of(self, faults: Iterable[Mapping[str, Any]], now_micros: int, watched_since_micros: int | None) -> Document:
        """Return the Verdict; ``watched_since_micros`` is since when this console looks, if it does."""
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


def ranges_of(spans: Iterable[ShardSpan]) -> dict[str, tuple[float, float]]:
    """Return each shard's part of the key space, from 0 to 1, in the order of the keys.

    Keys have no distances. So shards without a known parent share the space evenly, and a split cuts its shard in the
    middle: a picture does not change when a shard splits.
    """
    listed = list(spans)
    present = {span.shard_id for span in listed}
    places: dict[bytes | None, float] = {b"": 0.0, None: 1.0}
    first = [span for span in listed if present.isdisjoint(span.parent_ids)]
    begins = sorted({bound for span in first for bound in (span.begin, span.end) if bound})
    places |= {bound: number / (len(begins) + 1) for number, bound in enumerate(begins, 1)}
    ranges: dict[str, tuple[float, float]] = {}
    for span in listed:
        for bound in (span.begin, span.end):
            if bound not in places:
                parents = [ranges[parent] for parent in span.parent_ids if parent in ranges]
                places[bound] = (min(low for low, _ in parents) + max(high for _, high in parents)) / 2
        ranges[span.shard_id] = (places[span.begin], places[span.end])
    return ranges


def value_of(value: ColumnValue) -> Value:
    """Return a value for the page, cut at ``MOST_VALUE_BYTES``."""
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
    """Read a value that ``value_of`` could have made.

    Raises:
        ConsoleError: the type is unknown, or the text is not of this type.
    """
    kind, text = content.get("type"), content.get("text")
    if not isinstance(text, str):
        raise ConsoleError(400, "value", "a value has a type and a text")
    try:
        return _READERS[str(kind)](text)
    except KeyError:
        raise ConsoleError(400, "value", f"the type of a value is one of {', '.join(_READERS)}") from None
    except (ValueError, binascii.Error):
        raise ConsoleError(400, "value", f"{text[:MOST_NAME_CHARACTERS]!r} is not of type {kind}") from None


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


def _columns(arguments: Mapping[str, Any], name: str) -> dict[str, Any]:
    listed = arguments.get(name)
    if not isinstance(listed, list) or not all(
        isinstance(each, dict) and isinstance(each.get("name"), str) for each in listed
    ):
        raise ConsoleError(400, "argument", f"{name} is a list of columns, each with a name, a type and a text")
    return {column["name"]: value_from(column) for column in listed}


def _named(columns: Iterable[tuple[str, KeyValue | ColumnValue]]) -> list[dict[str, Any]]:
    return [{"name": name, **value_of(value)} for name, value in columns]


def _change(view: ChangeView) -> dict[str, Any]:
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


_REMOVED: Mapping[str, Any] = {"type": "removed", "text": "", "cut_bytes": 0}


def _code_of(answer: bytes) -> str:
    """Return the code of an error answer, which some callers get as JSON; empty if it has none."""
    try:
        return str(json.loads(answer).get("Code", ""))[:MOST_NAME_CHARACTERS]
    except (ValueError, AttributeError):
        pass
    try:
        return str(schema.parse(schema.Error, answer).code)[:MOST_NAME_CHARACTERS]
    except Exception:  # an observer tells what it can of any bytes
        return ""


def refused(error: ServiceError) -> ConsoleError:
    """Return the console's form of a refusal by the service."""
    return ConsoleError(error.http_status, error.code, error.message)


def _carried_out(change: Callable[[], object]) -> None:
    try:
        change()
    except ServiceError as error:
        raise refused(error) from error
    except (ConfigurationError, TypeError) as error:
        raise ConsoleError(400, "argument", str(error)) from error
