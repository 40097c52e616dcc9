"""Tablestore as a data source of PySpark: ``readStream``, ``read`` and ``write`` with ``format("tablestore")``.

Importing this package imports neither pyspark nor pyarrow nor the SDK: Spark's planner and each Python worker of an
executor import it at their start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamclient._lazy import loader

if TYPE_CHECKING:
    from streamclient.datasource.source import TablestoreDataSource

__all__ = ["TablestoreDataSource"]

__getattr__ = loader(__name__, {"TablestoreDataSource": "source"})
