"""One replication from its configuration to its end."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attrs import define, field, frozen
from tablestore import OTSClient

from streamclient.base import checks
from streamclient.base.times import now_micros
from streamclient.copying.replication_processors import ReplicationProcessors
from streamclient.copying.replication_progress import Course, Snapshot
from streamclient.copying.replication_settings import PoisonRow, Settings, SourceKind
from streamclient.copying.replication_sources import Source, SourceState, StreamSource, TunnelSource
from streamclient.copying.table_changes import RowChange
from streamclient.copying.table_writer import DestinationWriter
from streamclient.copying.target_table import prepare_destination
from streamclient.errors import ConfigurationError, StreamClientError, StreamClientException
from streamclient.tablestore.signed_calls import SignedCalls

POLL_SECONDS = 5.0
"""Between two looks at the source's progress: the service's management calls go to a single node."""

RATE_SECONDS = 1.0
"""Before this a rate says nothing."""

Say = Callable[[str], None]


@frozen
class ReplicationOutcome:
    """How a replication ended."""

    is_complete: bool
    """Whether everything up to the end time was copied."""
    rows: int
    refused_rows: int
    error: BaseException | None = None


@define(eq=False)
class PoisonFile:
    """Keeps refused rows, one JSON object per line, each written through to the disk."""

    path: Path
    _lock: threading.Lock = field(factory=threading.Lock)

    def make(self) -> None:
        """Have the file, empty if it is new: a row that cannot be kept would hold up its shard until somebody looks.

        Raises:
            ConfigurationError: it cannot be written.
        """
        try:
            self.path.open("a", encoding="utf-8").close()
        except OSError as error:
            raise ConfigurationError(
                f"ots-writer.poisonFile: {self.path} cannot be written ({error.strerror}); name a file that may be "
                "written, in a folder that is there"
            ) from error

    def take(self, change: RowChange, error: StreamClientError) -> None:
        """Append one row."""
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
class Replication:
    """Runs once. ``stop`` may be set from any thread: the run then ends in order.

    Not from a signal handler of the thread that runs it: an event cannot be set by whoever it interrupts in a wait.
    """

    settings: Settings = field(validator=checks.instance(Settings))
    say: Say = field(validator=checks.function("of a line"))
    show: Say = field(validator=checks.function("of a line"))
    """Gets the progress line, again and again."""
    stop: threading.Event = field(factory=threading.Event, validator=checks.instance(threading.Event))
    poll_seconds: float = field(default=POLL_SECONDS, validator=checks.seconds)

    def run(self) -> ReplicationOutcome:
        """Copy until the end time is past, ``stop`` is set, or it cannot go on.

        Raises:
            ConfigurationError: the destination cannot take the rows, or the file of refused ones cannot be written;
                nothing was copied.
            StreamClientError: source or destination cannot be reached or prepared; nothing was copied by this run.
        """
        settings = self.settings
        poison = None
        if settings.poison_row is PoisonRow.SKIP and settings.poison_file is not None:
            file = PoisonFile(settings.poison_file)
            file.make()
            poison = file.take
        reader, writer_client = settings.reader.quiet_client(), settings.writer.quiet_client()
        was_made = prepare_destination(reader, settings.reader.table_name, writer_client, settings.writer.table_name)
        self.say(f"{'made' if was_made else 'going on with'} destination table {settings.writer.table_name!r}")
        writer = DestinationWriter(
            SignedCalls(writer_client), settings.writer.table_name, settings.batch_rows, poison, self.stop
        )
        processors = ReplicationProcessors(writer, settings.end_time_micros)
        source = self._source(reader, processors)
        self.say(source.prepare())
        source.start()
        try:
            error, is_complete = self._watch(source, processors)
        except StreamClientError as ended:
            error, is_complete = ended, False
        finally:
            source.stop()
        counts = writer.counts
        return ReplicationOutcome(is_complete and error is None, counts.rows, counts.refused_rows, error)

    def _source(self, reader: OTSClient, processors: ReplicationProcessors) -> TunnelSource | StreamSource:
        if self.settings.source is SourceKind.TUNNEL:
            return TunnelSource(reader, self.settings, processors)
        return StreamSource(reader, self.settings, processors)

    def _watch(self, source: Source, processors: ReplicationProcessors) -> tuple[BaseException | None, bool]:
        """Show progress until there is nothing left to wait for. A look that fails is repeated with the next one."""
        started = time.monotonic()
        course = Course()
        was_healthy = True
        while True:
            problem = source.exception or processors.refused
            if problem is not None:
                return problem, False
            health = source.health
            if was_healthy and not health.is_healthy:
                self.say(f"the source is not read: {health.reason}; it is tried again without end")
            was_healthy = health.is_healthy
            state = self._look(source)
            if state is not None:
                now = self._snapshot(state, processors.writer, time.monotonic() - started)
                self.show(course.line(now))
                if state.is_past:
                    return None, True
            if self.stop.wait(self.poll_seconds):
                return None, False

    def _look(self, source: Source) -> SourceState | None:
        try:
            return source.state()
        except StreamClientException:
            raise
        except StreamClientError as error:
            self.say(f"progress is not known at the moment: {error}")
            return None

    def _snapshot(self, state: SourceState, writer: DestinationWriter, seconds: float) -> Snapshot:
        counts = writer.counts
        return Snapshot(
            stage="full data" if state.is_full else "changes",
            rows=counts.rows,
            rows_per_second=counts.rows / seconds if seconds >= RATE_SECONDS else None,
            channels_done=state.channels_done,
            channels_total=state.channels_total,
            created_micros=state.created_micros,
            consumed_micros=state.consumed_micros,
            now_micros=now_micros(),
            end_micros=self.settings.end_time_micros,
            retried_rows=counts.retried_rows,
            refused_rows=counts.refused_rows,
        )
