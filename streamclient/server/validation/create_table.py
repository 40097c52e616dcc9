"""Rules of CreateTable."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from attrs import frozen

from streamclient.errors import CodecError
from streamclient.server.errors import invalid, unsupported
from streamclient.server.keys import encode_key
from streamclient.server.limits import Limits
from streamclient.server.tables import TYPE_NAMES, Encryption, KeyColumn, TableOptions, value_type_name
from streamclient.server.validation.names import check_column_name, check_table_name
from streamclient.server.validation.table_parts import (
    StreamSwitch,
    read_options,
    read_stream_specification,
    read_throughput,
)
from streamclient.wire.plainbuffer import KeyBound, decode_value
from streamclient.wire.schema import DefinedColumnType, PrimaryKeyOption, PrimaryKeyType


@frozen
class CreateTable:
    """A validated request."""

    table_name: str
    key: tuple[KeyColumn, ...]
    defined_columns: tuple[tuple[str, int], ...]
    options: TableOptions
    read_capacity: int
    write_capacity: int
    encryption: Encryption
    boundaries: tuple[bytes, ...]
    """Encoded keys at which partitions begin, ascending, without the first."""
    stream: StreamSwitch


def validate(request: Any, limits: Limits) -> CreateTable:
    """The table to create, with its stream and its initial partitions."""
    meta = request.table_meta
    table_name = check_table_name(meta.table_name, limits)
    key = _read_key_columns(meta.primary_key, limits)
    defined = _defined_columns(meta.defined_column, key, limits)
    if request.index_metas or meta.index_meta:
        raise unsupported("secondary indexes (index_metas in CreateTable)")
    read, write = read_throughput(request.reserved_throughput, limits)
    stream = StreamSwitch(enable=False)
    if request.HasField("stream_spec"):
        stream = read_stream_specification(request.stream_spec, limits)
    return CreateTable(
        table_name=table_name,
        key=key,
        defined_columns=defined,
        options=read_options(request.table_options, TableOptions()),
        read_capacity=read or 0,
        write_capacity=write or 0,
        encryption=_encryption(request.sse_spec),
        boundaries=_boundaries(request.partitions, key[0]),
        stream=stream,
    )


def _read_key_columns(messages: Any, limits: Limits) -> tuple[KeyColumn, ...]:
    if not 1 <= len(messages) <= limits.key_columns:
        raise invalid(f"The number of primary key columns must be in range: [1, {limits.key_columns}].")
    columns: list[KeyColumn] = []
    for position, message in enumerate(messages):
        name = check_column_name(message.name, limits)
        if any(column.name == name for column in columns):
            raise invalid(f"Duplicated primary key name: '{name}'.")
        columns.append(KeyColumn(name, _key_type(message), _is_generated(message, position)))
    if sum(column.auto_increment for column in columns) > 1:
        raise invalid("There can be at most one primary key column with AUTO_INCREMENT.")
    return tuple(columns)


def _key_type(message: Any) -> PrimaryKeyType:
    try:
        return PrimaryKeyType(message.type)
    except ValueError as error:
        raise invalid(f"Invalid type of primary key column: '{message.name}'.") from error


def _is_generated(message: Any, position: int) -> bool:
    if not message.HasField("option"):
        return False
    if message.option != PrimaryKeyOption.AUTO_INCREMENT:
        raise invalid(f"Invalid option of primary key column: '{message.name}'.")
    if position == 0:
        raise invalid("The first primary key column can't be AUTO_INCREMENT.")
    if message.type != PrimaryKeyType.INTEGER:
        raise invalid(f"AUTO_INCREMENT primary key column must be INTEGER: '{message.name}'.")
    return True


def _defined_columns(messages: Any, key: tuple[KeyColumn, ...], limits: Limits) -> tuple[tuple[str, int], ...]:
    columns: dict[str, int] = {}
    key_names = {column.name for column in key}
    for message in messages:
        name = check_column_name(message.name, limits)
        if name in columns or name in key_names:
            raise invalid(f"Duplicated defined column name: '{name}'.")
        try:
            columns[name] = DefinedColumnType(message.type).value
        except ValueError as error:
            raise invalid(f"Invalid type of defined column: '{name}'.") from error
    return tuple(columns.items())


def _encryption(message: Any) -> Encryption:
    if not message.enable:
        return Encryption()
    key_type = message.key_type if message.HasField("key_type") else None
    return Encryption(enable=True, key_type=key_type, key_id=message.key_id.hex(), role_arn=message.role_arn.hex())


def _bound(data: bytes, column: KeyColumn) -> bytes:
    try:
        value = decode_value(data)
    except CodecError as error:
        raise invalid(f"Invalid partition range: {error}.") from error
    if value is KeyBound.INF_MIN or value is KeyBound.INF_MAX:
        return encode_key((value,))
    if isinstance(value, (KeyBound, float, bool)) or value_type_name(value) != TYPE_NAMES[column.type]:
        raise invalid(f"Invalid partition range: bounds must be of the type of '{column.name}', INF_MIN or INF_MAX.")
    return encode_key((value,))


def _boundaries(partitions: Any, column: KeyColumn) -> tuple[bytes, ...]:
    """Where partitions begin. The ranges must cover all keys: from INF_MIN to INF_MAX, each at the last one's end."""
    lowest, highest = encode_key((KeyBound.INF_MIN,)), encode_key((KeyBound.INF_MAX,))
    ranges = [(_bound(each.begin, column), _bound(each.end, column)) for each in partitions]
    if not ranges:
        return ()
    adjoining = all(before[1] == after[0] for before, after in pairwise(ranges))
    ascending = all(begin < end for begin, end in ranges)
    if not (adjoining and ascending and ranges[0][0] == lowest and ranges[-1][1] == highest):
        raise invalid("Invalid partition range: ranges must ascend, adjoin, and reach from INF_MIN to INF_MAX.")
    return tuple(begin for begin, _ in ranges[1:])
