"""The transaction to which a request belongs."""

from __future__ import annotations

from typing import Any

from streamclient.server.local_transactions import table_of_transaction


def read_transaction_id(request: Any) -> str | None:
    """Return the id in a request's field ``transaction_id``, if it is set.

    Raises:
        ServiceError: the text is not an id. Whether that transaction is open is checked later.
    """
    if not request.HasField("transaction_id"):
        return None
    table_of_transaction(request.transaction_id)
    return str(request.transaction_id)
