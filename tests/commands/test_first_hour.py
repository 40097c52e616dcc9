"""The first hour as the README has it: from a wheel, in an empty folder, with nothing of the checkout in sight."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.installed import ROOT, Installed

BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)


WRITES_AND_IMPORTS = """
import os, sys
from pathlib import Path
import pyspark.sql, streamclient.server.local, streamclient.worker.worker  # most of them need these
from streamclient.cli import main

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


def console_lines(heading: str) -> list[tuple[str, str]]:
    """Commands below a heading of the README, each with what it shows."""
    section = (ROOT / "README.md").read_text().split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    found: list[tuple[str, str]] = []
    for block in BLOCK.findall(section):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, shown = part.partition("\n")
            found.append((command, shown))
    return found


def printed_as(expected: str, actual: str) -> bool:
    """Spaces between columns depend on the length of ids; ``...`` is anything."""
    expected, actual = (re.sub(r" +", " ", text).strip() for text in (expected, actual))
    pattern = ".*?".join(re.escape(part) for part in expected.split("..."))
    return re.fullmatch(pattern, actual, re.DOTALL) is not None


@pytest.mark.slow
def test_the_first_hour_of_the_readme_runs_as_printed_from_a_wheel(installed: Installed, tmp_path: Path) -> None:
    (server, listening), *commands = console_lines("The first hour")

    assert (server, listening) == ("streamclient server", "listening on http://127.0.0.1:8180\n")
    assert len(commands) >= 4
    with installed.serving(tmp_path) as endpoint:
        for command, shown in commands:
            actual = installed.run(command, tmp_path, TABLESTORE_ENDPOINT=endpoint)
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
        assert "samples." not in path.read_text().replace("samples/", ""), path


def test_no_page_needs_the_checkout_for_its_examples() -> None:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    guilty = [page.name for page in pages if re.search(r"^\s*(from|import) samples\b", page.read_text(), re.MULTILINE)]

    assert guilty == []
