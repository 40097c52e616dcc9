"""The operation CommitTransaction, which applies the writes of a local transaction."""

from __future__ import annotations

from typing import Any

from streamclient.server.local_transactions import table_of_transaction
from streamclient.server.operation import ServedOperation
from streamclient.server.server_limits import Limits
from streamclient.server.server_state import ServerState
from streamclient.server.write_batch import WriteBatch
from streamclient.wire import schema


def _validate(request: Any, limits: Limits) -> str:
    table_of_transaction(request.transaction_id)
    return str(request.transaction_id)


def _act(state: ServerState, transaction_id: str) -> Any:
    """Apply all writes of the transaction as one batch, in their order, and release the partition key."""
    transaction = state.transactions.find(transaction_id, state.clock.now_micros())
    state.transactions.end(transaction)
    WriteBatch(state, transaction.table).apply(transaction.draft.plans)
    return schema.CommitTransactionResponse()


OPERATION = ServedOperation(
    messages=schema.OPERATIONS["CommitTransaction"],
    validate=_validate,
    act=_act,
    tables=lambda request: (table_of_transaction(request.transaction_id),),
)
