"""The common parts of the tunnel samples: a Tablestore instance, a table, and orders in the table."""

import os
from collections.abc import Generator, Iterable
from contextlib import contextmanager

from streamclient.server import LocalTablestore
from streamclient.tablestore import connect
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


@contextmanager
def instance() -> Generator[OTSClient, None, None]:
    """Yield a client of the instance at TABLESTORE_ENDPOINT or, if that is not set, of a new local Tablestore."""
    if "TABLESTORE_ENDPOINT" not in os.environ:
        with LocalTablestore() as local:
            yield local.client()
        return
    yield connect()


def make_table(client: OTSClient, name: str) -> None:
    """Create a table of orders, with their numbers as keys. The stream is off, because a tunnel switches it on."""
    meta = TableMeta(name, [("order", "INTEGER")])
    client.create_table(meta, TableOptions(), ReservedThroughput(CapacityUnit(0, 0)))


def put_orders(client: OTSClient, name: str, orders: Iterable[int]) -> None:
    """Write one row for each number in ``orders``."""
    request = BatchWriteRowRequest()
    condition = Condition(RowExistenceExpectation.IGNORE)
    rows = [PutRowItem(Row([("order", order)], [("state", "paid")]), condition) for order in orders]
    request.add(TableInBatchWriteRowItem(name, rows))
    client.batch_write_row(request)
