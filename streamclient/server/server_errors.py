"""Every refusal that the local Tablestore answers with, and the two errors of starting it.

Codes, statuses and texts are those of the service's documentation; where it is silent, the page
``server-unconfirmed`` of the decisions says what was chosen.
"""

from __future__ import annotations


class ServiceError(Exception):
    """An answer other than success, as the service would give it. The request had no effect."""

    def __init__(self, http_status: int, code: str, message: str) -> None:
        super().__init__(f"{http_status} {code}: {message}")
        self.http_status = http_status
        self.code = code
        self.message = message


class DataDirectoryError(Exception):
    """The data directory cannot be used: held by another server, not ours, or of an unknown format."""


def invalid(message: str) -> ServiceError:
    """400 ``OTSParameterInvalid``: the request can never work."""
    return ServiceError(400, "OTSParameterInvalid", message)


def invalid_key(message: str) -> ServiceError:
    """400 ``OTSInvalidPK``: the key does not have the columns that the table's schema has."""
    return ServiceError(400, "OTSInvalidPK", message)


def table_missing() -> ServiceError:
    """404 for a table that was never created or was deleted."""
    return ServiceError(404, "OTSObjectNotExist", "Requested table does not exist.")


def stream_missing() -> ServiceError:
    """404 for a stream that was never enabled or was switched off."""
    return ServiceError(404, "OTSObjectNotExist", "Requested stream does not exist.")


def shard_missing() -> ServiceError:
    """404 for a shard that the stream never had."""
    return ServiceError(404, "OTSObjectNotExist", "Requested shard does not exist.")


def table_exists() -> ServiceError:
    """409 for creating a table under a name in use."""
    return ServiceError(409, "OTSObjectAlreadyExist", "Requested table already exists.")


def condition_failed() -> ServiceError:
    """403 for a write whose row or column condition does not hold."""
    return ServiceError(403, "OTSConditionCheckFail", "Condition check failed.")


def trimmed() -> ServiceError:
    """404 for an iterator whose next record is past retention. A new iterator from the oldest position helps."""
    return ServiceError(404, "OTSTrimmedDataAccess", "Requested stream data is already trimmed or does not exist.")


def row_conflict() -> ServiceError:
    """409 for a write, or a transaction, on a partition key that another transaction holds. Clients try again."""
    return ServiceError(409, "OTSRowOperationConflict", "Data is being modified by the other request.")


def session_missing() -> ServiceError:
    """404 for a transaction that was committed or aborted, or whose time is over."""
    return ServiceError(404, "OTSSessionNotExist", "Session not exist or may be timeout.")


def busy(reason: str) -> ServiceError:
    """503 for what can be done later, when others have given something back. Clients try again."""
    return ServiceError(503, "OTSServerBusy", f"Server is busy: {reason}.")


def out_of_transaction_size(limit_bytes: int) -> ServiceError:
    """400 for a write that makes a transaction too large. The transaction stays open."""
    return ServiceError(
        400, "OTSOutOfTransactionDataSizeLimit", f"The data size of the transaction exceeds the limit: {limit_bytes}."
    )


def out_of_range(message: str) -> ServiceError:
    """400 for a row outside the partition key of its atomic batch or transaction."""
    return ServiceError(400, "OTSDataOutOfRange", message)


def quota_exhausted(message: str) -> ServiceError:
    """403 for one table too many."""
    return ServiceError(403, "OTSQuotaExhausted", message)


def unsupported(what: str) -> ServiceError:
    """400 for a request that the service would know and this server does not have; ``what`` names it.

    The code is the one that no client tries again: some repeat a code that they do not know for minutes, or for ever.
    """
    return invalid(f"The local Tablestore does not support {what}.")
