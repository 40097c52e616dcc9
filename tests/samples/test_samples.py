"""Every sample runs, as its documentation says it does."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from streamclient.server import LocalTablestore
from streamclient.testing.contracts import check_lease_manager
from tests.patience import PATIENCE_SECONDS, however_late_planners_start

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@contextmanager
def served() -> Iterator[str]:
    """A ``streamclient server`` of its own, as the README starts it, but on any free port; yields the endpoint."""
    command = [sys.executable, "-m", "streamclient.cli", "server", "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        first = process.stdout.readline()
        assert first.startswith("listening on http://"), first
        yield first.split()[-1]
    finally:
        process.terminate()
        process.wait(PATIENCE_SECONDS)
        process.stdout.close()
    assert process.returncode == 0


def run(arguments: list[str], *, endpoint: str | None = None) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    if endpoint is not None:
        environment["TABLESTORE_ENDPOINT"] = endpoint
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        cwd=ROOT,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def readme_blocks(language: str) -> list[str]:
    return [body for found, body in BLOCK.findall((ROOT / "README.md").read_text()) if found == language]


def printed_as(expected: str, actual: str) -> bool:
    pattern = ".*?".join(re.escape(part) for part in expected.strip().split("..."))
    return re.fullmatch(pattern, actual.strip(), re.DOTALL) is not None


def test_the_readme_shows_the_console_sample_itself() -> None:
    source = (ROOT / "samples" / "console.py").read_text()
    shown = next(block for block in readme_blocks("python") if "class RecordProcessor(" in block)

    assert shown.strip() in source


@pytest.mark.slow
def test_several_workers_share_a_table() -> None:
    assert run(["-m", "samples.several_workers"]).startswith("400 records")


@pytest.mark.slow
def test_metrics_sample_shows_what_prometheus_reads() -> None:
    lines = run(["-m", "samples.metrics"]).splitlines()

    found = {line.split("{")[0]: float(line.split()[-1]) for line in lines}
    assert found["streamclient_records_processed_total"] == 100
    assert (found["streamclient_lag_seconds"], found["streamclient_unhealthy"]) == (0, 0)


@pytest.mark.slow
def test_sample_lease_manager_keeps_the_contract(tmp_path: Path) -> None:
    from samples.lease_manager import SqliteLeaseManager

    made: list[SqliteLeaseManager] = []

    def make(stream_id: str) -> SqliteLeaseManager:
        manager = SqliteLeaseManager(tmp_path / f"{len(made)}.sqlite")
        manager.create_lease_table_if_not_exists()
        made.append(manager)
        return manager

    check_lease_manager(make)
    for manager in made:
        manager.close()


def docs_blocks(page: str) -> list[str]:
    return [body for found, body in BLOCK.findall((ROOT / "docs" / page).read_text()) if found == "text"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sample", "page", "begins"),
    [
        ("samples.tunnel_daemon", "tunnels.md", "full data: PUT"),
        ("samples.tunnel_workers", "tunnels.md", "one worker reads"),
        ("samples.replicate_table", "replicate.md", "made destination table"),
        ("samples.mirror_table", "mirror.md", "150 rows copied"),
    ],
)
def test_tunnel_samples_print_what_their_pages_show(sample: str, page: str, begins: str) -> None:
    shown = next(block for block in docs_blocks(page) if block.startswith(begins))

    actual = run(["-m", sample])

    assert printed_as(shown, actual), actual


@pytest.mark.slow
@pytest.mark.spark
def test_spark_sample_leaves_a_lake_that_equals_the_table(tmp_path: Path) -> None:
    with LocalTablestore() as local:
        output = run(["samples/spark_lake.py", str(tmp_path / "lake")], endpoint=local.endpoint)

    assert "lake and table are equal: True" in output


@pytest.mark.slow
def test_keyed_sample_prints_what_its_page_shows() -> None:
    """Also the time it takes, which differs from run to run, has its place."""
    page = (ROOT / "docs" / "flow.md").read_text()
    shown = next(body for _, body in BLOCK.findall(page) if "changes of 20 customers" in body)
    actual = run(["samples/keyed_processing.py"])

    assert printed_as(re.sub(r"in \d+\.\d s", "in ... s", shown), actual), actual


def shown_in(page: str, beginning: str) -> str:
    """The text block of a page that begins so."""
    blocks = [body for language, body in BLOCK.findall((ROOT / "docs" / page).read_text()) if language == "text"]
    return next(block for block in blocks if block.startswith(beginning))


@pytest.mark.slow
def test_the_sample_of_a_fenced_sink_shows_the_refusal_that_its_page_shows() -> None:
    assert run(["-m", "samples.fenced_sink"]) == shown_in("fencing.md", "worker-1 has")


@pytest.mark.slow
def test_the_sample_of_parked_records_prints_what_the_page_shows() -> None:
    assert run(["-m", "samples.parked_records"]) == shown_in("failing-records.md", "999 orders")


@pytest.mark.slow
def test_a_process_that_is_killed_between_its_phases_writes_every_record_once() -> None:
    """Some moments of every kind; which ones depends on how many batches a process lives."""
    actual = run(["-m", "samples.exactly_once_files"])
    shown = shown_in("failing-records.md", "killed before")

    assert actual.splitlines()[1] == shown.splitlines()[1]
    assert re.fullmatch(r"killed before: \d+, prepared: \d+, committed: \d+", actual.splitlines()[0])


@pytest.mark.slow
@pytest.mark.spark
def test_the_sample_of_the_streaming_source_prints_what_the_page_shows() -> None:
    printed = however_late_planners_start(lambda: run(["-m", "samples.streaming_source"]))

    assert printed.rstrip() == shown_in("source.md", "changes by batch").rstrip()
