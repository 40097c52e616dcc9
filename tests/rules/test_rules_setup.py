"""Rules about what a worker checks before it works, and what it says about others that do not."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve
from rules_scene import QUICK, STATUS, TABLE, Decisions, Scene, is_well
from tablestore import OTSClient

from streamclient import (
    ClientConfig,
    ConfigurationError,
    Lease,
    MemoryLeaseManager,
    StreamConfig,
    Worker,
    WorkerFailedError,
    WorkerStatus,
)
from streamclient.core.events import Answered, Command, ReadRows, Report, Scan, Severity, TakeDue
from streamclient.tablestore import StreamSpecification
from streamclient.testing.fakes import FakeStream

CLIENT = OTSClient("http://127.0.0.1:1", "id", "secret", "instance")
"""Never called."""


@pytest.mark.parametrize("name", ["renewer_interval_millis", "taker_interval_millis"])
def test_intervals_that_would_lose_every_lease_are_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{name}=20000 must be below lease_duration_millis=20000"):
        ClientConfig(**{name: 20_000})


@pytest.mark.parametrize("change", [{"data_table_name": ""}, {"status_table_name": ""}, {"client": "http://"}])
def test_names_and_client_are_checked_at_once(change: dict[str, Any]) -> None:
    given = {"client": CLIENT, "data_table_name": TABLE, "status_table_name": STATUS}
    with pytest.raises(ConfigurationError, match=next(iter(change))):
        StreamConfig(**{**given, **change})


def test_a_client_that_is_none_is_refused_before_anything_happens() -> None:
    config = StreamConfig(client=None, data_table_name=TABLE, status_table_name=STATUS)
    with pytest.raises(ConfigurationError, match="client of stream"):
        Worker("w1", ClientConfig(), config, object)  # type: ignore[arg-type]


class TwoStreams(FakeStream):
    """A table that claims two streams."""

    def list_stream(self, table_name: str | None = None) -> Any:
        (only,) = super().list_stream(table_name)
        return (only, evolve(only, stream_id="orders_2"))


def test_a_table_with_two_streams_is_refused_by_name() -> None:
    config = StreamConfig(client=None, data_table_name="orders", status_table_name=STATUS)
    worker = Worker("w1", ClientConfig(**QUICK), config, object, None, MemoryLeaseManager(), stream_api=TwoStreams())  # type: ignore[arg-type]
    with pytest.raises(WorkerFailedError):
        worker.run()

    assert worker.worker_status is WorkerStatus.ERROR
    assert "has 2 streams (orders_1500000000000000, orders_2)" in str(worker.exception)


@pytest.mark.slow
def test_a_stream_that_is_switched_off_and_on_ends_no_worker(scene: Scene) -> None:
    """The worker stays with the stream it began with, and its shards say that they cannot be read."""
    scene.write("a1")
    with scene.worker() as worker:
        scene.until(lambda: scene.diary.accepted() == ["a1"])
        scene.stream_api.update_table(TABLE, stream=StreamSpecification(False))
        scene.until(lambda: "reading failed" in worker.shard_statuses()[scene.root].reason)
        scene.stream_api.update_table(TABLE, stream=StreamSpecification(True, 24))
        scene.scans_pass(5)
        assert is_well(worker)
        assert set(worker.shard_statuses()) == {scene.root}


def test_a_mark_that_nobody_serves_is_reported_once() -> None:
    """A Java worker that was restarted under its old name renews a marked lease for ever and never reads it."""
    decisions = Decisions("me", ClientConfig())
    commands: list[Command] = []
    for now in range(0, 900, 6):
        row = Lease("a", "stream", owner="java", counter=now, stealer="me")
        decisions.now = now
        commands += decisions.tell(TakeDue())
        decisions.now += 0.1
        commands += decisions.tell(Answered(ReadRows(), Scan((row,))))

    (report,) = (command for command in commands if isinstance(command, Report))
    assert report.severity is Severity.WARNING
    assert "worker java neither hands it over nor dies" in report.text
