"""Workflows run only actions that are pinned to commits, with few rights, and what they run is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.installed import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PINNED = re.compile(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")


def unpinned(text: str) -> list[str]:
    return [use for use in re.findall(r"uses: (.*)$", text, re.MULTILINE) if not PINNED.fullmatch(use)]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_to_commits_and_jobs_have_few_rights(path: Path) -> None:
    text = path.read_text(encoding="utf-8")

    assert unpinned(text) == []
    assert "\npermissions: {}\n" in text
    assert set(re.findall(r"^ +(\w[\w-]*): (?:write|read)$", text, re.MULTILINE)) <= {"contents"}
    assert "contents: write" not in text
    assert text.count("actions/checkout@") == text.count("persist-credentials: false")
    assert "secrets." not in text


def test_one_commit_stands_for_each_version() -> None:
    uses = {use for path in WORKFLOWS for use in re.findall(r"uses: (.*)$", path.read_text("utf-8"), re.MULTILINE)}

    assert len(uses) == len({use.partition("@")[0] for use in uses})
    assert len(WORKFLOWS) == 2


def test_an_action_that_is_not_pinned_is_noticed() -> None:
    """The check itself can fail."""
    assert unpinned("      - uses: actions/checkout@v7\n") == ["actions/checkout@v7"]


def test_what_workflows_run_is_there() -> None:
    text = "\n".join(path.read_text(encoding="utf-8") for path in WORKFLOWS)
    made = re.search(r"run: make (.*)$", text, re.MULTILINE)

    assert made is not None
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(made[1].split()) <= targets
    for file in (".ci/run", "tests/install/laptop.py"):
        assert file in text
        assert (ROOT / file).exists()


def test_continuous_integration_has_each_python_that_is_supported() -> None:
    (versions,) = re.findall(r"python: \[(.*)\]", (ROOT / ".github" / "workflows" / "ci.yml").read_text("utf-8"))
    supported = re.findall(r":: Python :: (3\.\d+)$", (ROOT / "setup.cfg").read_text("utf-8"), re.MULTILINE)

    assert re.findall(r"[\d.]+", versions) == supported
