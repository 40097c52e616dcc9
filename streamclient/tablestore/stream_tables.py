"""The description of a table with its stream settings, and the translation to and from the service's messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from streamclient.errors import CodecError
from streamclient.model import TableDefinition
from streamclient.records import ColumnType, KeyValue
from streamclient.tablestore.stream_api import StreamDetails, StreamSpecification
from streamclient.wire import schema
from streamclient.wire.plainbuffer import KeyBound, decode_row
from streamclient.wire.schema import DefinedColumnType, PrimaryKeyOption, PrimaryKeyType

_KEY_TYPES: Mapping[int, ColumnType] = {
    PrimaryKeyType.INTEGER: ColumnType.INTEGER,
    PrimaryKeyType.STRING: ColumnType.STRING,
    PrimaryKeyType.BINARY: ColumnType.BINARY,
}
_COLUMN_TYPES: Mapping[int, ColumnType] = {
    DefinedColumnType.INTEGER: ColumnType.INTEGER,
    DefinedColumnType.DOUBLE: ColumnType.DOUBLE,
    DefinedColumnType.BOOLEAN: ColumnType.BOOLEAN,
    DefinedColumnType.STRING: ColumnType.STRING,
    DefinedColumnType.BLOB: ColumnType.BINARY,
}


@frozen
class TableOptionsInForce:
    """The options of a table from DescribeTable. An option that the response does not have is ``None``."""

    time_to_live_seconds: int | None = None
    """The time after which the service deletes data, in seconds; -1 keeps data forever."""
    max_versions: int | None = None
    max_time_deviation_seconds: int | None = None
    """The largest difference, in seconds, that the service accepts between a cell's timestamp and its own clock."""
    allow_update: bool | None = None
    update_full_row: bool | None = None
    """Whether only the service may set the versions of cells. Global tables require this option."""


@frozen
class TableDescription:
    """A table with its options, its stream and its indexes, as DescribeTable returned them."""

    definition: TableDefinition
    options: TableOptionsInForce
    stream: StreamDetails
    reserved_read_capacity: int = 0
    reserved_write_capacity: int = 0
    auto_increment_key: str | None = None
    """The name of the key column whose values the service generates; ``None`` if the table has no such column."""
    index_names: tuple[str, ...] = ()
    creation_time_micros: int | None = None
    """The time of the table's creation, in microseconds since 1970; ``None`` if the service does not report it."""


def specification_message(stream: StreamSpecification) -> Any:
    """Translate a stream setting into the service's message, for a request."""
    if not stream.enable_stream:
        return schema.StreamSpecification(enable_stream=False)
    return schema.StreamSpecification(
        enable_stream=True, expiration_time=stream.expiration_time_hours, columns_to_get=list(stream.columns_to_get)
    )


def stream_details(message: Any) -> StreamDetails:
    """Return the stream's details in ``message``, a response of DescribeTable or UpdateTable.

    In a response without these details, the stream is off.
    """
    if not message.HasField("stream_details") or not message.stream_details.enable_stream:
        return StreamDetails(enable_stream=False)
    details = message.stream_details
    return StreamDetails(
        enable_stream=True,
        stream_id=_optional(details, "stream_id"),
        expiration_time_hours=_optional(details, "expiration_time"),
        last_enable_time_micros=_optional(details, "last_enable_time"),
        columns_to_get=tuple(details.columns_to_get),
    )


def table_description(body: bytes) -> TableDescription:
    """Decode the body of a DescribeTable response.

    Raises:
        CodecError: ``body`` is not a DescribeTable response, or names an unknown column type.
    """
    message = schema.parse(schema.DescribeTableResponse, body)
    meta, options = message.table_meta, message.table_options
    capacity = message.reserved_throughput_details.capacity_unit
    generated = (column.name for column in meta.primary_key if _is_generated(column))
    return TableDescription(
        definition=TableDefinition(
            meta.table_name,
            tuple((column.name, _type(column, _KEY_TYPES)) for column in meta.primary_key),
            {column.name: _type(column, _COLUMN_TYPES) for column in meta.defined_column},
        ),
        options=TableOptionsInForce(
            _optional(options, "time_to_live"),
            _optional(options, "max_versions"),
            _optional(options, "deviation_cell_version_in_sec"),
            _optional(options, "allow_update"),
            _optional(options, "update_full_row"),
        ),
        stream=stream_details(message),
        reserved_read_capacity=capacity.read,
        reserved_write_capacity=capacity.write,
        auto_increment_key=next(generated, None),
        index_names=tuple(index.name for index in message.index_metas),
        creation_time_micros=_optional(message, "creation_time"),
    )


def _is_generated(column: Any) -> bool:
    return bool(column.HasField("option") and column.option == PrimaryKeyOption.AUTO_INCREMENT)


def _type(column: Any, types: Mapping[int, ColumnType]) -> ColumnType:
    if column.type not in types:
        known = ", ".join(f"{number} ({name.value})" for number, name in types.items())
        raise CodecError(f"column {column.name!r} has the unknown type {column.type}, expected one of {known}")
    return types[column.type]


def _optional(message: Any, field: str) -> Any:
    return getattr(message, field) if message.HasField(field) else None


def split_request(table: str, mebibytes: int) -> Any:
    """Return the request for the keys that divide ``table`` into pieces of about ``mebibytes`` MiB."""
    return schema.ComputeSplitPointsBySizeRequest(
        table_name=table, split_size=mebibytes, split_size_unit_in_byte=1 << 20
    )


def split_points(answer: Any) -> list[tuple[KeyValue, ...]]:
    """Return the keys in ``answer``, the response to ``split_request``.

    A key may have values for its first columns only. The missing values sort before all values.
    """
    points = (decode_row(point).primary_key for point in answer.split_points)
    return [tuple(value for _, value in point if not isinstance(value, KeyBound)) for point in points]
