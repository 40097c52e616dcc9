"""Share the channels of one tunnel among several workers; when one worker ends, the others take its channels.

The program starts a local Tablestore for itself, because it splits the table's partition.
"""

import threading
from collections import Counter

from streamclient.server import LocalTablestore
from streamclient.tunnel import (
    ChannelRecordsInput,
    IChannelProcessor,
    TunnelClient,
    TunnelType,
    TunnelWorker,
    TunnelWorkerConfig,
)

from samples.tunnel_table import make_table, put_orders

ORDERS = range(100)


class CountingProcessor(IChannelProcessor):
    """Counts records. All channels of a worker share one processor."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.records: Counter[str] = Counter()
        self.ended_channels = 0

    def process(self, records_input: ChannelRecordsInput) -> None:
        with self._lock:
            self.records[records_input.channel_id] += len(records_input.records)

    def shutdown(self) -> None:
        with self._lock:
            self.ended_channels += 1


def main() -> None:
    with LocalTablestore() as local:
        client = local.client()
        make_table(client, "orders")
        put_orders(client, "orders", ORDERS)
        tunnels = TunnelClient(client)
        tunnel_id = tunnels.create_tunnel("orders", "shared", TunnelType.STREAM)
        for place in (25, 50, 75):
            local.split("orders", at=place)

        config = TunnelWorkerConfig(heartbeat_interval_seconds=1)
        first, second = CountingProcessor(), CountingProcessor()
        with TunnelWorker(tunnel_id, tunnels, first, config) as worker:
            worker.wait(until=lambda: len(worker.channel_statuses()) == 4)
            print("one worker reads 4 channels")
            with TunnelWorker(tunnel_id, tunnels, second, config) as other:
                other.wait(until=lambda: len(other.channel_statuses()) == 2)
                print("two workers read 2 channels each")
                put_orders(client, "orders", ORDERS)
                worker.wait(until=lambda: sum(first.records.values()) + sum(second.records.values()) >= len(ORDERS))
                print(f"together they processed {len(ORDERS)} changes; each worker read 2 channels")
            worker.wait(until=lambda: len(worker.channel_statuses()) == 4)
            print("the second worker has ended, the first one reads 4 channels again")
        print(f"the second worker was told of the end of {second.ended_channels} channels")


if __name__ == "__main__":
    main()
