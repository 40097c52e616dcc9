"""Reports by the wall clock, over real HTTP: who makes them, what is kept, and what their failures disturb."""

from __future__ import annotations

import json
import logging
import threading
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tablestore import (
    CapacityUnit,
    Condition,
    OTSClient,
    ReservedThroughput,
    Row,
    RowExistenceExpectation,
    TableMeta,
    TableOptions,
)

from streamclient import (
    ClientConfig,
    ConfigurationError,
    IRecordProcessor,
    MemoryLeaseManager,
    StreamConfig,
    Worker,
)
from streamclient.cli import main, make_parser
from streamclient.commands.run_worker import make_worker
from streamclient.interfaces import InitializationInput, ProcessRecordsInput, ShutdownInput
from streamclient.metrics import MemoryMetrics
from streamclient.metrics.table import REPORTS
from streamclient.operate.snapshots import load_snapshot
from streamclient.stream import StreamSpecification, TablestoreStreamApi
from streamclient.tunnel import TunnelWorkerConfig
from tests.patience import PATIENCE_SECONDS, run_job, until

if TYPE_CHECKING:
    from streamclient.server import LocalTablestore

CLIENT = OTSClient("http://127.0.0.1:1", "id", "secret", "instance")
"""Never called."""

NEW_YEAR = "0 0 1 1 *"
"""A time that tests do not meet by themselves."""


class Accepting(IRecordProcessor):
    def initialize(self, initialization_input: InitializationInput) -> None:
        pass

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        process_records_input.checkpointer.checkpoint()

    def shutdown(self, shutdown_input: ShutdownInput) -> None:
        pass


def config(**changes: Any) -> ClientConfig:
    quick = {"taker_interval_millis": 100, "renewer_interval_millis": 500, "sync_shard_interval_millis": 200}
    return ClientConfig(**{**quick, "report_cron": NEW_YEAR, **changes})


class Tables:
    """Tables on a local server, and workers that report on them."""

    def __init__(self, local: LocalTablestore, directory: Path, *names: str) -> None:
        self.local = local
        self.directory = directory
        self.names = names
        self.metrics = MemoryMetrics()
        client = local.client()
        for name in names:
            TablestoreStreamApi(client).create_table(
                TableMeta(name, [("id", "INTEGER")]),
                TableOptions(),
                ReservedThroughput(CapacityUnit(0, 0)),
                stream=StreamSpecification(enable_stream=True, expiration_time_hours=24),
            )
            row = Row([("id", 1)], [("n", 1)])
            client.put_row(name, row, Condition(RowExistenceExpectation.IGNORE))

    def worker(self, name: str, **changes: Any) -> Worker:
        streams = [
            StreamConfig(client=self.local.client(), data_table_name=table, status_table_name="status")
            for table in self.names
        ]
        settings = config(report_directory=self.directory, metrics=self.metrics, **changes)
        return Worker(name, settings, streams, Accepting)

    def reports(self, worker: str, result: str = "ok") -> float:
        labels = {"worker": worker, "result": result}
        return sum(
            series.value for series in self.metrics.snapshot(REPORTS) if labels.items() <= dict(series.labels).items()
        )

    def kept(self, kind: str) -> list[Path]:
        return sorted(self.directory.glob(f"*.{kind}.json"))


def report(worker: Worker, *, late_by: timedelta = timedelta()) -> None:
    """Let the time of the next report be now, or have been; return when it was made, or was left to somebody else."""
    assert worker._reporter is not None
    run_job(worker._reporter.schedule, "report", late_by=late_by)


def test_one_worker_of_a_fleet_reports_and_another_one_after_it(local: LocalTablestore, tmp_path: Path) -> None:
    tables = Tables(local, tmp_path, "orders", "visits")
    with tables.worker("w2") as second:
        with tables.worker("w1") as first:
            until(lambda: sum(map(len, (first.shard_statuses(), second.shard_statuses()))) == 2)
            until(lambda: leads(first) == [True, True] and leads(second) == [False, False])
            for worker in (first, second):
                report(worker)
            assert (tables.reports("w1"), tables.reports("w2")) == (2, 0)
            assert len(tables.kept("snapshot")) == len(tables.kept("report")) == 2
        until(lambda: leads(second) == [True, True] and len(second.shard_statuses()) == 2)
        report(second)
        assert tables.reports("w2") == 2

    newest = max(tmp_path.glob("orders-*.snapshot.json"))
    assert [lease["owner"] for lease in load_snapshot(newest)["leases"]] == ["w2"]
    reports = [json.loads(path.read_text()) for path in tables.kept("report")]
    assert {sum(group["shards"] for group in report["groups"]) for report in reports} == {1}
    assert {frozenset(dict(series.labels)) for series in tables.metrics.snapshot(REPORTS)} == {
        frozenset(REPORTS.labels)
    }


