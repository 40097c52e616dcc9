"""A table: its definition, its rows, and its partitions, which are also the key ranges of its stream's open shards."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Mapping
from typing import Any

import attrs
from attrs import field, frozen

from streamclient.base.kept_formats import parse_json
from streamclient.base.times import MILLIS_PER_SECOND
from streamclient.records import KeyValue
from streamclient.server import refusals
from streamclient.server.server_limits import Limits
from streamclient.server.stored_rows import VERSION_BYTES, KeyNames, RowStore, StoredRow, value_size
from streamclient.wire import _tags as tags
from streamclient.wire.plainbuffer import KeyBound
from streamclient.wire.puts import key_column_form
from streamclient.wire.schema import PrimaryKeyType

Key = tuple[tuple[str, KeyValue | KeyBound], ...]
"""The names and values of a key, of leading columns of a key, or of a range bound, as in a request."""

TYPE_NAMES = {
    PrimaryKeyType.INTEGER: "VT_INTEGER",
    PrimaryKeyType.STRING: "VT_STRING",
    PrimaryKeyType.BINARY: "VT_BLOB",
}
"""The types of key columns, as the service's error texts name them."""

_VALUE_TYPES = {
    PrimaryKeyType.INTEGER: tags.TYPE_INTEGER,
    PrimaryKeyType.STRING: tags.TYPE_STRING,
    PrimaryKeyType.BINARY: tags.TYPE_BLOB,
}
"""The types of key columns, as PlainBuffer rows encode them."""


@frozen
class KeyColumn:
    """One column of a table's primary key, with its type."""

    name: str
    type: PrimaryKeyType
    auto_increment: bool = False


@frozen
class TableOptions:
    """The options of a table. The defaults are the defaults of the service."""

    time_to_live_seconds: int = -1
    """The time to live of the table's data in seconds; -1 keeps data for ever."""
    max_versions: int = 1
    deviation_seconds: int = 86_400
    allow_update: bool = True
    update_full_row: bool = False
    """An option that the server stores and returns, but does not use. It matters only for global tables and search
    indexes, which this server lacks."""

    @property
    def counts_timestamps(self) -> bool:
        """Whether the size of a row counts the timestamps of its versions.

        If the table keeps one version of each column for ever, the size does not count timestamps.
        """
        return self.max_versions > 1 or self.time_to_live_seconds >= 0


@frozen
class Encryption:
    """The settings of server-side encryption, as requested. The server returns the settings, but does not encrypt."""

    enable: bool = False
    key_type: int | None = None
    key_id: str = ""
    """The id of the encryption key, in hexadecimal form."""
    role_arn: str = ""
    """The ARN of the role for encryption, in hexadecimal form."""


@frozen
class ServedTable:
    """The definition of a table. A change of any part replaces the whole definition."""

    name: str
    number: int
    """The table's number. A number is never used twice. So a new table with the name of a deleted table does not get
    the old rows."""
    key: tuple[KeyColumn, ...]
    created_micros: int
    defined_columns: tuple[tuple[str, int], ...] = ()
    """The declared attribute columns as (name, DefinedColumnType)."""
    options: TableOptions = TableOptions()
    read_capacity: int = 0
    write_capacity: int = 0
    last_increase_seconds: int = 0
    last_decrease_seconds: int | None = None
    encryption: Encryption = Encryption()
    boundaries: tuple[bytes, ...] = ()
    """The encoded first keys of all partitions except the first, ascending."""
    local_transactions: bool = True
    """Whether the table was created for local transactions; see ``allows_transactions``."""
    key_names: KeyNames = field(init=False)
    defined_types: Mapping[str, int] = field(init=False, eq=False)
    """The DefinedColumnType of each declared attribute column, by name."""
    generates_keys: bool = field(init=False)
    """Whether the key has an AUTO_INCREMENT column."""
    key_form: bytes = field(init=False)
    """The types and names of the key columns, encoded for ``Put.has_form``, which compares them with a put's key."""

    @key_names.default
    def _key_names(self) -> KeyNames:
        return tuple(column.name for column in self.key)

    @defined_types.default
    def _defined_types(self) -> Mapping[str, int]:
        return dict(self.defined_columns)

    @generates_keys.default
    def _generates_keys(self) -> bool:
        return any(column.auto_increment for column in self.key)

    @key_form.default
    def _key_form(self) -> bytes:
        return b"".join([key_column_form(column.name, _VALUE_TYPES[column.type]) for column in self.key])

    @property
    def allows_transactions(self) -> bool:
        """Whether clients can start local transactions. They cannot if the key has an AUTO_INCREMENT column."""
        return self.local_transactions and not self.generates_keys

    def to_json(self) -> str:
        """Return the table's definition as the JSON text that the storage keeps."""
        document = attrs.asdict(self, filter=lambda attribute, _: attribute.init)
        document["boundaries"] = [boundary.hex() for boundary in self.boundaries]
        return json.dumps(document)

    @classmethod
    def from_json(cls, text: str) -> ServedTable:
        """Return the table's definition from the text that ``to_json`` wrote."""
        document: dict[str, Any] = parse_json(text)
        document["key"] = tuple(
            KeyColumn(column["name"], PrimaryKeyType(column["type"]), column["auto_increment"])
            for column in document["key"]
        )
        document["defined_columns"] = tuple((name, kind) for name, kind in document["defined_columns"])
        document["options"] = TableOptions(**document["options"])
        document["encryption"] = Encryption(**document["encryption"])
        document["boundaries"] = tuple(bytes.fromhex(boundary) for boundary in document["boundaries"])
        return cls(**document)


