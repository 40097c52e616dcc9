"""One fleet's tables, over the network: what commands read and write. Thread-safe."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import TypeVar

from tablestore import OTSClient

from streamclient.base import logs
from streamclient.core.leases import LeaseWrite
from streamclient.errors import ConfigurationError, DependencyException, ErrorKind, StreamClientError
from streamclient.operate.service_clock import ServiceClock
from streamclient.operate.status_table import StatusTableReader
from streamclient.tablestore.read_retry import ReadRetry, Repeater
from streamclient.tablestore.stream_operations import TablestoreStreamApi
from streamclient.wire.service_errors import NO_PERMISSION, OBJECT_NOT_EXIST, classify
from streamclient.worker.lease.lease_manager import LeaseManager
from streamclient.worker.lease.lease_rows import STATUS_TABLE
from streamclient.worker.lease.lease_store import WriteAnswer
from streamclient.worker.lease.status_connection import without_retries

_log = logs.logger(__name__)

Answer = TypeVar("Answer")

READ_RETRY = ReadRetry(retries=4, total_millis=3_000)
"""For commands that a person waits for: a short trouble is waited out, a long one is named instead."""

REFUSED_CODES = frozenset({NO_PERMISSION, "OTSAuthFailed", "OTSSTSTokenExpired", "OTSInvalidSTSToken"})


def problem_code(error: Exception) -> str:
    """``misfit``, ``missing``, ``refused``, ``throttled`` or ``unreachable``: what explanations tell apart."""
    if isinstance(error, ConfigurationError):
        return "misfit"
    if isinstance(error, DependencyException):
        if error.code == OBJECT_NOT_EXIST:
            return "missing"
        if error.code in REFUSED_CODES or error.http_status == 403:
            return "refused"
        if error.kind is ErrorKind.THROTTLED:
            return "throttled"
    return "unreachable"


class Site:
    """A data table, its stream, its status table, and the service's clock."""

    def __init__(
        self, client: OTSClient, data_table: str, status_table: str, *, lease_seconds: float | None = None
    ) -> None:
        self.clock = ServiceClock()
        self.data_table = data_table
        self.status_table = status_table
        self.lease_seconds = lease_seconds
        """As the operator gave it; ``None`` to go by what workers publish."""
        self.client = self.clock.watching(without_retries(client))
        self.streams = TablestoreStreamApi(self.client, retry=READ_RETRY)
        self.table = StatusTableReader(self.client, status_table, self.clock)
        self._repeater = Repeater(READ_RETRY)
        self._managers: dict[str, LeaseManager] = {}

    @cached_property
    def stream_id(self) -> str:
        """Id of the data table's stream.

        Raises:
            ConfigurationError: the table has no stream.
        """
        streams = self.streams.list_stream(self.data_table)
        if not streams:
            raise ConfigurationError(f"data table {self.data_table!r} has no stream: check the name, or enable it")
        return streams[0].stream_id

    def manager(self, stream_id: str) -> LeaseManager:
        """The lease manager of a stream, whose conditional writes are the workers' own."""
        if stream_id not in self._managers:
            self._managers[stream_id] = LeaseManager(self.client, self.status_table, stream_id)
        return self._managers[stream_id]

    def write(self, writes: Sequence[LeaseWrite]) -> Sequence[WriteAnswer]:
        """Send conditional writes, each once; one answer per write."""
        return self.manager(self.stream_id).write_many(writes)

    def wake(self, names: Iterable[str]) -> None:
        """Have workers look at the rows at once. Those that have no session, or miss it, look at their next scan."""
        wanted = sorted(set(names) - {""})
        if wanted:
            try:
                self.manager(self.stream_id).wake(wanted)
            except StreamClientError as error:
                _log.info("workers %s may not have been woken, they look by themselves: %s", ", ".join(wanted), error)

    def problem_of_status_table(self, error: Exception) -> tuple[str, str]:
        """Why the status table cannot be read, and the code of that.

        In the worker's words where the table cannot hold leases at all.
        """
        try:
            STATUS_TABLE.check(self.status_table, self.client.describe_table(self.status_table))
        except ConfigurationError as misfit:
            return text_of(misfit), problem_code(misfit)
        except Exception as unknown:
            _log.debug("status table %s cannot be described: %s", self.status_table, unknown)
        code = problem_code(error)
        if code == "missing":
            return "there is no such table; a worker makes it when it starts: check the name and the instance", code
        return text_of(error), code

    def read(self, name: str, call: Callable[[], Answer]) -> Answer:
        """A read's answer, repeated a few times; raises errors of this package only."""

        def attempt() -> Answer:
            try:
                return call()
            except Exception as error:
                failure = classify(error, write=False, client=self.client)
                if failure is error:
                    raise
                raise failure from error

        return self._repeater.call(name, attempt)


def text_of(error: Exception) -> str:
    """An error for people: the package's own speak for themselves."""
    return str(error) if isinstance(error, StreamClientError) else f"{type(error).__name__}: {error}"
