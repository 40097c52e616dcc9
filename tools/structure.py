"""Figures of the package: its size, the imports between its modules, and the files that each journey touches.

``python tools/structure.py`` prints all figures. With ``--static`` it prints only the figures that it takes from the
source, and runs no journey. ``tools/journeys.py`` runs the journeys.
"""

from __future__ import annotations

import argparse
import ast
import io
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "streamclient"
LONG_FUNCTION_LINES = 30
SHORT_FILE_LINES = 70

COMPILED = {
    "streamclient.wire",
    "streamclient.wire._native",
    "streamclient.wire.columns",
    "streamclient.wire.columns.records_by_column",
}
"""The modules below every floor. The compiled codec imports nothing, and the storage of records is in it. The module
``records_by_column`` is the codec's twin in Python. It imports only values, and values import it."""

VALUES = {"config", "errors", "interfaces", "model", "records", "_version"}
"""The modules that users import by name. ``base`` imports some of these modules, and others import ``base``."""

FACES = {
    "streamclient",
    "streamclient.aio",
    "streamclient.copying",
    "streamclient.destinations",
    "streamclient.metrics",
    "streamclient.server",
    "streamclient.spark",
    "streamclient.tablestore",
    "streamclient.testing",
    "streamclient.tunnel",
}
"""The modules from which programs import. Documentation and samples import from no other module."""

BACK_AND_FORTH = ("core.settle.settle", "core.doubt.write_answered")
"""Functions that call through many files of the core. The figures count how often a reader changes the file."""

PICTURE_WIDTH, FLOOR_HEIGHT, ROOM_WIDTH, ROOM_HEIGHT = 720, 62, 92, 34
"""Sizes in the picture of the floors, in units of SVG. The floor with the most rooms fits, and a page has room."""


# --- modules -------------------------------------------------------------------------------------------------------


@cache
def parsed(path: Path) -> ast.Module:
    """Return the syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"))


def modules() -> dict[str, Path]:
    """Return every module of the package, by its dotted name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = path
    return found


def imported_names(tree: ast.AST) -> Iterable[str]:
    """Yield every name that a module imports, also in functions or for types: the module, then each name from it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def imported_modules(tree: ast.AST, known: Iterable[str]) -> set[str]:
    """Return the modules of ``known`` that a module imports.

    A package counts only if a name of its own is imported, and not only a module in it.
    """
    known = set(known)
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names} & known
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names & known
            if names - known - COMPILED:
                found |= {node.module} & known
    return found


def module_arrows() -> dict[str, set[str]]:
    """Return the modules of the package that each module imports, by the module's name."""
    known = modules()
    return {name: imported_modules(parsed(path), known) - COMPILED - {name} for name, path in known.items()}


def circles(arrows: dict[str, set[str]]) -> list[list[str]]:
    """Return the groups of modules that import each other in a cycle, the largest group first.

    They are the strongly connected components with more than one module.
    """
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        order[node] = low[node] = len(order)
        stack.append(node)
        for other in sorted(arrows[node]):
            if other not in order:
                visit(other)
            if other in stack:
                low[node] = min(low[node], low[other])
        if low[node] == order[node]:
            part = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(part) > 1:
                found.append(sorted(part))

    sys.setrecursionlimit(10_000)
    for node in sorted(arrows):
        if node not in order:
            visit(node)
    return sorted(found, key=len, reverse=True)


# --- rooms and floors ----------------------------------------------------------------------------------------------


def room_of(path: Path) -> str:
    """Return the room of a file: the folder below ``streamclient``, ``values``, or ``face`` for the front door."""
    first, *rest = path.relative_to(PACKAGE).with_suffix("").parts
    return first if rest else _room_named(first)


def _room_named(first: str) -> str:
    """Return the room of the first name below ``streamclient``."""
    if first in VALUES:
        return "values"
    return {"__init__": "face", "_changes": "face", "aio": "face", "__main__": "cli"}.get(first, first)


def imported_rooms(tree: ast.AST) -> set[str]:
    """Return the rooms of the package that a module imports."""
    names = {name for name in imported_names(tree) if name.startswith("streamclient.")} - COMPILED
    firsts = {name.split(".")[1] for name in names}
    inside = {each for each in firsts if (PACKAGE / each).is_dir() or (PACKAGE / f"{each}.py").is_file()}
    return {_room_named(each) for each in inside}


