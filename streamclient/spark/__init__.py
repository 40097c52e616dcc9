"""Change streams through Spark: a record processor that stores each batch once, and checkpoints afterwards.

Importing this package imports neither pyspark nor pyarrow; they come with the extra ``spark``.
"""

from streamclient.spark.batch import Sink, Transform
from streamclient.spark.config import SparkConfig
from streamclient.spark.context import BatchContext, FrameColumn, ShardRange
from streamclient.spark.fold import fold_changes, row_history
from streamclient.spark.java import Java, find_java
from streamclient.spark.processor import SparkRecordProcessor, SparkRecordProcessorFactory
from streamclient.spark.session import local_session

__all__ = [
    "BatchContext",
    "FrameColumn",
    "Java",
    "ShardRange",
    "Sink",
    "SparkConfig",
    "SparkRecordProcessor",
    "SparkRecordProcessorFactory",
    "Transform",
    "find_java",
    "fold_changes",
    "local_session",
    "row_history",
]
