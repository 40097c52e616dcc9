"""The access of commands and of the console to the tables of one fleet. Thread-safe."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import TypeVar

from tablestore import OTSClient

from streamclient.base import logs
from streamclient.base.times import duration
from streamclient.core.leases import LeaseWrite
from streamclient.errors import ConfigurationError, DependencyException, ErrorKind, StreamClientError
from streamclient.operate.service_clock import ServiceClock
from streamclient.operate.status_table import StatusTableReader
from streamclient.tablestore.read_retry import ReadRetry, Repeater
from streamclient.tablestore.signed_calls import MOST_SKEW_SECONDS
from streamclient.tablestore.stream_operations import TablestoreStreamApi
from streamclient.wire.service_errors import NO_PERMISSION, OBJECT_NOT_EXIST, classify
from streamclient.worker.lease.lease_manager import LeaseManager
from streamclient.worker.lease.lease_rows import STATUS_TABLE
from streamclient.worker.lease.lease_store import WriteAnswer
from streamclient.worker.lease.status_connection import without_retries

_log = logs.logger(__name__)

Answer = TypeVar("Answer")

READ_RETRY = ReadRetry(retries=4, total_millis=3_000)
"""The retries of reads for which a person waits. They outlast a short outage of the service, and report a long one."""

REFUSED_CODES = frozenset({NO_PERMISSION, "OTSAuthFailed", "OTSSTSTokenExpired", "OTSInvalidSTSToken"})


def problem_code(error: Exception) -> str:
    """Return the code of an error: ``misfit``, ``missing``, ``refused``, ``throttled`` or ``unreachable``."""
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
    """The access to one fleet: its data table, the table's stream, its status table, and the service's clock."""

    def __init__(
        self, client: OTSClient, data_table: str, status_table: str, *, lease_seconds: float | None = None
    ) -> None:
        self.clock = ServiceClock()
        self.data_table = data_table
        self.status_table = status_table
        self.lease_seconds = lease_seconds
        """The lease duration that the operator gave, in seconds; ``None`` to use the duration that workers publish."""
        self.client = self.clock.watching(without_retries(client))
        self.streams = TablestoreStreamApi(self.client, retry=READ_RETRY)
        self.table = StatusTableReader(self.client, status_table, self.clock)
        self._repeater = Repeater(READ_RETRY)
        self._managers: dict[str, LeaseManager] = {}

    @cached_property
    def stream_id(self) -> str:
        """The id of the data table's stream.

        Raises:
            ConfigurationError: the table has no stream.
        """
        streams = self.streams.list_stream(self.data_table)
        if not streams:
            raise ConfigurationError(
                f"data table {self.data_table!r} has no stream: check the name, or enable the stream"
            )
        return streams[0].stream_id

    def manager(self, stream_id: str) -> LeaseManager:
        """Return the lease manager of a stream. It makes the same conditional writes as a worker's lease manager."""
        if stream_id not in self._managers:
            self._managers[stream_id] = LeaseManager(self.client, self.status_table, stream_id)
        return self._managers[stream_id]

    def write(self, writes: Sequence[LeaseWrite]) -> Sequence[WriteAnswer]:
        """Send conditional writes of lease rows, each once; return one answer for each write."""
        return self.manager(self.stream_id).write_many(writes)

    def wake(self, names: Iterable[str]) -> None:
        """Wake the workers ``names``, so that they read the lease rows immediately.

        A worker that has no session row, or whose row cannot be written, reads the lease rows at its next scan.
        """
        wanted = sorted(set(names) - {""})
        if wanted:
            try:
                self.manager(self.stream_id).wake(wanted)
            except StreamClientError as error:
                _log.info(
                    "waking workers %s failed; they read the lease rows at their next scan: %s",
                    ", ".join(wanted),
                    error,
                )

    def problem_of_status_table(self, error: Exception) -> tuple[str, str]:
        """Return why the status table cannot be read, and the code of this problem; ``error`` is the read's error.

        If the table cannot hold leases, the text is the same as in the error that a worker would raise.
        """
        try:
            STATUS_TABLE.check(self.status_table, self.client.describe_table(self.status_table))
        except ConfigurationError as misfit:
            return text_of(misfit), problem_code(misfit)
        except Exception as unknown:
            _log.debug("status table %s cannot be described: %s", self.status_table, unknown)
        text, code = self.problem_of(error)
        if code == "missing":
            return "the table does not exist; workers create it when they start: check the name and the instance", code
        return text, code

    def problem_of(self, error: Exception) -> tuple[str, str]:
        """Return an error's text, and its code: ``clock``, or the result of ``problem_code``.

        The code is ``clock`` if this machine's clock is wrong by more than the service accepts. Then all
        calls fail, and their errors name other causes.
        """
        ahead_seconds = self.clock.offset_seconds
        if abs(ahead_seconds) > MOST_SKEW_SECONDS:
            wrong = "slow" if ahead_seconds > 0 else "fast"
            return f"this machine's clock is {duration(abs(ahead_seconds))} {wrong}, by the service's clock", "clock"
        return text_of(error), problem_code(error)

    def read(self, name: str, call: Callable[[], Answer]) -> Answer:
        """Return the result of ``call``, which reads. Repeat a call that fails, and raise only errors of this package.

        Logs and errors call this read by its ``name``.
        """

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
    """Return an error's text for people. An error of another package begins with its type."""
    return str(error) if isinstance(error, StreamClientError) else f"{type(error).__name__}: {error}"
