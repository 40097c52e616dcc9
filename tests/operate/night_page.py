"""``docs/three-in-the-morning.md``: twelve faults of real fleets, and what ``explain`` and ``top`` show of them.

The page is written by hand but for what the commands print: ``PYTHONPATH=. python tests/operate/night_page.py`` writes
that anew. Each fault happens to a fleet of its own, over HTTP: a table whose first shard was split and read to its end,
and a worker on the two children.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

from attrs import frozen
from operate_scene import STATUS, TABLE, Scene
from stuck_workers import BadKey, Steady, blocked, working
from tablestore import OTSClient
from tablestore.credentials import CredentialsProvider, StaticCredentialsProvider

from streamclient import FailurePolicy, OnFailure
from streamclient.cli import main
from streamclient.cli.options import operator_name
from streamclient.core import leases as rule
from streamclient.server import Fail, FaultRule, LocalTablestore, http_service
from streamclient.tablestore import TablestoreStreamApi
from streamclient.tablestore.read_retry import ReadRetry
from streamclient.testing.fleet import Fleet
from tests.commands.commands_page import BLOCK, shape
from tests.patience import FOREVER_MILLIS, until

HERE = Path(__file__).resolve().parent
PAGE = HERE.parents[1] / "docs" / "three-in-the-morning.md"
NAME = "worker-1"
PATIENT = {"max_duration_before_last_successful_renew_or_take_lease": FOREVER_MILLIS}
"""Health that does not change while a screen is captured, on any machine."""

LASTING = {**PATIENT, "lease_duration_millis": 3 * FOREVER_MILLIS}
"""And leases that do not run out. Commands that wait for an owner look forty times within a lease, so not for them."""

STEADY: dict[str, Any] = {**PATIENT, "lease_duration_millis": 40_000}
"""For those: leases that outlast a pause of the machine, and a look each second."""

MINUTES_OFF = 20


class Terminal(io.StringIO):
    """A terminal, as far as commands look."""

    def isatty(self) -> bool:
        return True


@frozen
class Shown:
    """What a command printed on a terminal of 80 columns, with its exit code below it if that is not 0."""

    text: str
    code: int

    @property
    def on_the_page(self) -> str:
        return self.text + (f"[exit code {self.code}]\n" if self.code else "")


def run(scene: Scene, command: str) -> Shown:
    """Run a command of the page; ``explain`` reads the rows once, which saves its two seconds."""
    words = shlex.split(command)[1:]
    words += ["--observe", "0"] if words[0] == "explain" else []
    place = {"ENDPOINT": scene.local.endpoint, "DATA_TABLE": TABLE, "STATUS_TABLE": STATUS}
    environment = {f"TABLESTORE_{name}": value for name, value in place.items()}
    shown = Terminal()
    with ExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ, {**environment, "COLUMNS": "80", "LINES": "40"}))
        stack.enter_context(contextlib.redirect_stdout(shown))
        stack.enter_context(contextlib.redirect_stderr(shown))
        code = main.main(words)
    return Shown(shown.getvalue().replace(operator_name(), "ann@ops"), code)


def agrees(expected: str, actual: str) -> bool:
    """Whether two screens are the same but for the moment: numbers, times, ids, where lines are broken."""
    return _lasting(expected) == _lasting(actual)


def _lasting(text: str) -> str:
    text = re.sub(r"^cost per hour: .*\n( .*\n)*", "", text, flags=re.MULTILINE)  # known after a minute
    text = re.sub(r"\bfailed once\b", "failed 2 times", text)
    text = re.sub(r"the\s+next\s+attempt\s+is\s+under\s+way", "next attempt in 1 s", text)
    return shape(re.sub(r"request ID: \S+|\(request\s+\S+\)", "(request)", text))


# --- a fleet -------------------------------------------------------------------------------------------------------


def split_scene(local: LocalTablestore) -> tuple[Scene, str, str]:
    """A table whose first shard is read; its children have ids in the order of their keys: screens sort by either."""
    while True:
        scene = Scene(local, lease_seconds=None)
        scene.write(40)
        parent = scene.shard
        low, high = scene.split()
        if low < high:
            break
        scene.client.delete_table(TABLE)
        scene.client.delete_table(STATUS)
    scene.write(40)
    scene.put_lease(parent, checkpoint="SHARD_END")
    for child in (low, high):
        scene.put_lease(child, parents=[parent])
    return scene, low, high


def are(scene: Scene, *situations: str) -> None:
    """Wait until the two children are in these situations."""

    def have_come() -> bool:
        ran = scene.run("explain", "--observe", "0", "--json")
        shown = ran.document["shards"] if ran.out else []
        return [each["situation"] for each in sorted(shown, key=lambda each: each["shard"])] == list(situations)

    until(have_come, lambda: (situations, scene.run("explain", "--observe", "0").out))


def verdict_of(scene: Scene) -> str:
    return str(scene.run("explain", "--observe", "0", "--json").document["verdict"]["sentence"])


@contextmanager
def read(scene: Scene, **config: object) -> Iterator[None]:
    """A worker that has read both children."""
    with working(scene, Steady, name=NAME, **config):
        are(scene, "caught-up", "caught-up")
        yield


# --- twelve faults -------------------------------------------------------------------------------------------------


@contextmanager
def throttled_status_table(scene: Scene, low: str, high: str) -> Iterator[None]:
    with read(scene):
        scene.local.add_fault(FaultRule(operation="*", table=STATUS, action=Fail("OTSServerBusy")))
        yield
        scene.local.clear_faults()


@contextmanager
def throttled_stream(scene: Scene, low: str, high: str) -> Iterator[None]:
    impatient = TablestoreStreamApi(scene.local.client(), retry=ReadRetry(retries=0))
    with working(scene, Steady, name=NAME, stream_api=impatient, **LASTING):
        are(scene, "caught-up", "caught-up")
        scene.local.add_fault(FaultRule(operation="GetStreamRecord", action=Fail("OTSServerBusy")))
        until(lambda: "2 shards do not move: reading failed " in verdict_of(scene), lambda: verdict_of(scene))
        yield
        scene.local.clear_faults()


@contextmanager
def frozen_owner(scene: Scene, low: str, high: str) -> Iterator[None]:
    with in_process(scene) as fleet:
        fleet.processes[NAME].freeze()
        are(scene, "owner-frozen", "owner-frozen")
        yield


@contextmanager
def poisoned_record(scene: Scene, low: str, high: str) -> Iterator[None]:
    policy = FailurePolicy(retries=0, first_pause_millis=0, then=OnFailure.STOP_SHARD)
    with working(scene, lambda: BadKey("key-39"), name=NAME, failure_policy=policy, **LASTING):
        are(scene, "caught-up", "record-fails")
        yield


@contextmanager
def hung_call(scene: Scene, low: str, high: str) -> Iterator[None]:
    with blocked(scene, name=NAME, **LASTING):
        are(scene, "user-code-runs", "user-code-runs")
        yield


@contextmanager
def deleted_row(scene: Scene, low: str, high: str) -> Iterator[None]:
    """Its owner puts the row back at the next heartbeat, which comes after this capture."""
    slow = dict.fromkeys(("renewer_interval_millis", "taker_interval_millis"), FOREVER_MILLIS)
    with read(scene, **{**LASTING, **slow, "sync_shard_interval_millis": FOREVER_MILLIS}):
        scene.send(rule.delete(scene.lease(high)))
        are(scene, "caught-up", "no-row-yet")
        yield


@contextmanager
def paused(scene: Scene, low: str, high: str) -> Iterator[None]:
    with read(scene, **STEADY):
        assert scene.run("leases", "pause", low, "--reason", "database maintenance").code == 0
        scene.write(40)
        are(scene, "paused", "caught-up")
        yield


@contextmanager
def expired_position(scene: Scene, low: str, high: str) -> Iterator[None]:
    scene.put_lease(high, parents=[scene.shard], checkpoint=scene.iterator(high, after=3))
    scene.local.trim(TABLE, shard_id=high, keep_last=1)
    with working(scene, Steady, name=NAME, **LASTING):
        are(scene, "caught-up", "position-trimmed")
        until(lambda: "past the stream's retention and lost: " in verdict_of(scene), lambda: verdict_of(scene))
        yield


class Revocable(CredentialsProvider):
    """The key of a worker, until it is revoked."""

    def __init__(self, local: LocalTablestore) -> None:
        self.key = StaticCredentialsProvider(local.access_key_id, local.access_key_secret)

    def revoke(self) -> None:
        self.key = StaticCredentialsProvider("revoked", "revoked")

    def get_credentials(self) -> object:
        return self.key.get_credentials()


@contextmanager
def revoked_key(scene: Scene, low: str, high: str) -> Iterator[None]:
    """The key of the worker: that of the operator is another one."""
    key = Revocable(scene.local)
    client = OTSClient(scene.local.endpoint, instance_name=scene.local.instance, credentials_provider=key)
    with working(scene, Steady, name=NAME, client=client):
        are(scene, "caught-up", "caught-up")
        key.revoke()
        until(lambda: life_of_worker(scene) == "dead", "its leases have run out")
        are(scene, "owner-cut-off", "owner-cut-off")
        yield


def life_of_worker(scene: Scene) -> str:
    (worker,) = scene.run("top", "--once", "--json").document["workers"]
    return str(worker["life"])


@contextmanager
def wrong_clock(scene: Scene, low: str, high: str) -> Iterator[None]:
    """The service's clock is moved, which is the same for those that call it."""
    real_time = http_service.real_time

    def moved() -> datetime:
        return real_time() + timedelta(minutes=MINUTES_OFF)

    with read(scene, **LASTING), mock.patch.object(http_service, "real_time", moved):
        yield


