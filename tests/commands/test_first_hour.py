"""The first hour as the README has it: from a wheel, in an empty folder, with nothing of the checkout in sight."""

from __future__ import annotations

import os
import re
import shutil
import sys
from importlib.metadata import distributions
from pathlib import Path

import pytest

from streamclient.console.app import FILES
from tests.docs.page_examples import FENCE, commands
from tests.installed import ROOT, Installed, copy_of_the_checkout
from tests.typed_shell import Shell

WRITES_AND_IMPORTS = """
import os, sys
from pathlib import Path
import pyspark.sql, tablestore, streamclient.server.local, streamclient.worker.worker  # most of them need these
from streamclient.cli.main import main

here = Path.cwd()
for name in sys.argv[1:]:
    child = os.fork()  # each in a process of its own, as samples import each other by name
    if child == 0:
        os.chdir(here / name)
        assert main(["sample", name]) == 0
        sys.path.insert(0, str(here / name))
        __import__("demo.__main__" if name == "demo" else name)
        sys.stdout.flush()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status == 0, name
"""


ACTIVATE = ". ~/streams/bin/activate"
"""The line with which each terminal begins."""


def settings_of_pip() -> dict[str, str]:
    """Where this machine has its packages from, and what it has of them."""
    cache = os.environ.get("PIP_CACHE_DIR", str(Path.home() / ".cache" / "pip"))
    given = {name: value for name, value in os.environ.items() if re.search("^PIP_|_proxy$|^SSL_CERT", name, re.I)}
    return {**given, "PIP_CACHE_DIR": cache, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def console_lines(heading: str) -> list[tuple[str, str]]:
    """Commands below a heading of the README, each with what it shows."""
    section = (ROOT / "README.md").read_text().split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    return [(command.partition("  #")[0].rstrip(), shown) for command, shown in commands(section)]


def printed_as(expected: str, actual: str) -> bool:
    """Spaces between columns depend on the length of ids; ``...`` is anything."""
    expected, actual = (re.sub(r" +", " ", text).strip() for text in (expected, actual))
    pattern = ".*?".join(re.escape(part) for part in expected.split("..."))
    return re.fullmatch(pattern, actual, re.DOTALL) is not None


@pytest.mark.slow
def test_the_first_hour_of_the_readme_runs_as_printed_from_a_wheel(installed: Installed, tmp_path: Path) -> None:
    """In an environment that is activated, and with a server on any free port."""
    (server, listening), *others = [each for each in console_lines("The first hour") if each != (ACTIVATE, "")]

    assert (server, listening) == (
        "streamclient server",
        "listening on http://127.0.0.1:8180\nconsole at http://127.0.0.1:8181/\n",
    )
    assert len(others) >= 5
    with installed.serving(tmp_path) as endpoint:
        shell = Shell(tmp_path, {**installed.environment, "TABLESTORE_ENDPOINT": endpoint})
        with shell:
            for command, shown in others:
                # The README's port of the console may be taken: another one is as good.
                actual = shell.typed(command.replace("streamclient console", "streamclient console --port 0"), shown)
                assert printed_as(shown.replace(":8182/", ":.../"), actual), f"$ {command}\n{actual}"


@pytest.mark.long
@pytest.mark.skipif(shutil.which("unshare") is None, reason="no ports of its own")
def test_the_readme_typed_from_the_installation_on_does_what_it_shows(tmp_path: Path) -> None:
    """In a new home, with nothing activated; `make first-hour` runs it.

    Both terminals are in a network of their own, in which the port of the server is free.
    """
    home = tmp_path / "home"
    home.mkdir()
    path = f"{sys.base_prefix}/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
    environment = {"HOME": str(home), "PATH": path, **settings_of_pip()}
    with Shell(copy_of_the_checkout(tmp_path), environment) as shell:
        for command, _ in console_lines("Install"):
            assert shell.typed(command, "") == "", command
    hour = console_lines("The first hour")
    second = hour.index((ACTIVATE, ""), 1)
    own_ports = ("unshare", "--net", "--map-root-user")
    with Shell(home, environment, own_ports) as first:
        first.typed("ip link set lo up || ifconfig lo up", "")
        with Shell(home, environment, ("nsenter", f"--target={first.pid}", "--net", "--user")) as other:
            for shell, lines in ((first, hour[:second]), (other, hour[second:])):
                for command, shown in lines:
                    actual = shell.typed(command, shown, goes_on=command == "streamclient server")
                    assert printed_as(shown, actual), f"$ {command}\n{actual}"


@pytest.mark.slow
def test_every_sample_is_written_by_the_installed_command_and_finds_what_it_imports(
    installed: Installed, tmp_path: Path
) -> None:
    names = [path.stem for path in (ROOT / "samples").glob("*.py") if path.stem != "__init__"]
    for name in [*names, "demo"]:
        (tmp_path / name).mkdir()
    script = tmp_path / "samples.py"
    script.write_text(WRITES_AND_IMPORTS)
    installed.run_script(script, *names, "demo", folder=tmp_path)

    for path in tmp_path.glob("*/**/*.py"):
        assert re.findall(r"\bsamples[./]\w+", path.read_text()) == [], path


@pytest.mark.slow
def test_the_wheel_has_the_page_of_the_console(installed: Installed) -> None:
    (place,) = installed.directory.glob("lib/python*/site-packages/streamclient/console/page")

    assert {path.name for path in place.iterdir()} >= set(FILES)


@pytest.mark.slow
def test_the_wheel_says_whose_it_is_and_under_which_licence(installed: Installed) -> None:
    """No address is made up: the project has none."""
    (place,) = installed.directory.glob("lib/python*/site-packages")
    (wheel,) = distributions(name="streamclient", path=[str(place)])
    said = wheel.metadata
    (author,) = re.findall(r'^author = "(.*)"$', (ROOT / "docs" / "conf.py").read_text(), re.MULTILINE)

    assert said["Author"] == author == "The streamclient project"
    assert (said["License-Expression"], said.get_all("License-File")) == ("Apache-2.0", ["LICENSE"])
    assert {"tablestore", "change data capture", "spark"} <= set(re.split(", ?", said["Keywords"]))
    assert said.get_payload() == (ROOT / "README.md").read_text()
    assert said["Requires-Python"] == ">=3.10"
    assert {name for name in said if re.search("url|home|page|mail|maintain", name.lower())} == set()


def needs_of_the_checkout(text: str) -> list[str]:
    """Examples and commands of a page that find the samples only where this project is checked out."""
    blocks = [body for language, body in FENCE.findall(text) if language in {"python", "py", "sh", "console"}]
    return re.findall(r"^.*(?:(?:\bfrom|\bimport|-m) samples\b|\bsamples/).*$", "\n".join(blocks), re.MULTILINE)


def test_no_page_needs_the_checkout_for_its_examples() -> None:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

    assert {page.name: needs for page in pages if (needs := needs_of_the_checkout(page.read_text()))} == {}


@pytest.mark.parametrize("line", ["$ python -m samples.console", "$ pytest samples/test_x.py", "import samples.demo"])
def test_an_example_that_needs_the_checkout_is_noticed(line: str) -> None:
    """The check itself can fail."""
    assert needs_of_the_checkout(f"```console\n{line}\n```\n") == [line]
