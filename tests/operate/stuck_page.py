"""The table of stuck situations on the page, and comparing it with what ``explain`` prints."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from attrs import frozen
from operate_scene import Ran, Scene

from tests.patience import until

PAGE = Path(__file__).resolve().parents[2] / "docs" / "stuck.md"
ROW = re.compile(r"^\| `([a-z-]+)` \| `(.+?)` \| (.+?) \|$", re.MULTILINE)

UNREADABLE = {
    "no-data-table",
    "no-status-table",
    "not-a-status-table",
    "access-refused",
    "clock-wrong",
    "throttled",
    "unreachable",
}
"""Situations in which nothing could be read: the command says so on standard error, too."""


@frozen
class PageRow:
    name: str
    first_line: str
    """``...`` stands for anything."""
    advice: str


def page_rows() -> list[PageRow]:
    return [PageRow(*found) for found in ROW.findall(PAGE.read_text())]


def matches(pattern: str, line: str) -> bool:
    return re.fullmatch(".*?".join(re.escape(part) for part in pattern.split("...")), line) is not None


def check(scene: Scene, name: str, shard_id: str | None = None, *, observe: float = 0.0) -> str:
    """Explain a shard, once it is in a situation, and compare first line and advice with the page.

    A worker that works moves on between two looks: what is compared is what the one look saw that found the situation.
    """
    seen: list[Ran] = []

    def is_as_on_the_page() -> bool:
        seen[:] = [scene.run("explain", shard_id or scene.shard, "--observe", str(observe), "--json")]
        return bool(seen[0].out) and is_told(seen[0].document["shards"][0], name)

    until(is_as_on_the_page, lambda: (name, seen))
    return checked(seen[0], name)


def is_told(told: dict[str, Any], name: str) -> bool:
    """Whether it is that situation, in words of the page."""
    lines = [row.first_line for row in page_rows() if row.name == name]
    return told["situation"] == name and any(matches(line, told["first_line"]) for line in lines)


def checked(ran: Ran, name: str) -> str:
    assert ran.out, ran.err
    (told,) = ran.document["shards"]
    assert told["situation"] == name, told
    if name in UNREADABLE:
        assert (ran.code, ran.err.startswith("streamclient explain: ")) == (2, True), ran
    else:
        assert (ran.code, ran.err) == (0 if told["moves"] else 1, ""), ran
    patterns = [row for row in page_rows() if row.name == name]
    assert patterns, f"{PAGE.name} has no row for {name}: {told['first_line']}"
    assert any(matches(row.first_line, told["first_line"]) for row in patterns), (told["first_line"], patterns)
    assert told["advice"] in [row.advice for row in patterns]
    first_line: str = told["first_line"]
    return first_line


def is_now(scene: Scene, name: str, shard_id: str) -> bool:
    """Whether the situation has come about."""
    ran = scene.run("explain", shard_id, "--observe", "0", "--json")
    return bool(ran.out) and ran.document["shards"][0]["situation"] == name
