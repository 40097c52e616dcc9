"""The message classes and enumerations of the protocol, and the messages of each operation.

``schema.PutRowRequest`` and the other messages are ordinary protobuf classes. This module builds them at its import. It
uses its own descriptor pool, because the SDK registers older versions of these messages in the default pool.

Always parse messages with ``parse``. It raises ``CodecError`` for malformed bytes, missing required fields and text
that is not UTF-8. ``ParseFromString`` accepts missing fields and text that is not UTF-8.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import IntEnum
from itertools import islice
from types import MappingProxyType
from typing import Any

from attrs import frozen
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from streamclient.errors import CodecError
from streamclient.wire._messages import MESSAGES
from streamclient.wire._tunnel_messages import MESSAGES as TUNNEL_MESSAGES

_PACKAGE = "streamclient.wire"


class PrimaryKeyType(IntEnum):
    """The type of a key column in a table's definition."""

    INTEGER = 1
    STRING = 2
    BINARY = 3


class PrimaryKeyOption(IntEnum):
    """An option of a key column. With ``AUTO_INCREMENT``, the service generates the column's values."""

    AUTO_INCREMENT = 1


class DefinedColumnType(IntEnum):
    """The type of an attribute column that a table declares."""

    INTEGER = 1
    DOUBLE = 2
    BOOLEAN = 3
    STRING = 4
    BLOB = 7


class RowExistenceExpectation(IntEnum):
    """The condition of a write: whether the row must exist, must not exist, or either."""

    IGNORE = 0
    EXPECT_EXIST = 1
    EXPECT_NOT_EXIST = 2


class OperationType(IntEnum):
    """The kind of the write of one row in BatchWriteRow."""

    PUT = 1
    UPDATE = 2
    DELETE = 3


class ReturnType(IntEnum):
    """The part of the row that a write returns: nothing, the primary key, or incremented columns."""

    NONE = 0
    PK = 1
    AFTER_MODIFY = 2


class Direction(IntEnum):
    """The order in which GetRange returns rows: by ascending or descending keys."""

    FORWARD = 0
    BACKWARD = 1


class TableStatus(IntEnum):
    """The state of a table in the response of DescribeTable. The Go and Node SDKs require this field."""

    ACTIVE = 1
    INACTIVE = 2
    LOADING = 3
    UNLOADING = 4
    UPDATING = 5


class DataBlockType(IntEnum):
    """The encoding of the rows in the responses of GetRange and BulkExport."""

    PLAIN_BUFFER = 0
    SIMPLE_ROW_MATRIX = 1


class StreamStatusNumber(IntEnum):
    """The state of a stream in the response of DescribeStream."""

    ENABLING = 1
    ACTIVE = 2


class ActionType(IntEnum):
    """The kind of the write that a stream record describes."""

    PUT_ROW = 1
    UPDATE_ROW = 2
    DELETE_ROW = 3


class FilterType(IntEnum):
    """The type of the serialized message in the field ``filter`` of a ``Filter`` message."""

    SINGLE_COLUMN_VALUE = 1
    COMPOSITE_COLUMN_VALUE = 2
    COLUMN_PAGINATION = 3


class ComparatorType(IntEnum):
    """The comparison of a column with a value in a single-column filter."""

    EQUAL = 1
    NOT_EQUAL = 2
    GREATER_THAN = 3
    GREATER_EQUAL = 4
    LESS_THAN = 5
    LESS_EQUAL = 6
    EXIST = 7
    NOT_EXIST = 8


class LogicalOperator(IntEnum):
    """The logical operator by which a composite filter combines its parts."""

    NOT = 1
    AND = 2
    OR = 3


class VariantType(IntEnum):
    """The target type of a filter's cast rule, which converts the text that a regular expression matches."""

    INTEGER = 0
    DOUBLE = 1
    STRING = 3
    NULL = 6
    BLOB = 7


class TunnelTypeNumber(IntEnum):
    """The data that a tunnel delivers: full data, changes, or full data and then changes."""

    BASE_DATA = 1
    STREAM = 2
    BASE_AND_STREAM = 3


