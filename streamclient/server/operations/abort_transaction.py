"""The operation AbortTransaction, which discards the writes of a local transaction."""

from __future__ import annotations

from typing import Any

from streamclient.server.local_transactions import table_of_transaction
from streamclient.server.operation import ServedOperation
from streamclient.server.server_limits import Limits
from streamclient.server.server_state import ServerState
from streamclient.wire import schema


def _validate(request: Any, limits: Limits) -> str:
    table_of_transaction(request.transaction_id)
    return str(request.transaction_id)


def _act(state: ServerState, transaction_id: str) -> Any:
    """Discard all writes of the transaction, and release its partition key."""
    state.transactions.end(state.transactions.find(transaction_id, state.clock.now_micros()))
    return schema.AbortTransactionResponse()


OPERATION = ServedOperation(
    messages=schema.OPERATIONS["AbortTransaction"],
    validate=_validate,
    act=_act,
    tables=lambda request: (table_of_transaction(request.transaction_id),),
)
