"""Tablestore as a data source of PySpark: ``readStream``, ``read`` and ``write`` with ``format("tablestore")``.

Importing this package imports neither pyspark nor pyarrow nor the SDK: Spark's planner and each Python worker of an
executor import it at their start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streamclient._lazy import loader
from streamclient.checks import missing_extra

if TYPE_CHECKING:
    from streamclient.datasource.source import TablestoreDataSource

__all__ = ["TablestoreDataSource"]

_load = loader(__name__, {"TablestoreDataSource": "source"})


def __getattr__(name: str) -> Any:
    try:
        return _load(name)
    except ModuleNotFoundError as error:
        raise missing_extra(f"{error.name} cannot be imported; the data source needs it", "spark") from error
