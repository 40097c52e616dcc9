"""Reading of untrusted messages, with a bound on their content.

A field may take two bytes on the wire and a hundred in memory, and each pass over a message takes a microsecond per
field. So a message with too many fields is refused before any pass over it; a large message is even refused before it
is parsed.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from google.protobuf.message import DecodeError

from streamclient.errors import CodecError

LARGE_BYTES = 2 * 1024 * 1024
"""The size up to which a message is parsed before its fields are counted. Any such message is parsed in a tenth of a
second and takes at most 100 MB. Counting first would make a batch of many rows clearly slower to parse."""

_LEAST_FIELD_BYTES = 2

_WIRE_VARINT, _WIRE_BYTES = 0, 2
_WIRE_FIXED = {1: 8, 5: 4}
"""The kinds of fields that have a fixed length on the wire, and their lengths."""


def read(message_class: Any, data: bytes, most: int) -> Any:
    """Read one untrusted message without the checks of ``schema.complete``.

    The message may hold ``most`` elements of repeated fields, including messages inside it; a large message may hold
    ``most`` fields.

    Raises:
        CodecError: the bytes are malformed, or hold more elements or fields.
    """
    if len(data) > LARGE_BYTES:
        require_few_fields(message_class, data, most)
    message = message_class()
    try:
        message.ParseFromString(data)
    except (DecodeError, UnicodeDecodeError) as error:  # the pure Python implementation of protobuf raises the second
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
    """Return the fields that may have many elements: the name, whether it is repeated, whether it holds messages."""
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
    """Refuse a serialized message with more than ``most`` fields, including messages inside it.

    The function follows the form of the message as far as the form is valid; the parser reports malformed bytes. It
    reads nothing after the last allowed field.

    Raises:
        CodecError: the message holds more fields.
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
    """Return the fields that are messages, by their numbers."""
    return {field.number: field.message_type for field in descriptor.fields if field.message_type is not None}


def _varint(data: bytes, offset: int, end: int) -> tuple[int, int]:
    """Read a number; return it and the offset after it. A number without an end counts as one that ends the message."""
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
