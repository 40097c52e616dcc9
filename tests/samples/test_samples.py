"""Every sample runs, as its documentation says it does."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from sample import ROOT, blocks_of, printed_by, shown_in

from streamclient.testing.contracts import check_lease_manager
from tests.docs.page_examples import matches
from tests.patience import PATIENCE_SECONDS


def test_the_readme_shows_the_console_sample_itself() -> None:
    source = (ROOT / "samples" / "console.py").read_text()
    shown = next(block for block in blocks_of("README.md", "python") if "class RecordProcessor(" in block)

    assert shown.strip() in source


@pytest.mark.slow
def test_several_workers_share_a_table() -> None:
    assert printed_by("several_workers").startswith("400 records")


@pytest.mark.slow
def test_metrics_sample_shows_what_prometheus_reads() -> None:
    lines = printed_by("metrics").splitlines()

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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sample", "page", "begins"),
    [
        ("tunnel_daemon", "tunnels.md", "full data: PUT"),
        ("tunnel_workers", "tunnels.md", "one worker reads"),
        ("replicate_table", "replicate.md", "made destination table"),
        ("mirror_table", "mirror.md", "150 rows copied"),
        ("fenced_sink", "fencing.md", "worker-1 has"),
        ("parked_records", "failing-records.md", "999 orders"),
    ],
)
def test_a_sample_prints_what_its_page_shows(sample: str, page: str, begins: str) -> None:
    actual = printed_by(sample)

    assert matches(shown_in(page, begins), actual), actual


@pytest.mark.slow
def test_keyed_sample_prints_what_its_page_shows() -> None:
    """Also the time it takes, which differs from run to run, has its place."""
    shown = next(block for block in blocks_of("docs/flow.md") if "changes of 20 customers" in block)
    actual = printed_by("keyed_processing")

    assert matches(re.sub(r"in \d+\.\d s", "in ... s", shown), actual), actual


@pytest.mark.slow
def test_a_process_that_is_killed_between_its_phases_writes_every_record_once() -> None:
    """Some moments of every kind; which ones depends on how many batches a process lives."""
    done = subprocess.run(
        [sys.executable, "-m", "samples.exactly_once_files"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    actual = done.stdout.splitlines()
    shown = shown_in("failing-records.md", "killed before").splitlines()

    assert actual[1] == shown[1]
    assert re.fullmatch(r"killed before: \d+, prepared: \d+, committed: \d+", actual[0])
