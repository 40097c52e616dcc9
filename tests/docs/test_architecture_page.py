"""The page that a newcomer reads first names files and things that exist."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "architecture.md"
PATH = re.compile(r"`((?:streamclient|tests)/[\w/]+(?:\.py|/))`")
NAME_IN_FILE = re.compile(r"`(\w+)(?:\[[\w.]+\])?` (?:in|at the end of) `((?:streamclient|tests)/[\w/]+\.py)`")


def test_every_file_that_the_page_names_is_there() -> None:
    named = set(PATH.findall(PAGE.read_text()))

    assert len(named) > 30
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


@pytest.mark.parametrize(("name", "path"), sorted(set(NAME_IN_FILE.findall(PAGE.read_text()))))
def test_every_name_is_in_the_file_that_the_page_names(name: str, path: str) -> None:
    assert re.search(rf"^(?:def|class) {name}\b|^{name}\b.*=", (ROOT / path).read_text(), re.MULTILINE)


def test_every_room_has_a_line_on_the_page() -> None:
    from tools.structure import room_arrows

    told = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| `.*?\|", PAGE.read_text(), re.MULTILINE))))
    assert {room for room in room_arrows() if room not in told} == set()


def test_the_picture_shows_every_room() -> None:
    from tools.structure import draw_floors, room_arrows

    picture = draw_floors()

    assert [room for room in room_arrows() if f">{room}<" not in picture] == []


def test_no_rooms_import_each_other() -> None:
    """Floors are floors: a circle would put two rooms on one. Only the ground floor is one, of two rooms."""
    from tools.structure import circles, room_arrows

    assert circles(room_arrows()) == [["base", "values"]]


def test_no_modules_import_each_other() -> None:
    """Late imports and those for types count: who reads one module of a circle has to read them all."""
    from tools.structure import circles, module_arrows

    assert circles(module_arrows()) == []


def test_a_circle_would_be_found() -> None:
    from tools.structure import circles

    arrows = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set[str]()}

    assert circles(arrows) == [["b", "c"]]


def test_modules_of_the_page_can_be_imported() -> None:
    files = [
        path for path in PATH.findall(PAGE.read_text()) if path.startswith("streamclient/") and path.endswith(".py")
    ]
    for path in sorted(set(files)):
        importlib.import_module(path.removesuffix(".py").replace("/", "."))
