"""A small table, and a mirror of it that runs in this process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

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

from streamclient.config import ClientConfig
from streamclient.copying import MergeLimits, Mirror
from streamclient.tablestore import StreamSpecification, TablestoreStreamApi
from tests.patience import until

IGNORE = Condition(RowExistenceExpectation.IGNORE)
QUICK = ClientConfig(renewer_interval_millis=900, taker_interval_millis=900)
LIMITS = MergeLimits(max_age_seconds=0.05, expiry_seconds=0.1)


def make_table(client: OTSClient, name: str = "orders", *, stream: bool = True, **options: Any) -> None:
    TablestoreStreamApi(client).create_table(
        TableMeta(name, [("id", "INTEGER")]),
        TableOptions(**options),
        ReservedThroughput(CapacityUnit(0, 0)),
        stream=StreamSpecification(enable_stream=True, expiration_time_hours=24) if stream else None,
    )


def put(client: OTSClient, number: int, *columns: Any) -> None:
    client.put_row("orders", Row([("id", number)], list(columns)), IGNORE)


@contextmanager
def running(mirror: Mirror) -> Iterator[Mirror]:
    errors: list[BaseException] = []

    def run() -> None:
        try:
            mirror.run()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        until(lambda: mirror.is_copied or bool(errors), "the copy")
        yield mirror
    finally:
        mirror.shutdown()
        thread.join()
    assert errors == []


def caught_up(mirror: Mirror) -> None:
    until(lambda: mirror.verify().pending == 0, "the last change")
