"""Messages of strangers, read with a bound on how much they hold.

A field takes two bytes on the wire and a hundred in memory, and whatever walks over a message takes a microsecond for
each. So what holds too many is refused before it is walked over, and a large one before it is parsed.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from google.protobuf.message import DecodeError

from streamclient.errors import CodecError

LARGE_BYTES = 2 * 1024 * 1024
"""Up to here a message is parsed in a tenth of a second, whatever it holds, and takes 100 MB. Following its form first
would cost a batch of many rows a good part of what parsing it does."""

_LEAST_FIELD_BYTES = 2

_WIRE_VARINT, _WIRE_BYTES = 0, 2
_WIRE_FIXED = {1: 8, 5: 4}
"""Kinds of fields on the wire, and how long those of a fixed length are."""


def read(message_class: Any, data: bytes, most: int) -> Any:
    """Read one message that nobody has judged: ``schema.complete`` does.

    It may hold ``most`` elements of repeated fields, those of messages inside it included; a large one ``most`` fields.

    Raises:
        CodecError: the bytes are malformed, or it holds more.
    """
    if len(data) > LARGE_BYTES:
        require_few_fields(message_class, data, most)
    message = message_class()
    try:
        message.ParseFromString(data)
    except (DecodeError, UnicodeDecodeError) as error:  # the second from the pure Python implementation of protobuf
        name = message_class.DESCRIPTOR.name
        raise CodecError(f"expected a {name} message, got {len(data)} bytes that are none: {error}") from error
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
    """The fields that can hold any number of elements: name, whether it is repeated, whether it is of messages."""
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
    """Refuse a serialized message that holds more than ``most`` fields, those of messages inside it included.

    Only the form is followed, as far as it is one; what is malformed is left to the parser. Nothing after the last
    field that is allowed is read.

    Raises:
        CodecError: it holds more.
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
    """Which fields are messages, by their numbers."""
    return {field.number: field.message_type for field in descriptor.fields if field.message_type is not None}


def _varint(data: bytes, offset: int, end: int) -> tuple[int, int]:
    """A number and where it ends; one that does not end is read as one that leads to the message's end."""
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
