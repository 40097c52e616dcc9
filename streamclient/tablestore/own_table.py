"""The creation of tables that this package writes, for example a status table or a table of parked records.

An existing table is checked before its use. A new table is read until it answers.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from attrs import define, frozen
from tablestore import CapacityUnit, OTSClient, ReservedThroughput, TableMeta, TableOptions

from streamclient.base import logs
from streamclient.base.outages import OutageLog
from streamclient.base.reasons import counted
from streamclient.errors import ConfigurationError, DependencyException, ErrorKind, StreamClientError
from streamclient.wire.service_errors import NO_PERMISSION, OBJECT_ALREADY_EXIST, OBJECT_NOT_EXIST, classify

_log = logs.logger(__name__)
_outages = OutageLog(_log)

KEEPS_FOR_EVER = -1
"""The time to live of this package's tables, in Tablestore's number for 'never'. With any other value, the service
deletes rows that are still needed."""

ONE_VERSION = 1
"""The largest number of versions per cell in this package's tables. No reader needs an older version."""

UNKNOWN_SECONDS = 60.0
"""The seconds after a CreateTable in which reads may still fail because the service does not know the new table. The
service's documentation says that a new table may take a minute."""

SILENT_SECONDS = 5.0
"""The seconds after which the log reports that a table does not answer yet. A new table may take a minute to answer, so
usually the log has this report for a new table."""


@frozen
class TablePurpose:
    """The purpose of a table: the key of the table, and the words for the table in messages."""

    noun: str
    """The name of this kind of table, for example 'status table'."""
    role: str
    """The verb after 'cannot' in the message about a table with a wrong key, for example 'be the status table'."""
    content: str
    """The noun for the content of the rows, for example 'parked records', in the message about lost rows."""
    key: tuple[tuple[str, str], ...]
    """The names and types of the table's key columns."""
    is_updated: bool = False
    """Whether the package changes rows by UpdateRow. A table's options may forbid this operation."""

    def check(self, name: str, description: Any) -> None:
        """Raise ``ConfigurationError`` if the table ``name`` does not serve the purpose.

        ``description`` is the SDK's response to DescribeTable.
        """
        schema = tuple((column[0], column[1]) for column in description.table_meta.schema_of_primary_key)
        if schema != self.key:
            raise ConfigurationError(
                f"table {name!r} cannot {self.role}: its primary key is {_columns(schema)}, expected "
                f"{_columns(self.key)}; give the name of a table that does not exist, and it will be created"
            )
        options = description.table_options
        if options.time_to_live != KEEPS_FOR_EVER:
            raise ConfigurationError(
                f"{self.noun} {name!r} forgets rows after {options.time_to_live} s, and with them {self.content}; "
                f"set its time to live to {KEEPS_FOR_EVER} (never)"
            )
        if self.is_updated and options.allow_update is False:
            raise ConfigurationError(
                f"{self.noun} {name!r} forbids UpdateRow, which every heartbeat needs; set allow_update"
            )
        if options.max_version != ONE_VERSION:
            _log.warning(
                "%s %s keeps %s per cell; 1 is enough", self.noun, name, counted(options.max_version, "version")
            )


@define(eq=False)
class OwnTable:
    """A table for ``purpose``, with the calls to create it, check it and wait for it. Thread-safe.

    Other modules read and write the rows.
    """

    client: OTSClient
    name: str
    purpose: TablePurpose
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], object] = time.sleep
    capacity: tuple[int, int] = (0, 0)
    """The capacity units reserved for reads and for writes."""
    ready_millis: int = 120_000
    """The longest wait until a new table answers reads, in milliseconds."""
    look_millis: int = 100
    """The pause between two reads that test whether the table answers, in milliseconds."""
    created_at: float | None = None
    """The time of the CreateTable call, by ``clock``; ``None`` if this process did not create the table."""
    problem: StreamClientError | None = None
    """The error of the last attempt to create the table or to read from it; ``None`` after a success."""

    def create_if_absent(self) -> bool:
        """Create the table unless it exists; return whether this call created it.

        The method first asks the service whether the table exists, as Java's
        ``LeaseManager.createLeaseTableIfNotExists`` does. In an instance that has reached its largest number of tables,
        CreateTable would fail with a quota error even for a table that exists.

        Raises:
            ConfigurationError: a table of that name exists and does not serve the purpose.
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
        if self.exists():
            return False
        read, write = self.capacity
        meta, options = TableMeta(self.name, list(self.purpose.key)), TableOptions(KEEPS_FOR_EVER, ONE_VERSION)
        self.created_at = self.clock()
        try:
            self.client.create_table(meta, options, ReservedThroughput(CapacityUnit(read, write)))
        except Exception as error:
            failure = classify(error, write=True, client=self.client)
            if not isinstance(failure, DependencyException) or failure.code != OBJECT_ALREADY_EXIST:
                raise failure from error
            self.exists()
            return False
        _log.info("created %s %s", self.purpose.noun, self.name)
        return True

    def exists(self) -> bool:
        """Return whether the table exists, with one call.

        Raises:
            ConfigurationError: the table exists and does not serve the purpose.
            DependencyException: the service refused or did not answer.
        """
        try:
            description = self.client.describe_table(self.name)
        except Exception as error:
            failure = classify(error, write=False, client=self.client)
            code = failure.code if isinstance(failure, DependencyException) else None
            if code == OBJECT_NOT_EXIST:
                return False
            if code == NO_PERMISSION:
                _log.warning("no permission to describe %s %s; it is used unchecked", self.purpose.noun, self.name)
                return True
            raise failure from error
        self.purpose.check(self.name, description)
        return True

    def wait_until_ready(self, probe: Sequence[tuple[str, object]]) -> StreamClientError | None:
        """Wait until the table answers reads. The reads ask for the row with the key ``probe``, which never exists.

        Return ``None`` once the table answers. If it does not answer within ``ready_millis``, return the last error.
        After ``SILENT_SECONDS``, the log reports that the table does not answer yet.
        """
        began = self.clock()
        longest = self.ready_millis / 1000
        while (failure := self._probe(probe)) is not None:
            self.problem = failure
            waited_seconds = self.clock() - began
            if SILENT_SECONDS <= waited_seconds < longest:
                text = f"{self.purpose.noun} %s does not answer reads yet; waiting for it up to %.0f s: %s"
                _outages.log(logging.WARNING, (self.name, type(failure)), text, self.name, longest, failure)
            if waited_seconds >= longest:
                noun = self.purpose.noun
                _log.warning("%s %s was not ready after %s ms: %s", noun, self.name, self.ready_millis, failure)
                return failure
            self.sleep(self.look_millis / 1000)
        self.problem = None
        return None

    def _probe(self, probe: Sequence[tuple[str, object]]) -> StreamClientError | None:
        """Read once. Return ``None`` if the table answers, or the error if waiting may help; raise any other error."""
        try:
            self.client.get_row(self.name, list(probe), max_version=1)
        except Exception as error:
            failure = classify(error, write=False, client=self.client)
            if isinstance(failure, DependencyException) and self._may_pass(failure):
                return failure
            raise failure from error
        return None

    def _may_pass(self, failure: DependencyException) -> bool:
        """Return whether waiting may help: the error is transient, or the service does not know a new table yet."""
        is_new = self.created_at is not None and self.clock() - self.created_at < UNKNOWN_SECONDS
        return failure.kind is not ErrorKind.PERMANENT or (is_new and failure.code == OBJECT_NOT_EXIST)


def _columns(schema: tuple[tuple[str, str], ...]) -> str:
    return ", ".join(f"{column} {kind}" for column, kind in schema)
