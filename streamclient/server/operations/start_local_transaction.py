"""The operation StartLocalTransaction, which starts a transaction on one partition key."""

from __future__ import annotations

from typing import Any, cast

from attrs import frozen

from streamclient.records import KeyValue
from streamclient.server import refusals
from streamclient.server.operation import ServedOperation, own_table
from streamclient.server.server_limits import Limits
from streamclient.server.server_state import ServerState
from streamclient.server.stored_tables import Key, check_leading_key
from streamclient.server.validation.message_frames import read_key
from streamclient.server.validation.table_names import check_table_name
from streamclient.wire import schema


@frozen
class StartLocalTransaction:
    """A validated request of StartLocalTransaction."""

    table_name: str
    partition_key: Key
    """The partition key: the name and value of the first key column."""


def _validate(request: Any, limits: Limits) -> StartLocalTransaction:
    table_name = check_table_name(request.table_name, limits)
    key = read_key(request.key, limits)
    if len(key) != 1:
        raise refusals.TRANSACTION_KEY()
    return StartLocalTransaction(table_name, key)


def _act(state: ServerState, request: StartLocalTransaction) -> Any:
    """Start a transaction that holds the partition key.

    Raises:
        ServiceError: the table does not allow transactions, or another transaction holds the partition key.
    """
    table = state.table(request.table_name)
    if not table.definition.allows_transactions:
        raise refusals.TRANSACTIONS_OFF()
    check_leading_key(table.definition, request.partition_key)
    value = cast(KeyValue, request.partition_key[0][1])
    transaction = state.transactions.start(table, value, state.clock.now_micros())
    return schema.StartLocalTransactionResponse(transaction_id=transaction.transaction_id)


OPERATION = ServedOperation(
    messages=schema.OPERATIONS["StartLocalTransaction"], validate=_validate, act=_act, tables=own_table
)
