"""The refusals of the local Tablestore, and the two errors of its start.

Codes, statuses and texts are those of the service's documentation; the page ``server-unconfirmed`` of the decisions
states the choices where the documentation is silent.
"""

from __future__ import annotations


class ServiceError(Exception):
    """An error answer of the service. The request had no effect."""

    def __init__(self, http_status: int, code: str, message: str) -> None:
        super().__init__(f"{http_status} {code}: {message}")
        self.http_status = http_status
        self.code = code
        self.message = message


class DataDirectoryError(Exception):
    """The data directory cannot be used: held by another server, not ours, or of an unknown format."""


def invalid(message: str) -> ServiceError:
    """Return 400 ``OTSParameterInvalid``: the request can never work."""
    return ServiceError(400, "OTSParameterInvalid", message)


def invalid_key(message: str) -> ServiceError:
    """Return 400 ``OTSInvalidPK``: the key does not have the columns of the table's schema."""
    return ServiceError(400, "OTSInvalidPK", message)


def table_missing() -> ServiceError:
    """Return 404 for a table that was never created or was deleted."""
    return ServiceError(404, "OTSObjectNotExist", "Requested table does not exist.")


def stream_missing() -> ServiceError:
    """Return 404 for a stream that was never enabled or was switched off."""
    return ServiceError(404, "OTSObjectNotExist", "Requested stream does not exist.")


def shard_missing() -> ServiceError:
    """Return 404 for a shard that the stream never had."""
    return ServiceError(404, "OTSObjectNotExist", "Requested shard does not exist.")


def table_exists() -> ServiceError:
    """Return 409 for creating a table under a name in use."""
    return ServiceError(409, "OTSObjectAlreadyExist", "Requested table already exists.")


def condition_failed() -> ServiceError:
    """Return 403 for a write whose row or column condition does not hold."""
    return ServiceError(403, "OTSConditionCheckFail", "Condition check failed.")


def trimmed() -> ServiceError:
    """Return 404 for an iterator whose next record is past retention; a new iterator of the oldest position helps."""
    return ServiceError(404, "OTSTrimmedDataAccess", "Requested stream data is already trimmed or does not exist.")


def row_conflict() -> ServiceError:
    """Return 409 for a write or a transaction on a partition key that another transaction holds. Clients retry."""
    return ServiceError(409, "OTSRowOperationConflict", "Data is being modified by the other request.")


def session_missing() -> ServiceError:
    """Return 404 for a transaction that was committed or aborted, or whose time is over."""
    return ServiceError(404, "OTSSessionNotExist", "Session not exist or may be timeout.")


def busy(reason: str) -> ServiceError:
    """Return 503 for a request that can succeed later, when others have freed something. Clients retry."""
    return ServiceError(503, "OTSServerBusy", f"Server is busy: {reason}.")


def out_of_transaction_size(limit_bytes: int) -> ServiceError:
    """Return 400 for a write that makes a transaction too large. The transaction stays open."""
    return ServiceError(
        400, "OTSOutOfTransactionDataSizeLimit", f"The data size of the transaction exceeds the limit: {limit_bytes}."
    )


def out_of_range(message: str) -> ServiceError:
    """Return 400 for a row outside the partition key of its atomic batch or transaction."""
    return ServiceError(400, "OTSDataOutOfRange", message)


def quota_exhausted(message: str) -> ServiceError:
    """Return 403 for a table beyond the allowed number."""
    return ServiceError(403, "OTSQuotaExhausted", message)


def unsupported(what: str) -> ServiceError:
    """Return 400 for a request that the service would accept and this server does not support; ``what`` names it.

    No client retries this code; some retry an unknown code for minutes, or for ever.
    """
    return invalid(f"The local Tablestore does not support {what}.")
