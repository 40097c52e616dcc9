"""The section on probes: its answers are those that workers give, and its manifest is one that works."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml  # of the extra docs, which reads the pages with it
from tablestore import OTSClient

from streamclient import ClientConfig, HealthServer, StreamConfig, Worker
from streamclient.base.health_server import CLIENT_SECONDS, MOST_THREADS
from streamclient.cli.main import make_parser
from streamclient.copying import Mirror, Replication
from streamclient.tunnel import TunnelDaemon, TunnelWorker
from streamclient.worker.running import STUCK_SECONDS
from tests.docs.test_documentation_figures import rows_below
from tests.probing import PROBES, Told, ask
from tests.worker import test_worker_probes as lives

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operating.md"
SECTION = PAGE.read_text().split("## Probes\n")[1].split("\n## ")[0]
WORDS = {
    "has not begun": lives.not_begun,
    "works": lives.well,
    "works, while the service is out for longer than a minute": lives.service_out,
    "is stopping": lives.stopping,
    "has ended in order": lives.ended,
    "has failed": lives.failed,
    "is stuck, for less than a minute": lives.frozen,
}


def block(language: str) -> str:
    found = re.findall(rf"^```{language}\n(.*?)^```$", SECTION, re.MULTILINE | re.DOTALL)
    assert len(found) == 1
    return str(found[0])


def manifest() -> Any:
    return yaml.safe_load(block("yaml"))


def test_each_part_of_a_life_has_the_answers_of_the_test_that_plays_it() -> None:
    told = {row[0]: tuple(map(int, row[1:])) for row in rows_below("operating.md", "| The worker |")}

    assert told == {words: lives.LIVES[life][0] for words, life in WORDS.items()}
    assert {*WORDS.values()} == {*lives.LIVES} - {lives.service_out_from_the_start}


def test_the_paths_are_those_that_are_served_and_the_body_is_that_of_a_worker_that_is_well() -> None:
    paths = tuple(row[0].strip("`") for row in rows_below("operating.md", "| Path | 200 while |"))

    assert paths == PROBES
    with Told().serve_health(0) as server:
        assert ask(server.port, "/health").document == json.loads(block("json"))


@pytest.mark.parametrize("kind", [Worker, TunnelWorker, TunnelDaemon, Mirror, Replication])
def test_what_is_named_serves_its_health(kind: type) -> None:
    assert f"`{kind.__name__}`" in SECTION
    assert callable(getattr(kind, "serve_health", None))


def test_the_figures_are_those_of_the_code() -> None:
    assert f"within {STUCK_SECONDS:.0f} s" in SECTION
    assert CLIENT_SECONDS == 5.0
    assert "for five seconds" in SECTION
    assert f"There are {MOST_THREADS};" in SECTION


def test_the_container_runs_a_command_that_serves_the_ports_and_paths_of_its_probes() -> None:
    (container,) = manifest()["containers"]
    program, *words = [*container["command"], *container["args"]]
    arguments = make_parser(["run"]).parse_args(words)
    (port,) = container["ports"]
    probes = {name: probe for name, probe in container.items() if name.endswith("Probe")}

    assert program == "streamclient"
    assert (arguments.metrics_port, arguments.metrics_address) == (port["containerPort"], "0.0.0.0")
    assert {name: probe["httpGet"]["path"] for name, probe in probes.items()} == {
        "livenessProbe": "/live",
        "readinessProbe": "/ready",
    }
    for probe in probes.values():
        assert probe["httpGet"]["port"] == port["name"]
        assert {*probe} <= {"httpGet", "periodSeconds", "timeoutSeconds", "failureThreshold"}, "names of Kubernetes"


def test_a_worker_has_time_to_end_in_order_before_it_is_killed() -> None:
    assert manifest()["terminationGracePeriodSeconds"] > ClientConfig().shutdown_timeout_millis / 1_000


def test_a_program_serves_it_with_one_call() -> None:
    client = OTSClient("http://127.0.0.1:1", "id", "secret", "instance")  # never called
    stream = StreamConfig(client=client, data_table_name="orders", status_table_name="status")
    with Worker("w", ClientConfig(), stream, lambda batch: None).serve_health(0) as server:
        assert isinstance(server, HealthServer)
        assert ask(server.port, "/ready").document == {"is_healthy": False, "reason": "not begun"}
