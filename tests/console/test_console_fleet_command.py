"""``streamclient console``: which fleets it finds, whom it lets in, and how it ends."""

from __future__ import annotations

import argparse
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tablestore import Row

from streamclient.cli import console_command
from streamclient.cli.main import make_parser
from streamclient.errors import ConfigurationError
from streamclient.server import LocalTablestore
from streamclient.tablestore.instance import Connection
from streamclient.worker.lease import LeaseManager
from streamclient.worker.lease.lease_rows import key_of
from tests.operate.operate_scene import IGNORE, STATUS, TABLE, Scene, read_shard, run_cli
from tests.patience import PATIENCE_SECONDS

LONG_KEY = "a-key-of-this-test-0123456789"


@pytest.fixture
def local() -> Iterator[LocalTablestore]:
    with LocalTablestore() as started:
        yield started


def options(*words: str) -> argparse.Namespace:
    return make_parser(["console"]).parse_args(["console", *words])


def key_file(folder: Path, text: str = LONG_KEY, mode: int = 0o600) -> str:
    path = folder / "key"
    path.write_text(text)
    path.chmod(mode)
    return str(path)


# --- whom it lets in -----------------------------------------------------------------------------------------------

CLOUD = Connection(endpoint="https://shop.cn-hangzhou.ots.aliyuncs.com", access_key_secret="s")


@pytest.mark.parametrize(
    ("connection", "words", "has_key"),
    [
        (Connection(), [], False),
        (Connection(), ["--behind-proxy"], True),
        (Connection(access_key_secret="of-my-own"), [], True),
        (CLOUD, [], True),
        (Connection(endpoint=CLOUD.endpoint), [], True),
    ],
)
def test_only_a_local_server_with_the_public_secret_needs_no_key(
    connection: Connection, words: list[str], has_key: bool
) -> None:
    doors = [console_command.console_doors(options(*words), connection) for _ in range(2)]

    assert [made.key is not None for made in doors] == [has_key] * 2
    if has_key:
        assert doors[0].key != doors[1].key


def test_a_key_of_ones_own_opens_other_addresses(tmp_path: Path) -> None:
    path = key_file(tmp_path, f"{LONG_KEY}\n")
    doors = console_command.console_doors(options("--host", "0.0.0.0", "--key-file", path), Connection())
    assert doors.key == LONG_KEY
    for words in ([], ["--behind-proxy"]):
        with pytest.raises(ConfigurationError, match="give a key of your own with --key-file"):
            console_command.console_doors(options("--host", "0.0.0.0", *words), CLOUD)


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660, 0o700, 0o620])
def test_a_key_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(ConfigurationError, match=f"has mode {mode:04o}.*chmod 600"):
        console_command.console_doors(options("--key-file", key_file(tmp_path, mode=mode)), CLOUD)


@pytest.mark.parametrize("text", ["", "short", "x" * 21, "two words of a long key 0123456789", "ü" * 30])
def test_a_key_that_can_be_guessed_or_not_be_sent_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigurationError, match="one line of at least 22 letters"):
        console_command.key_in(key_file(tmp_path, text))


def test_a_key_file_that_is_missing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot read the key"):
        console_command.key_in(str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--who-header", "X-User"], "needs --behind-proxy"),
        (["--allowed-host", "http://ops.example"], "host names"),
    ],
)
def test_options_that_promise_what_does_not_hold_are_refused(words: list[str], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        console_command.console_doors(options(*words), CLOUD)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--port", "70000"], "--port"),
        (["--lease-duration", "0"], "--lease-duration must be a number of seconds above 0"),
        (["--processor", "shop:Processor"], "name --parking-table or --parking-directory"),
        (["--processor", "nothing:at_all", "--parking-directory", "d"], "names no factory"),
        (["--parking-directory", "no_such_directory"], "no_such_directory is not a directory of parked records"),
        (["none"], "no status table"),
        ([], "no status table"),
    ],
)
def test_wrong_options_end_the_command_with_a_sentence(local: LocalTablestore, words: list[str], text: str) -> None:
    ran = run_cli("console", *words, "--endpoint", local.endpoint)

    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("streamclient console: ")
    assert text in ran.err


