"""The page about settings of a run: its file works, and what it says of names and mistakes is so."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from streamclient.base import logs
from streamclient.cli.run_sections import EXCLUSIVE, SETTINGS, variable_of
from streamclient.cli.terminal.json_log import JsonLogHandler
from streamclient.config import ClientConfig
from streamclient.server import LocalTablestore
from tests.docs.page_examples import FENCE
from tests.operate.operate_scene import Scene, run_cli

PAGE = Path(__file__).resolve().parents[2] / "docs" / "settings.md"

SHOP = """
from streamclient.metrics import MemoryMetrics

metrics = MemoryMetrics()

def process(batch):
    pass
"""


def block(language: str) -> str:
    (found,) = [body for kind, body in FENCE.findall(PAGE.read_text()) if kind == language]
    return str(found)


@pytest.fixture(autouse=True)
def shop(local: LocalTablestore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with the file of the page and its program, and a server in the place of the service."""
    (tmp_path / "run.toml").write_text(block("toml"))
    (tmp_path / "shop.py").write_text(SHOP)
    monkeypatch.delitem(sys.modules, "shop", raising=False)
    (tmp_path / "secret").write_text(local.access_key_secret)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("KEY_ID", local.access_key_id)
    monkeypatch.setenv("TABLESTORE_ENDPOINT", local.endpoint)
    monkeypatch.setenv("TABLESTORE_INSTANCE", local.instance)


def test_the_file_of_the_page_works(local: LocalTablestore) -> None:
    Scene(local)
    ran = run_cli("run", "--config", "run.toml", "--check")

    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("2 workers, shop-a-1 to shop-a-2, ")


def test_settings_shows_what_the_file_of_the_page_gives() -> None:
    given = run_cli("settings", "--config", "run.toml", "--given", "--json").document["settings"]
    of_file = {f"{each['section']}.{each['name']}": each["value"] for each in given if each["whence"] == "file"}

    assert of_file["client.prefetch.prefetch_total_bytes"] == 67_108_864
    assert of_file["client.metrics"] == "shop:metrics"
    assert of_file["failure.then"] == "PARK"


def test_mistakes_are_told_as_the_page_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("run.toml").write_text(block("toml").replace("lease_duration_millis", "lease_duration_milis"))
    monkeypatch.setenv("STREAMCLIENT_STREAM_MAX_RECORDS", "many")

    assert run_cli("run", "--config", "run.toml", "--check").err == block("text")


def test_the_variables_that_the_page_names_are_those_of_settings() -> None:
    named = set(re.findall(r"`(STREAMCLIENT_\w+?)=", PAGE.read_text()))

    assert named
    assert named <= {variable_of(key) for key in SETTINGS}


def test_the_page_names_all_settings_that_exclude_each_other() -> None:
    text = PAGE.read_text().partition("**One of several.**")[2].partition("\n\n")[0]
    named = {name for group in EXCLUSIVE for section, name in group if section != "connection"}

    assert {name for name in named if f".{name}`" not in text} == set()


def test_the_fields_of_the_page_are_those_of_an_entry(capsys: pytest.CaptureFixture[str]) -> None:
    table = PAGE.read_text().partition("| Field | |")[2]
    fields = [name for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)]
    logger, handler = logs.logger("streamclient.worker.coordinator"), JsonLogHandler("w")
    logger.addHandler(handler)
    try:
        raise ValueError("x")
    except ValueError:
        logger.exception("shard s: x", extra=logs.of_shard("s"))
    finally:
        logger.removeHandler(handler)
    entry = json.loads(capsys.readouterr().err)
    example = json.loads(block("json"))

    assert list(entry) == fields
    assert list(example) == fields[: len(example)]
    assert ClientConfig().lease_duration_millis != 30_000, "the file changes it"