class ChannelStatusNumber(IntEnum):
    """The status of a tunnel's channel in heartbeats.

    The status WAIT has no number, because heartbeats never contain a waiting channel.
    """

    OPEN = 1
    CLOSING = 2
    CLOSE = 3
    TERMINATED = 4


class StartOffsetFlag(IntEnum):
    """The position at which a tunnel's changes begin, if the request gives no start time."""

    LATEST = 0
    EARLIEST = 1


@frozen
class Operation:
    """An operation of the service and the classes of its messages. Its name is the request path without the slash."""

    name: str
    request: Any
    response: Any


_OPERATION_NAMES = (
    "CreateTable",
    "ListTable",
    "DescribeTable",
    "UpdateTable",
    "DeleteTable",
    "ComputeSplitPointsBySize",
    "GetRow",
    "PutRow",
    "UpdateRow",
    "DeleteRow",
    "BatchGetRow",
    "BatchWriteRow",
    "GetRange",
    "BulkImport",
    "BulkExport",
    "ListSearchIndex",
    "ListTimeseriesTable",
    "StartLocalTransaction",
    "CommitTransaction",
    "AbortTransaction",
    "ListStream",
    "DescribeStream",
    "GetShardIterator",
    "GetStreamRecord",
)

_Field = descriptor_pb2.FieldDescriptorProto
_LABELS = {"!": _Field.LABEL_REQUIRED, "*": _Field.LABEL_REPEATED, "": _Field.LABEL_OPTIONAL}
_SCALARS = {
    "string": _Field.TYPE_STRING,
    "bytes": _Field.TYPE_BYTES,
    "bool": _Field.TYPE_BOOL,
    "int32": _Field.TYPE_INT32,
    "int64": _Field.TYPE_INT64,
    "uint64": _Field.TYPE_UINT64,
    "sint64": _Field.TYPE_SINT64,
}


def _add_field(message: descriptor_pb2.DescriptorProto, text: str) -> None:
    name, _, rest = text.partition("=")
    numbered, _, type_name = rest.partition(" ")
    number = numbered.rstrip("!*")
    field = message.field.add(name=name, number=int(number), label=_LABELS[numbered[len(number) :]])
    if type_name in _SCALARS:
        field.type = _SCALARS[type_name]
    else:
        field.type, field.type_name = _Field.TYPE_MESSAGE, f".{_PACKAGE}.{type_name}"


def _build(text: str) -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="streamclient/wire.proto", package=_PACKAGE, syntax="proto2")
    for line in filter(None, text.splitlines()):
        name, _, fields = line.partition(":")
        message = file.message_type.add(name=name)
        for field in filter(None, fields.strip().split(", ")):
            _add_field(message, field)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        message.name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{message.name}"))
        for message in file.message_type
    }


_CLASSES = _build(MESSAGES + TUNNEL_MESSAGES)
globals().update(_CLASSES)

OPERATIONS: Mapping[str, Operation] = MappingProxyType(
    {name: Operation(name, _CLASSES[f"{name}Request"], _CLASSES[f"{name}Response"]) for name in _OPERATION_NAMES}
)
"""The table and stream operations whose messages this package knows, by name."""

_TUNNEL_VERBS = (
    ("create", "CreateTunnel"),
    ("delete", "DeleteTunnel"),
    ("list", "ListTunnel"),
    ("describe", "DescribeTunnel"),
    ("connect", "Connect"),
    ("heartbeat", "Heartbeat"),
    ("shutdown", "Shutdown"),
    ("getcheckpoint", "GetCheckpoint"),
    ("readrecords", "ReadRecords"),
    ("checkpoint", "Checkpoint"),
    ("getrpo", "GetRpo"),
    ("getrpobyoffset", "GetRpo"),
    ("schedule", "Schedule"),
)

TUNNEL_OPERATIONS: Mapping[str, Operation] = MappingProxyType(
    {
        f"tunnel/{verb}": Operation(f"tunnel/{verb}", _CLASSES[f"{name}Request"], _CLASSES[f"{name}Response"])
        for verb, name in _TUNNEL_VERBS
    }
)
"""The operations of the Tunnel Service, by request path without the first slash."""


