"""What one request may cost: work, bytes of answers, messages, and memory that stays."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from unittest.mock import Mock

import pytest
from server_state_driver import (
    HIGHEST,
    INTEGER_KEY,
    LOWEST,
    PUT,
    TWO_COLUMN_KEY,
    UPDATE,
    Driver,
    batch_row,
    combined,
    condition_fields,
    delete_all,
    delete_one,
    frame,
    increment,
    put,
    refusal_of,
    single,
    table_driver,
)

from streamclient.server import work
from streamclient.server.expiry import FEW_ENTRIES
from streamclient.server.inspection import inspect
from streamclient.server.keys import encode_key
from streamclient.server.operations import OPERATIONS
from streamclient.server.server_errors import ServiceError
from streamclient.server.server_limits import Limits
from streamclient.server.stored_rows import RowStore, make_row
from streamclient.server.validation import message_frames
from streamclient.server.work import WORK_PER_REQUEST
from streamclient.wire import schema
from streamclient.wire.plainbuffer import decode_row, encode_value
from streamclient.wire.schema import ComparatorType, DataBlockType, LogicalOperator, VariantType


@pytest.fixture
def driver() -> Driver:
    return table_driver(key=INTEGER_KEY, options={"max_versions": 2_000_000})


def matching(pattern: str, column: str = "x", **fields: Any) -> bytes:
    """A filter that lets rows pass in which the column's value matches."""
    rule = schema.ValueTransferRule(regex=pattern, cast_type=VariantType.STRING)
    return single(ComparatorType.EXIST, column, rule=rule, **fields)


# --- work of filters

EXPENSIVE = {
    "unrolled": "(?:.?.?.?.?){0,1000}x",
    "window": ".{0,500}x",
    "nested": "((a{0,30}){0,30})x",
    "optional": "(a?){0,1000}x",
    "longest": "|".join(f"(.{{0,30}}{letter})" for letter in "cdefghijklmnopqrs"),
}


def read_row(driver: Driver, row_filter: bytes) -> object:
    return driver.get_row(1, filter=row_filter)


def read_range(driver: Driver, row_filter: bytes) -> object:
    return driver.range_page(LOWEST, HIGHEST, filter=row_filter)


def export(driver: Driver, row_filter: bytes) -> object:
    bounds = {"inclusive_start_primary_key": frame(LOWEST), "exclusive_end_primary_key": frame(HIGHEST)}
    return driver.call("BulkExport", table_name="t", columns_to_get=["x"], filter=row_filter, **bounds)


def write(driver: Driver, row_filter: bytes) -> object:
    return driver.put(1, put("x", "new"), column_condition=row_filter)


@pytest.mark.parametrize("asked", [read_row, read_range, export, write])
@pytest.mark.parametrize("pattern", EXPENSIVE.values(), ids=EXPENSIVE)
def test_an_expression_that_would_take_long_is_refused_by_name(driver: Driver, asked: Any, pattern: str) -> None:
    """RE2 takes time in proportion to the value's length times the expression's size."""
    driver.put(1, put("x", "a" * 50_000))

    with pytest.raises(ServiceError, match=r"regex .* \d+ instructions .* 50000 bytes: .*exceeds the work") as caught:
        asked(driver, matching(pattern))

    assert (caught.value.http_status, caught.value.code) == (400, "OTSParameterInvalid")
    assert driver.get(1) == {"x": "a" * 50_000}
    assert read_row(driver, matching("^a+$")) is not None, "an ordinary expression may meet the same value"


