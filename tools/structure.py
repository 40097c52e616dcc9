"""Figures of the house: how much of it there is, and how much of it one journey touches.

``python tools/structure.py`` prints both; ``--static`` only what can be read from the source. A *journey* is one thing
that happens in a real worker beside a real local Tablestore; every function of the package that runs for it is counted,
on whatever thread, from the moment it begins until it has happened.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from tablestore import (
    CapacityUnit,
    Condition,
    OTSClient,
    ReservedThroughput,
    Row,
    RowExistenceExpectation,
    TableMeta,
    TableOptions,
)

from streamclient import (
    ClientConfig,
    InitializationInput,
    IRecordProcessor,
    ProcessRecordsInput,
    ShutdownInput,
    StreamConfig,
    Worker,
)
from streamclient.core import leases
from streamclient.lease import LeaseManager
from streamclient.model import Lease, ShardState
from streamclient.server import (
    DEFAULT_ACCESS_KEY_ID,
    DEFAULT_ACCESS_KEY_SECRET,
    DEFAULT_INSTANCE,
    LocalTablestore,
)
from streamclient.stream import StreamSpecification, TablestoreStreamApi

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "streamclient"
LONG_FUNCTION_LINES = 30
COMPILED = "_native"
"""The compiled codec imports nothing, so it lies below every floor."""

NO_ROOMS = {"_lazy", "_quiet", "_version", "__main__"}
"""Modules that everybody may use and nobody needs to know."""

PICTURE_WIDTH, FLOOR_HEIGHT, ROOM_WIDTH, ROOM_HEIGHT = 720, 62, 92, 34
"""Of the picture of the floors, in its own units: wide enough for the busiest floor, narrow enough for a page."""

TABLE = "journeys"
STATUS_TABLE = "journeys_status"
WORKER = "worker-1"
QUIET = ClientConfig(
    lease_duration_millis=120_000,
    taker_interval_millis=40_000,
    sync_shard_interval_millis=600_000,
    signal_interval_millis=30_000,
)
"""Whatever is not the journey comes seldom, so that it leaves no footprints of its own."""

PATIENCE_SECONDS = 120.0
"""A journey that has not happened by then never will; the script fails."""


# --- what can be read from the source ------------------------------------------------------------------------------


def modules() -> dict[str, Path]:
    """Every module of the package, by its dotted name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = path
    return found


