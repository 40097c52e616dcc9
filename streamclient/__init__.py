"""Consume Tablestore change streams: leased workers, checkpoints, Spark sinks, and a local Tablestore."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from streamclient._version import __version__
from streamclient.config import ClientConfig, StreamConfig
from streamclient.errors import (
    ApplicationException,
    CodecError,
    ConfigurationError,
    DependencyException,
    ErrorKind,
    ShutdownException,
    StreamClientError,
    StreamClientException,
    TrimmedDataException,
)
from streamclient.interfaces import (
    ILeaseManager,
    IRecordProcessor,
    IRecordProcessorCheckpointer,
    IRecordProcessorFactory,
    IRetryStrategy,
    IShutdownMarker,
    RetryableAction,
)
from streamclient.model import (
    CheckpointPosition,
    InitializationInput,
    InitialPosition,
    Lease,
    ProcessRecordsInput,
    Shard,
    ShardInfo,
    ShardState,
    ShardStatus,
    ShutdownInput,
    ShutdownReason,
    TrimmedDataPolicy,
    WorkerStatus,
)
from streamclient.records import ColumnOperation, RecordColumn, RecordType, SequenceInfo, StreamRecord

if TYPE_CHECKING:
    from streamclient.lease import LeaseManager, MemoryLeaseManager
    from streamclient.stream import TablestoreStreamApi
    from streamclient.worker import Worker

__all__ = [
    "ApplicationException",
    "CheckpointPosition",
    "ClientConfig",
    "CodecError",
    "ColumnOperation",
    "ConfigurationError",
    "DependencyException",
    "ErrorKind",
    "ILeaseManager",
    "IRecordProcessor",
    "IRecordProcessorCheckpointer",
    "IRecordProcessorFactory",
    "IRetryStrategy",
    "IShutdownMarker",
    "InitialPosition",
    "InitializationInput",
    "Lease",
    "LeaseManager",
    "MemoryLeaseManager",
    "ProcessRecordsInput",
    "RecordColumn",
    "RecordType",
    "RetryableAction",
    "SequenceInfo",
    "Shard",
    "ShardInfo",
    "ShardState",
    "ShardStatus",
    "ShutdownException",
    "ShutdownInput",
    "ShutdownReason",
    "StreamClientError",
    "StreamClientException",
    "StreamConfig",
    "StreamRecord",
    "TablestoreStreamApi",
    "TrimmedDataException",
    "TrimmedDataPolicy",
    "Worker",
    "WorkerStatus",
    "__version__",
]

_LOADED_WHEN_USED = {
    "LeaseManager": "streamclient.lease",
    "MemoryLeaseManager": "streamclient.lease",
    "TablestoreStreamApi": "streamclient.stream",
    "Worker": "streamclient.worker",
}
"""These pull in the SDK or the scheduler, together most of a second: too much for a program that only wants types."""


def __getattr__(name: str) -> Any:
    """Load a class of the upper floors when it is first used."""
    if name in _LOADED_WHEN_USED:
        return getattr(import_module(_LOADED_WHEN_USED[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