class Table:
    """A table's definition and its rows. Only ``ServerState`` changes them, under the engine's lock."""

    def __init__(self, definition: ServedTable) -> None:
        self.definition = definition
        self.rows: RowStore = RowStore()

    @property
    def key_names(self) -> KeyNames:
        """The names of the key columns, in key order."""
        return self.definition.key_names

    def expired_before_millis(self, now_micros: int) -> int | None:
        """Return the time in milliseconds before which versions are expired.

        Return ``None`` if the table keeps data for ever.
        """
        seconds = self.definition.options.time_to_live_seconds
        return None if seconds < 0 else now_micros // 1000 - seconds * MILLIS_PER_SECOND

    @property
    def stamp_bytes(self) -> int:
        """The number of bytes that a version's timestamp adds to the size of a row."""
        return VERSION_BYTES if self.definition.options.counts_timestamps else 0

    def size_of(self, row: StoredRow) -> int:
        """Return the size in bytes of a row or of a part of a row, from which capacity units are computed."""
        return row.size_bytes + self.stamp_bytes * row.version_count

    def partition_of(self, key: bytes) -> int:
        """Return the index of the partition that owns an encoded key, counted from 0."""
        return bisect_right(self.definition.boundaries, key)

    def partition_range(self, partition: int) -> tuple[bytes, bytes | None]:
        """Return the encoded first key of a partition, and the encoded first key after the partition.

        For the first partition, the first key is empty. For the last partition, the key after it is ``None``.
        """
        boundaries = self.definition.boundaries
        begin = boundaries[partition - 1] if partition else b""
        return begin, boundaries[partition] if partition < len(boundaries) else None


def value_type_name(value: KeyValue | KeyBound) -> str:
    """Return the type of a key value, as the service's error texts name it."""
    if isinstance(value, KeyBound):
        return f"VT_{value.name}"
    if isinstance(value, str):
        return "VT_STRING"
    return "VT_INTEGER" if isinstance(value, int) else "VT_BLOB"


def _check_type(column: KeyColumn, value: KeyValue | KeyBound) -> None:
    """Raise ``OTSInvalidPK`` if the value does not have the column's type.

    Accept bounds of ranges, too. The caller must refuse a bound where a row needs a value.
    """
    if isinstance(value, KeyBound):
        if value is KeyBound.AUTO_INCREMENT and not column.auto_increment:
            raise refusals.KEY_TYPE(given="VT_AUTO_INCREMENT", expected=TYPE_NAMES[column.type])
        return
    given = value_type_name(value)
    if given != TYPE_NAMES[column.type]:
        raise refusals.KEY_TYPE(given=given, expected=TYPE_NAMES[column.type])


def check_key(definition: ServedTable, key: Key) -> None:
    """Raise ``OTSInvalidPK`` if the columns of ``key`` are not exactly the table's key columns.

    The checks come in this order: the number of columns, the names, the types.
    """
    if len(key) != len(definition.key):
        raise refusals.KEY_SIZE(given=len(key), expected=len(definition.key))
    check_leading_key(definition, key)


def check_leading_key(definition: ServedTable, key: Key) -> None:
    """Raise ``OTSInvalidPK`` if the columns of ``key`` differ in name or type from the table's leading key columns."""
    for column, (name, _) in zip(definition.key, key, strict=False):
        if name != column.name:
            raise refusals.KEY_NAME(given=name, expected=column.name)
    for column, (_, value) in zip(definition.key, key, strict=False):
        _check_type(column, value)


def check_key_values(key: Key, limits: Limits) -> None:
    """Raise ``ServiceError`` if a STRING or BINARY value of a key is too long."""
    for name, value in key:
        if isinstance(value, (str, bytes, bytearray)):
            size = value_size(value)
            if size > limits.key_value_bytes:
                raise refusals.KEY_VALUE_LENGTH(name=name, limit=limits.key_value_bytes, size=size)
