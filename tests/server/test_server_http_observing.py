"""Observers hear of every authentic request, in order, with its caller and its answer."""

from __future__ import annotations

import pytest
from tablestore import Condition, NoRetryPolicy, OTSServiceError, Row, RowExistenceExpectation
from urllib3.exceptions import HTTPError

from streamclient.server import Exchange, FaultRule, LocalTablestore, LoseAnswer
from streamclient.wire import schema
from tests.stage import make_table


def test_observer_hears_who_asked_for_what_and_what_was_answered(local: LocalTablestore) -> None:
    heard: list[Exchange] = []
    local.observe(heard.append)
    one = local.client(sts_token="worker one", retry_policy=NoRetryPolicy())
    make_table(one, "t")
    local.client().put_row("t", Row([("id", "a")], [("n", 1)]))
    with pytest.raises(OTSServiceError):
        one.put_row("t", Row([("id", "a")], [("n", 1)]), Condition(RowExistenceExpectation.EXPECT_NOT_EXIST))

    told = [(one.caller, one.operation, one.tables, one.http_status) for one in heard]
    assert told == [
        ("worker one", "CreateTable", ("t",), 200),
        ("", "PutRow", ("t",), 200),
        ("worker one", "PutRow", ("t",), 403),
    ]
    assert schema.parse(schema.OPERATIONS["PutRow"].request, heard[1].request).table_name == "t"
    assert schema.parse(schema.Error, heard[2].answer).code == "OTSConditionCheckFail"


def test_observer_hears_of_what_was_done_and_never_answered(local: LocalTablestore) -> None:
    heard: list[str] = []
    client = local.client(retry_policy=NoRetryPolicy())
    local.observe(lambda exchange: heard.append(exchange.operation))
    local.add_fault(FaultRule("ListTable", LoseAnswer()))
    with pytest.raises(HTTPError):
        client.list_table()

    assert heard == ["ListTable"]


def test_failing_observer_harms_neither_the_request_nor_the_next_observer(local: LocalTablestore) -> None:
    heard: list[str] = []
    local.observe(lambda exchange: 1 / 0)
    local.observe(lambda exchange: heard.append(exchange.operation))

    assert local.client().list_table() == ()
    assert heard == ["ListTable"]
