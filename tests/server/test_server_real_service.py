"""The suites run against a service that the environment names. A local server in a process stands for it here."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from streamclient.server import LocalTablestore
from tests.patience import PATIENCE_SECONDS
from tests.service_under_test import VARIABLES
from tests.stage import make_table

ROOT = Path(__file__).resolve().parents[2]
SUITES = [
    "tests/server/test_server_state_filters.py",
    "tests/server/test_server_state_transactions.py",
    "tests/server/sdk_python/test_server_http_sdk_rows.py",
    "tests/server/test_server_http_messages.py",
    "tests/stream/test_stream_tablestore.py",
]


def run(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name not in VARIABLES.values()}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(
        command,
        cwd=ROOT,
        env={**kept, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,  # which has what ends pytest before its first test
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


def environment_of(local: LocalTablestore) -> dict[str, str]:
    return {variable: getattr(local, name) for name, variable in VARIABLES.items()}


@pytest.mark.slow
@pytest.mark.long
def test_the_suites_run_against_the_service_of_the_environment() -> None:
    with LocalTablestore() as service:
        done = run(environment_of(service), "-m", "not slow", *SUITES)

        assert done.returncode == 0, done.stdout
        passed = re.search(r"(\d+) passed", done.stdout)
        assert passed is not None
        assert int(passed[1]) > 150, done.stdout
        assert sum(count.requests for count in service.requests()) > 1_000
        assert service.client().list_table() == ()


@pytest.mark.slow
def test_an_instance_with_tables_is_left_alone() -> None:
    with LocalTablestore() as service:
        make_table(service.client(), "precious")
        done = run(environment_of(service), SUITES[0])

        assert done.returncode != 0
        assert "holds tables: ['precious']" in done.stdout
        assert service.client().list_table() == ("precious",)


@pytest.mark.slow
def test_a_service_named_by_halves_is_refused() -> None:
    done = run({VARIABLES["endpoint"]: "http://127.0.0.1:1"}, SUITES[0])

    assert done.returncode != 0
    assert "also set STREAMCLIENT_TEST_INSTANCE" in done.stdout
