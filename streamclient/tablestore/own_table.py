"""Creating, checking and awaiting a table for rows of this package: a status table, or one of parked records."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from attrs import define, frozen
from tablestore import CapacityUnit, OTSClient, ReservedThroughput, TableMeta, TableOptions

from streamclient.base import logs
from streamclient.base.outages import OutageLog
from streamclient.errors import ConfigurationError, DependencyException, ErrorKind, StreamClientError
from streamclient.wire.service_errors import NO_PERMISSION, OBJECT_ALREADY_EXIST, OBJECT_NOT_EXIST, classify

_log = logs.logger(__name__)
_outages = OutageLog(_log)

KEEPS_FOR_EVER = -1
"""Time to live. With any other, rows disappear that are still needed."""

ONE_VERSION = 1
"""Versions kept per cell; nobody reads an older one."""

SILENT_SECONDS = 5.0
"""A table that keeps its caller waiting is named in the log after this time, as that of one look at a replication's
progress. A new table may take a minute, so it is named before that is over."""


@frozen
class TablePurpose:
    """What a table is for."""

    noun: str
    """As messages call the table."""
    role: str
    """What the table cannot do with another key."""
    content: str
    """What is lost with its rows."""
    key: tuple[tuple[str, str], ...]
    """Names and types of its key columns."""
    is_updated: bool = False
    """Whether rows are changed by UpdateRow, which a table may forbid."""

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
            raise ConfigurationError(f"{self.noun} {name!r} forbids UpdateRow, as every heartbeat is; set allow_update")
        if options.max_version != ONE_VERSION:
            _log.warning("%s %s keeps %s versions per cell; 1 is enough", self.noun, name, options.max_version)


@define(eq=False)
class OwnTable:
    """The table itself; its rows are its user's business. Thread-safe, and never repeats a call."""

    client: OTSClient
    name: str
    purpose: TablePurpose
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], object] = time.sleep
    capacity: tuple[int, int] = (0, 0)
    """Reserved for reads and for writes."""
    ready_millis: int = 120_000
    """How long a new table may take until it answers."""
    look_millis: int = 100
    """Between two looks whether it does."""
    problem: StreamClientError | None = None
    """Why it cannot be created or does not answer reads, as far as somebody waits for that."""

    def create_if_absent(self) -> bool:
        """Create the table unless it exists, which is checked first; returns whether this call created it.

        CreateTable fails with a quota error once the instance is at its limit of tables, even for a name that exists
        (Java: ``LeaseManager.createLeaseTableIfNotExists``), so it is only sent for a name that does not.

        Raises:
            ConfigurationError: a table of that name exists but does not serve the purpose.
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
        """Return whether the table is there, with one call.

        Raises:
            ConfigurationError: it is there and does not serve the purpose.
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
        """Read the row ``probe``, which never exists, until the table answers; the error if it did not in time.

        A table that keeps the caller waiting is named in the log meanwhile.
        """
        began = self.clock()
        longest = self.ready_millis / 1000
        while (failure := self._probe(probe)) is not None:
            self.problem = failure
            waited_seconds = self.clock() - began
            if SILENT_SECONDS <= waited_seconds < longest:
                text = f"{self.purpose.noun} %s does not answer reads yet, and is waited for up to %.0f s: %s"
                _outages.log(logging.WARNING, (self.name, type(failure)), text, self.name, longest, failure)
            if waited_seconds >= longest:
                noun = self.purpose.noun
                _log.warning("%s %s was not ready after %s ms: %s", noun, self.name, self.ready_millis, failure)
                return failure
            self.sleep(self.look_millis / 1000)
        self.problem = None
        return None

    def _probe(self, probe: Sequence[tuple[str, object]]) -> StreamClientError | None:
        """``None`` once the table answers; the error while waiting may help; any other error is raised."""
        try:
            self.client.get_row(self.name, list(probe), max_version=1)
        except Exception as error:
            failure = classify(error, write=False, client=self.client)
            if isinstance(failure, DependencyException) and failure.kind is not ErrorKind.PERMANENT:
                return failure
            raise failure from error
        return None


def _columns(schema: tuple[tuple[str, str], ...]) -> str:
    return ", ".join(f"{column} {kind}" for column, kind in schema)
