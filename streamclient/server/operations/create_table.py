"""The operation CreateTable, which creates a table, with a stream if the request asks for a stream."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from attrs import frozen

from streamclient.base.times import MICROS_PER_SECOND
from streamclient.errors import CodecError
from streamclient.records import KeyValue
from streamclient.server import refusals
from streamclient.server.keys import encode_key
from streamclient.server.operation import ServedOperation
from streamclient.server.server_limits import INT64_MAX, Limits
from streamclient.server.server_state import ServerState
from streamclient.server.stored_rows import value_size
from streamclient.server.stored_tables import (
    TYPE_NAMES,
    Encryption,
    KeyColumn,
    ServedTable,
    TableOptions,
    value_type_name,
)
from streamclient.server.validation.table_names import check_attribute_name, check_key_name, check_table_name
from streamclient.server.validation.table_parts import (
    StreamSwitch,
    read_options,
    read_stream_specification,
    read_throughput,
)
from streamclient.wire import schema
from streamclient.wire.plainbuffer import KeyBound, decode_value
from streamclient.wire.schema import DefinedColumnType, PrimaryKeyOption, PrimaryKeyType


@frozen
class CreateTable:
    """A validated request of CreateTable."""

    table_name: str
    key: tuple[KeyColumn, ...]
    defined_columns: tuple[tuple[str, int], ...]
    options: TableOptions
    read_capacity: int
    write_capacity: int
    encryption: Encryption
    boundaries: tuple[bytes, ...]
    """The encoded first keys of all partitions except the first, ascending."""
    stream: StreamSwitch
    local_transactions: bool


def _validate(request: Any, limits: Limits) -> CreateTable:
    """Return the definition of the table to create, with its stream and its first partitions."""
    meta = request.table_meta
    table_name = check_table_name(meta.table_name, limits)
    key = _read_key_columns(table_name, meta.primary_key, limits)
    defined = _defined_columns(meta.defined_column, key, limits)
    if request.index_metas or meta.index_meta:
        raise refusals.INDEXES()
    read, write = read_throughput(request.reserved_throughput, limits)
    if read is None or write is None:
        raise refusals.CAPACITY_HALF()
    stream = StreamSwitch(enable=False)
    if request.HasField("stream_spec"):
        stream = read_stream_specification(request.stream_spec, limits)
    return CreateTable(
        table_name=table_name,
        key=key,
        defined_columns=defined,
        options=_options(request.table_options),
        read_capacity=read,
        write_capacity=write,
        encryption=_encryption(request.sse_spec),
        boundaries=_boundaries(request.partitions, key[0], limits),
        stream=stream,
        local_transactions=_local_transactions(request, key),
    )


def _options(message: Any) -> TableOptions:
    """Return the options of a new table. The request must give time to live and max versions."""
    if not message.HasField("time_to_live"):
        raise refusals.TIME_TO_LIVE_MISSING()
    if not message.HasField("max_versions"):
        raise refusals.MAX_VERSIONS_MISSING()
    return read_options(message, TableOptions())


def _local_transactions(request: Any, key: tuple[KeyColumn, ...]) -> bool:
    """Return whether the request allows local transactions in the table. By default, they are allowed.

    A table with an AUTO_INCREMENT column never has local transactions, even if the result is true by default; see
    ``ServedTable.allows_transactions``.

    Raises:
        ServiceError: the request explicitly enables local transactions, and ``key`` has an AUTO_INCREMENT column.
    """
    if not request.HasField("enable_local_txn"):
        return True
    if request.enable_local_txn and any(column.auto_increment for column in key):
        raise refusals.GENERATED_WITH_TRANSACTIONS()
    return bool(request.enable_local_txn)


def _read_key_columns(table_name: str, messages: Any, limits: Limits) -> tuple[KeyColumn, ...]:
    if not 1 <= len(messages) <= limits.key_columns:
        raise refusals.KEY_COLUMNS(limit=limits.key_columns)
    columns: list[KeyColumn] = []
    for position, message in enumerate(messages):
        name = check_key_name(message.name, limits)
        if any(column.name == name for column in columns):
            raise refusals.KEY_COLUMN_TWICE(name=name)
        columns.append(KeyColumn(name, _key_type(message), _is_generated(table_name, message, position)))
    if sum(column.auto_increment for column in columns) > 1:
        raise refusals.GENERATED_TWICE()
    return tuple(columns)


_KEY_TYPES_ELSEWHERE = {4: "DOUBLE", 5: "BOOLEAN"}
"""The numbers and names of types that some SDKs can send for a key column, but that no key column can have."""


def _key_type(message: Any) -> PrimaryKeyType:
    try:
        return PrimaryKeyType(message.type)
    except ValueError as error:
        name = _KEY_TYPES_ELSEWHERE.get(message.type, str(message.type))
        raise refusals.KEY_COLUMN_TYPE(type=name) from error


def _is_generated(table_name: str, message: Any, position: int) -> bool:
    if not message.HasField("option"):
        return False
    if message.option != PrimaryKeyOption.AUTO_INCREMENT:
        raise refusals.KEY_OPTION(name=message.name)
    if position == 0:
        raise refusals.GENERATED_FIRST(table=table_name)
    if message.type != PrimaryKeyType.INTEGER:
        raise refusals.GENERATED_TYPE()
    return True


def _defined_columns(messages: Any, key: tuple[KeyColumn, ...], limits: Limits) -> tuple[tuple[str, int], ...]:
    if len(messages) > limits.defined_columns:
        raise refusals.DEFINED_COLUMNS(limit=limits.defined_columns)
    columns: dict[str, int] = {}
    key_names = {column.name for column in key}
    for message in messages:
        name = check_attribute_name(message.name, limits)
        if name in columns or name in key_names:
            raise refusals.DEFINED_TWICE(name=name)
        try:
            columns[name] = DefinedColumnType(message.type).value
        except ValueError as error:
            raise refusals.DEFINED_TYPE(name=name) from error
    return tuple(columns.items())


def _encryption(message: Any) -> Encryption:
    if not message.enable:
        return Encryption()
    key_type = message.key_type if message.HasField("key_type") else None
    return Encryption(enable=True, key_type=key_type, key_id=message.key_id.hex(), role_arn=message.role_arn.hex())


_LONGEST_BOUND_BYTES = 64


def _bound(data: bytes, column: KeyColumn) -> bytes:
    try:
        value = decode_value(data)
    except CodecError as error:
        raise refusals.PARTITION_VALUE(error=error) from error
    if value is KeyBound.INF_MIN or value is KeyBound.INF_MAX:
        return encode_key((value,))
    if isinstance(value, (KeyBound, float, bool)) or value_type_name(value) != TYPE_NAMES[column.type]:
        raise refusals.PARTITION_TYPE()
    _check_bound_value(value)
    return encode_key((value,))


def _check_bound_value(value: KeyValue) -> None:
    if isinstance(value, int):
        if value in (INT64_MAX, -INT64_MAX - 1):
            raise refusals.PARTITION_NUMBER()
        return
    if not value:
        raise refusals.PARTITION_EMPTY(type="string" if isinstance(value, str) else "binary")
    if value_size(value) > _LONGEST_BOUND_BYTES:
        raise refusals.PARTITION_LENGTH(limit=_LONGEST_BOUND_BYTES, size=value_size(value))


def _boundaries(partitions: Any, column: KeyColumn, limits: Limits) -> tuple[bytes, ...]:
    """Return the encoded first keys of all requested partitions except the first.

    Raises:
        ServiceError: a range is invalid, a range does not begin where the range before it ends, or the ranges do not
            reach from INF_MIN to INF_MAX.
    """
    if len(partitions) > limits.partitions:
        raise refusals.PARTITIONS(limit=limits.partitions)
    lowest, highest = encode_key((KeyBound.INF_MIN,)), encode_key((KeyBound.INF_MAX,))
    ranges = [(_bound(each.begin, column), _bound(each.end, column)) for each in partitions]
    if not ranges:
        return ()
    adjoining = all(before[1] == after[0] for before, after in pairwise(ranges))
    ascending = all(begin < end for begin, end in ranges)
    if not (adjoining and ascending and ranges[0][0] == lowest and ranges[-1][1] == highest):
        raise refusals.PARTITION_GAPS()
    return tuple(begin for begin, _ in ranges[1:])


def _act(state: ServerState, request: CreateTable) -> Any:
    """Create the table, and its stream if requested. The table is ready immediately."""
    if request.table_name in state.tables:
        raise refusals.TABLE_EXISTS()
    if len(state.tables) >= state.limits.tables:
        raise refusals.TABLES_FULL(limit=state.limits.tables)
    created = state.creation_micros()
    definition = ServedTable(
        name=request.table_name,
        number=state.next_number(),
        key=request.key,
        created_micros=created,
        defined_columns=request.defined_columns,
        options=request.options,
        read_capacity=request.read_capacity,
        write_capacity=request.write_capacity,
        last_increase_seconds=created // MICROS_PER_SECOND,
        encryption=request.encryption,
        boundaries=request.boundaries,
        local_transactions=request.local_transactions,
    )
    table = state.add_table(definition)
    if request.stream.enable:
        hours = request.stream.expiration_hours or state.limits.stream_expiration_default_hours
        state.switch_on(table, expiration_hours=hours, origin_columns=request.stream.origin_columns)
    return schema.CreateTableResponse()


OPERATION = ServedOperation(
    messages=schema.OPERATIONS["CreateTable"],
    validate=_validate,
    act=_act,
    tables=lambda request: (request.table_meta.table_name,),
)
