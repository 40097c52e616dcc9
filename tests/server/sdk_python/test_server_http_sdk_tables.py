"""Table operations of the official Python SDK."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from server_http_tools import sdk_refusal
from tablestore import (
    INF_MAX,
    INF_MIN,
    PK_AUTO_INCR,
    CapacityUnit,
    OTSServiceError,
    ReservedThroughput,
    Row,
    TableMeta,
    TableOptions,
)

from streamclient.server import LocalTablestore
from tests.stage import IGNORE

KEY = [("pk", "STRING"), ("n", "INTEGER")]
NO_RESERVE = ReservedThroughput(CapacityUnit(0, 0))


def test_a_created_table_is_listed_until_it_is_deleted(client: Any, name: str) -> None:
    client.create_table(TableMeta(name, KEY), TableOptions(), NO_RESERVE)
    assert name in client.list_table()

    client.delete_table(name)

    assert name not in client.list_table()


def test_a_table_describes_itself_as_created(client: Any, name: str) -> None:
    meta = TableMeta(
        name, [("a", "BINARY"), ("b", "STRING"), ("c", "INTEGER")], [("col", "DOUBLE"), ("flag", "BOOLEAN")]
    )
    client.create_table(meta, TableOptions(86400, 5, 3600), NO_RESERVE)

    described = client.describe_table(name)

    assert described.table_meta.table_name == name
    assert described.table_meta.schema_of_primary_key == meta.schema_of_primary_key
    assert described.table_meta.defined_columns == meta.defined_columns
    options = described.table_options
    assert (options.time_to_live, options.max_version, options.max_time_deviation) == (86400, 5, 3600)
    client.delete_table(name)


def test_updated_options_are_described(client: Any, table: str) -> None:
    answer = client.update_table(table, TableOptions(time_to_live=172800, max_version=7, max_time_deviation=1000))

    described = client.describe_table(table).table_options
    assert answer.table_options.max_version == 7
    assert (described.time_to_live, described.max_version, described.max_time_deviation) == (172800, 7, 1000)


def test_an_existing_table_is_not_created_again(client: Any, table: str) -> None:
    with pytest.raises(OTSServiceError, match="Requested table already exists") as caught:
        client.create_table(TableMeta(table, KEY), TableOptions(), NO_RESERVE)

    assert (caught.value.get_http_status(), caught.value.get_error_code()) == (409, "OTSObjectAlreadyExist")
    assert caught.value.get_request_id()


def test_a_table_with_split_points_has_a_shard_for_each_range(client: Any, name: str, server: LocalTablestore) -> None:
    if not hasattr(client, "_create_table_ex") or type(client).__name__ == "AsyncFacade":
        pytest.skip("the asynchronous client has no split points")
    client._create_table_ex(TableMeta(name, [("n", "INTEGER")]), TableOptions(), NO_RESERVE, split_points=[100, 200])

    for number in (50, 100, 250):
        client.put_row(name, Row([("n", number)], []), IGNORE)
    _, _, rows, _ = client.get_range(name, "FORWARD", [("n", INF_MIN)], [("n", INF_MAX)])
    assert [row.primary_key for row in rows] == [[("n", 50)], [("n", 100)], [("n", 250)]]
    client.delete_table(name)


def test_an_operation_not_served_is_refused_by_name(client: Any, table: str) -> None:
    unsupported = (400, "OTSParameterInvalid", "Unsupported operation: DeleteSearchIndex.")

    assert sdk_refusal(client.delete_search_index, table, "index") == unsupported


def test_there_are_no_search_indexes_and_no_timeseries_tables(client: Any, table: str) -> None:
    """Clean-up scripts ask before they delete a table."""
    assert list(client.list_search_index(table)) == []


def test_a_local_transaction_commits_and_aborts(client: Any, table: str) -> None:
    key = [("pk", "a"), ("n", 1)]

    def seen(**options: Any) -> list[Any]:
        row = client.get_row(table, key, **options)[1]
        return [] if row is None else [value for _, value, _ in row.attribute_columns]

    for end, after in ((client.abort_transaction, []), (client.commit_transaction, ["new"])):
        transaction = client.start_local_transaction(table, [("pk", "a")])
        client.put_row(table, Row(key, [("x", "new")]), IGNORE, transaction_id=transaction)
        assert (seen(), seen(transaction_id=transaction)) == ([], ["new"])
        end(transaction)
        assert seen() == after


def test_an_auto_increment_key_column_is_described(client: Any, new_table: Callable[..., str]) -> None:
    made = new_table([("pk", "STRING"), ("id", "INTEGER", PK_AUTO_INCR)])

    schema = client.describe_table(made).table_meta.schema_of_primary_key
    assert schema == [("pk", "STRING"), ("id", "INTEGER", PK_AUTO_INCR)]


def test_a_json_operation_is_refused_in_json(client: Any) -> None:
    """The SDK reads answers to these as JSON and would otherwise report that it cannot."""
    if not hasattr(type(client), "list_knowledge_base"):
        pytest.skip("the asynchronous client has no such operation")
    status, code, text = sdk_refusal(client.list_knowledge_base, {})

    assert (status, code, "ListKnowledgeBase" in text) == (400, "OTSParameterInvalid", True)
