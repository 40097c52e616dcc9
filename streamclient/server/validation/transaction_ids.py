"""The transaction that a request is part of."""

from __future__ import annotations

from typing import Any

from streamclient.server.local_transactions import table_of_transaction


def read_transaction_id(request: Any) -> str | None:
    """The id in a request's field ``transaction_id``, if there is one.

    Raises:
        ServiceError: it cannot be an id; whether it is one of an open transaction is seen with the state.
    """
    if not request.HasField("transaction_id"):
        return None
    table_of_transaction(request.transaction_id)
    return str(request.transaction_id)
