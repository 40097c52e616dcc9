"""Process the changes of each customer in order, many customers at a time, with exact checkpoints.

The program starts a local Tablestore for itself. Each change takes 20 ms, like a call to another service. One change
fails at first, and is tried again.
"""

import threading
import time
from collections import Counter, defaultdict

from streamclient import ClientConfig, KeyedProcessorFactory, LeaseManager, StreamConfig, StreamRecord, Worker
from streamclient.server import LocalTablestore
from streamclient.tablestore import StreamSpecification, TablestoreStreamApi
from tablestore import (
    CapacityUnit,
    Condition,
    OTSClient,
    ReservedThroughput,
    Row,
    RowExistenceExpectation,
    TableMeta,
    TableOptions,
)

CUSTOMERS, CHANGES = 20, 200
SECONDS_PER_CHANGE = 0.02


class Shipping:
    """Ships changes. Many threads call it, but never two at the same time for one customer."""

    def __init__(self) -> None:
        self.changes_by_customer: dict[str, list[int]] = defaultdict(list)
        self.is_complete = threading.Event()
        self._attempts: Counter[int] = Counter()
        self._lock = threading.Lock()

    def ship(self, record: StreamRecord) -> None:
        customer, number = str(record["customer"]), int(record["order_id"])
        threading.Event().wait(SECONDS_PER_CHANGE)
        with self._lock:
            self._attempts[number] += 1
            if number == 7 and self._attempts[number] == 1:
                raise ConnectionError("the warehouse does not answer")
            self.changes_by_customer[customer].append(number)
            if sum(map(len, self.changes_by_customer.values())) == CHANGES:
                self.is_complete.set()


def make_table(client: OTSClient) -> None:
    TablestoreStreamApi(client).create_table(
        TableMeta("orders", [("customer", "STRING"), ("order_id", "INTEGER")]),
        TableOptions(),
        ReservedThroughput(CapacityUnit(0, 0)),
        stream=StreamSpecification(enable_stream=True, expiration_time_hours=24),
    )
    for number in range(CHANGES):
        key = [("customer", f"customer-{number % CUSTOMERS:02}"), ("order_id", number)]
        client.put_row("orders", Row(key, [("amount", number * 0.5)]), Condition(RowExistenceExpectation.IGNORE))


def unread(client: OTSClient) -> int:
    """Return the number of records after the stored checkpoint of the table's only shard."""
    streams = TablestoreStreamApi(client)
    (stream,) = streams.list_stream("orders")
    (lease,) = LeaseManager(client, "orders_shipping", stream.stream_id).list_leases()
    return len(streams.get_stream_record(lease.checkpoint).records)


def main() -> None:
    with LocalTablestore() as local:
        client = local.client()
        make_table(client)
        shipping = Shipping()
        factory = KeyedProcessorFactory(shipping.ship, key=lambda record: record["customer"], threads=16)
        config = StreamConfig(client=client, data_table_name="orders", status_table_name="orders_shipping")
        started = time.monotonic()
        with Worker("worker-1", ClientConfig(), config, factory) as worker:
            worker.wait(600, until=shipping.is_complete.is_set)
            seconds = time.monotonic() - started
        done = shipping.changes_by_customer
        one_by_one = CHANGES * SECONDS_PER_CHANGE
        print(f"{CHANGES} changes of {len(done)} customers in {seconds:.1f} s; one by one they take {one_by_one:.1f} s")
        print("in order for each customer:", all(numbers == sorted(numbers) for numbers in done.values()))
        print("changes after the checkpoint:", unread(client))


if __name__ == "__main__":
    main()