@contextmanager
def killed_child(scene: Scene, low: str, high: str) -> Iterator[None]:
    with in_process(scene) as fleet:
        fleet.processes[NAME].kill()
        are(scene, "owner-silent", "owner-silent")
        yield


@contextmanager
def nothing_running(scene: Scene, low: str, high: str) -> Iterator[None]:
    with read(scene):
        pass
    scene.write(40)
    are(scene, "no-worker", "no-worker")
    yield


@contextmanager
def in_process(scene: Scene) -> Iterator[Fleet]:
    """A process of its own that has read both children."""
    local = scene.local
    words = [local.endpoint, local.access_key_id, local.access_key_secret, local.instance, TABLE, STATUS, NAME]
    command = [str(HERE / "worker_process.py"), *words, "--lasting"]
    with tempfile.TemporaryDirectory() as folder, Fleet(Path(folder)) as fleet:
        fleet.start(NAME, command, {"PYTHONPATH": f"{HERE.parents[1]}"})
        are(scene, "caught-up", "caught-up")
        yield fleet


FAULTS: Mapping[str, Callable[[Scene, str, str], AbstractContextManager[None]]] = {
    "The status table is throttled": throttled_status_table,
    "The stream is throttled": throttled_stream,
    "The owner is frozen": frozen_owner,
    "A record is poisoned": poisoned_record,
    "A call hangs": hung_call,
    "A row was deleted": deleted_row,
    "A shard is paused": paused,
    "A position has expired": expired_position,
    "The worker's key was revoked": revoked_key,
    "The clock is 20 minutes off": wrong_clock,
    "A process was killed": killed_child,
    "Nothing is running": nothing_running,
}
"""The faults by their headings on the page."""


