"""A table whose stream has splits and a merge, and a writer that knows what it wrote; pages are small."""

from __future__ import annotations

from tablestore import (
    BatchWriteRowRequest,
    CapacityUnit,
    Condition,
    ReservedThroughput,
    Row,
    RowExistenceExpectation,
    TableInBatchWriteRowItem,
    TableMeta,
    TableOptions,
    UpdateRowItem,
)

from streamclient.server import LocalTablestore
from streamclient.server.engine import Engine
from streamclient.server.server_clock import Clock
from streamclient.server.server_limits import Limits
from streamclient.server.storage import open_storage
from streamclient.tablestore import StreamSpecification, TablestoreStreamApi
from tests.patience import PATIENCE_SECONDS

TABLE, LEASES, COPIES = "orders", "leases", "copies"
KEYS = 24
HISTORY_ROUNDS = 3
"""Before the split, between it and the merge, and after that."""

MOST_ROUNDS = 3 * HISTORY_ROUNDS + 9
"""Of one case: each writes a column of its own, which readers of columns have to know."""

SMALL = Limits(range_rows=10, stream_page_bytes=900, tunnel_page_records=8)
"""Some ten records a page, so that a few hundred records are many pages."""

_IGNORE = Condition(RowExistenceExpectation.IGNORE)


def column(number: int) -> str:
    """The column that a round writes."""
    return f"r{number}"


class SmallPages(LocalTablestore):
    """A local server whose pages are small."""

    def _open_engine(self) -> Engine:
        return Engine(clock=Clock(), storage=open_storage(None), instance_name=self.instance, limits=SMALL)


class Scene:
    """One table. Each round writes a new column of each key, so that no change hides another one in the row."""

    def __init__(self, local: LocalTablestore) -> None:
        self.local = local
        self.client = local.client(socket_timeout=PATIENCE_SECONDS)
        self.written: dict[int, list[int]] = {}
        self._rounds = 0
        TablestoreStreamApi(self.client).create_table(
            TableMeta(TABLE, [("id", "INTEGER")]),
            TableOptions(),
            ReservedThroughput(CapacityUnit(0, 0)),
            stream=StreamSpecification(enable_stream=True, expiration_time_hours=24),
            split_points=[KEYS // 2],
        )

    @property
    def records(self) -> int:
        """How many were written."""
        return sum(map(len, self.written.values()))

    def write(self, rounds: int = 1) -> None:
        """Change every key, so many times."""
        for _ in range(rounds):
            name = column(self._rounds)
            items = []
            for key in range(KEYS):
                value = self._rounds * KEYS + key + 1
                self.written.setdefault(key, []).append(value)
                items.append(UpdateRowItem(Row([("id", key)], {"PUT": [(name, value)]}), _IGNORE))
            request = BatchWriteRowRequest()
            request.add(TableInBatchWriteRowItem(TABLE, items))
            assert self.client.batch_write_row(request).is_all_succeed()
            self._rounds += 1

    def write_history(self, rounds: int = HISTORY_ROUNDS) -> None:
        """Two shards; the first is split, and its second half merged with the other one."""
        self.write(rounds)
        first, second = (shard.shard_id for shard in self.local.shards(TABLE))
        _, upper = self.local.split(TABLE, first)
        self.write(rounds)
        self.local.merge(TABLE, upper, second)
        self.write(rounds)

    def go_on(self) -> None:
        """What happens while it is read: more changes, another split, more changes."""
        self.write()
        self.local.split(TABLE)
        self.write()

    def rows(self, table: str) -> dict[int, dict[str, int]]:
        """All rows of a table, straight from the server."""
        client, found = self.client, {}
        from tablestore import INF_MAX, INF_MIN, Direction

        start: object = [("id", INF_MIN)]
        while start:
            _, start, rows, _ = client.get_range(table, Direction.FORWARD, start, [("id", INF_MAX)], max_version=1)
            for row in rows:
                found[row.primary_key[0][1]] = {name: value for name, value, _ in row.attribute_columns}
        return found
