"""``python -m tests.server.heavy_requests``: how long other clients wait while one sends the dearest requests.

Each line names a kind of request, the answers of the server, the longest time in which another connection waited for a
GetRow meanwhile, and the server's memory after it.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attrs import field, frozen

from benchmarks.stage import Stage
from streamclient.server import DEFAULT_ACCESS_KEY_ID, DEFAULT_ACCESS_KEY_SECRET, DEFAULT_INSTANCE
from streamclient.wire import schema
from streamclient.wire.plainbuffer import KeyBound
from streamclient.wire.schema import ComparatorType, OperationType, VariantType
from tests.server.server_state_driver import (
    batch_row,
    batch_table,
    condition_fields,
    creation,
    delete_one,
    frame,
    put,
    single,
)
from tests.service_under_test import Address, connection_to, signed_headers

LOWEST, HIGHEST = frame((("pk", KeyBound.INF_MIN),)), frame((("pk", KeyBound.INF_MAX),))
BETWEEN_PROBES_SECONDS = 0.01
EXPRESSIONS = ("(?:.?.?.?.?){0,1000}x", ".{0,500}x", "((a{0,30}){0,30})x", "(a?){0,1000}x")
ROWS_PER_BATCH = 200
ROWS = 400_000
VERSIONS, CELLS = 300_000, 5_000
"""The versions of one column, and how many of them one request writes."""
TRANSACTIONS = 12_000
"""More than may be open at once."""
TRANSACTION_SECONDS = 60
"""How long a transaction may be open."""


@frozen
class Service:
    """The server's process, and the requests that all lines are made of."""

    endpoint: str
    process_id: int
    instance: str = DEFAULT_INSTANCE
    access_key_id: str = DEFAULT_ACCESS_KEY_ID
    access_key_secret: str = DEFAULT_ACCESS_KEY_SECRET
    answers: Counter[str] = field(factory=Counter)

    def ask(self, operation: str, **fields: Any) -> Any:
        """Send one request; count its answer and return it, ``None`` for a refusal."""
        return self.send(operation, schema.OPERATIONS[operation].request(**fields).SerializeToString())

    def send(self, operation: str, body: bytes) -> Any:
        """Send the bytes of one request over a connection of its own."""
        connection = connection_to(self.endpoint)
        try:
            status, answer = send(self, connection, operation, body)
        finally:
            connection.close()
        is_ok = status == http.HTTPStatus.OK
        self.answers["ok" if is_ok else f"{status} {schema.parse(schema.Error, answer).code}"] += 1
        return schema.parse(schema.OPERATIONS[operation].response, answer) if is_ok else None

    @property
    def memory_mb(self) -> float:
        """Resident memory of the server's process."""
        status = Path(f"/proc/{self.process_id}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) / 1024

    def advance_clock(self, seconds: float) -> None:
        """Let the server's clock jump forward."""
        connection = connection_to(self.endpoint)
        headers = {"Authorization": f"Bearer {self.access_key_secret}"}
        connection.request("POST", "/_admin/advance-clock", json.dumps({"seconds": seconds}), headers)
        assert connection.getresponse().status == http.HTTPStatus.OK
        connection.close()

    def create(self, name: str, **options: Any) -> None:
        """Make a table with an integer key."""
        given = {"time_to_live": -1, "max_versions": 1, **options}
        self.ask("CreateTable", **creation(name, (("pk", "INTEGER"),), options=given))

    def fill(self, name: str, numbers: range, value: Any = 1) -> None:
        """Put one row of one column for each number."""
        for start in range(0, len(numbers), ROWS_PER_BATCH):
            part = numbers[start : start + ROWS_PER_BATCH]
            rows = [batch_row(OperationType.PUT, key, put("x", value)) for key in part]
            self.ask("BatchWriteRow", tables=[batch_table(rows, name)])


def send(service: Address, connection: http.client.HTTPConnection, operation: str, body: bytes) -> tuple[int, bytes]:
    """Send a signed request; return status and body of the answer."""
    connection.request("POST", f"/{operation}", body, signed_headers(service, operation, body))
    response = connection.getresponse()
    return response.status, response.read()


def expressions(service: Service) -> None:
    """Filters whose expressions are dear, over values of 300,000 characters."""
    for number in range(20):
        service.fill("wide", range(number, number + 1), "a" * 300_000)
    bounds = {"inclusive_start_primary_key": LOWEST, "exclusive_end_primary_key": HIGHEST}
    for expression in EXPRESSIONS:
        rule = schema.ValueTransferRule(regex=expression, cast_type=VariantType.STRING)
        row_filter = single(ComparatorType.EXIST, "x", rule=rule)
        service.ask("GetRow", table_name="wide", primary_key=frame(1), max_versions=1, filter=row_filter)
        service.ask("GetRange", table_name="wide", direction=0, max_versions=1, filter=row_filter, **bounds)
        service.ask("BulkExport", table_name="wide", filter=row_filter, **bounds)
        condition = condition_fields(column_condition=row_filter)
        service.ask("PutRow", table_name="wide", row=frame(1, put("y", 1)), **condition)


def repeated_keys(service: Service) -> None:
    """BatchGetRow of one wide row, a hundred times in each of twenty requests."""
    for column in range(8):
        row = frame(1, put(f"c{column}", "v" * 2_000_000))
        service.ask("UpdateRow", table_name="wide", row_change=row, **condition_fields())
    table = schema.TableInBatchGetRowRequest(table_name="wide", primary_key=[frame(1)] * 100, max_versions=1)
    for _ in range(20):
        service.ask("BatchGetRow", tables=[table])


def empty_messages(service: Service) -> None:
    """Five megabytes of empty messages inside one request."""
    for operation, element in (
        ("BatchWriteRow", b"\x0a\x00"),
        ("BatchGetRow", b"\x12\x00"),
        ("CreateTable", b"\x0a\x00"),
    ):
        service.send(operation, element * 2_500_000)


def abandoned_transactions(service: Service) -> None:
    """More transactions than may be open, all left; then one request after their time."""
    service.create("left")
    for number in range(TRANSACTIONS):
        service.ask("StartLocalTransaction", table_name="left", key=frame(number))
    service.advance_clock(2 * TRANSACTION_SECONDS)
    service.ask("PutRow", table_name="left", row=frame(1, put("x", 1)), **condition_fields())


def rows_before_others(service: Service) -> None:
    """Rows put before all others, and the split points of a table of many rows."""
    service.create("long")
    service.fill("long", range(ROWS))
    service.fill("long", range(-1, -20_000, -1))
    service.ask("ComputeSplitPointsBySize", table_name="long", split_size=1)


def keys_of_deleted_tables(service: Service) -> None:
    """A table whose rows expire, filled and deleted three times."""
    for _ in range(3):
        service.create("brief", time_to_live=86_400)
        service.fill("brief", range(100_000))
        service.ask("DeleteTable", table_name="brief")


def versions_of_one_column(service: Service) -> None:
    """Batches that put or delete single versions of a column with 300,000, and one that does both."""
    service.create("deep", max_versions=1_000_000, deviation_cell_version_in_sec=1_000_000_000)
    now = time.time_ns() // 1_000_000
    for start in range(0, VERSIONS, CELLS):
        cells = [put("x", 1, now + number) for number in range(start, start + CELLS)]
        service.ask("UpdateRow", table_name="deep", row_change=frame(1, *cells), **condition_fields())
    for changes in (
        [[put("x", 2, now + VERSIONS + number)] for number in range(ROWS_PER_BATCH)],
        [[delete_one("x", now + number)] for number in range(ROWS_PER_BATCH)],
        [[put("x", 3, now + number), delete_one("x", now - number)] for number in range(ROWS_PER_BATCH)],
    ):
        rows = [batch_row(OperationType.UPDATE, 1, *cells) for cells in changes]
        service.ask("BatchWriteRow", tables=[batch_table(rows, "deep")])


LINES: tuple[Callable[[Service], None], ...] = (
    expressions,
    repeated_keys,
    empty_messages,
    abandoned_transactions,
    rows_before_others,
    keys_of_deleted_tables,
    versions_of_one_column,
)


@contextmanager
def probing(service: Service) -> Iterator[list[float]]:
    """Ask for a row again and again over one connection; yields the seconds that each answer took."""
    waits: list[float] = []
    ended = threading.Event()
    fields = {"table_name": "probe", "primary_key": frame(1), "max_versions": 1}
    body = schema.OPERATIONS["GetRow"].request(**fields).SerializeToString()

    def probe() -> None:
        connection = connection_to(service.endpoint)
        while not ended.wait(BETWEEN_PROBES_SECONDS):
            begun = time.monotonic()
            send(service, connection, "GetRow", body)
            waits.append(time.monotonic() - begun)
        connection.close()

    thread = threading.Thread(target=probe, name="probe")
    thread.start()
    try:
        yield waits
    finally:
        ended.set()
        thread.join()


def main() -> None:
    """Send each kind of request once and print a line for it."""
    with Stage() as stage:
        service = Service(stage.endpoint, stage.process_id)
        for table in ("probe", "wide"):
            service.create(table)
        for heavy in LINES:
            service.answers.clear()
            begun = time.monotonic()
            with probing(service) as waits:
                heavy(service)
            seconds = time.monotonic() - begun
            answers = ", ".join(f"{count} x {answer}" for answer, count in service.answers.most_common())
            others = f"others waited {max(waits):.2f} s at most ({len(waits)} requests)"
            print(f"{heavy.__name__}: {answers}; {seconds:.1f} s, {others}; {service.memory_mb:.0f} MB", flush=True)


if __name__ == "__main__":
    main()