def commands_below(text: str) -> dict[str, list[tuple[str, str]]]:
    """The commands below each heading of the page, each with what it shows there."""
    found: dict[str, list[tuple[str, str]]] = {}
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        heading, _, rest = section.partition("\n")
        parts = [part for block in BLOCK.findall(rest) for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]]
        found[heading] = [(command, output) for command, _, output in (part.partition("\n") for part in parts)]
    return found


def write_page(*wanted: str) -> None:
    """Put what the commands print now below each of them, under all headings or under these."""
    for heading, commands in commands_below(PAGE.read_text()).items():
        if heading not in (wanted or FAULTS):
            continue
        with LocalTablestore() as local:
            scene, low, high = split_scene(local)
            with FAULTS[heading](scene, low, high):
                shown = [(command, run(scene, command).on_the_page) for command, _ in commands]
        before, title, after = PAGE.read_text().partition(f"## {heading}\n")
        for (command, old), (_, new) in zip(commands, shown, strict=True):
            after = after.replace(f"$ {command}\n{old}", f"$ {command}\n{new}", 1)
        PAGE.write_text(before + title + after)


if __name__ == "__main__":
    logging.basicConfig(handlers=[logging.NullHandler()])  # what workers log is no part of a command's screen
    write_page(*sys.argv[1:])
