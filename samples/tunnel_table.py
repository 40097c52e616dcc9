"""What the tunnel samples share: a Tablestore to run against, a table, and orders in it."""

import os
from collections.abc import Iterable, Iterator
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
def instance() -> Iterator[OTSClient]:
    """The Tablestore named in the environment, or a local one that ends with the sample."""
    if "TABLESTORE_ENDPOINT" not in os.environ:
        with LocalTablestore() as local:
            yield local.client()
        return
    yield connect()


def make_table(client: OTSClient, name: str) -> None:
    """A table of orders by number. A tunnel needs no more: it switches the change stream on by itself."""
    meta = TableMeta(name, [("order", "INTEGER")])
    client.create_table(meta, TableOptions(), ReservedThroughput(CapacityUnit(0, 0)))


def put_orders(client: OTSClient, name: str, orders: Iterable[int]) -> None:
    """Write one row per order."""
    request = BatchWriteRowRequest()
    condition = Condition(RowExistenceExpectation.IGNORE)
    rows = [PutRowItem(Row([("order", order)], [("state", "paid")]), condition) for order in orders]
    request.add(TableInBatchWriteRowItem(name, rows))
    client.batch_write_row(request)
