"""Requests made at random: of values that the server handed out, of values next to a limit, and of damaged ones.

Messages are filled in by what their fields are called, so that a field of a new operation is met without a word here.
"""

from __future__ import annotations

import random
import struct
from collections import defaultdict
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from streamclient.wire import schema
from streamclient.wire.page_parts import FINISHED
from streamclient.wire.plainbuffer import Cell, CellOperation, KeyBound, Row, encode_row, encode_value
from streamclient.wire.tunnel import CodecError, Token, decode_token
from tests.server.server_state_driver import frame, wrapped

TABLES = ("t", "u", "no such table", "")
COLUMNS = ("a", "b", "price-2", "公司", "a.b", "pk", "", "#", "x" * 300)
EDGES = (0, 1, -1, 2, 10, 1000, 86_400, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63), 1_700_000_000_000)
PATTERNS = (
    *("a+", "(a+)+$", "(", "(?=a)", "(a)(b)", "[x]{1000}", "((a{9}){9}){9}", "\\1", "", "é+"),
    *(".{0,500}x", "(?:.?.?.?.?){0,1000}x"),
)
TEXTS = ("", "a", "é" * 200, "\x00", "x" * 5_000, "公司", "-5", "1e309", "9" * 400, "a" * 100_000)

SAME_NAMES = {
    "next_shard_iterator": "shard_iterator",
    "next_shard_id": "shard_id",
    "inclusive_start_shard_id": "shard_id",
    "parent_id": "shard_id",
    "next_token": "token",
    "checkpoint": "token",
}
"""Fields whose values go where another field's go."""

LIVELY = ("stream_id", "shard_id", "shard_iterator", "tunnel_id", "limit", "max_versions", "row", "primary_key")
"""Optional fields without which a request mostly ends at its first check."""

KEYS = ("primary_key", "inclusive_start_primary_key", "exclusive_end_primary_key", "key")
"""Fields that hold a key alone."""

FILTER_DEPTH = 6
POOL = 60


