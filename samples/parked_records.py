"""Find a poison record among a thousand, park it, and replay it once the program is mended.

The program starts a local Tablestore for itself. One order in a table has an amount that is not a number. The worker
delivers smaller and smaller batches until it has found that record. It parks the record in a directory and goes on.
It also parks a later change of the same order. In the end a mended processor replays both records.
"""

import tempfile
from collections.abc import Callable

from streamclient import (
    ClientConfig,
    FailurePolicy,
    FileParkingStore,
    InitializationInput,
    IRecordProcessor,
    OnFailure,
    ProcessRecordsInput,
    ShutdownInput,
    StreamConfig,
    Worker,
    replay_parked,
)
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

ORDERS = 1_000


class Totals:
    """The amounts of the orders that the processors have read, and the number of calls to the processors."""

    def __init__(self) -> None:
        self.amounts: dict[int, float] = {}
        self.calls = 0


class Adding(IRecordProcessor):
    """Stores the amount of each order in ``totals``. ``read`` turns the value of the column into a number."""

    def __init__(self, totals: Totals, read: Callable[[object], float]) -> None:
        self.totals = totals
        self.read = read

    def initialize(self, initialization_input: InitializationInput) -> None:
        pass

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        self.totals.calls += 1
        found = {int(record["id"]): self.read(record["amount"]) for record in process_records_input.records}
        self.totals.amounts.update(found)
        process_records_input.checkpointer.checkpoint()

    def shutdown(self, shutdown_input: ShutdownInput) -> None:
        pass


def strict(value: object) -> float:
    if not isinstance(value, float):
        raise TypeError(f"amount {value!r} is not a number")
    return value


def mended(value: object) -> float:
    return float(str(value).replace(",", "."))


def write(client: OTSClient, order: int, amount: object) -> None:
    client.put_row("orders", Row([("id", order)], [("amount", amount)]), Condition(RowExistenceExpectation.IGNORE))


def make_table(client: OTSClient) -> None:
    TablestoreStreamApi(client).create_table(
        TableMeta("orders", [("id", "INTEGER")]),
        TableOptions(),
        ReservedThroughput(CapacityUnit(0, 0)),
        stream=StreamSpecification(enable_stream=True, expiration_time_hours=24),
    )
    for order in range(ORDERS):
        write(client, order, "12,50" if order == 617 else 1.0)
    write(client, 617, 13.0)


def main() -> None:
    with LocalTablestore() as local, tempfile.TemporaryDirectory() as directory:
        client = local.client()
        make_table(client)
        store, totals = FileParkingStore(directory), Totals()
        policy = FailurePolicy(retries=1, first_pause_millis=100, then=OnFailure.PARK, parking=store)
        stream_config = StreamConfig(client=client, data_table_name="orders", status_table_name="orders_status")
        config = ClientConfig(failure_policy=policy)
        with Worker("worker-1", config, stream_config, lambda: Adding(totals, strict)) as worker:
            worker.wait(until=lambda: len(totals.amounts) == ORDERS - 1 and len(list(store.parked())) == 2)

        print(f"{len(totals.amounts)} orders after {totals.calls} calls")
        for parked in store.parked():
            print(f"parked: order {parked.record['id']!r}, {parked.attempts} failed calls, {parked.error}")

        report = replay_parked(store, lambda: Adding(totals, mended))
        print(f"replayed: {report.replayed}, left: {len(report.left)}")
        print(f"{len(totals.amounts)} orders, order 617 has {totals.amounts[617]}")


if __name__ == "__main__":
    main()
