"""Keep a Delta table equal to a table: copy its rows, follow its changes, and compare both at the end.

The program starts a local Tablestore for itself. The command ``streamclient mirror FILE`` does the same.
"""

import tempfile
import threading
from pathlib import Path

from streamclient.copying import MergeLimits, Mirror
from streamclient.destinations import DeltaDestination
from streamclient.server import LocalTablestore
from streamclient.tablestore import StreamSpecification, TablestoreStreamApi
from tablestore import (
    CapacityUnit,
    Condition,
    ReservedThroughput,
    Row,
    RowExistenceExpectation,
    TableMeta,
    TableOptions,
)

from samples.tunnel_table import put_orders

ANY_STATE = Condition(RowExistenceExpectation.IGNORE)


def main() -> None:
    with LocalTablestore() as local, tempfile.TemporaryDirectory() as directory:
        client = local.client()
        TablestoreStreamApi(client).create_table(
            TableMeta("orders", [("order", "INTEGER")]),
            TableOptions(),
            ReservedThroughput(CapacityUnit(0, 0)),
            stream=StreamSpecification(True, 24),
        )
        put_orders(client, "orders", range(150))
        lake = DeltaDestination(str(Path(directory) / "orders"))
        mirror = Mirror(client, "orders", "orders_mirror", lake, limits=MergeLimits(max_age_seconds=0.2))
        thread = threading.Thread(target=mirror.run, daemon=True)
        thread.start()
        while thread.is_alive() and mirror.worker is None:
            thread.join(0.1)
        if mirror.worker is None:
            raise SystemExit("the table is not copied; the output of the mirror's thread gives the reason")
        print(f"{mirror.copied_rows} rows copied")
        client.delete_row("orders", Row([("order", 0)]), ANY_STATE)
        client.put_row("orders", Row([("order", 1)], [("state", 7), ("new", True)]), ANY_STATE)
        mirror.worker.wait(until=lambda: not mirror.verify().pending)
        mirror.shutdown()
        thread.join()
        found = mirror.verify()
        print(f"{found.rows} rows compared, {found.count} differences, {found.pending} changes pending")
        row = next(row for table in lake.rows() for row in table.to_pylist() if row["order"] == 1)
        print({name: row[name] for name in ("order", "state", "new", "_unfit")})


if __name__ == "__main__":
    main()