def room_arrows() -> dict[str, set[str]]:
    """Return the rooms that each room imports, by the room's name."""
    arrows: dict[str, set[str]] = {}
    for path in modules().values():
        room = room_of(path)
        arrows.setdefault(room, set()).update(imported_rooms(parsed(path)) - {room})
    return arrows


def floors(arrows: dict[str, set[str]]) -> list[list[str]]:
    """Return the rooms of each floor, the lowest floor first.

    A room is above all rooms that it imports. Rooms that import each other share a floor.
    """
    circle_of = {room: set(ring) for ring in circles(arrows) for room in ring}
    height: dict[str, int] = {}

    def climb(room: str) -> int:
        if room not in height:
            ring = circle_of.get(room, {room})
            below = {other for each in ring for other in arrows[each]} - ring
            height.update(dict.fromkeys(ring, 0))
            height.update(dict.fromkeys(ring, 1 + max((climb(other) for other in below), default=-1)))
        return height[room]

    for room in arrows:
        climb(room)
    return [sorted(room for room in arrows if height[room] == floor) for floor in range(max(height.values()) + 1)]


def draw_floors() -> str:
    """Draw the floors as SVG: rooms with their number of lines, and a line for each import that no other implies."""
    arrows = room_arrows()
    size: dict[str, int] = defaultdict(int)
    for path in modules().values():
        size[room_of(path)] += path.read_text().count("\n")
    places: dict[str, tuple[float, float]] = {}
    stories = floors(arrows)
    height = len(stories) * FLOOR_HEIGHT
    for floor, rooms in enumerate(stories):
        step = PICTURE_WIDTH / (len(rooms) + 1)
        for column, room in enumerate(rooms, 1):
            places[room] = (column * step, height - floor * FLOOR_HEIGHT - FLOOR_HEIGHT / 2)
    lines = [
        f'<line x1="{places[a][0]:.0f}" y1="{places[a][1] + ROOM_HEIGHT / 2:.0f}" x2="{places[b][0]:.0f}" '
        f'y2="{places[b][1] - ROOM_HEIGHT / 2:.0f}" stroke="#9aa4b2"/>'
        for a in sorted(arrows)
        for b in sorted(_direct(a, arrows))
    ]
    boxes = [
        f'<rect x="{x - ROOM_WIDTH / 2:.0f}" y="{y - ROOM_HEIGHT / 2:.0f}" width="{ROOM_WIDTH}" height="{ROOM_HEIGHT}" '
        f'rx="4" fill="#eef3fb" stroke="#3b5b92"/><text x="{x:.0f}" y="{y - 2:.0f}">{room}</text>'
        f'<text x="{x:.0f}" y="{y + 11:.0f}" fill="#667085">{size[room]:,}</text>'
        for room, (x, y) in sorted(places.items())
    ]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {PICTURE_WIDTH} {height}" font-family="sans-serif" '
        'font-size="11" text-anchor="middle">'
    )
    return "\n".join([head, *lines, *boxes, "</svg>"]) + "\n"


def _direct(room: str, arrows: dict[str, set[str]]) -> set[str]:
    """Return the rooms that ``room`` imports, without rooms that its other imports import, too."""
    return {
        other for other in arrows[room] if not any(other in _reach(each, arrows) for each in arrows[room] - {other})
    }