def test_the_expressions_of_one_request_pay_from_one_purse(driver: Driver) -> None:
    """Many rows, many filters and many versions are as dear as one that is as long."""
    value, costly = "a" * 2_000, matching(EXPENSIVE["window"])
    rows = [batch_row(PUT, number, put("x", value)) for number in range(40)]
    driver.write_batch(rows)
    assert read_row(driver, costly) is None, "one of them is cheap"

    read = batch_get(driver, range(40), filter=costly)
    conditional = [batch_row(PUT, number, put("x", value), column_condition=costly) for number in range(40)]
    written = refusal_of(driver.write_batch, conditional)
    several = combined(LogicalOperator.OR, *[matching(f".{{0,{length}}}x") for length in range(500, 530)])

    assert [row.is_ok for row in read] == [True] * 2 + [False] * 38
    assert {row.error.code for row in read if not row.is_ok} == {"OTSParameterInvalid"}
    assert "exceeds the work of one request" in written[2]
    assert "exceeds the work of one request" in refusal_of(read_row, driver, several)[2]


def test_a_page_ends_before_a_row_that_it_cannot_pay_for(driver: Driver) -> None:
    """A scan goes on page by page; each has a purse of its own."""
    for number in range(8):
        driver.put(number, put("x", f"{'a' * 1_500}{'x' * (number % 2)}"))
    row_filter = matching(EXPENSIVE["window"])

    first = driver.range_page(LOWEST, HIGHEST, filter=row_filter)
    found = driver.rows(LOWEST, HIGHEST, filter=row_filter)

    assert first.HasField("next_start_primary_key")
    assert [row.primary_key[0][1] for row in found] == [1, 3, 5, 7]


