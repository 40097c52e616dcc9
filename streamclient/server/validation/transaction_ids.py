"""The check of the transaction id in a request."""

from __future__ import annotations

from typing import Any

from streamclient.server.local_transactions import table_of_transaction


def read_transaction_id(request: Any) -> str | None:
    """Return the transaction id in a request; ``None`` if the request has none.

    This function does not check that the transaction is open.

    Raises:
        ServiceError: the text is not a transaction id.
    """
    if not request.HasField("transaction_id"):
        return None
    table_of_transaction(request.transaction_id)
    return str(request.transaction_id)