def _reach(room: str, arrows: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    waiting = [room]
    while waiting:
        for other in arrows[waiting.pop()] - found:
            found.add(other)
            waiting.append(other)
    return found


# --- figures -------------------------------------------------------------------------------------------------------


def code_lines(path: Path) -> int:
    """Count the lines of a file with code, without blank lines, comments and docstrings."""
    text = path.read_text(encoding="utf-8")
    silent = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in silent:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def names_twice() -> dict[str, list[str]]:
    """Return the names of files that occur in several folders, each with the paths of the files."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in modules().values():
        if path.stem not in ("__init__", "__main__"):
            found[path.stem].append(str(path.relative_to(PACKAGE)))
    return {name: where for name, where in found.items() if len(where) > 1}


def short_files_of_one_caller() -> list[str]:
    """Return the files under ``SHORT_FILE_LINES`` lines that only one module imports. They might be merged into it."""
    callers: dict[str, set[str]] = defaultdict(set)
    for name, others in module_arrows().items():
        for other in others:
            callers[other].add(name)
    return [
        str(path.relative_to(PACKAGE))
        for name, path in modules().items()
        if path.stem != "__init__"
        and len(callers[name]) == 1
        and path.read_text(encoding="utf-8").count("\n") < SHORT_FILE_LINES
    ]


def back_and_forth(name: str) -> tuple[int, int]:
    """Count how often a reader of the function ``name`` goes to another file, and how often back to read on.

    The reader follows each call of a function of the core once, in the order of the text. If several functions share a
    name, a call is followed only within its file.
    """
    module, function = f"streamclient.{name}".rsplit(".", 1)
    functions = {
        (path, node.name): node
        for path in modules().values()
        if room_of(path) == "core"
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.FunctionDef)
    }
    homes: dict[str, list[Path]] = defaultdict(list)
    for path, defined in functions:
        homes[defined].append(path)
    ways: list[tuple[Path, Path]] = []
    seen: set[tuple[Path, str]] = set()

    def read(path: Path, function: str) -> None:
        seen.add((path, function))
        for called in _calls_of(functions[path, function]):
            home = path if path in homes[called] else homes[called][0] if len(homes[called]) == 1 else None
            if home is not None and (home, called) not in seen:
                ways.append((path, home))
                read(home, called)

    read(modules()[module], function)
    left = sum(here != there for here, there in ways)
    returned = sum(before[1] != now[0] for before, now in pairwise(ways))
    return left, returned


def _calls_of(function: ast.FunctionDef) -> list[str]:
    calls = [node.func for node in ast.walk(function) if isinstance(node, ast.Call)]
    return [ast.unparse(call).rsplit(".", 1)[-1] for call in calls]


def print_source() -> None:
    """Print the figures that the source gives: sizes, names used twice, long functions, rooms, floors and cycles."""
    known = modules()
    classes: dict[str, list[str]] = defaultdict(list)
    long_functions = 0
    for name, path in known.items():
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ClassDef):
                classes[node.name].append(name)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                long_functions += (node.end_lineno or node.lineno) - node.lineno + 1 > LONG_FUNCTION_LINES
    twice = {name: where for name, where in classes.items() if len(where) > 1 and not name.startswith("_")}
    rings, rooms, short = circles(module_arrows()), room_arrows(), short_files_of_one_caller()
    figures = {
        "files": len(known),
        "lines": sum(path.read_text(encoding="utf-8").count("\n") for path in known.values()),
        "lines of code": sum(map(code_lines, known.values())),
        "lines of tests": sum(path.read_text(encoding="utf-8").count("\n") for path in (ROOT / "tests").rglob("*.py")),
        "rooms": len(rooms.keys() - {"values"}),
        "floors": len(floors(rooms)),
        "arrows between rooms": sum(map(len, rooms.values())),
        "classes": sum(map(len, classes.values())),
        "class names used twice": len(twice),
        "file names used twice": len(names_twice()),
        f"files under {SHORT_FILE_LINES} lines of one caller": len(short),
        f"functions over {LONG_FUNCTION_LINES} lines": long_functions,
        "cycles of imports": len(rings),
    }
    for label, figure in figures.items():
        print(f"{label:<34}{figure:>8}")
    for name in BACK_AND_FORTH:
        left, returned = back_and_forth(name)
        print(f"{name.rsplit('.', 1)[-1]} leaves its file {left} times and comes back {returned} times")
    for name, where in sorted({**twice, **names_twice()}.items()):
        print(f"  twice: {name} in {', '.join(where)}")
    for each in short:
        print(f"  short, of one caller: {each}")
    for ring in rings:
        print(f"  cycle: {', '.join(ring)}")


def main() -> int:
    """Print the figures that the options choose."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--static", action="store_true", help="only the figures that the source alone gives")
    options = parser.parse_args()
    print_source()
    if not options.static:
        from tools.journeys import print_journeys  # noqa: PLC0415

        print_journeys()
    return 0


if __name__ == "__main__":
    sys.exit(main())
