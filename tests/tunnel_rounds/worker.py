"""One process of a round: a worker or a loop on each tunnel, writing down what it is given; stops on SIGTERM."""

from __future__ import annotations

import asyncio
import signal
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from attrs import evolve

import streamclient
from streamclient import Changes, ClientConfig, IRecordProcessor, IRecordProcessorFactory, aio
from streamclient.testing.deliveries import DeliveryRecorder
from streamclient.tunnel import TunnelWorker, TunnelWorkerConfig
from tests.drill_kit import LOOP_THREADS, BatchRecorder, client_of, told

WAYS = ("worker", "loop", "async")
"""What a process may be: tunnel workers with processors; plain loops in threads; loops in one event loop."""

TIMES: dict[str, Any] = {
    "heartbeat_interval_seconds": 1,
    "heartbeat_timeout_seconds": 4,
    "max_retry_interval_millis": 200,
}
"""Short, so that a killed process's channels move within a round."""

CONFIG = ClientConfig(shutdown_timeout_millis=10_000, deliver_empty_batches=True)
LOOP_CONFIG = TunnelWorkerConfig(client_config=evolve(CONFIG, **LOOP_THREADS), **TIMES)

BEGUN = "begun"
"""Printed once a signal ends the process in order: before, it ends Python while it imports."""


class Recorders(IRecordProcessorFactory):
    """Makes recorders that write to one file."""

    def __init__(self, name: str, lines: Path) -> None:
        self._name = name
        self._lines = lines.open("a", encoding="utf-8")

    def create_processor(self) -> IRecordProcessor:
        return DeliveryRecorder(self._name, self._lines)


def lines_of(given: dict[str, Any], kind: str) -> Path:
    return Path(given["directory"], f"{given['name']}.{kind}.lines")


def run_workers(given: dict[str, Any]) -> None:
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))
    config = TunnelWorkerConfig(client_config=CONFIG, **TIMES)
    with ExitStack() as running:
        for kind, tunnel_id in given["tunnels"].items():
            recorders = Recorders(given["name"], lines_of(given, kind))
            running.enter_context(TunnelWorker(tunnel_id, client_of(given), recorders, config))
        wait_for(stopped)


def wait_for(stopped: list[int]) -> None:
    """Return once a signal was noted."""
    print(BEGUN, flush=True)
    pause = threading.Event()  # one that no handler sets: whoever is interrupted in a wait cannot set its event
    while not stopped:
        pause.wait(0.2)


def run_loops(given: dict[str, Any]) -> None:
    """A loop for each tunnel, in a thread of its own, which gets no signals: they are closed from here."""
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))
    running: list[tuple[Changes, threading.Thread]] = []
    failures: list[BaseException] = []
    for kind, tunnel_id in given["tunnels"].items():
        changes = streamclient.changes(tunnel=tunnel_id, client=client_of(given), config=LOOP_CONFIG)
        thread = threading.Thread(target=loop, args=(changes, given, kind, failures))
        thread.start()
        running.append((changes, thread))
    wait_for(stopped)
    for changes, thread in running:
        changes.close()
        thread.join()
    if failures:
        raise failures[0]


def loop(changes: Changes, given: dict[str, Any], kind: str, failures: list[BaseException]) -> None:
    try:
        with lines_of(given, kind).open("a", encoding="utf-8") as lines:
            recorder = BatchRecorder(given["name"], lines)
            for batch in changes:
                recorder.write(batch)
    except BaseException as failure:
        failures.append(failure)


async def run_async(given: dict[str, Any]) -> None:
    """A loop for each tunnel in one event loop; SIGTERM ends all of them, each after its body."""

    async def iterate(kind: str, tunnel_id: str) -> None:
        with lines_of(given, kind).open("a", encoding="utf-8") as lines:
            recorder = BatchRecorder(given["name"], lines)
            async with aio.changes(tunnel=tunnel_id, client=client_of(given), config=LOOP_CONFIG) as changes:
                async for batch in changes:
                    recorder.write(batch)
                    await asyncio.sleep(0)

    tasks = [asyncio.ensure_future(iterate(kind, tunnel_id)) for kind, tunnel_id in given["tunnels"].items()]
    await asyncio.sleep(0)  # they have begun, and note the signal
    print(BEGUN, flush=True)
    await asyncio.gather(*tasks)


def main() -> None:
    given = told()
    way = given["way"]
    if way == "async":
        asyncio.run(run_async(given))
    else:
        {"worker": run_workers, "loop": run_loops}[way](given)


if __name__ == "__main__":
    main()
