"""The rules of the house, checked on the source itself: rooms, floors, purity, sizes, leftovers."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tools.structure import FACES, PACKAGE, ROOT, imported_names, imported_rooms, parsed, room_arrows, room_of

FLOORS = (
    ("base", "values"),
    ("core", "destinations", "metrics", "wire"),
    ("server", "tablestore"),
    ("worker",),
    ("loops", "operate", "tunnel"),
    ("console", "copying", "face", "spark", "testing"),
    ("cli",),
)
"""A room imports rooms of lower floors. The face is ``streamclient`` itself, the front door."""

GROUND = set(FLOORS[0])

MAY_IMPORT: dict[str, set[str]] = {
    "base": {"values"},
    "values": {"base"},
    "core": GROUND,
    "destinations": GROUND,
    "metrics": GROUND,
    "wire": {"values"},
    # The server shares only the wire with the client: an emulator that borrows the client's rules agrees with its
    # mistakes.
    "server": {"wire"} | GROUND,
    "tablestore": {"core", "metrics", "wire"} | GROUND,
    "worker": {"core", "destinations", "metrics", "tablestore", "wire"} | GROUND,
    "face": {"loops", "tablestore", "tunnel", "wire", "worker"} | GROUND,
    "loops": {"tablestore", "worker"} | GROUND,
    "operate": {"core", "tablestore", "wire", "worker"} | GROUND,
    "tunnel": {"core", "metrics", "tablestore", "wire", "worker"} | GROUND,
    "console": {"operate", "server"} | GROUND,
    "copying": {"core", "destinations", "tablestore", "tunnel", "wire", "worker"} | GROUND,
    "spark": {"core", "destinations", "tablestore", "tunnel", "wire"} | GROUND,
    "testing": {"core", "destinations", "loops", "metrics", "server", "tablestore", "tunnel", "wire", "worker"}
    | GROUND,
    "cli": {
        "console",
        "copying",
        "core",
        "destinations",
        "loops",
        "metrics",
        "operate",
        "server",
        "tablestore",
        "testing",
        "tunnel",
        "wire",
        "worker",
    }
    | GROUND,
}
"""Rooms on the left import the rooms on the right, and each of them: what nobody uses is not permitted."""

TERMINAL = {"argparse", "getpass", "curses", "termios", "tty", "rich"}
"""What talks to a person in front of a screen; only ``cli`` does."""

MADE_OF_HEAVY_CLASSES = {"source/data_source.py": {"pyspark"}, "postgres/postgres_wait.py": {"psycopg"}}
"""Modules that subclass what a heavy package has, and are themselves imported on first use."""

IMPURE_MODULES = {"threading", "time", "logging", "socket", "subprocess", "asyncio", "concurrent", "tablestore", "os"}
IMPURE_CALLS = re.compile(r"\b(time\.\w+|datetime\.now|datetime\.utcnow|uuid\.uuid\d|open|print|input)$")
LONGEST_FUNCTION_LINES = 60
LONGEST_FILE_LINES = 500


def source_files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def module_level(tree: ast.Module) -> ast.Module:
    """Only what runs on import; bodies of functions are left out, as are imports for type checkers."""
    kept = [
        node
        for node in tree.body
        if not isinstance(node, ast.FunctionDef | ast.ClassDef)
        and not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))
    ]
    return ast.Module(body=kept, type_ignores=[])


def function_lengths(tree: ast.AST) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body
            first = body[0]
            is_docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
            if is_docstring and len(body) > 1:
                first = body[1]
            yield node.name, (node.end_lineno or node.lineno) - first.lineno + 1


def test_rooms_import_what_the_table_says_and_all_of_it() -> None:
    assert room_arrows() == MAY_IMPORT


def test_rooms_stand_on_floors_and_import_only_downwards() -> None:
    floor = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}

    assert set(floor) == set(MAY_IMPORT)
    assert len(FLOORS) <= 7
    assert len({*floor} - {"values"}) <= 17
    upward = {(room, other) for room, others in MAY_IMPORT.items() for other in others if floor[other] >= floor[room]}
    assert upward == {("base", "values"), ("values", "base")}


def test_only_the_command_line_knows_a_terminal() -> None:
    users = {
        path for path in source_files() if TERMINAL & {name.split(".")[0] for name in imported_names(parsed(path))}
    }

    assert {room_of(path) for path in users} == {"cli"}


def test_documentation_and_samples_import_faces_only() -> None:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "samples").rglob("*.py"))]
    found = {(path.name, module) for path in pages for module in modules_in(path.read_text(encoding="utf-8"))}

    assert ("guide.md", "streamclient.server") in found
    assert sorted((name, module) for name, module in found if module not in FACES) == []


def modules_in(text: str) -> list[str]:
    """What the programs in a text import of the package."""
    return re.findall(r"^[ >]*(?:from|import) (streamclient[\w.]*)", text, re.MULTILINE)


def test_no_class_has_the_name_of_another() -> None:
    """A name that means two things has to be looked up each time it is met. Names of one module's own do not count."""
    places: dict[str, list[str]] = {}
    for path in source_files():
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(str(path.relative_to(PACKAGE)))

    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_words_that_the_page_leaves_out_name_nothing() -> None:
    left_out = set(re.findall(r"\w+", (ROOT / "docs" / "words.md").read_text().rsplit("\n*", 1)[1]))
    names = {(path, word) for path in source_files() for name in names_in(path) for word in words_of(name)}

    assert {"desk", "tenancy"} <= left_out
    assert sorted((str(path), word) for path, word in names if word in left_out) == []


