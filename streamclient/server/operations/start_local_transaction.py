"""The operation StartLocalTransaction, which starts a transaction on one partition key or on some of its rows."""

from __future__ import annotations

from typing import Any, cast

from attrs import frozen

from streamclient.records import KeyValue
from streamclient.server import refusals
from streamclient.server.operation import ServedOperation, own_table
from streamclient.server.server_limits import Limits
from streamclient.server.server_state import ServerState
from streamclient.server.stored_tables import Key, check_key, check_leading_key
from streamclient.server.validation.message_frames import read_key
from streamclient.server.validation.table_names import check_table_name
from streamclient.wire import schema


@frozen
class StartLocalTransaction:
    """A validated request of StartLocalTransaction."""

    table_name: str
    partition_key: Key
    """The partition key: the name and value of the first key column."""
    row_keys: tuple[Key, ...]
    """The keys of the rows to hold; empty to hold the whole partition key."""


def _validate(request: Any, limits: Limits) -> StartLocalTransaction:
    table_name = check_table_name(request.table_name, limits)
    key = read_key(request.key, limits)
    if len(key) != 1:
        raise refusals.TRANSACTION_KEY()
    if len(request.row_keys) > limits.transaction_rows:
        raise refusals.TRANSACTION_ROWS(limit=limits.transaction_rows, count=len(request.row_keys))
    return StartLocalTransaction(table_name, key, tuple(read_key(data, limits) for data in request.row_keys))


def _act(state: ServerState, request: StartLocalTransaction) -> Any:
    """Start a transaction that holds the partition key, or only the rows that the request names.

    Raises:
        ServiceError: the table does not allow transactions, a key does not fit the table, a row has another partition
            key, or another transaction holds the partition key or one of the rows.
    """
    table = state.table(request.table_name)
    if not table.definition.allows_transactions:
        raise refusals.TRANSACTIONS_OFF()
    check_leading_key(table.definition, request.partition_key)
    for key in request.row_keys:
        check_key(table.definition, key)
    value = cast(KeyValue, request.partition_key[0][1])
    transaction = state.transactions.start(table, value, state.clock.now_micros(), request.row_keys)
    return schema.StartLocalTransactionResponse(transaction_id=transaction.transaction_id)


OPERATION = ServedOperation(
    messages=schema.OPERATIONS["StartLocalTransaction"], validate=_validate, act=_act, tables=own_table
)
