"""One process of a round: a worker on each tunnel, writing down what it is given; stops on SIGTERM."""

from __future__ import annotations

import signal
import threading
from contextlib import ExitStack
from pathlib import Path

from streamclient import ClientConfig, IRecordProcessor, IRecordProcessorFactory
from streamclient.testing.deliveries import DeliveryRecorder
from streamclient.tunnel import TunnelWorker, TunnelWorkerConfig
from tests.drill_kit import client_of, told

HEARTBEAT_SECONDS = 1
TIMEOUT_SECONDS = 4
"""Short, so that a killed process's channels move within a round."""


BEGUN = "begun"
"""Printed once a signal ends the process in order: before, it ends Python while it imports."""


class Recorders(IRecordProcessorFactory):
    """Makes recorders that write to one file."""

    def __init__(self, name: str, lines: Path) -> None:
        self._name = name
        self._lines = lines.open("a", encoding="utf-8")

    def create_processor(self) -> IRecordProcessor:
        return DeliveryRecorder(self._name, self._lines)


def main() -> None:
    given = told()
    client, name = client_of(given), given["name"]
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))
    config = TunnelWorkerConfig(
        heartbeat_interval_seconds=HEARTBEAT_SECONDS,
        heartbeat_timeout_seconds=TIMEOUT_SECONDS,
        max_retry_interval_millis=200,
        client_config=ClientConfig(shutdown_timeout_millis=10_000, deliver_empty_batches=True),
    )
    with ExitStack() as running:
        for kind, tunnel_id in given["tunnels"].items():
            lines = Path(given["directory"], f"{name}.{kind}.lines")
            running.enter_context(TunnelWorker(tunnel_id, client, Recorders(name, lines), config))
        print(BEGUN, flush=True)
        pause = threading.Event()  # one that no handler sets: whoever is interrupted in a wait cannot set its event
        while not stopped:
            pause.wait(0.2)


if __name__ == "__main__":
    main()
