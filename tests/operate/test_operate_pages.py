"""The pages on operating: every command on them is run, in order, against real workers, and prints what they show.

Shard ids, the operator's name and times are written on the pages as people would: they are put in for the real ones.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest
from operate_scene import STATUS, TABLE, Scene
from stuck_workers import NoDatabase, Steady, working

from streamclient.cli import main
from streamclient.cli.options import operator_name
from tests.patience import until

DOCS = Path(__file__).resolve().parents[2] / "docs"
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


def commands(page: str) -> list[tuple[str, str]]:
    """Commands of a page with the output that it shows."""
    found = []
    for block in BLOCK.findall((DOCS / page).read_text()):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            found.append((command, output))
    return [each for each in found if each[0].startswith("streamclient ")]


def as_on_the_page(text: str, names: Mapping[str, str]) -> str:
    for name, real in names.items():
        text = text.replace(real, name)
    return TIME.sub("2026-01-31T12:00:00.000Z", text.replace(operator_name(), "ann@ops"))


def matches(expected: str, actual: str) -> bool:
    """``...`` stands for anything; columns of tables may be wider than on the page."""
    squeezed = [
        re.sub(r"[ ]+", " ", re.sub(r" +$", "", text.strip(), flags=re.MULTILINE)) for text in (expected, actual)
    ]
    pattern = ".*?".join(re.escape(part) for part in squeezed[0].split("..."))
    return re.fullmatch(pattern, squeezed[1], re.DOTALL) is not None


def run_page(page: str, scene: Scene, names: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in (("ENDPOINT", scene.local.endpoint), ("DATA_TABLE", TABLE), ("STATUS_TABLE", STATUS)):
        monkeypatch.setenv(f"TABLESTORE_{variable}", value)
    for command, expected in commands(page):
        words = [names.get(word, word) for word in shlex.split(command)][1:]
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown):
            main.main(words)
        actual = as_on_the_page(shown.getvalue(), names)
        assert matches(expected, actual), f"$ {command}\n{actual}\nnot:\n{expected}"
        if words[:2] == ["leases", "pause"]:
            scene.write(40)
        if words[:2] == ["leases", "rewind"]:
            until(lambda: is_read(scene), "everything is read and checkpointed again")


@pytest.mark.slow
def test_the_page_on_operating(quick: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with ExitStack() as stack:
        names = start_fleet(quick, stack)
        run_page("operating.md", quick, names, monkeypatch)


@pytest.mark.slow
def test_the_page_on_stuck_shards(quick: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    quick.write(3)
    with working(quick, NoDatabase):
        until(lambda: "no such database" in quick.explain(), "the worker says it")
        run_page("stuck.md", quick, {"shard-1": quick.shard}, monkeypatch)


def start_fleet(scene: Scene, stack: ExitStack) -> dict[str, str]:
    """Two workers that have read a parent and its two children; the names of the shards on the page."""
    scene.write(40)
    parent = scene.shard
    scene.split()
    for name in ("worker-1", "worker-2"):
        stack.enter_context(working(scene, Steady, name=name, lease_duration_millis=20_000))
    until(lambda: is_settled(scene), "each worker reads a child")
    scene.write(40)
    until(lambda: is_read(scene), "everything is read and checkpointed")
    children = {str(row["owner"]): str(row["shard"]) for row in leases(scene) if row["shard"] != parent}
    return {"shard-1": parent, "shard-2": children["worker-1"], "shard-3": children["worker-2"]}


def leases(scene: Scene) -> list[dict[str, object]]:
    found: list[dict[str, object]] = scene.run("leases", "list", "--json").document["leases"]
    return found


def is_read(scene: Scene) -> bool:
    good = ("caught-up", "finished")
    return all(row["situation"] in good and row["checkpoint_kind"] != "oldest" for row in leases(scene))


def is_settled(scene: Scene) -> bool:
    """The parent is finished, and each worker has a child: until then it counts as work, which one of them may have."""
    rows = leases(scene)
    owners = [str(row["owner"]) for row in rows if row["situation"] != "finished"]
    is_one_finished = len(rows) == 3 and len(owners) == 2
    return is_one_finished and set(owners) == {"worker-1", "worker-2"} and not any(row["stealer"] for row in rows)


def test_a_wrong_output_would_be_noticed() -> None:
    """The check itself can fail."""
    assert matches("one ... three", "one   2 three")
    assert not matches("one ... three", "one 2 four")
    assert commands("operating.md")
