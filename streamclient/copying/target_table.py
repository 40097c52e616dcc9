"""The destination table of a replication: it is created like the source table, or checked if it exists."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from attrs import frozen
from tablestore import CapacityUnit, OTSClient, ReservedThroughput, TableMeta, TableOptions

from streamclient.base.reasons import counted
from streamclient.base.times import MICROS_PER_SECOND, MILLIS_PER_SECOND
from streamclient.errors import ConfigurationError, DependencyException, StreamClientException
from streamclient.records import ColumnType
from streamclient.tablestore.own_table import OwnTable, TablePurpose
from streamclient.tablestore.stream_operations import TablestoreStreamApi
from streamclient.tablestore.stream_tables import TableDescription
from streamclient.wire.service_errors import OBJECT_ALREADY_EXIST, OBJECT_NOT_EXIST

WIDEST_DEVIATION_SECONDS = (2**63 - 1) // MICROS_PER_SECOND
"""The largest value of the table option ``max_time_deviation``, in seconds: how far a cell's version may be from the
clock. Rows of the source have old versions, which the service would refuse with the default value, a day. The service
stores this option as microseconds, in 64 bits."""

FOREVER = -1

_PROBE_VALUES: Mapping[ColumnType, Any] = MappingProxyType(
    {ColumnType.INTEGER: 0, ColumnType.STRING: "-", ColumnType.BINARY: b"-"}
)
"""Key values, by type, of a row that is read to find out whether a new table answers. The row need not exist."""


@frozen
class PreparedTable:
    """The destination table, which is ready for the source's rows."""

    was_made: bool
    """Whether this call created the table."""
    time_to_live_millis: int | None
    """The table's time to live in milliseconds; ``None`` keeps data forever."""


def prepare_destination(source: OTSClient, source_table: str, destination: OTSClient, table: str) -> PreparedTable:
    """Create or check the destination table for the source's rows.

    A new table gets the key, declared columns, time to live, number of versions and capacity of the source table. Its
    ``max_time_deviation`` is ``WIDEST_DEVIATION_SECONDS``, and it allows updates. A generated key column of the source
    becomes an ordinary column, because the source's values are written. Indexes and streams are not copied.

    Raises:
        ConfigurationError: the table exists and would lose or refuse rows. The message has each reason.
        StreamClientException: the source table does not exist.
    """
    wanted = described(source, source_table, "source")
    api = TablestoreStreamApi(destination)
    found = _describe(api, table)
    if found is None:
        try:
            _create(api, wanted, table)
        except DependencyException as error:
            if error.code != OBJECT_ALREADY_EXIST:
                raise
            found = described(destination, table, "destination")  # another process has made it
        else:
            _await(destination, table, wanted)
            return _prepared(wanted, was_made=True)
    problems = list(_problems(wanted, found))
    if problems:
        raise ConfigurationError(
            f"table {table!r} exists and cannot take the rows of {source_table!r}:", *(f"  {line}" for line in problems)
        )
    return _prepared(found, was_made=False)


def _prepared(table: TableDescription, *, was_made: bool) -> PreparedTable:
    seconds = table.options.time_to_live_seconds
    return PreparedTable(was_made, None if seconds is None or seconds == FOREVER else seconds * MILLIS_PER_SECOND)


def described(client: OTSClient, table: str, side: str) -> TableDescription:
    """Return the service's description of a table.

    Raises:
        StreamClientException: the table does not exist. The message says by ``side`` which table is missing.
    """
    found = _describe(TablestoreStreamApi(client), table)
    if found is None:
        raise StreamClientException(
            f"the {side} has no table {table!r} ({OBJECT_NOT_EXIST}): check its name, the instance and the endpoint"
        )
    return found


def shown_key(key: Any) -> str:
    """Return the names and types of a primary key's columns as text, for messages."""
    return "(" + ", ".join(f"{name} {kind.value}" for name, kind in key) + ")"


def _describe(api: TablestoreStreamApi, table: str) -> TableDescription | None:
    try:
        return api.describe_table(table)
    except DependencyException as error:
        if error.code == OBJECT_NOT_EXIST:
            return None
        raise


def _create(api: TablestoreStreamApi, wanted: TableDescription, table: str) -> None:
    definition, options = wanted.definition, wanted.options
    defined = [(name, kind.value) for name, kind in definition.defined_columns.items()]
    meta = TableMeta(table, [(name, kind.value) for name, kind in definition.primary_key], defined)
    api.create_table(
        meta,
        TableOptions(
            time_to_live=FOREVER if options.time_to_live_seconds is None else options.time_to_live_seconds,
            max_version=options.max_versions or 1,
            max_time_deviation=WIDEST_DEVIATION_SECONDS,
            # The source may have allowed updates earlier, or may allow them later. Its log then has updates to write.
            allow_update=True,
        ),
        ReservedThroughput(CapacityUnit(wanted.reserved_read_capacity, wanted.reserved_write_capacity)),
    )


def _await(client: OTSClient, table: str, wanted: TableDescription) -> None:
    """Wait until the new table answers. The service may report for up to a minute that the table does not exist."""
    key = wanted.definition.primary_key
    purpose = TablePurpose("destination", "take the copy", "the copied rows", tuple((n, k.value) for n, k in key))
    probe = [(name, _PROBE_VALUES[kind]) for name, kind in key]
    OwnTable(client, table, purpose, created_at=time.monotonic()).wait_until_ready(probe)


def _problems(wanted: TableDescription, found: TableDescription) -> Iterator[str]:
    """Yield in words each reason why the table ``found`` would lose or refuse rows, with the remedy."""
    key, other = wanted.definition.primary_key, found.definition.primary_key
    if key != other:
        yield f"its key is {shown_key(other)}, expected {shown_key(key)}"
    if found.auto_increment_key is not None:
        yield f"its key column {found.auto_increment_key!r} is generated and takes no values; make the table anew"
    options = found.options
    deviation = options.max_time_deviation_seconds
    if deviation is not None and deviation < WIDEST_DEVIATION_SECONDS:
        yield (
            f"it takes versions at most {deviation} s old; set max_time_deviation to {WIDEST_DEVIATION_SECONDS} by "
            "UpdateTable"
        )
    if (options.max_versions or 1) < (wanted.options.max_versions or 1):
        kept = counted(options.max_versions or 1, "version")
        yield f"it keeps {kept}, the source {wanted.options.max_versions}; raise max_versions"
    if _keeps_shorter(options.time_to_live_seconds, wanted.options.time_to_live_seconds):
        yield (
            f"it keeps data for {options.time_to_live_seconds} s, the source for "
            f"{_lifetime(wanted.options.time_to_live_seconds)}; raise time_to_live"
        )
    if options.allow_update is False:
        yield "it forbids updates; set allow_update to true by UpdateTable, and give the other options as they are"
    if options.update_full_row:
        yield (
            "it makes the versions of cells itself and refuses those of the source; make the table anew without "
            "update_full_row"
        )


def _keeps_shorter(seconds: int | None, wanted: int | None) -> bool:
    if seconds in (None, FOREVER):
        return False
    return wanted in (None, FOREVER) or (seconds or 0) < (wanted or 0)


def _lifetime(seconds: int | None) -> str:
    return "ever" if seconds in (None, FOREVER) else f"{seconds} s"