class Maker:
    """Makes requests, and learns from the answers what the server knows."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self._known: dict[str, list[Any]] = defaultdict(list)

    # --- learning

    def learn(self, message: Message) -> None:
        """Remember what an answer hands out."""
        for field, value in message.ListFields():
            values = value if _is_repeated(field) else [value]
            for each in list(values)[:5]:
                if field.type == FieldDescriptor.TYPE_MESSAGE:
                    self.learn(each)
                elif field.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_INT64):
                    self._remember(SAME_NAMES.get(field.name, field.name), each)
        if "token" in message.DESCRIPTOR.fields_by_name or "next_token" in message.DESCRIPTOR.fields_by_name:
            self._known["token"].append(FINISHED)

    def _remember(self, name: str, value: Any) -> None:
        pool = self._known[name]
        if value == "":
            return
        if value not in pool:
            pool.append(value)
        if len(pool) > POOL:
            del pool[self.dice.randrange(len(pool))]

    def forget(self) -> None:
        """What was known is of a table that is gone."""
        self._known.clear()

    def changed(self, message: Message) -> Message:
        """A request that is in order, with one of its fields filled in anew."""
        field = self.dice.choice(list(message.DESCRIPTOR.fields))
        message.ClearField(field.name)
        if field.type != FieldDescriptor.TYPE_MESSAGE and not _is_repeated(field):
            self._set(message, field)
        return message

    # --- messages

    def request(self, message_class: Any) -> Message:
        """A request with all that it requires, and some of what it may have."""
        message: Message = message_class()
        self._fill(message, 0)
        return message

    def _fill(self, message: Message, depth: int) -> None:
        for field in message.DESCRIPTOR.fields:
            if not _is_required(field) and self.dice.random() < self._leaves_out(field, depth):
                continue
            if _is_repeated(field):
                for _ in range(self.dice.choice((0, 1, 1, 2, 3))):
                    if field.type == FieldDescriptor.TYPE_MESSAGE:
                        self._fill(getattr(message, field.name).add(), depth + 1)
                    else:
                        self._append(message, field)
            elif field.type == FieldDescriptor.TYPE_MESSAGE:
                nested = getattr(message, field.name)
                nested.SetInParent()
                self._fill(nested, depth + 1)
            else:
                self._set(message, field)

    def _leaves_out(self, field: FieldDescriptor, depth: int) -> float:
        """How probably an optional field is left out."""
        if _is_repeated(field) or field.type == FieldDescriptor.TYPE_MESSAGE:
            return 0.2 if depth < 3 else 0.8
        if field.name in LIVELY:
            return 0.3
        return 0.98 if field.name == "transaction_id" and not self._known["transaction_id"] else 0.75

    def _set(self, message: Message, field: FieldDescriptor) -> None:
        try:
            setattr(message, field.name, self._value(field))
        except (ValueError, TypeError):  # a number that the field cannot hold
            setattr(message, field.name, field.enum_type.values[0].number if field.enum_type else 1)

    def _append(self, message: Message, field: FieldDescriptor) -> None:
        try:
            getattr(message, field.name).append(self._value(field))
        except (ValueError, TypeError):
            return

    def _value(self, field: FieldDescriptor) -> Any:
        name = SAME_NAMES.get(field.name, field.name)
        if field.type == FieldDescriptor.TYPE_ENUM:
            return self.dice.choice([value.number for value in field.enum_type.values])
        if field.type == FieldDescriptor.TYPE_BOOL:
            return self.dice.random() < 0.5
        if field.type in (FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FLOAT):
            return self.dice.choice((0.0, -1.5, float("inf"), float("nan")))
        if field.type == FieldDescriptor.TYPE_BYTES:
            return self.damaged(self._bytes(name)) if self.dice.random() < 0.1 else self._bytes(name)
        if field.type == FieldDescriptor.TYPE_STRING:
            return self._text(name)
        known = self._known.get(name)
        if known and self.dice.random() < 0.6:
            return self.dice.choice(known) + self.dice.choice((0, 0, 1, 1, -1))
        return self.dice.choice(EDGES) if self.dice.random() < 0.5 else self.dice.randrange(5)

    def _text(self, name: str) -> str:
        known = self._known.get(name)
        if name == "table_name":
            return self.dice.choice(TABLES[:1] * 8 + TABLES)
        if name == "regex":
            return self.dice.choice(PATTERNS)
        if name == "token" and known and self.dice.random() < 0.5:
            return self._bent(self.dice.choice(known))
        if known and self.dice.random() < 0.9:
            return str(self.dice.choice(known))
        return self.dice.choice(COLUMNS if "column" in name else TEXTS)

    def token(self, stored: str) -> str:
        """A token of some channel: most often the stored one, or one that an answer held, as it is or bent."""
        known = [text for text in (stored, *self._known["token"]) if text]
        if not known:
            return FINISHED
        text = stored if stored and self.dice.random() < 0.3 else self.dice.choice(known)
        return self._bent(text) if self.dice.random() < 0.3 else text

    def _bent(self, text: str) -> str:
        """A token whose parts fit the form, but not each other."""
        try:
            token = decode_token(text)
        except CodecError:
            return text
        return Token(
            iterator=self.dice.choice((token.iterator, token.iterator, "", "?")),
            primary_key=self.dice.choice((token.primary_key, self.row(), self.damaged(self.row()))),
            timestamp=self.dice.choice((token.timestamp, token.timestamp * 1000, -1, 2**63 - 1)) % 2**63,
            total_count=self.dice.choice((token.total_count, 2**63 - 1, -1)),
        ).encode()

    # --- bytes

    def _bytes(self, name: str) -> bytes:
        if "filter" in name or "condition" in name:
            return self.filter(self.dice.randrange(FILTER_DEPTH))
        if name in ("column_value", "begin", "end"):
            return encode_value(self._cell_value())
        if name in ("token", "next_token"):
            return self.dice.choice((b"", b"", b"", b"\x00", b"garbage"))
        if name in KEYS and self.dice.random() < 0.9:
            return self.key(name)
        return self.row()

    def key(self, name: str) -> bytes:
        """A key, mostly one that may be there, or for a range a bound."""
        bounds = (KeyBound.INF_MIN, KeyBound.INF_MAX)
        value = self.dice.choice(bounds) if "clusive" in name else self.dice.choice(("a", "b", "c", "mm", "z"))
        return frame(value, delete_marker=self.dice.random() < 0.3)

    def row(self) -> bytes:
        """A row in PlainBuffer, mostly as tables here want it."""
        key: list[tuple[str, Any]] = [("pk", self.dice.choice(("a", "b", "c", "mm", "z")))]
        if self.dice.random() < 0.1:
            key = [(self.dice.choice(COLUMNS), self._key_value()) for _ in range(self.dice.randrange(6))]
        cells = [self._cell() for _ in range(self.dice.choice((0, 1, 1, 2, 5)))]
        row = Row(tuple(key), tuple(cells), delete_marker=self.dice.random() < 0.1)
        try:
            return encode_row(row)
        except (CodecError, ValueError, TypeError, struct.error, AttributeError):
            return frame("a")

    def good_row(self) -> bytes:
        """A row that the table takes."""
        cells = tuple(Cell(name, self.dice.randrange(9)) for name in self.dice.sample(("a", "b", "公司"), 2))
        return frame(self.dice.choice(("a", "b", "c", "mm", "z")), *cells)

    def _cell(self) -> Cell:
        operation = self.dice.choice([*CellOperation, CellOperation.PUT, CellOperation.PUT])
        timestamp = self.dice.choice((None, None, None, *EDGES))
        return Cell(self.dice.choice(COLUMNS), self._cell_value(), operation=operation, timestamp_millis=timestamp)

    def _cell_value(self) -> Any:
        return self.dice.choice((0, 1, 2**63 - 1, -5, True, 1.5, float("nan"), b"", b"\xff" * 100, *TEXTS))

    def _key_value(self) -> Any:
        return self.dice.choice((0, -(2**63), "a", b"\x00\xff", *KeyBound))

    def filter(self, depth: int) -> bytes:
        """A filter, nested so deep."""
        if depth == 0 or self.dice.random() < 0.4:
            single = schema.SingleColumnValueFilter(
                comparator=self.dice.choice([1, 2, 3, 4, 5, 6]),
                column_name=self.dice.choice(COLUMNS),
                column_value=encode_value(self._cell_value()),
                filter_if_missing=self.dice.random() < 0.5,
                latest_version_only=self.dice.random() < 0.5,
            )
            if self.dice.random() < 0.3:
                single.value_trans_rule.regex = self.dice.choice(PATTERNS)
                single.value_trans_rule.cast_type = self.dice.choice((0, 1, 3))
            return wrapped(schema.FilterType.SINGLE_COLUMN_VALUE, single)
        composite = schema.CompositeColumnValueFilter(combinator=self.dice.choice((1, 2, 3)))
        for _ in range(self.dice.choice((0, 1, 2, 2, 3))):
            composite.sub_filters.add().ParseFromString(self.filter(depth - 1))
        return wrapped(schema.FilterType.COMPOSITE_COLUMN_VALUE, composite)

    def damaged(self, data: bytes) -> bytes:
        """The same with some bytes changed, cut out, doubled or put in."""
        if not data:
            return self.dice.randbytes(self.dice.randrange(20))
        changed = bytearray(data)
        for _ in range(self.dice.choice((1, 1, 2, 5))):
            place = self.dice.randrange(len(changed) + 1)
            step = self.dice.randrange(4)
            if step == 0 and place < len(changed):
                changed[place] ^= 1 << self.dice.randrange(8)
            elif step == 1:
                del changed[place : place + self.dice.randrange(1, 20)]
            elif step == 2:
                changed[place:place] = changed[max(0, place - 10) : place]
            else:
                changed[place:place] = self.dice.randbytes(self.dice.randrange(1, 9))
        return bytes(changed)


def _is_required(field: Any) -> bool:
    is_required = getattr(field, "is_required", None)
    return bool(field.label == FieldDescriptor.LABEL_REQUIRED if is_required is None else is_required)


def _is_repeated(field: Any) -> bool:
    is_repeated = getattr(field, "is_repeated", None)
    return bool(field.label == FieldDescriptor.LABEL_REPEATED if is_repeated is None else is_repeated)
