"""Rows into places outside, each once: what a commit is, and destinations that keep it.

Importing this package imports none of the libraries behind the destinations; they come with extras, for example
``pip install ".[delta]"`` in a checkout.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamclient._lazy import loader
from streamclient.destinations.changes import change_rows, records_of
from streamclient.destinations.commit import Commit, Destination, FencedCommit, LogEntry
from streamclient.destinations.digest import records_digest
from streamclient.destinations.pages import columns_of_pages
from streamclient.destinations.partitions import Day, Key

if TYPE_CHECKING:
    from streamclient.destinations.delta import DeltaDestination
    from streamclient.destinations.iceberg import IcebergDestination
    from streamclient.destinations.postgres import PostgresDestination

__all__ = [
    "Commit",
    "Day",
    "DeltaDestination",
    "Destination",
    "FencedCommit",
    "IcebergDestination",
    "Key",
    "LogEntry",
    "PostgresDestination",
    "change_rows",
    "columns_of_pages",
    "records_digest",
    "records_of",
]

_HOMES = {"DeltaDestination": "delta", "IcebergDestination": "iceberg", "PostgresDestination": "postgres"}

__getattr__ = loader(__name__, _HOMES)
