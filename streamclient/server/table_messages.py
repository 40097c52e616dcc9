"""The parts of answers that describe a table.

The messages have a value for each known number, even for 0, because the Go and Node SDKs read these numbers.
"""

from __future__ import annotations

from typing import Any

from streamclient.server.keys import decode_key
from streamclient.server.stored_streams import Stream
from streamclient.server.stored_tables import KeyColumn, ServedTable
from streamclient.wire import schema
from streamclient.wire.plainbuffer import Row, encode_row
from streamclient.wire.schema import PrimaryKeyOption


def key_schema(columns: tuple[KeyColumn, ...]) -> list[Any]:
    """Return the messages that describe the key columns."""
    messages = []
    for column in columns:
        message = schema.PrimaryKeySchema(name=column.name, type=column.type)
        if column.auto_increment:
            message.option = PrimaryKeyOption.AUTO_INCREMENT
        messages.append(message)
    return messages


def table_meta(definition: ServedTable) -> Any:
    """Return the message with the table's name and columns."""
    return schema.TableMeta(
        table_name=definition.name,
        primary_key=key_schema(definition.key),
        defined_column=[schema.DefinedColumnSchema(name=name, type=kind) for name, kind in definition.defined_columns],
    )


def table_options(definition: ServedTable) -> Any:
    """Return the message with all options of the table."""
    options = definition.options
    return schema.TableOptions(
        time_to_live=options.time_to_live_seconds,
        max_versions=options.max_versions,
        deviation_cell_version_in_sec=options.deviation_seconds,
        allow_update=options.allow_update,
        update_full_row=options.update_full_row,
    )


def throughput_details(definition: ServedTable) -> Any:
    """Return the message with the reserved throughput, and the times of its last increase and decrease."""
    details = schema.ReservedThroughputDetails(
        capacity_unit=schema.CapacityUnit(read=definition.read_capacity, write=definition.write_capacity),
        last_increase_time=definition.last_increase_seconds,
    )
    if definition.last_decrease_seconds is not None:
        details.last_decrease_time = definition.last_decrease_seconds
    return details


def stream_details(stream: Stream | None) -> Any:
    """Return the message with the details of the stream.

    If the table has no stream, return a message with ``enable_stream=False``. The Go SDK fails without a message.
    """
    if stream is None:
        return schema.StreamDetails(enable_stream=False)
    definition = stream.definition
    return schema.StreamDetails(
        enable_stream=True,
        stream_id=definition.stream_id,
        expiration_time=definition.expiration_hours,
        last_enable_time=definition.created_micros,
        columns_to_get=definition.origin_columns,
    )


def encryption_details(definition: ServedTable) -> Any:
    """Return the message with the settings of server-side encryption, as requested at the table's creation."""
    encryption = definition.encryption
    details = schema.SSEDetails(enable=encryption.enable)
    if encryption.key_type is not None:
        details.key_type = encryption.key_type
    if encryption.key_id:
        details.key_id = bytes.fromhex(encryption.key_id)
    if encryption.role_arn:
        details.role_arn = bytes.fromhex(encryption.role_arn)
    return details


def key_prefix_frame(definition: ServedTable, boundary: bytes) -> bytes:
    """Convert an encoded boundary of partitions to a PlainBuffer row that has only the boundary's key columns."""
    values = decode_key(boundary)
    return encode_row(Row(tuple(zip(definition.key_names, values, strict=False))))
