"""Consume all rows of a table and then its changes, through a tunnel, with a callback and a daemon.

The program uses the instance at TABLESTORE_ENDPOINT. If that variable is not set, it starts a local Tablestore.
"""

import threading
from collections.abc import Sequence

from streamclient import StreamRecord
from streamclient.tunnel import TunnelClient, TunnelDaemon, TunnelType, TunnelWorkerConfig

from samples.tunnel_table import instance, make_table, put_orders

ROWS = 3


def main() -> None:
    with instance() as ots_client:
        make_table(ots_client, "test_table")
        put_orders(ots_client, "test_table", range(ROWS))

        # 1. A tunnel client over the SDK's own client.
        tunnel_client = TunnelClient(ots_client)

        # 2. A tunnel for all rows (full data), and for the changes from now on.
        tunnel_id = tunnel_client.create_tunnel("test_table", "test_tunnel", TunnelType.BASE_AND_STREAM)
        put_orders(ots_client, "test_table", [0])

        # 3. A callback, and a daemon that passes all records to the callback until the daemon ends.
        seen = []
        everything = threading.Event()

        def consume(records: Sequence[StreamRecord], channel_id: str) -> None:
            for record in records:
                kind = "full data" if record.sequence_info.timestamp_micros == 0 else "change   "
                print(f"{kind}: {record.record_type.value} {record.key}")
                seen.append(record)
            if len(seen) == ROWS + 1:
                everything.set()

        config = TunnelWorkerConfig(heartbeat_interval_seconds=5)
        with TunnelDaemon(tunnel_id, tunnel_client, consume, config) as daemon:
            daemon.wait(600, until=everything.is_set)
        print("progress is stored: the next daemon on this tunnel goes on here")


if __name__ == "__main__":
    main()
