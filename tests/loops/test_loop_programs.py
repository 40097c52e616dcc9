"""Whole programs with loops: how they end, what they store, and that nothing is left to complain about."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from signal import SIGINT, SIGTERM, Signals

import pytest
from tablestore import Row

from streamclient import LeaseManager, TablestoreStreamApi
from streamclient.model import Lease
from streamclient.server import LocalTablestore
from tests.interrupts import handled_by_python
from tests.own_process import ROOT, run_tests_of
from tests.patience import PATIENCE_SECONDS
from tests.stage import make_table, put_rows

PROGRAM = Path(__file__).with_name("loop_program.py")
BEGINNING = "TRIM_HORIZON"


@pytest.fixture(autouse=True)
def signals_of_python() -> Iterator[None]:
    with handled_by_python():
        yield


@contextmanager
def program(local: LocalTablestore, name: str) -> Iterator[subprocess.Popen[str]]:
    """A program that has its first batch; whatever Python complains about is an error."""
    make_table(local.client(), "orders")
    put_rows(local.client(), "orders", [Row([("id", "a")], [("v", 1)])])
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "TABLESTORE_ENDPOINT": local.endpoint,
        "TABLESTORE_INSTANCE": local.instance,
        "TABLESTORE_ACCESS_KEY_ID": local.access_key_id,
        "TABLESTORE_ACCESS_KEY_SECRET": local.access_key_secret,
    }
    of_the_sdk = "ignore::ImportWarning"  # it looks for an extension that is of another Python
    command = [sys.executable, "-X", "dev", "-W", "error", "-W", of_the_sdk, str(PROGRAM), name]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        try:
            assert run.stdout is not None
            line = run.stdout.readline()
            assert line == "in body\n", run.stderr.read() if run.stderr else line
            yield run
        finally:
            run.kill()


def lease_of(local: LocalTablestore) -> Lease:
    (stream,) = TablestoreStreamApi(local.client()).list_stream("orders")
    (lease,) = LeaseManager(local.client(), "orders_test", stream.stream_id).list_leases()
    return lease


def ended(run: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Exit code, and what was printed and complained; but not that a step of the event loop took long."""
    printed, complained = run.communicate(timeout=PATIENCE_SECONDS)
    lines = complained.splitlines(keepends=True)
    return run.returncode, printed, "".join(line for line in lines if not line.startswith("Executing <"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "number", "codes"),
    [
        ("waits_in_its_body", SIGTERM, {143}),
        ("waits_in_its_body", SIGINT, {130, -SIGINT}),
        ("exits_in_its_body", None, {3}),
        ("raises_in_its_body", None, {1}),
        ("raises_in_an_async_body", None, {1}),
        ("ends_with_an_open_loop", None, {0}),
        ("leaves_an_async_loop", None, {0}),
    ],
)
def test_a_program_that_ends_in_a_body_stores_nothing_of_it_and_hands_its_lease_over(
    local: LocalTablestore, name: str, number: Signals | None, codes: set[int]
) -> None:
    with program(local, name) as run:
        if number is not None:
            run.send_signal(number)
        code, _, complained = ended(run)

    lease = lease_of(local)
    assert code in codes, complained
    assert (lease.checkpoint, lease.owner) == (BEGINNING, "")
    expected = {"raises_in_its_body": "TypeError", "raises_in_an_async_body": "ValueError: 1"}.get(name, "")
    if number == SIGINT:
        expected = "KeyboardInterrupt"
    assert expected in complained
    assert bool(complained) == bool(expected), complained
    assert "Warning" not in complained
    assert "never" not in complained
    assert "Exception ignored" not in complained


@pytest.mark.slow
def test_sigterm_while_a_loop_waits_ends_the_program_and_keeps_what_is_stored(local: LocalTablestore) -> None:
    with program(local, "waits_for_a_batch") as run:
        run.send_signal(SIGTERM)
        code, _, complained = ended(run)

    assert (code, complained, lease_of(local).owner) == (143, "", "")


@pytest.mark.slow
def test_sigterm_ends_an_async_loop_after_its_present_body_and_commits_it(local: LocalTablestore) -> None:
    with program(local, "ends_its_async_loop") as run:
        run.send_signal(SIGTERM)
        code, printed, complained = ended(run)

    lease = lease_of(local)
    assert (code, printed, complained) == (0, "after the loop\n", "")
    assert (lease.checkpoint != BEGINNING, lease.owner) == (True, "")


@pytest.mark.slow
def test_sigterm_ends_run_in_order(local: LocalTablestore) -> None:
    with program(local, "runs_a_function") as run:
        run.send_signal(SIGTERM)
        code, _, complained = ended(run)

    assert (code, complained, lease_of(local).owner) == (143, "", "")


@pytest.mark.slow
def test_after_a_kill_the_batch_comes_again(local: LocalTablestore) -> None:
    with program(local, "waits_in_its_body") as run:
        run.send_signal(signal.SIGKILL)
        ended(run)

    assert lease_of(local).checkpoint == BEGINNING


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks here")
def test_a_loop_and_forks() -> None:
    assert " passed" in run_tests_of(Path(__file__).with_name("loop_forks.py"))
