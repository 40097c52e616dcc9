"""The parsing of untrusted messages, with a limit on the number of their fields.

A field may take two bytes on the wire and a hundred bytes in memory, and later processing takes a microsecond per
field. So ``read`` refuses a message with too many fields. It counts the fields of a large message before it parses the
message, and the fields of a small message afterwards.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from google.protobuf.message import DecodeError

from streamclient.errors import CodecError

LARGE_BYTES = 2 * 1024 * 1024
"""The largest size, in bytes, of a message whose fields ``read`` counts only after it has parsed the message. Parsing
such a message takes at most a tenth of a second and 100 MB. ``read`` counts the fields of a larger message first. It
does not do this for every message, because requests with many rows would then take clearly longer."""

_LEAST_FIELD_BYTES = 2

_WIRE_VARINT, _WIRE_BYTES = 0, 2
_WIRE_FIXED = {1: 8, 5: 4}
"""The length, in bytes, of each protobuf wire type that has a fixed length."""


def read(message_class: Any, data: bytes, most: int) -> Any:
    """Parse one untrusted message, without the checks that ``schema.complete`` makes.

    All repeated fields of the message, and of messages inside it, may have at most ``most`` elements together. A
    message above ``LARGE_BYTES`` may have at most ``most`` fields of any kind.

    Raises:
        CodecError: the bytes are malformed, or have too many elements or fields.
    """
    if len(data) > LARGE_BYTES:
        require_few_fields(message_class, data, most)
    message = message_class()
    try:
        message.ParseFromString(data)
    except (DecodeError, UnicodeDecodeError) as error:  # UnicodeDecodeError comes from protobuf in pure Python
        name = message_class.DESCRIPTOR.name
        raise CodecError(f"expected a {name} message, got {len(data)} bytes that are not one: {error}") from error
    if len(data) > _LEAST_FIELD_BYTES * most:
        _require_few_elements(message, most)
    return message


def _require_few_elements(message: Any, most: int) -> None:
    count = 0
    waiting = [message]
    while waiting:
        inside = waiting.pop()
        for name, is_repeated, is_message in _counted_fields(inside.DESCRIPTOR):
            if is_repeated:
                values = getattr(inside, name)
                count += len(values)
                if count > most:
                    raise _too_many(message, most)
                if is_message:
                    waiting.extend(values)
            elif inside.HasField(name):
                waiting.append(getattr(inside, name))


def _too_many(message: Any, most: int) -> CodecError:
    return CodecError(f"a {message.DESCRIPTOR.name} message holds more than {most} fields")


@cache
def _counted_fields(descriptor: Any) -> tuple[tuple[str, bool, bool], ...]:
    """Return those fields of a message type that are repeated or contain repeated fields.

    The result has for each field its name, whether it is repeated, and whether its values are messages.
    """
    return tuple(
        (field.name, _is_repeated(field), field.message_type is not None)
        for field in descriptor.fields
        if _is_repeated(field) or (field.message_type is not None and _holds_repeated(field.message_type, frozenset()))
    )


def _holds_repeated(descriptor: Any, seen: frozenset[str]) -> bool:
    if descriptor.full_name in seen:
        return False
    inside = seen | {descriptor.full_name}
    return any(
        _is_repeated(field) or (field.message_type is not None and _holds_repeated(field.message_type, inside))
        for field in descriptor.fields
    )


def _is_repeated(field: Any) -> bool:
    return bool(field.label == field.LABEL_REPEATED)


def require_few_fields(message_class: Any, data: bytes, most: int) -> None:
    """Check that a serialized message has at most ``most`` fields, including the fields of messages inside it.

    The function ignores malformed bytes and all bytes after them, because the parser reports malformed bytes later.

    Raises:
        CodecError: the message has more than ``most`` fields.
    """
    count = 0
    waiting = [(message_class.DESCRIPTOR, 0, len(data))]
    while waiting:
        descriptor, offset, end = waiting.pop()
        inner = _message_fields(descriptor)
        while offset < end:
            count += 1
            if count > most:
                raise _too_many(message_class, most)
            key, offset = _varint(data, offset, end)
            kind = key & 7
            if kind == _WIRE_VARINT:
                _, offset = _varint(data, offset, end)
            elif kind == _WIRE_BYTES:
                size, offset = _varint(data, offset, end)
                inside = inner.get(key >> 3)
                if inside is not None and offset + size <= end:
                    waiting.append((inside, offset, offset + size))
                offset += size
            elif kind in _WIRE_FIXED:
                offset += _WIRE_FIXED[kind]
            else:
                break


@cache
def _message_fields(descriptor: Any) -> dict[int, Any]:
    """Return the message types of the fields that contain messages. The keys are the numbers of the fields."""
    return {field.number: field.message_type for field in descriptor.fields if field.message_type is not None}


def _varint(data: bytes, offset: int, end: int) -> tuple[int, int]:
    """Decode protobuf's varint at ``offset``; return the number and the offset after it.

    If the varint does not end before ``end``, return ``end`` as the offset.
    """
    value = shift = 0
    while offset < end:
        byte = data[offset]
        offset += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, offset
        shift += 7
        if shift > 63:
            break
    return value, end
