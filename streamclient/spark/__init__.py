"""Change streams into Spark: a record processor that hands each batch to a sink, and checkpoints afterwards.

Importing this package imports neither pyspark nor pyarrow; they come with ``pip install "streamclient[spark]"``.
"""

from streamclient.spark.batch import RejectSink, Reporter, Sink
from streamclient.spark.config import SparkConfig, UnfitValue
from streamclient.spark.context import BatchContext, FrameColumn, RejectedRecord, ShardRange, UnfitReport
from streamclient.spark.fold import fold_changes
from streamclient.spark.java import Java, find_java
from streamclient.spark.lake import current_rows, manifests, read_changes
from streamclient.spark.manifest import Manifest
from streamclient.spark.processor import SparkRecordProcessor, SparkRecordProcessorFactory
from streamclient.spark.session import local_session
from streamclient.spark.sink import FileSink

__all__ = [
    "BatchContext",
    "FileSink",
    "FrameColumn",
    "Java",
    "Manifest",
    "RejectSink",
    "RejectedRecord",
    "Reporter",
    "ShardRange",
    "Sink",
    "SparkConfig",
    "SparkRecordProcessor",
    "SparkRecordProcessorFactory",
    "UnfitReport",
    "UnfitValue",
    "current_rows",
    "find_java",
    "fold_changes",
    "local_session",
    "manifests",
    "read_changes",
]
