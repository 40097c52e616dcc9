"""Consume Tablestore change streams: leased workers, checkpoints, Spark sinks, and a local Tablestore."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamclient import _quiet as _quiet
from streamclient._lazy import loader
from streamclient._version import __version__

if TYPE_CHECKING:
    from streamclient.config import ClientConfig, FailurePolicy, StreamConfig
    from streamclient.errors import (
        ApplicationException,
        CodecError,
        ConfigurationError,
        DependencyException,
        ErrorKind,
        FencedException,
        ShutdownException,
        StreamClientError,
        StreamClientException,
        TrimmedDataException,
    )
    from streamclient.interfaces import (
        ILeaseManager,
        IMetrics,
        IParkingStore,
        IPreparedCheckpoint,
        IRecordProcessor,
        IRecordProcessorCheckpointer,
        IRecordProcessorFactory,
        IRetryStrategy,
        IShutdownMarker,
        RetryableAction,
    )
    from streamclient.keyed import KeyedProcessorFactory
    from streamclient.lease import LeaseManager, MemoryLeaseManager
    from streamclient.model import (
        BalanceBy,
        CheckpointPosition,
        InitializationInput,
        InitialPosition,
        Lease,
        Metric,
        MetricKind,
        OnFailure,
        ParkedKey,
        ParkedRecord,
        Pause,
        PendingCheckpoint,
        ProcessRecordsInput,
        Progress,
        ReasonKind,
        Shard,
        ShardInfo,
        ShardState,
        ShardStatus,
        ShutdownInput,
        ShutdownReason,
        TrimmedDataPolicy,
        TrimmedRange,
        WorkerStatus,
    )
    from streamclient.records import ColumnOperation, RecordColumn, RecordType, SequenceInfo, StreamRecord
    from streamclient.stream import TablestoreStreamApi
    from streamclient.worker import Worker

__all__ = [
    "ApplicationException",
    "BalanceBy",
    "CheckpointPosition",
    "ClientConfig",
    "CodecError",
    "ColumnOperation",
    "ConfigurationError",
    "DependencyException",
    "ErrorKind",
    "FailurePolicy",
    "FencedException",
    "ILeaseManager",
    "IMetrics",
    "IParkingStore",
    "IPreparedCheckpoint",
    "IRecordProcessor",
    "IRecordProcessorCheckpointer",
    "IRecordProcessorFactory",
    "IRetryStrategy",
    "IShutdownMarker",
    "InitialPosition",
    "InitializationInput",
    "KeyedProcessorFactory",
    "Lease",
    "LeaseManager",
    "MemoryLeaseManager",
    "Metric",
    "MetricKind",
    "OnFailure",
    "ParkedKey",
    "ParkedRecord",
    "Pause",
    "PendingCheckpoint",
    "ProcessRecordsInput",
    "Progress",
    "ReasonKind",
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
    "TrimmedRange",
    "Worker",
    "WorkerStatus",
    "__version__",
]

_HOMES = {
    "ApplicationException": "errors",
    "BalanceBy": "model",
    "CheckpointPosition": "model",
    "ClientConfig": "config",
    "CodecError": "errors",
    "ColumnOperation": "records",
    "ConfigurationError": "errors",
    "DependencyException": "errors",
    "ErrorKind": "errors",
    "FailurePolicy": "config",
    "FencedException": "errors",
    "ILeaseManager": "interfaces",
    "IMetrics": "interfaces",
    "IParkingStore": "interfaces",
    "IPreparedCheckpoint": "interfaces",
    "IRecordProcessor": "interfaces",
    "IRecordProcessorCheckpointer": "interfaces",
    "IRecordProcessorFactory": "interfaces",
    "IRetryStrategy": "interfaces",
    "IShutdownMarker": "interfaces",
    "InitialPosition": "model",
    "InitializationInput": "model",
    "KeyedProcessorFactory": "keyed",
    "Lease": "model",
    "LeaseManager": "lease",
    "MemoryLeaseManager": "lease",
    "Metric": "model",
    "MetricKind": "model",
    "OnFailure": "model",
    "ParkedKey": "model",
    "ParkedRecord": "model",
    "Pause": "model",
    "PendingCheckpoint": "model",
    "ProcessRecordsInput": "model",
    "Progress": "model",
    "ReasonKind": "model",
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
    "TrimmedRange": "model",
    "Worker": "worker",
    "WorkerStatus": "model",
}
"""Public name to the module that has it. Everything is loaded when it is first used: the upper floors pull in the SDK
or the scheduler, together most of a second, and even plain values take a twentieth, which a command line feels."""


__getattr__ = loader(__name__, _HOMES)


def __dir__() -> list[str]:
    """The public names, loaded or not."""
    return sorted({*globals(), *__all__})