def imports_of(tree: ast.AST, known: dict[str, Path]) -> set[str]:
    """Modules of the package that a module imports, late and type-only imports included."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name in known}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                if alias.name == COMPILED:
                    continue
                full = f"{node.module}.{alias.name}"
                found |= {full} if full in known else {node.module} & known.keys()
    return found


def module_arrows() -> dict[str, set[str]]:
    """Which modules of the package each module imports."""
    known = modules()
    return {name: imports_of(ast.parse(path.read_text()), known) - {name} for name, path in known.items()}


def circles(arrows: dict[str, set[str]]) -> list[list[str]]:
    """Groups of modules that import each other, largest first: strongly connected parts of more than one."""
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


def print_source() -> None:
    """Files, lines, classes, names that mean two things, long functions, circles."""
    known = modules()
    trees = {name: ast.parse(path.read_text()) for name, path in known.items()}
    lines = sum(path.read_text().count("\n") for path in known.values())
    classes: dict[str, list[str]] = defaultdict(list)
    long_functions = 0
    for name, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                classes[node.name].append(name)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                long_functions += (node.end_lineno or node.lineno) - node.lineno + 1 > LONG_FUNCTION_LINES
    twice = {name: where for name, where in classes.items() if len(where) > 1 and not name.startswith("_")}
    rings = circles(module_arrows())
    tests = sum(path.read_text().count("\n") for path in (ROOT / "tests").rglob("*.py"))
    print(f"files                         {len(known)}")
    print(f"lines                         {lines}")
    print(f"lines of tests                {tests}")
    print(f"classes                       {sum(map(len, classes.values()))}")
    print(f"class names used twice        {len(twice)}")
    print(f"functions over {LONG_FUNCTION_LINES} lines       {long_functions}")
    print(
        f"circles of imports            {len(rings)}"
        + (f", of {', '.join(str(len(ring)) for ring in rings)}" if rings else "")
    )
    for name, where in sorted(twice.items(), key=lambda item: (-len(item[1]), item[0])):
        print(f"  twice: {name} in {', '.join(where)}")
    for ring in rings:
        print(f"  circle: {', '.join(ring)}")


# --- rooms and floors ----------------------------------------------------------------------------------------------


def room_arrows() -> dict[str, set[str]]:
    """Which rooms each room imports: a room is a package, or a module, directly under ``streamclient``."""
    known = modules()
    arrows: dict[str, set[str]] = {}
    for name, path in known.items():
        room = _room_of(name)
        if room is not None and room not in NO_ROOMS:
            others = {_room_of(each) for each in imports_of(ast.parse(path.read_text()), known)}
            arrows.setdefault(room, set()).update({each for each in others if each} - NO_ROOMS - {room})
    return arrows


def _room_of(module: str) -> str | None:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else None


def floors(arrows: dict[str, set[str]]) -> list[list[str]]:
    """Rooms from the ground up: each stands above all that it imports. Rooms of one circle share a floor."""
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
    """The house as SVG: rooms with their lines of code, and an arrow for each import that no other path implies."""
    arrows = room_arrows()
    size: dict[str, int] = defaultdict(int)
    for name, path in modules().items():
        size[_room_of(name) or ""] += path.read_text().count("\n")
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
    """Imports of a room that none of its other imports brings with it."""
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


# --- what a journey touches ----------------------------------------------------------------------------------------


class Footprints:
    """Functions of the package that ran while it was recording, on every thread but the main one."""

    def __init__(self) -> None:
        self._seen: set[tuple[str, str]] = set()
        self._is_recording = False

    def install(self) -> None:
        """Watch all threads that start later; the main one plays the outside world."""
        threading.setprofile(self._notice)

    @contextmanager
    def recording(self) -> Iterator[set[tuple[str, str]]]:
        """Collect file and name of each function that is entered."""
        self._seen = set()
        self._is_recording = True
        try:
            yield self._seen
        finally:
            self._is_recording = False

    def _notice(self, frame: FrameType, event: str, argument: object) -> None:
        if self._is_recording and event == "call" and threading.current_thread() is not threading.main_thread():
            code = frame.f_code
            if code.co_filename.startswith(str(PACKAGE)):
                self._seen.add((code.co_filename, code.co_qualname if sys.version_info >= (3, 11) else code.co_name))


class Resting(IRecordProcessor):
    """Says when it begins and when it has stored a record."""

    def __init__(self) -> None:
        self.has_begun = threading.Event()
        self.has_stored = threading.Event()

    def initialize(self, initialization_input: InitializationInput) -> None:
        """Take note."""
        self.has_begun.set()

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        """Store the position behind the records."""
        process_records_input.checkpointer.checkpoint()
        self.has_stored.set()

    def shutdown(self, shutdown_input: ShutdownInput) -> None:
        """Nothing is left to do."""


def make_table(client: Any) -> None:
    """A table with a stream and one shard."""
    meta = TableMeta(TABLE, [("id", "STRING")])
    throughput = ReservedThroughput(CapacityUnit(0, 0))
    stream = StreamSpecification(True, 24)
    TablestoreStreamApi(client).create_table(meta, TableOptions(), throughput, stream=stream)


def put_row(client: Any) -> None:
    """One change."""
    client.put_row(TABLE, Row([("id", "a")], [("city", "Hangzhou")]), Condition(RowExistenceExpectation.IGNORE))


def await_event(event: threading.Event, what: str) -> None:
    """Wait for one step of a journey."""
    if not event.wait(PATIENCE_SECONDS):
        raise SystemExit(f"{what} did not happen within {PATIENCE_SECONDS:.0f} s")


def worker_journeys(footprints: Footprints) -> Iterator[tuple[str, set[tuple[str, str]]]]:
    """What happens in a worker, beside a server in a process of its own."""
    with server_process() as endpoint:
        client = OTSClient(endpoint, DEFAULT_ACCESS_KEY_ID, DEFAULT_ACCESS_KEY_SECRET, DEFAULT_INSTANCE)
        make_table(client)
        (stream,) = TablestoreStreamApi(client).list_stream(TABLE)
        (shard,) = TablestoreStreamApi(client).describe_stream(stream.stream_id).shards
        manager = LeaseManager(client, STATUS_TABLE, stream.stream_id)
        manager.create_lease_table_if_not_exists()
        manager.create_lease(Lease(shard.shard_id, stream.stream_id, owner="another"))
        processor = Resting()
        config = StreamConfig(client=client, data_table_name=TABLE, status_table_name=STATUS_TABLE)
        worker = Worker(WORKER, QUIET, config, lambda: processor)
        with worker:
            await_true(lambda: WORKER in {row.worker_id for row in manager.list_workers()}, "the worker's session")
            with footprints.recording() as seen:
                manager.write_many([leases.transfer(lease_of(manager), WORKER)])
                manager.wake([WORKER])
                await_event(processor.has_begun, "the first call of the processor")
            yield "take, and start reading", seen
            worker.pause(reason="so that reading leaves no footprints")
            await_true(lambda: worker.shard_statuses()[shard.shard_id].state is ShardState.PAUSED, "the pause")
            counter = lease_of(manager).counter
            with footprints.recording() as seen:
                await_true(lambda: lease_of(manager).counter > counter, "a renewal")
            yield "renew", seen
            processor.has_begun.clear()
            worker.resume()
            await_event(processor.has_begun, "the first call after the pause")
            with footprints.recording() as seen:
                put_row(client)
                await_event(processor.has_stored, "the checkpoint of one record")
            yield "one record, to its checkpoint", seen
            with footprints.recording() as seen:
                worker.shutdown()
            yield "stop", seen


def server_journeys(footprints: Footprints) -> Iterator[tuple[str, set[tuple[str, str]]]]:
    """What happens in the local Tablestore."""
    with LocalTablestore() as server:
        client = server.client()
        make_table(client)
        put_row(client)
        with footprints.recording() as seen:
            put_row(client)
        yield "PutRow", seen
        api = TablestoreStreamApi(client)
        (stream,) = api.list_stream(TABLE)
        (shard,) = api.describe_stream(stream.stream_id).shards
        position = api.get_shard_iterator(stream.stream_id, shard.shard_id)
        with footprints.recording() as seen:
            api.get_stream_record(position)
        yield "GetStreamRecord", seen


@contextmanager
def server_process() -> Iterator[str]:
    """The endpoint of a local Tablestore in a process of its own."""
    command = [sys.executable, "-m", "streamclient.server", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().split()[-1]
        finally:
            process.terminate()


def lease_of(manager: LeaseManager) -> Lease:
    """The lease of the one shard."""
    (lease,) = manager.list_leases()
    return lease


def await_true(is_true: Callable[[], bool], what: str) -> None:
    """Look again and again, from the main thread, which leaves no footprints."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_true():
        if time.monotonic() > deadline:
            raise SystemExit(f"{what} did not happen within {PATIENCE_SECONDS:.0f} s")


def print_journeys() -> None:
    """One table: files of the core, files in all, functions, per journey."""
    footprints = Footprints()
    footprints.install()
    print(f"{'journey':<34}{'files of core':>14}{'files':>8}{'functions':>11}")
    for journeys in (worker_journeys, server_journeys):
        for name, seen in journeys(footprints):
            files = {file for file, _ in seen}
            core = [file for file in files if file.startswith(str(PACKAGE / "core"))]
            print(f"{name:<34}{len(core):>14}{len(files):>8}{len(seen):>11}")


def main() -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--static", action="store_true", help="only what can be read from the source")
    options = parser.parse_args()
    print_source()
    if not options.static:
        print_journeys()
    return 0


if __name__ == "__main__":
    sys.exit(main())
