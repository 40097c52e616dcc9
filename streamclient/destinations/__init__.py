"""Destinations: tables in other systems that store the rows of each commit exactly once.

Importing this package does not import the libraries that the destinations use. Extras install those libraries, for
example ``pip install ".[delta]"`` in a checkout.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamclient.base._lazy import loader

if TYPE_CHECKING:
    from streamclient.destinations.commit import Commit, Destination, FencedCommit, LogEntry
    from streamclient.destinations.delta.delta_destination import DeltaDestination
    from streamclient.destinations.delta.delta_reading import read_delta
    from streamclient.destinations.delta.maintenance import Maintenance, clean, compact
    from streamclient.destinations.delta.partitions import Day, Key
    from streamclient.destinations.iceberg_destination import IcebergDestination
    from streamclient.destinations.memory_destination import MemoryDestination, MemoryPlace
    from streamclient.destinations.postgres.postgres_destination import PostgresDestination
    from streamclient.destinations.proof.verification import verify
    from streamclient.destinations.rows.change_rows import change_rows, records_of
    from streamclient.destinations.rows.column_names import original_name
    from streamclient.destinations.rows.digest import records_digest
    from streamclient.destinations.rows.page_columns import columns_of_pages

__all__ = [
    "Commit",
    "Day",
    "DeltaDestination",
    "Destination",
    "FencedCommit",
    "IcebergDestination",
    "Key",
    "LogEntry",
    "Maintenance",
    "MemoryDestination",
    "MemoryPlace",
    "PostgresDestination",
    "change_rows",
    "clean",
    "columns_of_pages",
    "compact",
    "original_name",
    "read_delta",
    "records_digest",
    "records_of",
    "verify",
]

_HOMES = {
    "Commit": "commit",
    "Day": "delta.partitions",
    "DeltaDestination": "delta.delta_destination",
    "Destination": "commit",
    "FencedCommit": "commit",
    "IcebergDestination": "iceberg_destination",
    "Key": "delta.partitions",
    "LogEntry": "commit",
    "Maintenance": "delta.maintenance",
    "MemoryDestination": "memory_destination",
    "MemoryPlace": "memory_destination",
    "PostgresDestination": "postgres.postgres_destination",
    "change_rows": "rows.change_rows",
    "clean": "delta.maintenance",
    "columns_of_pages": "rows.page_columns",
    "compact": "delta.maintenance",
    "original_name": "rows.column_names",
    "read_delta": "delta.delta_reading",
    "records_digest": "rows.digest",
    "records_of": "rows.change_rows",
    "verify": "proof.verification",
}


__getattr__ = loader(__name__, _HOMES)
