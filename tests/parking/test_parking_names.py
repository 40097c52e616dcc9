"""Column names of any kind in parked records: kept, shown on a line each, and handed out again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from attrs import evolve

from streamclient.cli.parked_actions import _page
from streamclient.interfaces import IParkingStore
from streamclient.records import ColumnOperation, RecordColumn
from streamclient.server import LocalTablestore
from streamclient.testing.contracts.parking_contract import parked_record
from streamclient.worker.parking import FileParkingStore, MemoryParkingStore, TableParkingStore
from streamclient.worker.parking.parked_documents import document_of, parked_of
from tests.column_names import VALUES

COLUMNS = tuple(RecordColumn(name, ColumnOperation.PUT, value, 5) for name, value in VALUES.items())

STORES: dict[str, Callable[[LocalTablestore, Path], IParkingStore]] = {
    "memory": lambda local, path: MemoryParkingStore(),
    "files": lambda local, path: FileParkingStore(path / "parked"),
    "a table": lambda local, path: TableParkingStore(local.client(), "parked"),
}


@pytest.mark.parametrize("kind", STORES)
def test_a_store_gives_back_columns_of_any_name(kind: str, local: LocalTablestore, tmp_path: Path) -> None:
    plain = parked_record("a", 1)
    parked = evolve(plain, record=evolve(plain.record, columns=COLUMNS))
    store = STORES[kind](local, tmp_path)
    store.park([parked])

    (found,) = (store if kind == "memory" else STORES[kind](local, tmp_path)).parked()
    assert found.record.columns == COLUMNS


def test_a_document_and_a_page_hold_columns_of_any_name() -> None:
    plain = parked_record("a", 1)
    parked = evolve(plain, record=evolve(plain.record, columns=COLUMNS))

    assert parked_of(json.loads(json.dumps(document_of(parked), ensure_ascii=False))) == parked
    assert [line.isprintable() for line in _page(parked)] == [True] * len(_page(plain))