def names_in(path: Path) -> set[str]:
    """Of the module itself, and of what it defines or uses."""
    found = {path.stem}
    for node in ast.walk(parsed(path)):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.arg(arg=name):
                found.add(name)
            case ast.Attribute(attr=name) | ast.Name(id=name):
                found.add(name)
    return found


def words_of(name: str) -> list[str]:
    """``ShardShare`` and ``shard_share`` are two words each."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]


def test_core_is_pure() -> None:
    """Decisions take the time and the dice as arguments; they reach for nothing themselves."""
    files = sorted((PACKAGE / "core").rglob("*.py"))
    impure = {str(path.relative_to(PACKAGE)): impurities(parsed(path)) for path in files}

    assert len(impure) == len(files) > 0
    assert {path: found for path, found in impure.items() if found} == {}


def impurities(tree: ast.AST) -> list[str]:
    imports = {name.split(".")[0] for name in imported_names(tree)} & IMPURE_MODULES
    calls = [ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)]
    reached = [call for call in calls if IMPURE_CALLS.search(call) or re.match(r"random\.(?!Random$)", call)]
    return [*sorted(imports), *reached]


def test_what_reaches_for_clock_or_dice_would_be_found() -> None:
    """The check itself can fail; generators that are seeded are no dice."""
    program = "import threading, random\nrandom.random()\nrandom.Random(1)\nprint(time.monotonic())"

    assert impurities(ast.parse(program)) == ["threading", "random.random", "print", "time.monotonic"]


def test_an_import_of_a_room_would_be_found() -> None:
    """The check itself can fail."""
    tree = ast.parse(
        "from streamclient.worker.worker import Worker\nimport streamclient.tablestore.ranges, streamclient.errors"
    )

    assert imported_rooms(tree) == {"worker", "tablestore", "values"}


def test_heavy_packages_are_imported_inside_functions() -> None:
    heavy = {
        "pyspark",
        "pyarrow",
        "deltalake",
        "pyiceberg",
        "psycopg",
        "pandas",
        "polars",
        "prometheus_client",
        "opentelemetry",
        "rich",
    }
    found = {}
    for path in source_files():
        tree = module_level(parsed(path))
        names = {name.split(".")[0] for name in imported_names(tree)} & heavy - MADE_OF_HEAVY_CLASSES.get(
            "/".join(path.parts[-2:]), set()
        )
        if names:
            found[str(path)] = names

    assert found == {}


def test_tests_that_use_the_spark_of_their_process_are_run_by_one_process() -> None:
    """As ``tests/conftest.py`` arranges by the names of files; else each process starts a Spark of its own."""
    uses = re.compile(r"^def test_\w+\([^)]*\bspark: ", re.MULTILINE)
    users = {path.name for path in (ROOT / "tests").rglob("test_*.py") if uses.search(path.read_text())}

    assert "test_spark_flow.py" in users
    assert {name for name in users if "_spark" not in name} == set()


def test_functions_and_files_fit_a_screen() -> None:
    long_functions = []
    long_files = []
    for path in source_files():
        text = path.read_text()
        if text.count("\n") > LONGEST_FILE_LINES:
            long_files.append(path.name)
        lengths = function_lengths(parsed(path))
        long_functions += [(path.name, *entry) for entry in lengths if entry[1] > LONGEST_FUNCTION_LINES]

    assert (long_functions, long_files) == ([], [])


def test_nothing_is_left_over() -> None:
    """No reminders, no blanket ignores, no unfinished bodies."""
    unwanted = re.compile(r"\b(TODO|FIXME|XXX)\b|NotImplementedError|#\s*(type: ignore|noqa)\b(?!\[|:)")
    found = [
        f"{path.name}:{number}: {line.strip()}"
        for path in source_files()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if unwanted.search(line)
    ]

    assert found == []


def test_importing_the_package_is_light_and_silent(tmp_path: Path) -> None:
    """No pyspark, no thread, no output, no logging configuration."""
    program = (
        "import sys, threading, logging, streamclient\n"
        "assert 'pyspark' not in sys.modules and 'pyarrow' not in sys.modules\n"
        "assert threading.active_count() == 1, threading.enumerate()\n"
        "assert not logging.getLogger().handlers and not logging.getLogger('streamclient').handlers\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_worker_brings_along_the_sdk_and_nothing_that_only_others_need(tmp_path: Path) -> None:
    """Whoever consumes without Spark, lake, server or database pays for none of them, neither in time nor in memory.

    And who only names a worker does not wait for what one runs with, which is loaded when a worker is made.
    """
    program = (
        "import sys, tablestore\n"
        "before = set(sys.modules)\n"
        "from streamclient import Worker\n"
        "print(*sorted(set(sys.modules) - before))\n"
        "import streamclient.worker.stream_run, streamclient.worker.lease.lease_manager\n"
        "import streamclient.tablestore.stream_operations\n"
        "found = {name for name in set(sys.modules) - before if not name.startswith('_')}\n"
        "print(*sorted({name.split('.')[0] for name in found} - set(sys.stdlib_module_names)))\n"
        "print(*sorted({name.split('.')[1] for name in found if name.startswith('streamclient.')}))\n"
    )
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=True, env=environment)

    named, libraries, rooms = done.stdout.splitlines()[-3:]
    assert {"http.server", "streamclient.core.holdings"}.isdisjoint(named.split())
    assert "streamclient" in libraries.split()
    assert set(libraries.split()) <= {"attr", "attrs", "google", "streamclient"}
    unneeded = {"cli", "copying", "destinations", "operate", "server", "spark", "testing", "tunnel"}
    assert not unneeded & set(rooms.split())


def test_every_sample_is_named_in_the_documentation() -> None:
    text = "\n".join(path.read_text() for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))])
    samples = [path.name for path in sorted((ROOT / "samples").glob("*.py")) if path.stem != "__init__"]
    unnamed = [name for name in samples if name not in text]

    assert unnamed == []


def test_what_make_runs_of_the_tests_is_found_from_the_project_folder() -> None:
    """In a process of its own: beside pytest, modules are found that are not when ``make`` starts them."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    modules = sorted(set(re.findall(r"python -m (tests\.[\w.]+)", makefile)))
    program = "import importlib, sys; [importlib.import_module(name) for name in sys.argv[1:]]"

    done = subprocess.run(
        [sys.executable, "-c", program, *modules], check=False, cwd=ROOT, capture_output=True, text=True
    )

    assert "tests.destinations.test_destination_rounds" in modules
    assert "python tests/" not in makefile, "run it as a module: a script is not told where the project is"
    assert done.returncode == 0, done.stderr
