"""Names that an attribute column may have, and that something on its way might take for something else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tablestore import OTSClient

from streamclient.records import KeyValue
from streamclient.tablestore.signed_calls import SignedCalls
from streamclient.wire import schema
from streamclient.wire.plainbuffer import Cell, Row, encode_row

ODD_NAMES = (
    *(
        "price-2",
        "a.b",
        "公司",
        "postal code",
        " ",
        "\n",
        "\r",
        "\t",
        "'",
        '"',
        "`",
        "$",
        "&",
        "*",
        "(",
        ")",
        "/",
        "\\",
    ),
    *(":", ";", "1x", "a#", "-", "a,b", "a=b", "a[0]", "NULL", "{}", "%s", "\x00", "\x1b[2J", "\U0001f600"),
    *("Ünïcödé", "x" * 255, "公" * 85),
)

VALUES = {name: f"value of {name}" for name in ODD_NAMES}


def write_rows(client: OTSClient, table: str, rows: Sequence[tuple[str, KeyValue, dict[str, Any]]]) -> None:
    """Put rows of (key column, key, columns), which the SDK's own writer cannot with such names."""
    changes = [
        schema.RowInBatchWriteRowRequest(
            type=schema.OperationType.PUT,
            row_change=encode_row(Row(((name, key),), tuple(Cell(each, value) for each, value in columns.items()))),
            condition=schema.Condition(row_existence=schema.RowExistenceExpectation.IGNORE),
        )
        for name, key, columns in rows
    ]
    table_rows = schema.TableInBatchWriteRowRequest(table_name=table, rows=changes)
    answer = SignedCalls(client).ask(
        "BatchWriteRow", schema.BatchWriteRowRequest(tables=[table_rows]), is_repeatable=False
    )
    assert all(row.is_ok for row in answer.tables[0].rows), answer
