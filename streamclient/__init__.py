"""Consume Tablestore change streams: leased workers, checkpoints, Spark sinks, and a local Tablestore."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from streamclient._version import __version__

if TYPE_CHECKING:
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
        IPreparedCheckpoint,
        IRecordProcessor,
        IRecordProcessorCheckpointer,
        IRecordProcessorFactory,
        IRetryStrategy,
        IShutdownMarker,
        RetryableAction,
    )
    from streamclient.lease import LeaseManager, MemoryLeaseManager
    from streamclient.model import (
        CheckpointPosition,
        InitializationInput,
        InitialPosition,
        Lease,
        Pause,
        PendingCheckpoint,
        ProcessRecordsInput,
        Progress,
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
    "IPreparedCheckpoint",
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
    "Pause",
    "PendingCheckpoint",
    "ProcessRecordsInput",
    "Progress",
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

_HOMES = {
    "ApplicationException": "errors",
    "CheckpointPosition": "model",
    "ClientConfig": "config",
    "CodecError": "errors",
    "ColumnOperation": "records",
    "ConfigurationError": "errors",
    "DependencyException": "errors",
    "ErrorKind": "errors",
    "ILeaseManager": "interfaces",
    "IPreparedCheckpoint": "interfaces",
    "IRecordProcessor": "interfaces",
    "IRecordProcessorCheckpointer": "interfaces",
    "IRecordProcessorFactory": "interfaces",
    "IRetryStrategy": "interfaces",
    "IShutdownMarker": "interfaces",
    "InitialPosition": "model",
    "InitializationInput": "model",
    "Lease": "model",
    "LeaseManager": "lease",
    "MemoryLeaseManager": "lease",
    "Pause": "model",
    "PendingCheckpoint": "model",
    "ProcessRecordsInput": "model",
    "Progress": "model",
    "RecordColumn": "records",
    "RecordType": "records",
    "RetryableAction": "interfaces",
    "SequenceInfo": "records",
    "Shard": "model",
    "ShardInfo": "model",
    "ShardState": "model",
    "ShardStatus": "model",
    "ShutdownException": "errors",
    "ShutdownInput": "model",
    "ShutdownReason": "model",
    "StreamClientError": "errors",
    "StreamClientException": "errors",
    "StreamConfig": "config",
    "StreamRecord": "records",
    "TablestoreStreamApi": "stream",
    "TrimmedDataException": "errors",
    "TrimmedDataPolicy": "model",
    "Worker": "worker",
    "WorkerStatus": "model",
}
"""Public name to the module that has it. Everything is loaded when it is first used: the upper floors pull in the SDK
or the scheduler, together most of a second, and even plain values take a twentieth, which a command line feels."""


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"streamclient.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names, loaded or not."""
    return sorted({*globals(), *__all__})
