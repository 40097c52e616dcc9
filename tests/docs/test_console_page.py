"""What the page of the console shows is what the console answers."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from streamclient.cli.main import make_parser
from streamclient.console.app import MOST_BODY_BYTES, MOST_FEEDS
from streamclient.console.doors import ConsoleError
from streamclient.console.listening import ConsoleServer
from streamclient.server import LocalTablestore
from streamclient.server.observing import MOST_HEADS
from tests.docs.page_examples import commands

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "console.md").read_text(encoding="utf-8")


def test_every_shown_request_is_answered_as_shown() -> None:
    shown = [(command, expected) for command, expected in commands(PAGE) if command.startswith("curl ")]
    with LocalTablestore(tables={"orders": {"id": str}}) as local:
        console = ConsoleServer(local)
        console.start()
        try:
            for command, expected in shown:
                words = shlex.split(command.replace("127.0.0.1:8181", f"127.0.0.1:{console.port}").replace("\\\n", " "))
                actual = subprocess.run(words, capture_output=True, text=True, check=True).stdout
                pattern = ".*".join(map(re.escape, expected.strip().split("...")))
                assert re.fullmatch(pattern, actual), f"{command}\n{actual}"
        finally:
            console.stop()

    assert len(shown) == 4


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
