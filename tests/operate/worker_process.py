"""A worker as a process of its own, for tests that stop or kill it: endpoint, keys, instance, tables and name."""

from __future__ import annotations

import sys

from stuck_workers import QUICK, Steady
from tablestore import OTSClient

from streamclient import ClientConfig, StreamConfig, Worker


def main(arguments: list[str]) -> None:
    *connection, table, status_table, name = arguments
    stream = StreamConfig(client=OTSClient(*connection), data_table_name=table, status_table_name=status_table)
    Worker(name, ClientConfig(**QUICK), stream, Steady).run()


if __name__ == "__main__":
    main(sys.argv[1:])
