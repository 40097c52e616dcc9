"""A replication: a copy of a table in another Tablestore table, which follows the source's changes."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attrs import define, evolve, field, frozen

from streamclient.base import checks
from streamclient.base.probes import Lifecycle, Probed
from streamclient.base.reasons import WorkerHealth, described
from streamclient.base.times import now_micros
from streamclient.copying.copy_trouble import health_of
from streamclient.copying.replication_processors import ReplicationProcessors
from streamclient.copying.replication_progress import Course, Snapshot
from streamclient.copying.replication_settings import PoisonRow, Settings, SourceKind
from streamclient.copying.replication_sources import Source, StreamSource, TunnelSource
from streamclient.copying.source_table import SourceTable
from streamclient.copying.table_writer import DestinationWriter, RowChange
from streamclient.copying.target_table import prepare_destination
from streamclient.errors import ConfigurationError, StreamClientError, StreamClientException
from streamclient.tablestore.signed_calls import SignedCalls

POLL_SECONDS = 5.0
"""The seconds between two reads of the progress, which the source stores. The pause is long, because all such calls go
to the same single node of the service."""

RATE_SECONDS = 1.0
"""The seconds after the start at which the progress line begins to show a rate."""

UNWRITTEN_SECONDS = 60.0
"""The seconds for which writes may fail before the replication reports the failure. The default limit of a worker for
failing calls is the same."""

Say = Callable[[str], None]


@frozen
class ReplicationOutcome:
    """The result of one run of a replication."""

    is_complete: bool
    """Whether all changes up to the end time in the settings were copied. ``False`` if the run ended earlier."""
    rows: int
    refused_rows: int
    error: BaseException | None = None


@define(eq=False)
class PoisonFile:
    """A file that collects the rows that the destination has refused, with one JSON object per line."""

    path: Path
    _lock: threading.Lock = field(factory=threading.Lock)

    def make(self) -> None:
        """Create the file if it is missing.

        Call this before any row is copied, because a refused row that cannot be stored would stop its shard.

        Raises:
            ConfigurationError: the file cannot be written.
        """
        try:
            self.path.open("a", encoding="utf-8").close()
        except OSError as error:
            raise ConfigurationError(
                f"ots-writer.poisonFile: {self.path} cannot be written ({error.strerror}); name a file that may be "
                "written, in a folder that exists"
            ) from error

    def take(self, change: RowChange, error: StreamClientError) -> None:
        """Append the refused row of ``change`` and its error as one line; return when the line is on the disk."""
        document = {
            "kind": change.kind.value.lower(),
            "key": [[name, _shown(value)] for name, value in change.key],
            "columns": [
                [column.name, column.operation.value, _shown(column.value), column.timestamp_millis]
                for column in change.columns
            ],
            "error": str(error),
        }
        with self._lock, self.path.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(document) + "\n")
            lines.flush()
            os.fsync(lines.fileno())


def _shown(value: Any) -> Any:
    return {"hex": value.hex()} if isinstance(value, bytes) else value


@checks.explains_names
@define(eq=False)
class Replication(Probed):
    """One run of a replication. Any thread may set ``stop``, which ends the run in an orderly way.

    But a signal handler in the thread of ``run`` must not set ``stop``. The handler may interrupt a wait for this
    event, and during the wait the thread may hold the event's lock.
    """

    settings: Settings = field(validator=checks.instance(Settings))
    say: Say = field(validator=checks.function("of a line"))
    show: Say = field(validator=checks.function("of a line"))
    """A function that is called with each new progress line."""
    stop: threading.Event = field(factory=threading.Event, validator=checks.instance(threading.Event))
    poll_seconds: float = field(default=POLL_SECONDS, validator=checks.seconds)

    def __attrs_post_init__(self) -> None:
        self._source: Source | None = None
        self._writer: DestinationWriter | None = None
        self._error: BaseException | None = None
        self._has_begun = self._has_ended = False

    @property
    def work_health(self) -> WorkerHealth:
        """Whether the worker reads the source, and the writer can write to the destination.

        The replication becomes unhealthy when writes have failed for a minute. ``health`` has the same value while the
        replication runs. Any thread may read this property.
        """
        if self._error is not None:
            return WorkerHealth(is_healthy=False, reason=f"ended: {described(self._error)}")
        source, writer = self._source, self._writer
        if source is None or writer is None:
            return WorkerHealth(is_healthy=True)
        return health_of(source.health, (), writer.trouble(UNWRITTEN_SECONDS))

    @property
    def liveness(self) -> WorkerHealth:
        """Whether the worker's owner thread makes progress; see ``Worker.liveness``. Usable from any thread."""
        worker = None if self._source is None else self._source.worker
        return WorkerHealth(is_healthy=True) if worker is None else worker.liveness

    def _lifecycle(self) -> Lifecycle:
        return Lifecycle(
            has_begun=self._has_begun,
            is_stopping=self.stop.is_set(),
            has_ended=self._has_ended,
            has_failed=isinstance(self._error, Exception),  # a KeyboardInterrupt does not count as a failure
        )

    def run(self) -> ReplicationOutcome:
        """Copy until all changes up to the end time are copied, ``stop`` is set, or an error ends the run.

        Raises:
            ConfigurationError: the source table has no stream, the destination cannot take its rows, or the file of
                refused rows cannot be written. Nothing was copied.
            StreamClientError: source or destination cannot be reached or prepared. This run has copied nothing.
        """
        self._has_begun = True
        try:
            outcome = self._run()
        except BaseException as error:
            self._error = error
            raise
        finally:
            self._has_ended = True
        self._error = outcome.error
        return outcome

    def _run(self) -> ReplicationOutcome:
        settings = self.settings
        poison = None
        if settings.poison_row is PoisonRow.SKIP and settings.poison_file is not None:
            file = PoisonFile(settings.poison_file)
            file.make()
            poison = file.take
        reader, writer_client = settings.reader.quiet_client(), settings.writer.quiet_client()
        source_name, name = settings.reader.table_name, settings.writer.table_name
        prepared = prepare_destination(reader, source_name, writer_client, name)
        self.say(f"{'made' if prepared.was_made else 'going on with'} destination table {name!r}")
        writer = DestinationWriter(
            SignedCalls(writer_client),
            name,
            settings.batch_rows,
            poison,
            self.stop,
            time_to_live_millis=prepared.time_to_live_millis,
        )
        source_table = SourceTable(reader, source_name, self.stop)
        processors = ReplicationProcessors(writer, source_table, settings.end_time_micros)
        kind = TunnelSource if settings.source is SourceKind.TUNNEL else StreamSource
        source: Source = kind(reader, settings, processors)
        self._source, self._writer = source, writer
        self.say(source.prepare())
        if source.was_made and not prepared.was_made:
            self.say("the copy begins: rows that are in the destination already and not in the source stay there")
        source.start()
        try:
            error, is_complete = self._watch(source, processors)
        except StreamClientError as ended:
            error, is_complete = ended, False
        finally:
            source.stop()
        counts = writer.counts
        return ReplicationOutcome(is_complete and error is None, counts.rows, counts.refused_rows, error)

    def _watch(self, source: Source, processors: ReplicationProcessors) -> tuple[BaseException | None, bool]:
        """Show the progress until the run ends; return the run's error, and whether the end time was reached."""
        started = time.monotonic()
        course = Course()
        told: frozenset[str] = frozenset()
        while True:
            problem = source.exception or processors.refused
            if problem is not None:
                return problem, False
            told = self._tell_troubles(source, processors.writer, told)
            state = self._look(source)
            if state is not None:
                self.show(course.line(self._snapshot(state, processors.writer, time.monotonic() - started)))
                if state.is_past:
                    return None, True
            if self.stop.wait(self.poll_seconds):
                return None, False

    def _tell_troubles(self, source: Source, writer: DestinationWriter, told: frozenset[str]) -> frozenset[str]:
        """Report why the source is not read, and why the destination is not written, unless ``told`` has this trouble.

        Return the troubles that exist now. If the caller passes them as ``told`` to its next call, each trouble is
        reported only once until it ends.
        """
        troubles = {
            "the source is not read": source.health.reason,
            "the destination is not written": writer.trouble(UNWRITTEN_SECONDS),
        }
        for what, why in troubles.items():
            if why and what not in told:
                self.say(f"{what}: {why}")
        return frozenset(what for what, why in troubles.items() if why)

    def _look(self, source: Source) -> Snapshot | None:
        try:
            return source.state()
        except StreamClientException:
            raise
        except StreamClientError as error:
            self.say(f"progress is not known at the moment: {error}")
            return None

    def _snapshot(self, state: Snapshot, writer: DestinationWriter, seconds: float) -> Snapshot:
        counts = writer.counts
        return evolve(
            state,
            rows=counts.rows,
            rows_per_second=counts.rows / seconds if seconds >= RATE_SECONDS else None,
            now_micros=now_micros(),
            end_micros=self.settings.end_time_micros,
            retried_rows=counts.retried_rows,
            refused_rows=counts.refused_rows,
        )