def __getattr__(name: str) -> Any:
    """Raise ``AttributeError`` for an unknown name.

    Because of this function, type checkers accept the message classes, which this module defines at its import.
    """
    raise AttributeError(f"module {__name__!r} has no message or enumeration {name!r}; messages: {sorted(_CLASSES)}")


def parse(message_class: Any, data: bytes) -> Any:
    """Return the parsed message in ``data``, an instance of ``message_class``.

    Raises:
        CodecError: the bytes are malformed, a required field is missing, or a text field is not UTF-8.
    """
    message = message_class()
    try:
        message.ParseFromString(data)
    except (DecodeError, UnicodeDecodeError) as error:  # UnicodeDecodeError comes from protobuf in pure Python
        name = message_class.DESCRIPTOR.name
        raise CodecError(f"expected a {name} message, got {len(data)} bytes that are not one: {error}") from error
    return complete(message)


def complete(message: Any) -> Any:
    """Return the parsed ``message`` if it passes two checks that protobuf does not make.

    Raises:
        CodecError: a required field is missing, or a text field is not UTF-8.
    """
    if not message.IsInitialized():
        missing = list(islice(_missing(message, ""), MISSING_SHOWN + 1))
        more = ", ..." if len(missing) > MISSING_SHOWN else ""
        shown = ", ".join(missing[:MISSING_SHOWN])
        raise CodecError(f"a {message.DESCRIPTOR.name} message lacks required fields: {shown}{more}")
    _require_text(message)
    return message


def _missing(message: Any, path: str) -> Iterator[str]:
    """Yield the paths of required fields that ``message`` lacks. Each path begins with ``path``."""
    for field in message.DESCRIPTOR.fields:
        name = f"{path}{field.name}"
        if field.label == _Field.LABEL_REQUIRED and not message.HasField(field.name):
            yield name
        elif field.message_type is None:
            continue
        elif field.label == _Field.LABEL_REPEATED:
            for place, child in enumerate(getattr(message, field.name)):
                yield from _missing(child, f"{name}[{place}].")
        elif message.HasField(field.name):
            yield from _missing(getattr(message, field.name), f"{name}.")


MISSING_SHOWN = 3
"""The largest number of missing fields that an error message names. A message can lack millions of fields."""


def _holds_text(descriptor: Any, seen: frozenset[str] = frozenset()) -> bool:
    """Return whether messages of the type ``descriptor``, or messages inside them, have a text field."""
    if descriptor.full_name in seen:
        return False
    inside = seen | {descriptor.full_name}
    return any(
        field.type == _Field.TYPE_STRING or (field.message_type is not None and _holds_text(field.message_type, inside))
        for field in descriptor.fields
    )


_TextField = tuple[str, bool, bool]
"""A field that must be searched for text: its name, whether it is repeated, and whether its values are messages."""


def _text_fields(descriptor: Any) -> tuple[_TextField, ...]:
    return tuple(
        (field.name, field.label == _Field.LABEL_REPEATED, field.message_type is not None)
        for field in sorted(descriptor.fields, key=lambda field: field.number)
        if field.type == _Field.TYPE_STRING or (field.message_type is not None and _holds_text(field.message_type))
    )


_TEXT_FIELDS = {kind: _text_fields(kind.DESCRIPTOR) for kind in _CLASSES.values()}
"""The fields with text, by message class. Messages without text need no check, for example the records of a page."""


def _require_text(message: Any) -> None:
    """Raise ``CodecError`` if a text field of ``message`` is not UTF-8.

    Most implementations of protobuf raise no error when they parse such a field: its value is then ``bytes``.
    """
    for name, is_repeated, is_message in _TEXT_FIELDS[type(message)]:
        if is_message and not is_repeated and not message.HasField(name):
            continue
        value = getattr(message, name)
        values = value if is_repeated else (value,)
        if is_message:
            for child in values:
                _require_text(child)
        elif not all(isinstance(text, str) for text in values):
            raise CodecError(f"field {name} of {message.DESCRIPTOR.name} must be UTF-8 text")
