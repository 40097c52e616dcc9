"""Local transactions: scope, locks, what is seen from inside and outside, their end, and what the stream shows."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import Any

import pytest
from server_state_driver import (
    EXIST,
    GENERATED_KEY,
    NOT_EXIST,
    PUT,
    TWO_COLUMN_KEY,
    Disk,
    Driver,
    batch_row,
    creation,
    delete_all,
    frame,
    increment,
    put,
    refusal_of,
    single,
    stream_driver,
    table_driver,
    values,
)

from streamclient.records import RecordType
from streamclient.server.server_errors import ServiceError
from streamclient.server.server_limits import Limits
from streamclient.wire import schema
from streamclient.wire.plainbuffer import KeyBound, decode_row, decode_rows, encode_value
from streamclient.wire.schema import ComparatorType

CONFLICT = (409, "OTSRowOperationConflict", "Data is being modified by the other request.")
INVALID_ID = (400, "OTSParameterInvalid", "TransactionID is invalid.")
GONE = (404, "OTSSessionNotExist", "Session not exist or may be timeout.")
LOW, HIGH = KeyBound.INF_MIN, KeyBound.INF_MAX


def key(partition: Any = "a", number: Any = 1) -> tuple[tuple[str, Any], ...]:
    return ("pk", partition), ("sk", number)


def starting(partition: Any = "a", numbers: Iterable[int] = (), table: str = "t") -> dict[str, Any]:
    """A request to start a transaction on a partition key, or only on the rows with these numbers."""
    row_keys = [frame(key(partition, number)) for number in numbers]
    return {"table_name": table, "key": frame((("pk", partition),)), "row_keys": row_keys}


def start(driver: Driver, partition: Any = "a", table: str = "t", numbers: Iterable[int] = ()) -> str:
    return str(driver.call("StartLocalTransaction", **starting(partition, numbers, table)).transaction_id)


def commit(driver: Driver, transaction_id: str) -> None:
    driver.call("CommitTransaction", transaction_id=transaction_id)


def abort(driver: Driver, transaction_id: str) -> None:
    driver.call("AbortTransaction", transaction_id=transaction_id)


def rows(driver: Driver, start_key: Any, end_key: Any, **fields: Any) -> list[tuple[Any, dict[str, Any]]]:
    answer = driver.range_page(start_key, end_key, **fields)
    return [(row.primary_key[1][1], values(row)) for row in decode_rows(answer.rows)]


def refused_start(driver: Driver, **request: Any) -> tuple[int, str, str]:
    return driver.refusal("StartLocalTransaction", **request)


@pytest.fixture
def driver() -> Driver:
    return stream_driver(key=TWO_COLUMN_KEY, origin=["x"], options={"max_versions": 2})


WRITES: dict[str, list[Any]] = {
    "put": [("put", put("x", "new"))],
    "update": [("update", put("x", "new"))],
    "delete": [("delete",)],
    "put twice": [("put", put("y", 1)), ("put", put("x", "new"))],
}


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("committed", [True, False], ids=["committed", "aborted"])
def test_writes_are_seen_inside_at_once_and_outside_after_the_commit(
    driver: Driver, name: str, committed: bool
) -> None:
    driver.put(key(), put("x", "old"))
    transaction_id = start(driver)
    for kind, *cells in WRITES[name]:
        getattr(driver, kind)(key(), *cells, transaction_id=transaction_id)

    inside = driver.get(key(), transaction_id=transaction_id)
    assert inside == (None if name == "delete" else {"x": "new"})
    assert driver.get(key()) == {"x": "old"}
    assert len(driver.all_records()) == 1
    (commit if committed else abort)(driver, transaction_id)
    assert driver.get(key()) == (inside if committed else {"x": "old"})


def test_a_batch_is_part_of_a_transaction(driver: Driver) -> None:
    transaction_id = start(driver)
    rows_of_a = [batch_row(PUT, key("a", number), put("x", number)) for number in range(3)]
    stray = batch_row(PUT, key("b", 1), put("x", 1))

    answers = driver.write_batch([*rows_of_a, stray], transaction_id=transaction_id)
    assert [row.error.code for row in answers] == ["", "", "", "OTSDataOutOfRange"]
    again = driver.write_batch(rows_of_a, transaction_id=transaction_id, is_atomic=True)
    assert [row.is_ok for row in again] == [True] * 3

    assert rows(driver, key("a", LOW), key("a", HIGH)) == []
    inside = rows(driver, key("a", LOW), key("a", HIGH), transaction_id=transaction_id)
    assert inside == [(number, {"x": number}) for number in range(3)]
    commit(driver, transaction_id)
    assert rows(driver, key("a", LOW), key("a", HIGH)) == inside


def test_a_range_inside_merges_own_and_committed_rows_both_ways(driver: Driver) -> None:
    driver.put_each([key("a", number) for number in (1, 2, 3, 5)], put("x", "old"))
    transaction_id = start(driver)
    driver.put(key("a", 4), put("x", "new"), transaction_id=transaction_id)
    driver.update(key("a", 2), put("x", "new"), transaction_id=transaction_id)
    driver.delete(key("a", 3), transaction_id=transaction_id)

    expected = [(1, {"x": "old"}), (2, {"x": "new"}), (4, {"x": "new"}), (5, {"x": "old"})]
    low, high = key("a", LOW), key("a", HIGH)
    assert rows(driver, low, high, transaction_id=transaction_id) == expected
    assert rows(driver, high, low, backward=True, transaction_id=transaction_id) == expected[::-1]
    page = driver.range_page(low, high, transaction_id=transaction_id, limit=2)
    assert decode_row(page.next_start_primary_key).primary_key == key("a", 4)


def test_conditions_see_own_writes(driver: Driver) -> None:
    inside = {"transaction_id": start(driver)}
    is_2 = single(ComparatorType.EQUAL, "n", encode_value(2))

    driver.put(key(), put("n", 1), expect=NOT_EXIST, **inside)
    driver.update(key(), increment("n", 1), expect=EXIST, **inside)
    driver.update(key(), put("seen", 2), column_condition=is_2, **inside)
    assert refusal_of(driver.put, key(), put("n", 9), expect=NOT_EXIST, **inside)[1] == "OTSConditionCheckFail"
    commit(driver, inside["transaction_id"])
    assert driver.get(key()) == {"n": 2, "seen": 2}


def test_the_stream_shows_the_commit_and_nothing_else(driver: Driver) -> None:
    driver.put(key(), put("x", "old"))
    aborted = start(driver, "b")
    driver.put(key("b"), put("x", 0), transaction_id=aborted)
    abort(driver, aborted)
    transaction_id = start(driver)
    driver.update(key(), put("x", "new"), transaction_id=transaction_id)
    written_micros = driver.wall.micros
    driver.wall.micros += 30_000_000
    driver.put(key("a", 2), put("x", 5), transaction_id=transaction_id)
    driver.delete(key(), transaction_id=transaction_id)
    driver.put(key("c"), put("x", "between"))
    before_commit = driver.wall.micros
    commit(driver, transaction_id)

    records = driver.all_records()

    assert [record.key["pk"] for record in records] == ["a", "c", "a", "a", "a"]
    own = records[2:]
    assert [record.record_type for record in own] == [RecordType.UPDATE, RecordType.PUT, RecordType.DELETE]
    assert [record.sequence_info.row_index for record in own] == [0, 1, 2]
    assert len({(record.sequence_info.epoch, record.sequence_info.timestamp_micros) for record in own}) == 1
    assert own[0].sequence_info.timestamp_micros >= before_commit
    assert [column.timestamp_millis for column in own[0].columns] == [written_micros // 1000]
    originals = [[column.value for column in record.original_columns or ()] for record in own]
    assert originals == [["old"], [], ["new"]]


def test_only_one_transaction_holds_a_partition_key(driver: Driver) -> None:
    transaction_id = start(driver)
    driver.create("u", TWO_COLUMN_KEY)

    assert driver.refusal("StartLocalTransaction", table_name="t", key=frame((("pk", "a"),))) == CONFLICT
    start(driver, "b")
    start(driver, "a", "u")
    commit(driver, transaction_id)
    start(driver)


def test_others_may_not_write_to_the_partition_key(driver: Driver) -> None:
    driver.put(key(), put("x", "old"))
    transaction_id = start(driver)
    other = start(driver, "b")

    for own, expected in ((None, CONFLICT[:2]), (other, (400, "OTSDataOutOfRange"))):
        assert refusal_of(driver.put, key(), put("x", 1), transaction_id=own)[:2] == expected
        assert refusal_of(driver.update, key("a", 2), put("x", 1), transaction_id=own)[:2] == expected
        assert refusal_of(driver.delete, key(), transaction_id=own)[:2] == expected
    mixed = [batch_row(PUT, key(name), put("x", 1)) for name in ("a", "c")]
    answers = driver.write_batch(mixed)
    assert [row.error.code for row in answers] == ["OTSRowOperationConflict", ""]
    atomic = driver.write_batch(mixed[:1] * 2, is_atomic=True)
    assert [row.error.code for row in atomic] == ["OTSRowOperationConflict"] * 2
    imported = schema.RowInBulkImportRequest(type=1, row_change=frame(key(), put("x", 1)))
    bulk = driver.call("BulkImport", table_name="t", rows=[imported])
    assert [row.error.code for row in bulk.rows] == ["OTSRowOperationConflict"]

    abort(driver, transaction_id)
    driver.put(key(), put("x", "free"))


def test_a_refused_request_leaves_the_transaction_open(driver: Driver) -> None:
    transaction_id = start(driver)
    outside = "Data out of scope of transaction. Transaction PartKey:a. Data PartKey:b"
    inside = {"transaction_id": transaction_id}

    assert refusal_of(driver.put, key("b"), put("x", 1), **inside) == (400, "OTSDataOutOfRange", outside)
    assert refusal_of(driver.get_row, key("b"), **inside) == (400, "OTSDataOutOfRange", outside)
    for bounds in ((key("a", LOW), key("b", LOW)), (key("a", LOW), key(HIGH, HIGH)), (key(LOW, LOW), key("a", 1))):
        assert refusal_of(driver.range_page, *bounds, **inside)[1] == "OTSDataOutOfRange"
    driver.create("u", TWO_COLUMN_KEY)
    assert refusal_of(driver.get_row, key(), "u", **inside)[1] == "OTSDataOutOfRange"
    driver.put(key(), put("x", 1), transaction_id=transaction_id)
    commit(driver, transaction_id)
    assert driver.get(key()) == {"x": 1}


MALFORMED = ["", "not existed transaction id", "fake_transaction_id", base64.b64encode(b"x" * 40).decode(), "AAAA"]


@pytest.mark.parametrize("transaction_id", MALFORMED)
def test_a_text_that_is_no_id_is_refused_as_such(driver: Driver, transaction_id: str) -> None:
    assert refusals_inside(driver, transaction_id) == [INVALID_ID] * 8


def refusals_inside(driver: Driver, transaction_id: str) -> list[tuple[int, str, str]]:
    """The refusal of each operation inside the transaction."""
    rows = [batch_row(PUT, key(), put("x", 1))]
    return [
        refusal_of(act, *arguments, transaction_id=transaction_id)
        for act, *arguments in (
            (driver.call, "CommitTransaction"),
            (driver.call, "AbortTransaction"),
            (driver.put, key(), put("x", 1)),
            (driver.update, key(), delete_all("x")),
            (driver.delete, key()),
            (driver.write_batch, rows),
            (driver.get_row, key()),
            (driver.range_page, key("a", LOW), key("a", HIGH)),
        )
    ]


def ended_by_time(driver: Driver, transaction_id: str) -> None:
    driver.clock.advance(60)


def ended_with_its_table(driver: Driver, transaction_id: str) -> None:
    driver.call("DeleteTable", table_name="t")
    driver.create(key=TWO_COLUMN_KEY)


@pytest.mark.parametrize("numbers", [(), (1, 2)], ids=["partition key", "rows"])
@pytest.mark.parametrize("end", [commit, abort, ended_by_time, ended_with_its_table])
def test_an_ended_transaction_is_not_found_and_frees_its_key(
    driver: Driver, end: Any, numbers: tuple[int, ...]
) -> None:
    transaction_id = start(driver, numbers=numbers)
    driver.put(key(), put("x", 1), transaction_id=transaction_id)

    end(driver, transaction_id)

    assert refusals_inside(driver, transaction_id) == [GONE] * 8
    assert driver.get(key()) == ({"x": 1} if end is commit else None)
    driver.put(key(), put("x", 2))
    start(driver)


def test_a_transaction_lives_for_a_minute(driver: Driver) -> None:
    transaction_id = start(driver)
    driver.clock.advance(59.9)
    assert driver.refusal("StartLocalTransaction", table_name="t", key=frame((("pk", "a"),))) == CONFLICT
    commit(driver, transaction_id)


@pytest.mark.parametrize("numbers", [(), (1,)], ids=["partition key", "rows"])
def test_a_restarted_server_knows_no_open_transaction(disk: Disk, numbers: tuple[int, ...]) -> None:
    driver = disk.with_table(key=TWO_COLUMN_KEY)
    transaction_id = start(driver, numbers=numbers)
    driver.put(key(), put("x", 1), transaction_id=transaction_id)

    driver = disk.opened()

    assert driver.refusal("CommitTransaction", transaction_id=transaction_id) == GONE
    assert driver.table(columns=("pk", "sk")) == {}
    driver.put(key(), put("x", 2))


def test_a_transaction_holds_so_many_bytes() -> None:
    driver = table_driver(limits=Limits(transaction_bytes=100), key=TWO_COLUMN_KEY)
    transaction_id = start(driver)
    # Key names 4, key values 1 and 8, column name 1.
    driver.put(key(), put("x", "v" * 46), transaction_id=transaction_id)
    fits, too_large = (put("x", "v" * size) for size in (26, 27))

    refused = refusal_of(driver.put, key("a", 2), too_large, transaction_id=transaction_id)
    assert refused[:2] == (400, "OTSOutOfTransactionDataSizeLimit")
    batch = [batch_row(PUT, key("a", 2), too_large)]
    (answer,) = driver.write_batch(batch, transaction_id=transaction_id, is_atomic=True)
    assert answer.error.code == "OTSOutOfTransactionDataSizeLimit"
    driver.put(key("a", 2), fits, transaction_id=transaction_id)
    commit(driver, transaction_id)
    assert len(driver.table(columns=("pk", "sk"))) == 2


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"key": frame(key())}, (400, "OTSParameterInvalid", "StartLocalTransaction support only one primary key.")),
        ({"table_name": "", "key": frame(key())}, (400, "OTSParameterInvalid", "Invalid table name: ''.")),
        ({"table_name": "u"}, (404, "OTSObjectNotExist", "Requested table does not exist.")),
        ({"key": frame((("no", "a"),))}, (400, "OTSInvalidPK", "Validate PK name fail. Input: no, Meta: pk.")),
        (
            {"key": frame((("pk", 1),))},
            (400, "OTSInvalidPK", "Validate PK type fail. Input: VT_INTEGER, Meta: VT_STRING."),
        ),
        (
            {"key": frame((("pk", LOW),))},
            (400, "OTSParameterInvalid", "VT_INF_MIN is an invalid type for the primary key."),
        ),
    ],
)
def test_a_transaction_starts_on_one_value_of_the_first_key_column(
    driver: Driver, fields: dict[str, Any], expected: tuple[int, str, str]
) -> None:
    request = {"table_name": "t", "key": frame((("pk", "a"),)), **fields}

    assert driver.refusal("StartLocalTransaction", **request) == expected


DISABLED = "Try to call method using explicit transaction on explicit-transaction-disabled table."


def test_a_table_says_at_its_creation_whether_it_has_transactions(disk: Disk) -> None:
    driver = disk.with_table(name="on", key=TWO_COLUMN_KEY, enable_local_txn=True)
    driver.create("off", TWO_COLUMN_KEY, enable_local_txn=False)
    driver.create("unsaid", TWO_COLUMN_KEY)
    driver.create("generated", GENERATED_KEY)
    driver = disk.opened()

    for table in ("on", "unsaid"):
        commit(driver, start(driver, "a", table))
    for table in ("off", "generated"):
        request = {"table_name": table, "key": frame((("pk", "a"),))}
        assert driver.refusal("StartLocalTransaction", **request) == (400, "OTSParameterInvalid", DISABLED)
    with pytest.raises(ServiceError, match="AUTO_INCREMENT"):
        driver.call("CreateTable", **creation("both", GENERATED_KEY, enable_local_txn=True))


# --- transactions with row keys


def test_row_keys_lock_these_rows_and_no_others(driver: Driver) -> None:
    transaction_id = start(driver, numbers=(1, 2))
    other = start(driver, numbers=(3,))

    for number in (1, 2, 3):
        assert refusal_of(driver.put, key("a", number), put("x", 1)) == CONFLICT
        assert refusal_of(driver.update, key("a", number), put("x", 1)) == CONFLICT
        assert refusal_of(driver.delete, key("a", number)) == CONFLICT
    batch = [batch_row(PUT, key("a", number), put("x", number)) for number in (1, 4)]
    assert [row.error.code for row in driver.write_batch(batch)] == ["OTSRowOperationConflict", ""]
    assert [row.error.code for row in driver.write_batch(batch, is_atomic=True)] == ["OTSRowOperationConflict"] * 2
    imported = [schema.RowInBulkImportRequest(type=1, row_change=frame(key("a", number))) for number in (2, 5)]
    bulk = driver.call("BulkImport", table_name="t", rows=imported)
    assert [row.error.code for row in bulk.rows] == ["OTSRowOperationConflict", ""]
    assert rows(driver, key("a", LOW), key("a", HIGH)) == [(4, {"x": 4}), (5, {})]

    abort(driver, transaction_id)
    driver.put(key(), put("x", "free"))
    assert refusal_of(driver.put, key("a", 3), put("x", 1)) == CONFLICT
    abort(driver, other)
    driver.put(key("a", 3), put("x", "free"))


def test_transactions_of_one_partition_key_need_different_rows(driver: Driver) -> None:
    transaction_id = start(driver, numbers=(1, 2))

    assert refused_start(driver, **starting(numbers=(5, 2))) == CONFLICT
    assert refused_start(driver, **starting()) == CONFLICT
    driver.put(key("a", 5), put("x", "not locked by the refused transaction"))
    start(driver, "b", numbers=(1, 2))
    others = [start(driver, numbers=(number,)) for number in (3, 5)]
    for each in (transaction_id, others[0]):
        abort(driver, each)
        assert refused_start(driver, **starting()) == CONFLICT
    abort(driver, others[1])
    whole = start(driver)
    assert refused_start(driver, **starting(numbers=(9,))) == CONFLICT
    abort(driver, whole)
    start(driver, numbers=(9,))


def test_a_transaction_with_row_keys_uses_its_rows_only(driver: Driver) -> None:
    driver.put_each([key("a", 1), key("a", 9)], put("x", "old"))
    transaction_id = start(driver, numbers=(1, 2))
    inside = {"transaction_id": transaction_id}
    strange = "Data out of scope of transaction. Data PrimaryKey:a,9 is not among the row keys of the transaction."
    foreign = "Data out of scope of transaction. Transaction PartKey:a. Data PartKey:b"

    for other, text in ((key("a", 9), strange), (key("b", 1), foreign)):
        expected = (400, "OTSDataOutOfRange", text)
        assert refusal_of(driver.put, other, put("x", 1), **inside) == expected
        assert refusal_of(driver.update, other, put("x", 1), **inside) == expected
        assert refusal_of(driver.delete, other, **inside) == expected
        assert refusal_of(driver.get_row, other, **inside) == expected
    for bounds in ((key("a", LOW), key("a", HIGH)), (key("a", 1), key("a", 2))):
        assert refusal_of(driver.range_page, *bounds, **inside)[:2] == (400, "OTSDataOutOfRange")
    batch = [batch_row(PUT, key("a", number), put("x", "new")) for number in (2, 9)]
    assert [row.error.code for row in driver.write_batch(batch, **inside)] == ["", "OTSDataOutOfRange"]
    atomic = driver.write_batch(batch[::-1], is_atomic=True, **inside)
    assert [row.error.code for row in atomic] == ["OTSDataOutOfRange"] * 2
    driver.update(key(), put("x", "new"), **inside)
    assert [driver.get(key("a", number), **inside) for number in (1, 2)] == [{"x": "new"}] * 2

    assert rows(driver, key("a", LOW), key("a", HIGH)) == [(1, {"x": "old"}), (9, {"x": "old"})]
    commit(driver, transaction_id)
    assert rows(driver, key("a", LOW), key("a", HIGH)) == [
        (1, {"x": "new"}),
        (2, {"x": "new"}),
        (9, {"x": "old"}),
    ]


def test_transactions_on_different_rows_commit_in_any_order(driver: Driver) -> None:
    first, second = start(driver, numbers=(1,)), start(driver, numbers=(2,))
    driver.put(key("a", 1), put("x", "first"), transaction_id=first)
    driver.put(key("a", 2), put("x", "second"), transaction_id=second)
    driver.put(key("a", 3), put("x", "outside"))

    commit(driver, second)
    assert refusal_of(driver.put, key("a", 1), put("x", 1)) == CONFLICT
    commit(driver, first)

    expected = [(1, {"x": "first"}), (2, {"x": "second"}), (3, {"x": "outside"})]
    assert rows(driver, key("a", LOW), key("a", HIGH)) == expected
    assert [record.columns[0].value for record in driver.all_records()] == ["outside", "second", "first"]


def test_row_keys_lock_in_a_table_with_one_key_column() -> None:
    driver = table_driver()
    fields = {"table_name": "t", "key": frame("a")}
    transaction_id = str(driver.call("StartLocalTransaction", **fields, row_keys=[frame("a")] * 2).transaction_id)

    assert refusal_of(driver.put, "a", put("x", 1)) == CONFLICT
    assert refused_start(driver, **fields) == CONFLICT
    driver.put("a", put("x", 1), transaction_id=transaction_id)
    commit(driver, transaction_id)
    assert driver.get("a") == {"x": 1}


INVALID_ROW_KEYS = [
    (b"\x01\x02", "OTSParameterInvalid", "Cell data broken"),
    (frame(()), "OTSParameterInvalid", "Cell data broken, empty PK."),
    (frame(key("a", HIGH)), "OTSParameterInvalid", "VT_INF_MAX is an invalid type for the primary key."),
    (frame(key(), put("x", 1)), "OTSParameterInvalid", "Attribute column cannot be given while reading data."),
    (frame((("pk", "a"),)), "OTSInvalidPK", "Validate PK size fail. Input: 1, Meta: 2."),
    (frame(key("a", "b")), "OTSInvalidPK", "Validate PK type fail. Input: VT_STRING, Meta: VT_INTEGER."),
    (frame(key("b")), "OTSDataOutOfRange", "Data out of scope of transaction. Transaction PartKey:a. Data PartKey:b"),
]


@pytest.mark.parametrize(
    ("row_key", "code", "words"),
    INVALID_ROW_KEYS,
    ids=["undecodable", "empty", "bound", "cells", "too few columns", "wrong type", "another partition key"],
)
def test_a_row_key_is_the_key_of_a_row_with_the_partition_key(
    driver: Driver, row_key: bytes, code: str, words: str
) -> None:
    status, given, text = refused_start(driver, **{**starting(), "row_keys": [frame(key()), row_key]})

    assert (status, given) == (400, code)
    assert text.startswith(words)
    start(driver)


def test_a_transaction_starts_with_at_most_200_row_keys(driver: Driver) -> None:
    text = "The number of row keys in StartLocalTransaction exceeds the limit, limit count: 200, row count: 201."

    assert refused_start(driver, **starting(numbers=range(201))) == (400, "OTSParameterInvalid", text)
    start(driver, numbers=range(200))


def test_locks_on_rows_count_as_memory_of_open_transactions() -> None:
    driver = table_driver(limits=Limits(open_transaction_bytes=10_000), key=TWO_COLUMN_KEY)
    transactions = driver.engine._state.transactions

    for end in (commit, abort):
        transaction_id = start(driver, numbers=range(30))
        assert refused_start(driver, **starting("b", range(30)))[:2] == (503, "OTSServerBusy")
        driver.put(key("b"), put("x", "not locked by the refused transaction"))
        end(driver, transaction_id)
        assert transactions.held_bytes == 0
    start(driver, "b", numbers=range(30))
