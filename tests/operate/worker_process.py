"""A worker as a process of its own, for tests that stop or kill it: endpoint, keys, instance, tables and name.

With ``--lasting`` after them its leases do not run out while a test looks.
"""

from __future__ import annotations

import sys

from stuck_workers import QUICK, Steady
from tablestore import OTSClient

from streamclient import ClientConfig, StreamConfig, Worker
from tests.patience import FOREVER_MILLIS


def main(arguments: list[str]) -> None:
    is_lasting = "--lasting" in arguments
    *connection, table, status_table, name = [word for word in arguments if word != "--lasting"]
    config = {**QUICK, "lease_duration_millis": 3 * FOREVER_MILLIS} if is_lasting else QUICK
    stream = StreamConfig(client=OTSClient(*connection), data_table_name=table, status_table_name=status_table)
    Worker(name, ClientConfig(**config), stream, Steady).run()


if __name__ == "__main__":
    main(sys.argv[1:])