def leads(worker: Worker) -> list[bool]:
    found: list[bool] = []
    for stream in worker._streams.values():
        answered = threading.Event()
        stream.leads(lambda is_leader, answered=answered: (found.append(is_leader), answered.set()))  # type: ignore[misc]
        assert answered.wait(PATIENCE_SECONDS)
    return found


def test_a_time_that_was_slept_through_makes_one_report_with_its_lines_in_the_log(
    local: LocalTablestore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tables = Tables(local, tmp_path, "orders")
    with tables.worker("w1") as worker, caplog.at_level(logging.INFO, "streamclient.worker"):
        until(lambda: leads(worker) == [True] and len(worker.shard_statuses()) == 1)
        report(worker, late_by=timedelta(days=1_200))

    assert tables.reports("w1") == 1
    said = [record.getMessage() for record in caplog.records if record.name.endswith("reporting")]
    (path,) = tables.kept("report")
    assert said[0].startswith("orders: 1 worker, ")
    assert said[0].endswith(f"; saved as {path}")
    assert [line.startswith("orders: 1 shard ") for line in said[1:]] == [True]


def test_a_report_that_fails_is_told_and_disturbs_nothing(
    local: LocalTablestore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "reports"
    tables = Tables(local, directory, "orders")
    with tables.worker("w1") as worker:
        until(lambda: leads(worker) == [True])
        directory.rmdir()
        directory.write_text("in the way")
        report(worker)
        assert (tables.reports("w1"), tables.reports("w1", "failed")) == (0, 1)
        assert worker.health.is_healthy
        directory.unlink()
        directory.mkdir()
        report(worker)
        assert (tables.reports("w1"), tables.reports("w1", "failed")) == (1, 1)

    (told,) = [record for record in caplog.records if "could not report" in record.getMessage()]
    assert (told.levelname, told.exc_info) == ("ERROR", None)
    assert "worker w1 could not report on stream orders, and does so again at the next time" in told.getMessage()


def test_a_worker_that_ended_or_has_not_begun_reports_nothing(local: LocalTablestore, tmp_path: Path) -> None:
    tables = Tables(local, tmp_path, "orders")
    worker = tables.worker("w1")
    reporter = worker._reporter
    assert reporter is not None
    reporter.run()
    with worker:
        until(lambda: leads(worker) == [True])
    reporter.run()

    assert list(tmp_path.iterdir()) == []
    assert tables.reports("w1") == tables.reports("w1", "failed") == 0


def test_settings_of_reports_that_cannot_work_are_refused(tmp_path: Path) -> None:
    directory = tmp_path / "reports"
    for changes, complaint in (
        ({"report_cron": "hourly"}, "report_cron must be a cron expression of five fields"),
        ({"report_cron": NEW_YEAR}, "report_cron='0 0 1 1 *' and report_directory=None go together"),
        ({"report_directory": str(directory)}, "go together"),
        ({"report_directory": 5, "report_cron": NEW_YEAR}, "report_directory must be a path or None, not 5"),
        ({"reports_kept": 0}, "reports_kept must be a whole number above 0"),
    ):
        with pytest.raises(ConfigurationError) as raised:
            ClientConfig(**changes)
        assert complaint in str(raised.value)
    settings = config(report_directory=directory)
    with pytest.raises(ConfigurationError, match="a tunnel has none"):
        TunnelWorkerConfig(client_config=settings)
    stream = StreamConfig(client=CLIENT, data_table_name="orders", status_table_name="status")
    with pytest.raises(ConfigurationError, match="no lease_manager of its own"):
        Worker("w1", settings, stream, Accepting, lease_manager=MemoryLeaseManager("orders_1"))
    assert not directory.exists(), "refused before anything happened"
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="file cannot be a directory of reports"):
        Worker("w1", config(report_directory=tmp_path / "file"), stream, Accepting)


def test_the_command_takes_these_settings_too(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run = ["run", "json:loads", "--data-table", "orders", "--status-table", "status"]
    for words, complaint in (
        (["--report-cron", "hourly", "--report-directory", str(tmp_path)], "report_cron must be a cron expression"),
        (["--report-cron", NEW_YEAR], "go together"),
        (["--report-directory", str(tmp_path)], "go together"),
    ):
        assert main([*run, *words]) == 2
        assert complaint in " ".join(capsys.readouterr().err.split())
    given = make_parser().parse_args([*run, "--report-cron", NEW_YEAR, "--report-directory", str(tmp_path)])
    reporter = make_worker(given)._reporter

    assert reporter is not None
    assert [job.name for job in reporter.schedule.scheduler.get_jobs()] == ["report"]
