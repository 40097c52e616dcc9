"""The image: who it runs as, what goes into it, and its health check."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from configparser import ConfigParser
from types import ModuleType

import pytest

from streamclient import WorkerHealth
from streamclient.base.health_server import HealthServer
from streamclient.cli.server_command import DEFAULT_PORT
from streamclient.server import LocalTablestore
from tests.installed import PARTS, ROOT
from tests.patience import PATIENCE_SECONDS, until
from tests.probing import Told

FOLDER = ROOT / "docs" / "deploy"
PAGE = ROOT / "docs" / "deploying.md"
METRICS_PORT = 9100


# --- the image -------------------------------------------------------------------------------------------------------


def instructions() -> list[tuple[str, str]]:
    """Words of the Dockerfile, each with the rest of its line."""
    text = re.sub(r"^ *#.*\n", "", (FOLDER / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = [line.strip() for line in text.replace("\\\n", " ").splitlines()]
    return [(word, rest.strip()) for line in lines if line for word, _, rest in [line.partition(" ")]]


def last_stage() -> dict[str, str]:
    found = instructions()
    begin = max(number for number, (word, _) in enumerate(found) if word == "FROM")
    return dict(found[begin:])


def extras() -> set[str]:
    parser = ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return {*parser["options.extras_require"]}


def test_the_image_is_the_command_of_a_user_who_is_a_number_and_ends_by_sigterm() -> None:
    stage = last_stage()

    assert json.loads(stage["ENTRYPOINT"]) == ["python", "-m", "streamclient"]
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", stage["USER"])
    assert stage["STOPSIGNAL"] == "SIGTERM"
    assert stage["EXPOSE"].split() == [str(DEFAULT_PORT), str(METRICS_PORT)]
    assert "CMD" not in stage, "without arguments the commands are printed"
    assert {"title", "description", "licenses", "version", "revision"} <= set(
        re.findall(r"org\.opencontainers\.image\.(\w+)=", stage["LABEL"])
    )


def test_both_stages_have_one_base_with_a_python_that_is_supported() -> None:
    (base,) = [rest for word, rest in instructions() if word == "ARG" and rest.startswith("BASE=")]
    supported = re.findall(r":: Python :: (3\.\d+)$", (ROOT / "setup.cfg").read_text(), re.MULTILINE)

    assert [rest.partition(" ")[0] for word, rest in instructions() if word == "FROM"] == ["${BASE}"] * 2
    assert base.partition(":")[2].partition("-")[0] in supported


def test_what_is_installed_in_the_image_are_extras_that_its_uses_need() -> None:
    (given,) = [rest for word, rest in instructions() if word == "ARG" and rest.startswith("EXTRAS=")]

    assert {*given.partition("=")[2].split(",")} == {"server", "cli", "prometheus"} <= extras()


def test_the_builder_gets_what_a_wheel_is_made_of_and_the_health_check_alone() -> None:
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    let_through = {line[1:] for line in lines if line.startswith("!")}

    assert lines[0] == "*"
    assert let_through == {*PARTS, "MANIFEST.in", "docs/deploy/health.py"}
    assert all((ROOT / each).exists() for each in let_through)
    assert {"**/__pycache__", "**/*.so"} <= {*lines}, "a compiled codec of another machine stays out"


def test_the_builder_of_the_image_knows_the_variables_that_it_tells() -> None:
    text = (ROOT / "tools" / "make-image").read_text()
    told = set(re.findall(r"^#   (IMAGE_\w+)", text, re.MULTILINE))
    given = set(re.findall(r"--build-arg ([A-Z]+)=", text))

    assert told == set(re.findall(r"\$\{(IMAGE_\w+)", text))
    assert set(re.findall(r"IMAGE_\w+", PAGE.read_text())) <= told
    assert given == {rest.partition("=")[0] for word, rest in instructions() if word == "ARG"}


# --- its health check ------------------------------------------------------------------------------------------------


@pytest.fixture
def health(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The program as a module, which waits as long as the machine needs."""
    spec = importlib.util.spec_from_file_location("health", FOLDER / "health.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ANSWER_SECONDS", PATIENCE_SECONDS)
    return module


@pytest.fixture
def nothing() -> Iterator[str]:
    """An address at which nothing listens, and nothing can."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}/live"


def test_a_worker_that_lives_is_well_and_a_stuck_one_is_not(
    health: ModuleType, nothing: str, local: LocalTablestore, capsys: pytest.CaptureFixture[str]
) -> None:
    stuck = {"live": lambda: WorkerHealth(is_healthy=False, reason="stuck")}
    with Told().serve_health(0) as worker, HealthServer(0, judges=stuck) as other:
        assert health.main([f"http://127.0.0.1:{worker.port}/live", nothing]) == 0
        assert capsys.readouterr().out == ""
        # A Tablestore that is well beside it changes nothing.
        assert health.main([f"http://127.0.0.1:{other.port}/live", f"{local.endpoint}/"]) == 1
        assert capsys.readouterr().out.endswith("/live: status 503\n")


def test_a_local_tablestore_is_well_while_it_listens(
    health: ModuleType, nothing: str, local: LocalTablestore, capsys: pytest.CaptureFixture[str]
) -> None:
    assert health.status_of(f"{local.endpoint}/") == 405
    assert health.main([nothing, f"{local.endpoint}/"]) == 0
    assert health.main([nothing, nothing]) == 1
    assert capsys.readouterr().out == f"nothing listens at {nothing} or {nothing}\n"


def test_a_program_that_listens_and_does_not_answer_is_not_well(
    health: ModuleType, local: LocalTablestore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(health, "ANSWER_SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/live"

        assert health.main([url, f"{local.endpoint}/"]) == 1
    assert capsys.readouterr().out == f"{url}: timed out\n"


def test_the_check_of_the_image_asks_the_ports_of_the_image_in_time(health: ModuleType) -> None:
    options, _, words = last_stage()["HEALTHCHECK"].partition("CMD ")
    (limit,) = re.findall(r"--timeout=(\d+)s", options)

    assert json.loads(words) == ["python", "-I", "/opt/streamclient/health.py"]
    assert last_stage()["COPY"] == "docs/deploy/health.py /opt/streamclient/"
    assert health.URLS.split() == [f"http://127.0.0.1:{METRICS_PORT}/live", f"http://127.0.0.1:{DEFAULT_PORT}/"]
    (answer,) = re.findall(r"^ANSWER_SECONDS = ([\d.]+)$", (FOLDER / "health.py").read_text(), re.MULTILINE)
    assert int(limit) > 2 * float(answer)


def test_the_check_takes_its_addresses_from_the_environment(nothing: str, local: LocalTablestore) -> None:
    def ran(urls: str) -> int:
        variables = {**os.environ, "HEALTH_URLS": urls}
        return subprocess.run([sys.executable, "-I", FOLDER / "health.py"], env=variables, check=False).returncode

    assert ran(nothing) == 1
    until(lambda: ran(f"{local.endpoint}/") == 0, "an answer within the seconds of the program")
