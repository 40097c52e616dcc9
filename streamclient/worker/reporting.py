"""What a worker does by the wall clock: it saves the leases of its fleet, and reports lag and time to loss.

Of the workers of a fleet the one does it that also keeps its rows in order. Nothing else of a worker waits for it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable

from streamclient import logs
from streamclient.config import ClientConfig
from streamclient.cron import CronSchedule
from streamclient.errors import StreamClientException, is_foreseen
from streamclient.metrics.labelled import labelled
from streamclient.metrics.table import REPORTS
from streamclient.operate.collection import FleetReader, readable
from streamclient.operate.overview import headline, overview
from streamclient.operate.reports import ReportDirectory, shard_groups
from streamclient.operate.site import Site
from streamclient.worker.runtime import JOIN_SECONDS, Runtime
from streamclient.worker.stream_run import StreamRun

_log = logs.logger(__name__)

ANSWER_SECONDS = 10.0
"""The owner thread answers in milliseconds; more than this means a process that gets no processor time."""


class FleetReporter:
    """Reports on each stream of a worker at the times of ``ClientConfig.report_cron``. Its errors are logged, no more.

    Raises:
        ConfigurationError: the directory cannot be one.
    """

    def __init__(
        self, worker_identifier: str, config: ClientConfig, streams: Iterable[StreamRun], runtime: Runtime
    ) -> None:
        self._worker_identifier = worker_identifier
        self._config = config
        self._runtime = runtime
        self._streams = list(streams)
        self._readers: dict[str, FleetReader] = {}
        self._directory = ReportDirectory(config.report_directory or "", config.reports_kept)
        self.schedule = CronSchedule(worker_identifier)
        """What runs it."""
        self.schedule.add("report", config.report_cron or "", self.run)

    def start(self) -> None:
        """Begin to run by the clock; returns at once."""
        self.schedule.start()

    def stop(self) -> None:
        """Run no more; a report under way is waited for as briefly as any thread of a worker that ends."""
        self.schedule.stop(JOIN_SECONDS)

    def run(self) -> None:
        """Report on each stream whose fleet this worker leads, in this thread; raises nothing."""
        at_micros = self._runtime.wall_micros()
        for stream in self._streams:
            metrics = labelled(self._config.metrics, stream=stream.name, worker=self._worker_identifier)
            try:
                if self._leads(stream):
                    self._report(stream, at_micros)
                    metrics.increment(REPORTS, result="ok")
            except Exception as error:
                _log.error(
                    "worker %s could not report on stream %s, and does so again at the next time: %s",
                    self._worker_identifier,
                    stream.name,
                    error,
                    exc_info=None if is_foreseen(error) or isinstance(error, OSError) else error,
                )
                metrics.increment(REPORTS, result="failed")

    def _leads(self, stream: StreamRun) -> bool:
        answered = threading.Event()
        found: list[bool] = []

        def reply(leads: bool) -> None:
            found.append(leads)
            answered.set()

        stream.leads(reply)
        if not self._runtime.wait(answered, ANSWER_SECONDS):
            raise StreamClientException(f"its owner thread did not answer within {ANSWER_SECONDS:.0f} s")
        return found[0]

    def _report(self, stream: StreamRun, at_micros: int) -> None:
        facts = readable(self._reader(stream).collect(None))
        view = overview(facts)
        path = self._directory.save(stream.name, view, at_micros)
        _log.info("%s; saved as %s", headline(view), path)
        for group in shard_groups(view):
            _log.log(logging.INFO if group.situation.moves else logging.WARNING, "%s", group)

    def _reader(self, stream: StreamRun) -> FleetReader:
        """One for each stream, which remembers what it read of records that still wait."""
        if stream.name not in self._readers:
            config = stream.config
            lease_seconds = self._config.lease_duration_millis / 1_000
            site = Site(config.client, config.data_table_name, config.status_table_name, lease_seconds=lease_seconds)
            self._readers[stream.name] = FleetReader(site)
        return self._readers[stream.name]
