"""One page of a table's rows, in the order of their keys, with every name as it is stored."""

from __future__ import annotations

from collections.abc import Sequence

from streamclient.records import KeyValue
from streamclient.tablestore.call import SignedCalls
from streamclient.wire import schema
from streamclient.wire.plainbuffer import KeyBound, Row, decode_row, decode_rows, encode_row
from streamclient.wire.schema import Direction
from streamclient.wire.service_errors import classify


def read_page(
    calls: SignedCalls, table: str, key_names: Sequence[str], start: Sequence[KeyValue] | None, max_versions: int
) -> tuple[tuple[KeyValue, ...] | None, list[Row]]:
    """Rows from a key on, or from the first, with so many versions; and the key to go on from, ``None`` at the end.

    Raises:
        StreamClientError: the call failed; it was made once.
    """
    begin = [KeyBound.INF_MIN] * len(key_names) if start is None else start
    request = schema.GetRangeRequest(
        table_name=table,
        direction=Direction.FORWARD,
        max_versions=max_versions,
        inclusive_start_primary_key=encode_row(Row(tuple(zip(key_names, begin, strict=True)))),
        exclusive_end_primary_key=encode_row(Row(tuple((name, KeyBound.INF_MAX) for name in key_names))),
    )
    try:
        answer = calls.ask("GetRange", request, is_repeatable=True)
    except Exception as error:
        raise classify(error, write=False) from error
    following = None
    if answer.next_start_primary_key:
        following = key_of(decode_row(answer.next_start_primary_key))
    return following, decode_rows(answer.rows)


def key_of(row: Row) -> tuple[KeyValue, ...]:
    """The key of a stored row, whose columns are never bounds.

    Raises:
        TypeError: one is.
    """
    values = []
    for name, value in row.primary_key:
        if isinstance(value, KeyBound):
            raise TypeError(f"the key column {name!r} of a stored row is {value.name}")
        values.append(value)
    return tuple(values)
