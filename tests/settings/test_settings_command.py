"""``streamclient settings``: every setting with what gave it, and no secret."""

from __future__ import annotations

from typing import Any

import pytest

from streamclient.cli.run_sections import SETTINGS
from tests.operate.operate_scene import run_cli
from tests.settings.test_run_settings import PLAIN, merged, write

pytestmark = pytest.mark.usefixtures("here")


def shown(*words: str) -> dict[str, dict[str, Any]]:
    ran = run_cli("settings", *words, "--json")
    assert ran.code == 0, ran.err
    return {f"{each['section']}.{each['name']}": each for each in ran.document["settings"]}


def test_settings_are_shown_with_what_gave_them(monkeypatch: pytest.MonkeyPatch) -> None:
    write(merged(PLAIN, {"client": {"metrics": "nowhere:metrics"}, "failure": {"then": "stop_shard"}}))
    monkeypatch.setenv("STREAMCLIENT_CLIENT_READ_THREADS", "9")
    monkeypatch.setenv("TABLESTORE_INSTANCE", "mine")
    found = shown("--config", "run.toml", "--max-records", "7", "--from", "latest")

    def told(name: str) -> tuple[Any, str, str | None]:
        return found[name]["value"], found[name]["whence"], found[name]["whence_name"]

    assert {*found} == {f"{section}.{name}" for section, name in SETTINGS}
    assert told("client.metrics") == ("nowhere:metrics", "file", "run.toml")
    assert told("client.read_threads") == (9, "environment", "STREAMCLIENT_CLIENT_READ_THREADS")
    assert told("connection.instance") == ("mine", "environment", "TABLESTORE_INSTANCE")
    assert told("stream.max_records") == (7, "option", "--max-records")
    assert told("stream.initial_position") == ("latest", "option", "--from")
    assert told("failure.then") == ("STOP_SHARD", "file", "run.toml")
    assert told("failure.retries") == (3, "default", None)
    assert told("client.prefetch.prefetch_bytes") == (2 << 20, "default", None)
    assert told("client.end_on_sigterm") == (True, "default", None)
    assert told("stream.name") == ("orders", "default", None)
    assert told("log.level") == ("warning", "default", None)


def test_no_secret_is_shown_wherever_it_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINE", "s3cret")
    write(merged(PLAIN, {"connection": {"access_key_secret": "${MINE}", "sts_token": "s3cret"}}))
    for words in ([], ["--json"], ["--access-key-secret", "s3cret", "--sts-token", "s3cret"]):
        ran = run_cli("settings", "--config", "run.toml", *words)
        assert ran.code == 0, ran.err
        assert "s3cret" not in ran.out + ran.err
        assert "(set)" in ran.out


def test_a_table_of_what_is_given_names_setting_value_and_whence() -> None:
    write(merged(PLAIN, {"client": {"auto_steal_lease": False}}))
    ran = run_cli("settings", "--config", "run.toml", "--given", "--worker", "mine")
    rows = [line.split() for line in ran.out.splitlines()]

    assert rows[0] == ["SETTING", "VALUE", "WHENCE"]
    assert ["run.worker", "mine", "option", "--worker"] in rows
    assert ["client.auto_steal_lease", "false", "file", "run.toml"] in rows
    assert len(rows) == 6


def test_settings_that_cannot_work_are_refused_as_by_run() -> None:
    write(merged(PLAIN, {"client": {"lease_duration_millis": 5_000}}))
    ran = run_cli("settings", "--config", "run.toml")

    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("streamclient settings: run.toml: client.renewer_interval_millis=6000 must be below")
