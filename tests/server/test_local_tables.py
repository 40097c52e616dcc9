"""Tables and rows that ``LocalTablestore`` makes of plain values, read back by the official SDK over HTTP."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tablestore import INF_MAX, INF_MIN, PK_AUTO_INCR, Condition, OTSClient, OTSServiceError, Row

from streamclient import ConfigurationError, StreamRecord
from streamclient.server import Fail, FaultRule, LocalTablestore, ServiceError
from streamclient.tablestore import TablestoreStreamApi
from tests.stage import make_table

ORDERS: Any = {"orders": {"id": str}}


def row_of(client: OTSClient, table: str, **key: Any) -> dict[str, Any]:
    written = [(name, bytearray(value) if isinstance(value, bytes) else value) for name, value in key.items()]
    _, row, _ = client.get_row(table, written)
    return {} if row is None else {name: value for name, value, _ in row.attribute_columns}


def changes(client: OTSClient, table: str) -> list[StreamRecord]:
    """All records of the one shard of a table."""
    api = TablestoreStreamApi(client)
    (stream,) = api.list_stream(table)
    (shard,) = api.describe_stream(stream.stream_id).shards
    return list(api.get_stream_record(api.get_shard_iterator(stream.stream_id, shard.shard_id)).records)


def test_tables_are_there_with_streams_when_the_server_runs() -> None:
    with LocalTablestore(tables={"orders": {"id": str}, "items": {"shop": int, "code": bytes}}) as local:
        client = local.client()
        keys = {name: client.describe_table(name).table_meta.schema_of_primary_key for name in client.list_table()}
        streams = TablestoreStreamApi(client).list_stream()

    assert keys == {"orders": [("id", "STRING")], "items": [("shop", "INTEGER"), ("code", "BINARY")]}
    assert {stream.table_name for stream in streams} == keys.keys()


def test_rows_are_put_updated_and_deleted_and_the_stream_tells() -> None:
    with LocalTablestore(tables=ORDERS) as local:
        client = local.client()
        local.put("orders", id="a", amount=12, share=0.5, is_new=True, note="x", raw=b"\0")
        put = row_of(client, "orders", id="a")
        local.update("orders", id="a", amount=13, remove=["note", "raw"])
        updated = row_of(client, "orders", id="a")
        local.delete("orders", id="a")
        deleted = row_of(client, "orders", id="a")
        records = changes(client, "orders")

    assert put == {"amount": 12, "share": 0.5, "is_new": True, "note": "x", "raw": b"\0"}
    assert updated == {"amount": 13, "share": 0.5, "is_new": True}
    assert deleted == {}
    assert [record.record_type.name for record in records] == ["PUT", "UPDATE", "DELETE"]
    assert {record.primary_key for record in records} == {(("id", "a"),)}


def test_a_put_replaces_the_whole_row_and_the_order_of_arguments_does_not_matter() -> None:
    with LocalTablestore(tables={"items": {"shop": int, "code": bytes}}) as local:
        local.put("items", amount=1, note="x", code=b"c", shop=7)
        local.put("items", shop=7, amount=2, code=b"c")
        assert row_of(local.client(), "items", shop=7, code=b"c") == {"amount": 2}


def test_columns_may_have_the_names_of_parameters() -> None:
    with LocalTablestore(tables=ORDERS) as local:
        local.put("orders", id="a", **{"self": 1, "table": 2, "a b": 3, "remove": 4})
        local.update("orders", id="a", table=5)
        assert row_of(local.client(), "orders", id="a") == {"self": 1, "table": 5, "a b": 3, "remove": 4}


def test_the_keys_of_tables_made_by_others_are_looked_up() -> None:
    with LocalTablestore() as local:
        client = local.client()
        make_table(client, "items", (("shop", "INTEGER"), ("code", "BINARY")))
        local.put("items", shop=7, code=b"c", amount=1)
        client.delete_table("items")
        make_table(client, "items", (("id", "STRING"),))
        local.put("items", id="a", amount=2)

        assert row_of(client, "items", id="a") == {"amount": 2}


def test_a_generated_key_column_may_be_left_out() -> None:
    with LocalTablestore() as local:
        client = local.client()
        make_table(client, "log", [("day", "STRING"), ("line", "INTEGER", PK_AUTO_INCR)])  # type: ignore[list-item]
        local.put("log", day="monday", text="x")
        _, _, rows, _ = client.get_range(
            "log", "FORWARD", [("day", INF_MIN), ("line", INF_MIN)], [("day", INF_MAX), ("line", INF_MAX)]
        )
        (row,) = rows
        local.update("log", day="monday", line=row.primary_key[1][1], text="y")

        assert row_of(client, "log", day="monday", line=row.primary_key[1][1]) == {"text": "y"}
        with pytest.raises(ConfigurationError, match="key column 'line' is missing"):
            local.delete("log", day="monday")


def test_faults_and_counters_do_not_meet_these_rows() -> None:
    with LocalTablestore(tables=ORDERS) as local:
        local.add_fault(FaultRule("*", Fail("OTSServerBusy")))
        local.put("orders", id="a", amount=1)
        assert list(local.requests()) == []
        assert local.clear_faults() == 1
        assert row_of(local.client(), "orders", id="a") == {"amount": 1}


def test_a_row_in_a_transaction_is_refused_as_by_the_service() -> None:
    with LocalTablestore(tables=ORDERS) as local:
        client = local.client()
        transaction = client.start_local_transaction("orders", [("id", "a")])
        client.put_row("orders", Row([("id", "a")], [("amount", 1)]), Condition("IGNORE"), transaction_id=transaction)
        with pytest.raises(ServiceError, match="OTSRowOperationConflict"):
            local.put("orders", id="a", amount=2)


def test_a_data_directory_keeps_its_tables(tmp_path: Path) -> None:
    with LocalTablestore(tables=ORDERS, data_dir=tmp_path) as local:
        local.put("orders", id="a", amount=1)
    with LocalTablestore(tables={**ORDERS, "items": {"id": int}}, data_dir=tmp_path) as local:
        assert row_of(local.client(), "orders", id="a") == {"amount": 1}
        assert sorted(local.client().list_table()) == ["items", "orders"]

    other = LocalTablestore(tables={"orders": {"id": int}}, data_dir=tmp_path)
    with pytest.raises(ConfigurationError, match=r"'orders' exists with the key id \(str\), not id \(int\); "):
        other.start()
    with LocalTablestore(data_dir=tmp_path) as local:  # the refused one holds it no more
        assert "orders" in local.client().list_table()


COLUMNS = st.dictionaries(
    st.text(min_size=1, max_size=5).filter(lambda name: name != "id" and not name.startswith("#")),
    st.integers(-(2**63), 2**63 - 1)
    | st.booleans()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
    | st.binary(max_size=5),
    max_size=4,
)


@pytest.mark.slow
def test_whatever_is_put_comes_back_by_the_stream() -> None:
    with LocalTablestore(tables=ORDERS) as local:
        client = local.client()

        @given(values=COLUMNS)
        def comes_back(values: dict[str, Any]) -> None:
            local.put("orders", id="a", **values)
            assert changes(client, "orders")[-1].apply_to(None) == {"id": "a", **values}

        comes_back()


# --- clearing ---------------------------------------------------------------------------------------------------------


def test_clear_leaves_nothing_but_the_server() -> None:
    with LocalTablestore(tables=ORDERS) as local:
        client, seen = local.client(), list[Any]()
        make_table(client, "items")
        local.observe(seen.append)
        local.add_fault(FaultRule("*", Fail("OTSServerBusy")))
        local.clear()

        assert [*local.faults(), *local.requests()] == []
        assert [*client.list_table(), *TablestoreStreamApi(client).list_stream()] == []
        assert seen == []
        make_table(client, "orders", [("other", "INTEGER")])
        local.put("orders", other=1)


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ("orders", r"^tables must be a mapping of tables to their key columns, such as .*, or None, not 'orders'$"),
        ({"orders": "id"}, r"^tables must be a mapping of tables to their key columns"),
        ({7: {"id": str}}, "^the name of a table must be a non-empty string, not 7$"),
        ({"orders": {7: str}}, "^the name of a key column of table 'orders' must be a non-empty string, not 7$"),
        ({"orders": {"id": "STRING"}}, "^key column 'id' of table 'orders' must be int, str or bytes, not 'STRING'$"),
        ({"orders": {"id": float}}, "^key column 'id' of table 'orders' must be .*, not <class 'float'>$"),
        ({"orders": {"id": bool}}, "^key column 'id' of table 'orders' must be int, str or bytes"),
        ({"orders": {}}, "^table 'orders' cannot be made: The number of primary key columns must be in range"),
        ({"or ders": {"id": str}}, "^table 'or ders' cannot be made: Invalid table name"),
        ({"orders": {"i d": str}}, "^table 'orders' cannot be made: Invalid column name"),
    ],
)
def test_tables_that_cannot_be_are_refused_when_the_server_is_made(tables: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        LocalTablestore(tables=tables)


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda local: local.put("items", id="a"), "^table 'items' does not exist; .* has these tables: orders"),
        (lambda local: local.put(7, id="a"), "^table must be a non-empty string, not 7$"),
        (lambda local: local.put("orders", amount=1), r"^key column 'id' is missing; .* 'orders' is id \(str\)$"),
        (lambda local: local.put("orders", id=7), "^key column 'id' of table 'orders' must be of type str, not 7$"),
        (lambda local: local.put("orders", id="a", amount=None), "'orders' cannot be written: .*'amount'"),
        (lambda local: local.put("orders", id="a", amount=[1]), r"'orders' cannot be written: .*\[1\]"),
        (lambda local: local.put("orders", id="a", amount=2**63), "'orders' cannot be written: .* 64 bits"),
        (lambda local: local.put("orders", id="a", amount=float("nan")), "cannot be written: NaN"),
        (lambda local: local.put("orders", id="a", **{"#x": 1}), "cannot be written: Invalid column name"),
        (lambda local: local.put("orders", id="a" * 2_000), "cannot be written: .* MaxLength:1024"),
        (lambda local: local.update("orders", id="a"), "^an update of table 'orders' must set a column, or remove="),
        (lambda local: local.update("orders", id="a", remove="note"), "^remove must be a sequence of .*, not 'note'$"),
        (lambda local: local.update("orders", id="a", n=1, remove=["n"]), "^column 'n' cannot be removed: it is set"),
        (lambda local: local.update("orders", id="a", remove=["id"]), "^column 'id' cannot be removed: .* in the key$"),
        (lambda local: local.update("orders", n=1), "^key column 'id' is missing"),
        (lambda local: local.delete("orders"), "^key column 'id' is missing"),
        (lambda local: local.delete("orders", id="a", n=1), r"^'n' is not in the key of .* 'orders', .* id \(str\)$"),
    ],
)
def test_rows_that_cannot_be_are_refused_and_change_nothing(
    write: Callable[[LocalTablestore], None], message: str
) -> None:
    with LocalTablestore(tables=ORDERS) as local:
        local.put("orders", id="a", note="x")
        with pytest.raises(ConfigurationError, match=message):
            write(local)
        assert row_of(local.client(), "orders", id="a") == {"note": "x"}
        assert len(changes(local.client(), "orders")) == 1


def test_a_truth_value_is_no_number_in_a_key() -> None:
    with (
        LocalTablestore(tables={"items": {"id": int}}) as local,
        pytest.raises(ConfigurationError, match=r"must be of type int, not True$"),
    ):
        local.put("items", id=True)


@pytest.mark.parametrize(
    "call",
    [
        lambda local: local.put("orders", id="a"),
        lambda local: local.update("orders", id="a", n=1),
        lambda local: local.delete("orders", id="a"),
        lambda local: local.clear(),
    ],
)
def test_a_server_that_does_not_run_takes_nothing(call: Callable[[LocalTablestore], None]) -> None:
    local = LocalTablestore(tables=ORDERS)
    with pytest.raises(RuntimeError, match="is not running"):
        call(local)
    with local:
        pass
    with pytest.raises(RuntimeError, match="is not running"):
        call(local)


def test_a_table_that_was_dropped_is_made_again_by_the_next_start() -> None:
    local = LocalTablestore(tables=ORDERS)
    for _ in range(2):
        with local:
            local.put("orders", id="a")
            local.client().delete_table("orders")
            with pytest.raises(OTSServiceError, match="does not exist"):
                local.client().get_row("orders", [("id", "a")])
