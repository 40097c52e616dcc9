"""The search for the fleets of an instance: which tables are status tables, and which data table each one serves."""

from __future__ import annotations

from functools import cache, partial

from tablestore import OTSClient

from streamclient.operate.site import Site
from streamclient.operate.status_table import StatusTableReader
from streamclient.worker.lease.lease_rows import STATUS_TABLE


def find_fleets(client: OTSClient) -> list[tuple[str, str]]:
    """Return the data table and the status table of every fleet of an instance, sorted by name.

    A status table is found by the names and types of its key columns. The first key column holds the id of a stream,
    which the service composes from the data table's name and a number. Rows of a former stream of the data table do not
    count: a fleet is returned only if its status table has rows of the data table's present stream. The search makes
    one request for each table, and two for each stream of a status table.

    Raises:
        StreamClientError: a call failed.
    """
    site = Site(client, "", "")
    names = sorted(site.read("listing the tables", site.client.list_table))

    @cache
    def present(table: str) -> frozenset[str]:
        return frozenset(stream.stream_id for stream in site.streams.list_stream(table))

    found = set()
    for name in names:
        described = site.read(f"describing table {name}", partial(site.client.describe_table, name))
        if tuple((column[0], column[1]) for column in described.table_meta.schema_of_primary_key) != STATUS_TABLE.key:
            continue
        reader = StatusTableReader(site.client, name, site.clock)
        for stream_id in site.read(f"reading the streams of status table {name}", reader.stream_ids):
            table = stream_id.rpartition("_")[0]
            if table in names and stream_id in present(table):
                found.add((table, name))
    return sorted(found)