# --- which fleets --------------------------------------------------------------------------------------------------


def test_fleets_are_found_by_the_key_columns_of_their_status_tables(local: LocalTablestore) -> None:
    scene = Scene(local)
    read_shard(scene)
    client = Connection(endpoint=local.endpoint).quiet_client()
    assert console_command.named_fleets([], client) == [(TABLE, STATUS)]
    assert console_command.named_fleets([TABLE], client) == [(TABLE, STATUS)]
    assert console_command.named_fleets([f"{TABLE}:x", f"{TABLE}:x"], client) == [(TABLE, "x")]
    other = LeaseManager(scene.client, "second", scene.stream_id)
    other.create_lease_table_if_not_exists()
    assert console_command.named_fleets([], client) == [(TABLE, STATUS)], "nothing of a stream is in the other table"
    scene.client.put_row("second", Row(key_of(scene.stream_id, "s"), [("x", 1)]), IGNORE)
    assert console_command.named_fleets([], client) == [(TABLE, STATUS), (TABLE, "second")]
    with pytest.raises(
        ConfigurationError, match=f"several status tables; name one of {TABLE}:{STATUS}, {TABLE}:second"
    ):
        console_command.named_fleets([TABLE], client)
    pages = console_command.fleet_pages(options(), Connection(endpoint=local.endpoint))
    assert pages.document("about")["fleets"] == [f"{TABLE}:{STATUS}", f"{TABLE}:second"]
    local.client().delete_table(TABLE)
    with pytest.raises(ConfigurationError, match="no status table"):
        console_command.named_fleets([], client)


# --- its life ------------------------------------------------------------------------------------------------------


@contextmanager
def console(*words: str) -> Iterator[subprocess.Popen[str]]:
    warnings = ["-W", "error", "-W", "ignore::ImportWarning"]  # the SDK warns of a part that it can do without
    command = [sys.executable, *warnings, "-m", "streamclient", "console", "--port", "0", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE_SECONDS)


def page_of(process: subprocess.Popen[str]) -> tuple[str, str]:
    """The address, and the key."""
    assert process.stdout is not None
    line = process.stdout.readline().rstrip("\n")
    match = re.fullmatch(r"console at (http://127\.0\.0\.1:\d+/)(?:#key=(\S+))?", line)
    assert match is not None, line + (process.stderr.read() if process.stderr and not line else "")
    return match[1], match[2] or ""


def about(address: str, key: str) -> Any:
    request = urllib.request.Request(
        f"{address}api/v1/about", headers={"Authorization": f"Bearer {key}"} if key else {}
    )
    with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
        return answer.status


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_command_with_success(local: LocalTablestore, number: signal.Signals) -> None:
    read_shard(Scene(local))
    with console(f"{TABLE}:{STATUS}", "--endpoint", local.endpoint) as process:
        address, key = page_of(process)
        assert (about(address, key), key) == (200, "")
        process.send_signal(number)
        out, err = process.communicate(timeout=PATIENCE_SECONDS)

    assert (process.returncode, out, err) == (0, "", "")


@pytest.mark.slow
def test_the_printed_address_has_the_key_unless_it_is_the_users_own(tmp_path: Path) -> None:
    with LocalTablestore(access_key_secret="of-my-own") as local:
        read_shard(Scene(local))
        words = [f"{TABLE}:{STATUS}", "--endpoint", local.endpoint, "--access-key-secret", "of-my-own"]
        with console(*words) as process:
            address, key = page_of(process)
            assert len(key) == 22
            assert about(address, key) == 200
            with pytest.raises(urllib.error.HTTPError, match="401") as caught:
                about(address, "")
            caught.value.close()
        with console(*words, "--key-file", key_file(tmp_path)) as process:
            address, key = page_of(process)
            assert key == ""
            assert about(address, LONG_KEY) == 200
