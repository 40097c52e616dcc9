"""What the page of the console shows is what the console answers."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from samples.print_changes import PrintChanges
from streamclient import ClientConfig, InitializationInput, StreamConfig, Worker
from streamclient.cli.main import make_parser
from streamclient.console.app import MOST_BODY_BYTES, MOST_FEEDS
from streamclient.console.doors import ConsoleError
from streamclient.console.listening import ConsoleServer
from streamclient.server import LocalTablestore
from streamclient.server.observing import MOST_HEADS
from tests.console_drill.pictures import FIGURES, PICTURES
from tests.docs.page_examples import commands
from tests.patience import PATIENCE_SECONDS

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "console.md").read_text(encoding="utf-8")


LARGEST_PICTURE_BYTES = 80_000
"""Six pictures of this size are as much as the page's scripts and styles: nobody waits for them."""


def check_requests(shown_port: int, port: int) -> int:
    """Send every request that the page shows to a port; each must be answered as shown. Return their number."""
    requests = [
        each for each in commands(PAGE) if each[0].startswith("curl ") and f"127.0.0.1:{shown_port}/" in each[0]
    ]
    for command, expected in requests:
        words = shlex.split(command.replace(f"127.0.0.1:{shown_port}", f"127.0.0.1:{port}"))
        actual = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        pattern = ".*".join(map(re.escape, expected.strip().split("...")))
        assert re.fullmatch(pattern, actual), f"{command}\n{actual}"
    return len(requests)


def test_every_shown_request_to_a_local_console_is_answered_as_shown() -> None:
    with LocalTablestore(tables={"orders": {"id": str}}) as local:
        console = ConsoleServer(local)
        console.start()
        try:
            assert check_requests(8181, console.port) == 4
        finally:
            console.stop()


@pytest.mark.slow
def test_every_shown_request_to_a_console_of_fleets_is_answered_as_shown() -> None:
    """As it is started on the page, beside a worker."""
    with LocalTablestore(tables={"orders": {"id": str}}) as local, ExitStack() as stack:
        stream = StreamConfig(client=local.client(), data_table_name="orders", status_table_name="orders_status")
        reads = threading.Event()

        class Reading(PrintChanges):
            def initialize(self, initialization_input: InitializationInput) -> None:
                super().initialize(initialization_input)
                reads.set()

        worker = stack.enter_context(Worker("worker-1", ClientConfig(), stream, Reading))
        worker.wait(PATIENCE_SECONDS, until=reads.is_set)
        words = [sys.executable, "-m", "streamclient", "console", "orders:orders_status", "--port", "0"]
        process = stack.enter_context(
            subprocess.Popen([*words, "--endpoint", local.endpoint], stdout=subprocess.PIPE, text=True)
        )
        stack.callback(process.terminate)
        assert process.stdout is not None
        line = process.stdout.readline()
        port = re.fullmatch(r"console at http://127\.0\.0\.1:(\d+)/\n", line)

        assert port, line
        assert check_requests(8182, int(port[1])) == 4


def test_the_pictures_of_the_page_are_there_and_small() -> None:
    shown = re.findall(r"!\[[^\]]+\]\(figures/([\w-]+)\.webp\)", PAGE)

    assert sorted(shown) == sorted(PICTURES)
    for name in shown:
        content = (FIGURES / f"{name}.webp").read_bytes()
        assert (content[:4], content[8:12]) == (b"RIFF", b"WEBP")
        assert len(content) < LARGEST_PICTURE_BYTES


def test_the_page_names_the_options_of_a_console_of_fleets() -> None:
    section = PAGE.partition("### Options of a console of fleets")[2].partition("\n### ")[0]
    parser = make_parser(["console"])
    (commands_of,) = (action for action in parser._actions if isinstance(action.choices, dict))
    own = {
        option
        for group in commands_of.choices["console"]._action_groups
        if not (group.title or "").startswith("connection")
        for action in group._group_actions
        for option in action.option_strings
    }

    assert set(re.findall(r"`(--[\w-]+)", section)) == own - {"-h", "--help"}
    assert f"the port, {parser.parse_args(['console']).port} by default" in section


def test_the_page_names_the_options_and_limits() -> None:
    default = make_parser(["server"]).parse_args(["server"]).console_port

    assert f"`--console-port PORT` | the port, {default} by default" in PAGE
    assert f"newest {MOST_HEADS} requests" in PAGE
    assert f"At most {MOST_FEEDS} feeds" in PAGE
    assert f"at most {MOST_BODY_BYTES // 1024**2} MB" in PAGE


def test_an_error_has_the_shown_members() -> None:
    document = ConsoleError(400, "code", "text", "advice").document()

    assert re.search(r'`\{"error": \{"code", "text", "advice"\}\}`', PAGE)
    assert json.loads(json.dumps(document)) == {"error": {"code": "code", "text": "text", "advice": "advice"}}


@pytest.mark.parametrize("name", ["Overview", "Tables", "Stream", "Tunnels", "Faults", "Requests"])
def test_every_page_of_the_console_has_a_line(name: str) -> None:
    script = (Path(__file__).resolve().parents[2] / "streamclient" / "console" / "page" / "server.js").read_text()

    assert f'["{name}", ' in script
    assert f"| {name} | " in PAGE