def test_a_filter_that_looks_at_all_versions_pays_for_them(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    base = driver.clock.now_micros() // 1000
    driver.update(1, *(put("x", 0, base + number) for number in range(1_000)))
    monkeypatch.setattr(work, "WORK_PER_REQUEST", 200_000)
    leaf = single(ComparatorType.EQUAL, "x", encode_value(1), latest_only=False)

    assert driver.get_row(1, filter=leaf) is None
    refused = refusal_of(read_row, driver, combined(LogicalOperator.OR, *[leaf] * 31))
    assert "1000 versions of a column: that exceeds the work of one request" in refused[2]


@pytest.mark.parametrize(
    ("is_wide", "cells"),
    [(False, [put("x", 1)]), (False, [delete_one("x", 7)]), (False, [increment("x", 1)]), (True, [put("y", 1)])],
)
def test_an_update_pays_for_the_columns_and_versions_that_it_copies(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, is_wide: bool, cells: list[Any]
) -> None:
    """A batch of twelve kilobytes stopped the server for more than a minute."""
    base = driver.clock.now_micros() // 1000
    many = 5_000
    for start in range(0, many, 1_000):
        numbers = range(start, start + 1_000)
        driver.update(1, *(put(f"c{number}" if is_wide else "x", 0, base + number) for number in numbers))
    monkeypatch.setattr(work, "WORK_PER_REQUEST", 200_000)

    answers = driver.write_batch([batch_row(UPDATE, 1, *cells) for _ in range(100)])

    accepted = [row.is_ok for row in answers].count(True)
    assert 5 <= accepted < 50
    assert all(row.is_ok for row in answers[:accepted])
    for row in answers[accepted:]:
        assert row.error.message.startswith("An update of a row with ")
        assert "exceeds the work of one request" in row.error.message
    driver.update(1, *cells)


def test_an_update_of_many_cells_pays_for_no_versions_beside_them(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cell costs as much as hundreds of versions."""
    base = driver.clock.now_micros() // 1000
    driver.update(1, *(put("x", 0, base + number) for number in range(5_000)))
    monkeypatch.setattr(work, "WORK_PER_REQUEST", 1_000 * work.CELL_WORK)

    driver.update(1, *(put("x", 0, base - number) for number in range(1_000)))


def test_making_expressions_pays_too(driver: Driver) -> None:
    """200 conditions of 31 expressions each would take minutes before any is matched."""
    patterns = (f"x{{0,{length}}}y" for length in range(400, 1_000))
    rows = [
        batch_row(
            PUT,
            number,
            put("x", "v"),
            column_condition=combined(LogicalOperator.OR, *[matching(next(patterns)) for _ in range(10)]),
        )
        for number in range(60)
    ]

    assert "exceeds the work of one request" in refusal_of(driver.write_batch, rows)[2]
    assert driver.table() == {}


def test_the_next_request_has_a_purse_of_its_own(driver: Driver) -> None:
    """Each of these takes more than half of one."""
    driver.put(1, put("x", "a" * (WORK_PER_REQUEST // 15_000)))
    for _ in range(3):
        assert read_row(driver, matching(".{0,1000}x")) is None


# --- answers


def wide_row(driver: Driver, number: int, bytes_each: int, columns: int) -> None:
    for column in range(columns):
        driver.update(number, put(f"c{column}", "v" * bytes_each))


def batch_get(driver: Driver, keys: Iterable[int], **fields: Any) -> list[Any]:
    table = schema.TableInBatchGetRowRequest(
        table_name="t", primary_key=[frame(key) for key in keys], max_versions=1, **fields
    )
    return list(driver.call("BatchGetRow", tables=[table]).tables[0].rows)


SELECTIONS: dict[str, dict[str, Any]] = {
    "all": {},
    "one column": {"columns_to_get": ["c0"]},
    "no column": {"filter": single(ComparatorType.NOT_EXIST, "c0")},
}


@pytest.mark.parametrize("selection", SELECTIONS.values(), ids=SELECTIONS)
def test_a_batch_reads_so_much_and_the_others_fail(selection: dict[str, Any]) -> None:
    """The same key a hundred times is three kilobytes of request, and was gigabytes of answer."""
    driver = table_driver(limits=Limits(batch_get_bytes=10_000), key=INTEGER_KEY)
    wide_row(driver, 1, 1_000, 3)

    rows = batch_get(driver, [1] * 100, **selection)

    assert [row.is_ok for row in rows] == [True] * 3 + [False] * 97
    assert {row.error.code for row in rows[3:]} == {"OTSParameterInvalid"}
    assert "limit size: 10000, data size: 12" in rows[3].error.message
    assert "fewer rows" in rows[3].error.message
    assert sum(len(row.row) for row in rows) < 11_000


def test_a_batch_reads_its_first_row_however_large_and_rows_that_are_not_there_cost_nothing() -> None:
    driver = table_driver(limits=Limits(batch_get_bytes=10_000), key=INTEGER_KEY)
    wide_row(driver, 1, 6_000, 2)
    driver.put(2, put("x", 1))

    assert [row.is_ok for row in batch_get(driver, [*range(3, 90), 1, *range(3, 10)])] == [True] * 95
    assert [row.is_ok for row in batch_get(driver, [2, 1, 2])] == [True, False, True]


def test_a_row_grows_to_a_bound() -> None:
    """Else the answer to a read of one row would have none."""
    driver = table_driver(limits=Limits(stored_row_bytes=10_000), options={"max_versions": 100})
    driver.update("a", put("x", "v" * 6_000))

    bulk = schema.RowInBulkImportRequest(type=UPDATE, row_change=frame("a", put("y", "v" * 6_000)))
    refused = [
        refusal_of(driver.update, "a", put("z", "w" * 6_000)),
        batch_error(driver, batch_row(UPDATE, "a", put("y", "v" * 6_000))),
        bulk_error(driver, bulk),
    ]

    assert {(code, text[:75]) for _, code, text in refused} == {
        ("OTSParameterInvalid", "The total data size of the row exceeds the limit, limit size: 10000, data s")
    }
    assert driver.get("a") == {"x": "v" * 6_000}
    driver.put("a", put("y", "v" * 9_000))


def batch_error(driver: Driver, row: Any) -> tuple[int, str, str]:
    (answer,) = driver.write_batch([row])
    return 200, answer.error.code, answer.error.message


def bulk_error(driver: Driver, row: Any) -> tuple[int, str, str]:
    (answer,) = driver.call("BulkImport", table_name="t", rows=[row]).rows
    return 200, answer.error.code, answer.error.message


def test_pages_have_a_bound_of_their_own_whatever_is_asked_for() -> None:
    driver = Driver(limits=Limits(stream_page_records_most=5, stream_page_shards_most=3))
    stream_id = driver.create_with_stream()
    for number in range(12):
        driver.put(f"{number:02}")
    first, following = driver.page(driver.only_iterator(), limit=1_000_000)
    records = len(driver.all_records())
    for at in range(5):
        driver.engine.split_shard("t", at=[f"{at:02}"])
    listing = driver.call("DescribeStream", stream_id=stream_id, shard_limit=1_000_000)

    assert (len(first), following is not None, records) == (5, True, 12)
    assert (len(listing.shards), listing.HasField("next_shard_id")) == (3, True)
    assert len(driver.describe_shards(stream_id, shard_limit=1_000_000)) == 11


@pytest.mark.parametrize("operation", ["GetRange", "BulkExport"])
@pytest.mark.parametrize("kind", list(DataBlockType))
def test_columns_that_are_named_are_paid_for_at_each_row(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, operation: str, kind: DataBlockType
) -> None:
    """A matrix has a place for each of them in each row, whether the row has the column or not."""
    monkeypatch.setattr(work, "WORK_PER_REQUEST", 100_000)
    rows = [batch_row(PUT, number, put("x", number)) for number in range(200)]
    driver.write_batch(rows)
    fields: dict[str, Any] = {"direction": 0, "max_versions": 1} if operation == "GetRange" else {}

    pages, start = [], frame(LOWEST)
    while start:
        answer = driver.call(
            operation,
            table_name="t",
            columns_to_get=[*(f"c{number}" for number in range(200)), "x"],
            inclusive_start_primary_key=start,
            exclusive_end_primary_key=frame(HIGHEST),
            data_block_type_hint=kind,
            **fields,
        )
        pages.append(answer.rows)
        start = answer.next_start_primary_key

    assert len(pages) >= 3
    assert all(len(page) < 100_000 for page in pages)


# --- messages


MANY: dict[str, tuple[str, bytes]] = {
    "tables to write": ("BatchWriteRow", b"\x0a\x00"),
    "rows of a table to write": ("BatchWriteRow", b"\x12\x00"),
    "tables to read": ("BatchGetRow", b"\x0a\x00"),
    "keys": ("BatchGetRow", b"\x12\x00"),
    "names": ("GetRow", b"\x1a\x00"),
    "rows to import": ("BulkImport", b"\x12\x00"),
    "columns": ("CreateTable", b"\x0a\x00"),
    "fields that nobody knows": ("ListTable", b"\x78\x01"),
    "channels": ("tunnel/heartbeat", b"\x1a\x00"),
}


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize(("operation", "element"), MANY.values(), ids=MANY)
def test_a_request_of_too_many_fields_is_refused_before_it_is_parsed(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, operation: str, element: bytes, nested: bool
) -> None:
    """Five megabytes of empty messages were 1.4 GB of objects, and a text of 70 MB."""
    body = element * 1_200_000
    if nested and operation.startswith("Batch"):
        body = b"\x0a" + varint(len(body)) + body
    messages = OPERATIONS[operation].messages
    for parsing in ("FromString", "ParseFromString"):
        monkeypatch.setattr(messages.request, parsing, Mock(side_effect=AssertionError("it was parsed")))

    assert inspect(operation, body).message is None
    with pytest.raises(ServiceError, match="holds more than 30000 fields") as caught:
        driver.engine.execute(operation, body)

    assert caught.value.code == "OTSParameterInvalid"
    assert len(caught.value.message) < 200


ELEMENTS = {
    "tables to write": ("BatchWriteRow", b"\x0a\x00", False),
    "rows to write": ("BatchWriteRow", b"\x12\x00", True),
    "tables to read": ("BatchGetRow", b"\x0a\x00", False),
    "keys": ("BatchGetRow", b"\x12\x00", True),
    "names": ("GetRow", b"\x1a\x00", False),
    "rows to import": ("BulkImport", b"\x12\x00", False),
}


@pytest.mark.parametrize(("operation", "element", "nested"), ELEMENTS.values(), ids=ELEMENTS)
def test_a_request_of_too_many_elements_is_refused_before_it_is_judged(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, operation: str, element: bytes, nested: bool
) -> None:
    """Up to two megabytes are parsed first: that costs the usual batch less than following its form."""
    body = element * 50_000
    if nested:
        body = b"\x0a" + varint(len(body)) + body
    for judging in ("IsInitialized", "FindInitializationErrors"):
        monkeypatch.setattr(OPERATIONS[operation].messages.request, judging, Mock(side_effect=AssertionError))

    assert inspect(operation, body).message is None
    with pytest.raises(ServiceError, match="fields") as caught:
        driver.engine.execute(operation, body)

    assert len(caught.value.message) < 200


def varint(value: int) -> bytes:
    parts = []
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def test_a_filter_of_too_many_fields_is_refused_before_it_is_parsed(driver: Driver) -> None:
    inner = b"\x08\x02" + b"\x12\x00" * 1_200_000
    row_filter = schema.Filter(type=2, filter=inner).SerializeToString()

    assert refusal_of(read_row, driver, row_filter)[2] == "Deserialize composite filter failed."


def test_a_request_that_lacks_much_is_refused_in_few_words(driver: Driver) -> None:
    with pytest.raises(ServiceError, match=r"required fields: tables\[0\]\.table_name, .*, \.\.\.\.$") as caught:
        driver.engine.execute("BatchWriteRow", b"\x0a\x00" * 20_000)

    assert len(caught.value.message) < 300


def test_the_largest_batch_is_not_too_many_fields(driver: Driver) -> None:
    rows = [batch_row(PUT, number, *(put(f"c{c}", "v" * 150) for c in range(100))) for number in range(200)]

    assert all(row.is_ok for row in driver.write_batch(rows))


# --- what stays in memory, and what it costs to have it


def start(driver: Driver, number: int) -> str:
    return str(driver.call("StartLocalTransaction", table_name="t", key=frame(number)).transaction_id)


def test_abandoned_transactions_end_with_their_time_and_give_all_back(driver: Driver) -> None:
    for number in range(300):
        start(driver, number)
    transactions = driver.engine._state.transactions
    driver.clock.advance(60)
    driver.put(1, put("x", 1))

    assert not transactions.are_open
    assert transactions.held_bytes == 0


def test_open_transactions_are_bounded_in_number_and_bytes() -> None:
    driver = table_driver(limits=Limits(open_transactions=3, open_transaction_bytes=10_000), key=INTEGER_KEY)
    held = [start(driver, number) for number in range(3)]
    busy = driver.refusal("StartLocalTransaction", table_name="t", key=frame(9))
    large = [
        {"table_name": "t", "row": frame(number, put("x", "v" * 5_000)), **condition_fields(), "transaction_id": name}
        for number, name in enumerate(held)
    ]
    driver.call("PutRow", **large[0])
    full = driver.refusal("PutRow", **large[1])

    assert [answer[:2] for answer in (busy, full)] == [(503, "OTSServerBusy")] * 2
    driver.call("AbortTransaction", transaction_id=held[0])
    driver.call("PutRow", **large[1])
    driver.clock.advance(60)
    assert [start(driver, number) for number in range(3)]


def test_the_rows_of_open_transactions_count_too() -> None:
    """An update of a few bytes copies its whole row, once; and gives all back, whether it commits or not."""
    driver = table_driver(limits=Limits(open_transaction_bytes=100_000), key=TWO_COLUMN_KEY)
    keys = [(("pk", "a"), ("sk", number)) for number in range(9)]
    for key in keys:
        driver.put(key, put("x", "v" * 20_000))
    transactions = driver.engine._state.transactions

    def updated(key: Any, transaction: str) -> None:
        driver.update(key, put("y", 1), transaction_id=transaction)

    for end in ("AbortTransaction", "CommitTransaction"):
        transaction = str(driver.call("StartLocalTransaction", table_name="t", key=frame(keys[0][:1])).transaction_id)
        for key in keys[:4]:
            updated(key, transaction)
        for _ in range(5):
            updated(keys[0], transaction)
        rows = [batch_row(UPDATE, key, put("y", 1)) for key in keys[6:]]
        assert refusal_of(updated, keys[4], transaction)[:2] == (503, "OTSServerBusy")
        atomic = driver.write_batch(rows, is_atomic=True, transaction_id=transaction)
        assert {row.error.code for row in atomic} == {"OTSServerBusy"}
        driver.call(end, transaction_id=transaction)
        assert transactions.held_bytes == 0
    assert [driver.get(key).get("y") for key in keys] == [1] * 4 + [None] * 5


def test_rows_that_are_deleted_are_not_awaited_until_their_time_to_live() -> None:
    driver = table_driver(key=INTEGER_KEY, options={"time_to_live": 86_400})
    awaited = driver.engine._state._expiry._tables
    for number in range(1_500):
        driver.put(number, put("x", 1))
        driver.delete(number)
    for _ in range(50):
        driver.put(1, put("x", 1))

    (entries,) = awaited.values()
    assert len(entries.millis) == 1
    assert len(entries.heap) <= FEW_ENTRIES
    driver.clock.advance(86_401)
    assert driver.table() == {}


def test_split_points_look_at_few_rows_of_many(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = table_driver(limits=Limits(split_unit_bytes=1), key=INTEGER_KEY)
    rows = driver.engine._state.table("t").rows
    for number in range(20_000):
        rows.put(encode_key((number,)), make_row(("pk",), (number,), {"x": ((1, number),)}, 1))
    looked: list[bytes] = []
    get = RowStore.get
    monkeypatch.setattr(RowStore, "get", lambda store, key: looked.append(key) or get(store, key))

    answer = driver.call("ComputeSplitPointsBySize", table_name="t", split_size=200_000, split_size_unit_in_byte=1)

    assert [decode_row(point).primary_key[0][1] for point in answer.split_points] == [10_527]
    assert len(looked) <= 3 * 1_024


@pytest.mark.parametrize(
    "cells",
    [
        [delete_all(f"c{number % 1_000}") for number in range(60_000)],
        [put(f"c{number % 1_000}", True, 1_700_000_000_000 + number) for number in range(30_000)],
        [delete_one("x", number) for number in range(60_000)],
        [increment(f"c{number % 1_000}", 1) for number in range(30_000)],
    ],
    ids=["deletions", "versions", "deleted versions", "increments"],
)
def test_the_cells_of_a_row_are_counted_before_they_are_read(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, cells: list[Any]
) -> None:
    """A cell takes eleven bytes or more, and a hundred times the time of a byte of a value."""
    assert len(frame(1, *cells)) > 256 * 1024
    monkeypatch.setattr(message_frames, "decode_row", Mock(side_effect=AssertionError("it was read")))

    text = refusal_of(driver.update, 1, *cells)[2]

    assert "too many cells, this one has 25001 or more: that exceeds the work" in text


def test_long_values_are_not_many_cells(driver: Driver) -> None:
    """Also where their bytes look like cells."""
    driver.update(1, put("x", b"\x03\x04" * 900_000), put("y", "v" * 2_000_000))
    rows = [batch_row(UPDATE, number, *(put(f"c{c}", 0) for c in range(120))) for number in range(200)]

    assert all(row.is_ok for row in driver.write_batch(rows))
    more = [batch_row(UPDATE, number, *(put(f"c{c}", 0) for c in range(130))) for number in range(200)]
    assert "too many cells" in refusal_of(driver.write_batch, more)[2]
