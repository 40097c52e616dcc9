"""Creating, checking and awaiting the status table."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from attrs import define
from tablestore import CapacityUnit, OTSClient, ReservedThroughput, TableMeta, TableOptions

from streamclient.base import logs
from streamclient.base.outages import OutageLog
from streamclient.config import ClientConfig
from streamclient.errors import ConfigurationError, DependencyException, ErrorKind, StreamClientError
from streamclient.wire.service_errors import NO_PERMISSION, OBJECT_ALREADY_EXIST, OBJECT_NOT_EXIST, classify
from streamclient.worker.lease.lease_rows import KEY_SCHEMA, READY_PROBE_KEY, key_of

_log = logs.logger(__name__)
_outages = OutageLog(_log)

KEEPS_FOR_EVER = -1
"""Time to live of the status table. With any other, the progress of a stream that idles longer disappears."""

ONE_VERSION = 1
"""Versions kept per cell; nobody reads an older one."""


SILENT_SECONDS = 5.0
"""A table that keeps its caller waiting is named in the log after this time, as that of one look at a replication's
progress. A new table may take a minute, so it is named before that is over."""


@define(eq=False)
class StatusTable:
    """The table itself; its rows are the lease manager's business. Thread-safe, and never repeats a call."""

    client: OTSClient
    name: str
    client_config: ClientConfig
    clock: Callable[[], float]
    sleep: Callable[[float], None]
    problem: StreamClientError | None = None
    """Why it cannot be created or does not answer reads, as far as somebody waits for that."""

    def create_if_absent(self) -> bool:
        """Create the table unless it exists, which is checked first; returns whether this call created it.

        CreateTable fails with a quota error once the instance is at its limit of tables, even for a name that exists
        (Java: ``LeaseManager.createLeaseTableIfNotExists``), so it is only sent for a name that does not.

        Raises:
            ConfigurationError: a table of that name exists but cannot hold leases.
            DependencyException: the service refused or did not answer.
        """
        try:
            has_created = self._create_if_absent()
        except StreamClientError as failure:
            self.problem = failure
            raise
        self.problem = None
        return has_created

    def _create_if_absent(self) -> bool:
        if self._exists_and_fits():
            return False
        try:
            self.client.create_table(_meta(self.name), _options(), self._throughput())
        except Exception as error:
            failure = classify(error, write=True, client=self.client)
            if not isinstance(failure, DependencyException) or failure.code != OBJECT_ALREADY_EXIST:
                raise failure from error
            self._exists_and_fits()
            return False
        _log.info("created status table %s", self.name)
        return True

    def _exists_and_fits(self) -> bool:
        try:
            description = self.client.describe_table(self.name)
        except Exception as error:
            failure = classify(error, write=False, client=self.client)
            code = failure.code if isinstance(failure, DependencyException) else None
            if code == OBJECT_NOT_EXIST:
                return False
            if code == NO_PERMISSION:
                _log.warning("no permission to describe status table %s; it is used unchecked", self.name)
                return True
            raise failure from error
        check_description(self.name, description)
        return True

    def _throughput(self) -> ReservedThroughput:
        read, write = self.client_config.status_table_read_capacity, self.client_config.status_table_write_capacity
        return ReservedThroughput(CapacityUnit(read, write))

    def wait_until_ready(self, stream_id: str) -> bool:
        """Read a row that never exists until the table answers; returns whether it did in the configured time.

        A table that keeps the caller waiting is named in the log meanwhile.
        """
        began = self.clock()
        longest = self.client_config.max_wait_table_ready_time_millis / 1000
        while (failure := self._probe(stream_id)) is not None:
            self.problem = failure
            waited_seconds = self.clock() - began
            if SILENT_SECONDS <= waited_seconds < longest:
                text = "status table %s does not answer reads yet, and is waited for up to %.0f s: %s"
                _outages.log(logging.WARNING, (self.name, type(failure)), text, self.name, longest, failure)
            if waited_seconds >= longest:
                waited = self.client_config.max_wait_table_ready_time_millis
                _log.warning("status table %s was not ready after %s ms: %s", self.name, waited, failure)
                return False
            self.sleep(self.client_config.check_table_ready_interval_millis / 1000)
        self.problem = None
        return True

    def _probe(self, stream_id: str) -> StreamClientError | None:
        """``None`` once the table answers; the error while waiting may help; any other error is raised."""
        try:
            self.client.get_row(self.name, key_of(stream_id, READY_PROBE_KEY), max_version=1)
        except Exception as error:
            failure = classify(error, write=False, client=self.client)
            if isinstance(failure, DependencyException) and failure.kind is not ErrorKind.PERMANENT:
                return failure
            raise failure from error
        return None


def check_description(name: str, description: Any) -> None:
    """Raise ``ConfigurationError`` if a table, as the SDK describes it, cannot hold leases."""
    schema = tuple((column[0], column[1]) for column in description.table_meta.schema_of_primary_key)
    if schema != KEY_SCHEMA:
        raise ConfigurationError(
            f"table {name!r} cannot be the status table: its primary key is {_columns(schema)}, expected "
            f"{_columns(KEY_SCHEMA)}; give the name of a table that does not exist, and it will be created"
        )
    options = description.table_options
    if options.time_to_live != KEEPS_FOR_EVER:
        raise ConfigurationError(
            f"status table {name!r} forgets rows after {options.time_to_live} s, and with them the progress of idle "
            f"streams; set its time to live to {KEEPS_FOR_EVER} (never)"
        )
    if options.allow_update is False:
        raise ConfigurationError(f"status table {name!r} forbids UpdateRow, as every heartbeat is; set allow_update")
    if options.max_version != ONE_VERSION:
        _log.warning("status table %s keeps %s versions per cell; 1 is enough", name, options.max_version)


def _columns(schema: tuple[tuple[str, str], ...]) -> str:
    return ", ".join(f"{column} {kind}" for column, kind in schema)


def _meta(name: str) -> TableMeta:
    return TableMeta(name, list(KEY_SCHEMA))


def _options() -> TableOptions:
    return TableOptions(time_to_live=KEEPS_FOR_EVER, max_version=ONE_VERSION)
