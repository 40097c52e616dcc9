"""The command without arguments, and by the name of the package."""

from __future__ import annotations

import subprocess
import sys

import pytest

from streamclient._version import __version__
from tests.installed import ROOT

WAYS = (["-m", "streamclient"], ["-m", "streamclient.cli.main"])


def ran(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, cwd=ROOT, check=False)


@pytest.mark.parametrize("way", WAYS, ids=" ".join)
def test_the_command_alone_prints_its_commands(way: list[str]) -> None:
    alone, helped = ran(*way), ran(*way, "--help")

    assert (alone.returncode, alone.stderr) == (0, "")
    assert alone.stdout == helped.stdout
    assert alone.stdout.startswith("usage: streamclient [-h] [--version] COMMAND ...\n")
    assert "run a local Tablestore" in alone.stdout


def test_the_package_is_the_command() -> None:
    assert ran("-m", "streamclient", "--version").stdout == f"streamclient {__version__}\n"
    assert ran("-m", "streamclient", "sample", "--help").stdout.startswith("usage: streamclient sample ")
    assert ran("-m", "streamclient", "nonsense").returncode == 2


def test_make_says_how_the_command_gets_on_the_path() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    printed = subprocess.run(
        ["make", "-s", "VENV=.venv", "help"], capture_output=True, text=True, cwd=ROOT, check=True
    ).stdout

    assert printed.endswith(
        "the command streamclient is .venv/bin/streamclient; to have it on the path:  . .venv/bin/activate\n"
    )
    for target in ("demo", "test", "help"):
        recipe = text.split(f"\n{target}:", 1)[1].partition("\n\n")[0]
        assert recipe.endswith("@$(SAY_PATH)"), target
    assert "`. .venv/bin/activate` puts it on the path" in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "command", "said"),
    [
        (["sample", "--nothing"], "sample", "unrecognized arguments: --nothing"),
        (["sample", "console", "more"], "sample", "unrecognized arguments: more"),
        (["leases", "list", "--nothing"], "leases list", "unrecognized arguments: --nothing"),
        (["leases", "move", "s1"], "leases move", "the following arguments are required: --to"),
        (["tables", "nothing"], "tables", "invalid choice: 'nothing'"),
        (["top", "--interval", "soon"], "top", "invalid float value: 'soon'"),
    ],
)
def test_wrong_arguments_are_refused_with_the_help_that_names_the_right_ones(
    words: list[str], command: str, said: str
) -> None:
    refused = ran("-m", "streamclient", *words)

    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.startswith(f"streamclient {command}: ")
    assert said in refused.stderr
    assert refused.stderr.endswith(f"; see streamclient {command} --help\n")
