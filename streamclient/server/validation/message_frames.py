"""The rows inside requests: decoding with the service's refusals, and checks of keys and cells."""

from __future__ import annotations

import math
from typing import Any

from streamclient.errors import CodecError
from streamclient.server import refusals, work
from streamclient.server.server_limits import CELL_TIMESTAMP_MAX_MILLIS, Limits
from streamclient.server.stored_rows import value_size
from streamclient.server.stored_tables import Key, check_key_values
from streamclient.server.validation.table_names import check_attribute_name
from streamclient.wire import _tags as tags
from streamclient.wire.plainbuffer import HEADER, Cell, KeyBound, Row, decode_row


def read_frame(data: bytes) -> Row:
    """Decode a row of a request, and charge its cells to the request's budget of work.

    Raises:
        ServiceError: the row is malformed, has no key, or has too many cells for the budget.
    """
    if len(data) > _UNCOUNTED_BYTES:
        pay_for_cells(_count_cells(data))
    try:
        row = decode_row(data)
    except CodecError as error:
        padded = _read_padded_frame(data)
        if padded is None:
            raise refusals.CELL_DATA(error=error) from error
        row = padded
    if len(data) <= _UNCOUNTED_BYTES:
        pay_for_cells(len(row.cells))
    if not row.primary_key:
        raise refusals.KEY_EMPTY()
    return row


_UNCOUNTED_BYTES = 256 * 1024
"""The largest size, in bytes, of a row that ``read_frame`` decodes before it counts the cells. A cell takes at least
eleven bytes. So such a row has at most 24,000 cells, which take a tenth of a second to decode."""


def pay_for_cells(count: int) -> None:
    """Charge ``count`` cells of one row to the request's budget of work, or raise ``TooMuchWorkError``."""
    work.pay(work.CELL_WORK * count, "The rows have too many cells, this one has %d or more", count)


def _count_cells(data: bytes) -> int:
    """Count the cells of an encoded row. Stop when the count exceeds the number of cells that a request can pay for.

    For a malformed row, the result may be wrong, but then ``decode_row`` raises an error.
    """
    most = work.WORK_PER_REQUEST // work.CELL_WORK + 1
    count, offset, end = 0, len(HEADER) + 1, len(data)
    while offset < end and count < most:
        tag = data[offset]
        offset += 1
        if tag in (tags.TAG_CELL_NAME, tags.TAG_CELL_VALUE):
            offset += 4 + int.from_bytes(data[offset : offset + 4], "little")
        elif tag in (tags.TAG_CELL, tags.TAG_ROW_DATA):
            count += tag == tags.TAG_CELL
        elif tag in (tags.TAG_CELL_OPERATION, tags.TAG_CELL_CHECKSUM):
            offset += 1
        elif tag == tags.TAG_CELL_TIMESTAMP:
            offset += 8
        else:
            break
    return count


def _read_padded_frame(data: bytes) -> Row | None:
    """Decode a row with zero bytes after its end; return ``None`` if the row is malformed in another way.

    For range bounds, deleted versions and key placeholders, the Node SDK reserves more bytes than it writes, and sends
    the remaining bytes as zeros. The last byte of a row is its checksum, which may be zero, too. So the function tries
    both possible ends, and the checksum decides.
    """
    stripped = data.rstrip(b"\0")
    for candidate in (stripped, stripped + b"\0"):
        try:
            return decode_row(candidate)
        except CodecError:
            continue
    return None


def _check_key_count(key: Key, limits: Limits) -> None:
    if len(key) > limits.key_columns:  # a key without columns is refused when it is decoded
        raise refusals.KEY_COLUMNS(limit=limits.key_columns)


def check_write_key(key: Key, limits: Limits) -> Key:
    """Return the key of one row, after a check of its columns.

    Raises:
        ServiceError: the key has too many columns, a name occurs twice, a value is too long, or a value is a bound of
            a range.
    """
    _check_key_count(key, limits)
    seen = set()
    for name, value in key:
        if value is KeyBound.INF_MIN or value is KeyBound.INF_MAX:
            raise refusals.KEY_COLUMN_TYPE(type=f"VT_{value.name}")
        if name in seen:
            raise refusals.KEY_COLUMN_TWICE(name=name)
        seen.add(name)
    check_key_values(key, limits)
    return key


def read_key(data: bytes, limits: Limits) -> Key:
    """Decode and check the key of a row that a request reads."""
    row = _read_only_key(data)
    return check_write_key(row.primary_key, limits)


def read_bound(data: bytes, limits: Limits) -> Key:
    """Decode and check one end of a range. Its values may be INF_MIN or INF_MAX."""
    row = _read_only_key(data)
    _check_key_count(row.primary_key, limits)
    check_key_values(row.primary_key, limits)
    return row.primary_key


def _read_only_key(data: bytes) -> Row:
    row = read_frame(data)
    if row.cells:
        raise refusals.READ_CELLS()
    if row.delete_marker:
        raise refusals.READ_MARKER()
    if any(value is KeyBound.AUTO_INCREMENT for _, value in row.primary_key):
        raise refusals.READ_GENERATED()
    return row


def check_cells(cells: tuple[Cell, ...], key: Key, limits: Limits) -> None:
    """Raise ``ServiceError`` if a cell of a write has an invalid name, value or timestamp.

    Also refuse a cell with the name of a column of ``key``, and cells for too many different columns.
    """
    key_names = {name for name, _ in key}
    names = set()
    for cell in cells:
        if cell.name not in names:
            check_attribute_name(cell.name, limits)
            names.add(cell.name)
        if cell.name in key_names:
            raise refusals.ATTRIBUTE_IS_KEY(name=cell.name)
        if cell.value is not None:
            check_value(cell.name, cell.value, limits)
        if cell.timestamp_millis is not None and not 0 <= cell.timestamp_millis < CELL_TIMESTAMP_MAX_MILLIS:
            raise refusals.TIMESTAMP()
    if len(names) > limits.attribute_columns:
        raise refusals.ATTRIBUTE_COLUMNS(limit=limits.attribute_columns, count=len(names))


def check_value(name: str, value: Any, limits: Limits) -> None:
    """Raise ``ServiceError`` if a write cannot put ``value`` into the attribute column ``name``."""
    if isinstance(value, KeyBound):
        raise refusals.ATTRIBUTE_TYPE(type=f"VT_{value.name}")
    if isinstance(value, float):
        if math.isnan(value):
            raise refusals.NOT_A_NUMBER()
        if math.isinf(value):
            raise refusals.INFINITE()
    check_value_length(name, value, limits)


def check_value_length(name: str, value: Any, limits: Limits) -> None:
    """Raise ``ServiceError`` if the value of an attribute column, or of a filter on such a column, is too long."""
    size = value_size(value) if isinstance(value, (str, bytes)) else 0
    if size > limits.attribute_value_bytes:
        raise refusals.ATTRIBUTE_LENGTH(name=name, limit=limits.attribute_value_bytes, size=size)
