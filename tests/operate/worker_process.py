"""A worker as a process of its own, for tests that stop or kill it.

Arguments: endpoint, keys, instance, tables and name, and perhaps a file, which gets the port of metrics and probes.
With ``--lasting`` among them its leases do not run out while a test looks.
"""

from __future__ import annotations

import sys
from pathlib import Path

from prometheus_client import CollectorRegistry
from stuck_workers import QUICK, Steady
from tablestore import OTSClient

from streamclient import ClientConfig, StreamConfig, Worker
from streamclient.metrics import PrometheusMetrics
from tests.patience import FOREVER_MILLIS

ARGUMENTS = 7
"""Those of every worker; one more is the file."""


def main(arguments: list[str]) -> None:
    is_lasting = "--lasting" in arguments
    words = [word for word in arguments if word != "--lasting"]
    config = {**QUICK, "lease_duration_millis": 3 * FOREVER_MILLIS} if is_lasting else QUICK
    *connection, table, status_table, name = words[:ARGUMENTS]
    stream = StreamConfig(client=OTSClient(*connection), data_table_name=table, status_table_name=status_table)
    metrics = PrometheusMetrics(CollectorRegistry())
    worker = Worker(name, ClientConfig(metrics=metrics, **config), stream, Steady)
    for file in words[ARGUMENTS:]:
        port = Path(file)
        port.with_suffix(".new").write_text(f"{metrics.serve(0, worker=worker).port}")
        port.with_suffix(".new").rename(port)
    worker.run()


if __name__ == "__main__":
    main(sys.argv[1:])
