"""A table for rows of this package, created, checked and awaited: a status table, or a table of parked records."""

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
"""The time to live of this package's tables. With any other value, rows disappear that are still needed."""

ONE_VERSION = 1
"""The largest number of versions that are kept per cell. No reader needs an older version."""

UNKNOWN_SECONDS = 60.0
"""The time after this package's CreateTable for which the service may not know the table yet. According to the service,
a new table may take a minute."""

SILENT_SECONDS = 5.0
"""The seconds of waiting after which the log names the table. A new table may take a minute, so the log usually names a
new table before it is ready. A look at the progress of a replication waits as long."""


@frozen
class TablePurpose:
    """The purpose of a table, with the words that messages use for it."""

    noun: str
    """The word for a table of this kind."""
    role: str
    """The verb after 'cannot' in a message: the use of the table, which a table with another key cannot serve."""
    content: str
    """The information that is lost if the table's rows are lost."""
    key: tuple[tuple[str, str], ...]
    """The names and types of the table's key columns."""
    is_updated: bool = False
    """Whether the package changes rows by UpdateRow, which a table may forbid."""

    def check(self, name: str, description: Any) -> None:
        """Raise ``ConfigurationError`` if a table, as the SDK describes it, does not serve the purpose."""
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
    """One table with its purpose. Other code reads and writes the rows. Thread-safe. No call is repeated."""

    client: OTSClient
    name: str
    purpose: TablePurpose
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], object] = time.sleep
    capacity: tuple[int, int] = (0, 0)
    """The capacity units reserved for reads and for writes."""
    ready_millis: int = 120_000
    """The longest time until a new table answers, in milliseconds."""
    look_millis: int = 100
    """The time between two reads that try whether the table answers, in milliseconds."""
    created_at: float | None = None
    """The time of this object's CreateTable, by ``clock``, with or without an answer; ``None`` before that."""
    problem: StreamClientError | None = None
    """The last error of creating the table, or of waiting for it; ``None`` once that succeeded."""

    def create_if_absent(self) -> bool:
        """Create the table unless it exists; return whether this call created it.

        CreateTable fails with a quota error once the instance has its limit of tables, even if the name exists. So the
        call first checks whether the table exists, as Java's ``LeaseManager.createLeaseTableIfNotExists`` does.

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
        """Read the row ``probe``, which never exists, until the table answers.

        Return the last error if the time is over first. The log names a table that keeps the caller waiting.
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
        """Return ``None`` once the table answers, or the error if waiting may help; raise any other error."""
        try:
            self.client.get_row(self.name, list(probe), max_version=1)
        except Exception as error:
            failure = classify(error, write=False, client=self.client)
            if isinstance(failure, DependencyException) and self._may_pass(failure):
                return failure
            raise failure from error
        return None

    def _may_pass(self, failure: DependencyException) -> bool:
        """Return whether waiting may help, after a passing error or while the service may not know the new table."""
        is_new = self.created_at is not None and self.clock() - self.created_at < UNKNOWN_SECONDS
        return failure.kind is not ErrorKind.PERMANENT or (is_new and failure.code == OBJECT_NOT_EXIST)


def _columns(schema: tuple[tuple[str, str], ...]) -> str:
    return ", ".join(f"{column} {kind}" for column, kind in schema)
