"""The stage of the tests of all rooms: a running server, a table with a stream, rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

from tablestore import (
    BatchWriteRowRequest,
    CapacityUnit,
    Condition,
    OTSClient,
    PutRowItem,
    ReservedThroughput,
    Row,
    RowExistenceExpectation,
    TableInBatchWriteRowItem,
    TableMeta,
    TableOptions,
)

from streamclient.server import LocalTablestore
from streamclient.tablestore import StreamSpecification, TablestoreStreamApi
from tests.service_under_test import real_service

IGNORE = Condition(RowExistenceExpectation.IGNORE)
STREAM = StreamSpecification(enable_stream=True, expiration_time_hours=24)
BATCH_ROWS = 200
"""The most rows of one request."""


@contextmanager
def started_server() -> Iterator[LocalTablestore]:
    """A local Tablestore in memory; or the service that the environment names, emptied afterwards."""
    service = real_service()
    if service is not None:
        yield cast(LocalTablestore, service)
        service.clear()
        return
    with LocalTablestore() as running:
        yield running


def make_table(
    client: OTSClient,
    name: str,
    key: Sequence[tuple[str, str]] = (("id", "STRING"),),
    *,
    stream: StreamSpecification | None = STREAM,
    split_points: Sequence[Any] | None = None,
    **options: Any,
) -> None:
    """Create a table, by default with a stream; ``options`` are those of ``TableOptions``."""
    TablestoreStreamApi(client).create_table(
        TableMeta(name, list(key)),
        TableOptions(**options),
        ReservedThroughput(CapacityUnit(0, 0)),
        stream=stream,
        split_points=split_points,
    )


def put_rows(client: OTSClient, table: str, rows: Iterable[Row]) -> None:
    """Put all rows, in their order."""
    write(client, table, [PutRowItem(row, IGNORE) for row in rows])


def write(client: OTSClient, table: str, items: Sequence[object]) -> None:
    """Write all items of the SDK, in their order."""
    for start in range(0, len(items), BATCH_ROWS):
        request = BatchWriteRowRequest()
        request.add(TableInBatchWriteRowItem(table, list(items[start : start + BATCH_ROWS])))
        assert client.batch_write_row(request).is_all_succeed(), "the server refused a row"
