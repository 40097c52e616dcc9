"""The table of stuck situations on the page, and comparing it with what ``explain`` prints."""

from __future__ import annotations

import re
from pathlib import Path

from attrs import frozen
from operate_scene import Ran, Scene

PAGE = Path(__file__).resolve().parents[2] / "docs" / "stuck.md"
ROW = re.compile(r"^\| `([a-z-]+)` \| `(.+?)` \| (.+?) \|$", re.MULTILINE)


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
    """Explain a shard and compare situation, first line and advice with the page."""
    key = shard_id or scene.shard
    ran = scene.run("explain", key, "--observe", str(observe), "--json")
    return checked(ran, name)


def checked(ran: Ran, name: str) -> str:
    assert ran.out, ran.err
    (told,) = ran.document["shards"]
    assert told["situation"] == name, told
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
