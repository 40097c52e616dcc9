"""The transaction that a request is part of."""

from __future__ import annotations

from typing import Any

from streamclient.server.local_transactions import table_of_transaction


def read_transaction_id(request: Any) -> str | None:
    """Return the id in a request's field ``transaction_id``, if it is set.

    Raises:
        ServiceError: the text is not an id; the state later checks whether that transaction is open.
    """
    if not request.HasField("transaction_id"):
        return None
    table_of_transaction(request.transaction_id)
    return str(request.transaction_id)
