"""Change streams with Spark: a record processor for workers, and a data source for Spark's own queries.

``SparkRecordProcessorFactory`` makes the record processors. A processor stores each batch of changes, and then the
shard's checkpoint. ``TablestoreDataSource`` is for ``readStream``, ``read`` and ``write`` with
``format("tablestore")``.

The extra ``spark`` installs pyspark and pyarrow. Importing this package does not import them.
"""

from typing import TYPE_CHECKING, Any

from streamclient.base._lazy import loader
from streamclient.base.extras import require_extra
from streamclient.spark.frame_folding import fold_changes, row_history
from streamclient.spark.java import Java, find_java
from streamclient.spark.processor.batch import Sink, Transform
from streamclient.spark.processor.context import BatchContext, FrameColumn, ShardRange
from streamclient.spark.processor.spark_config import SparkConfig
from streamclient.spark.processor.spark_processor import SparkRecordProcessor, SparkRecordProcessorFactory
from streamclient.spark.spark_session import local_session

if TYPE_CHECKING:
    from streamclient.spark.source.data_source import TablestoreDataSource

__all__ = [
    "BatchContext",
    "FrameColumn",
    "Java",
    "ShardRange",
    "Sink",
    "SparkConfig",
    "SparkRecordProcessor",
    "SparkRecordProcessorFactory",
    "TablestoreDataSource",
    "Transform",
    "find_java",
    "fold_changes",
    "local_session",
    "row_history",
]

_load = loader(__name__, {"TablestoreDataSource": "source.data_source"})


def __getattr__(name: str) -> Any:
    if name == "TablestoreDataSource":
        require_extra("spark", "the data source", ["pyspark"])
    return _load(name)
