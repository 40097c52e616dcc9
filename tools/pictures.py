"""The pictures of the documentation. Each is drawn from its source: tables of the code, a stream, a trace, or a page.

Every build of the documentation writes all pictures; see ``write_pictures``. A picture is the same each time that it is
drawn. The places of its parts are chosen by hand; the parts come from the source.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from io import StringIO
from pathlib import Path

from attrs import evolve
from rich.console import Console
from rich.text import Text

from streamclient import ClientConfig
from streamclient.cli.top_screens import plain_screen
from streamclient.core import leases
from streamclient.core.consumer.transitions import PUBLIC_STATES, TRANSITIONS, Phase
from streamclient.core.leases import LeaseWrite
from streamclient.core.worker_info import WorkerInfo
from streamclient.core.write_rules import WriteKind
from streamclient.model import CheckpointPosition, Lease, PendingCheckpoint, Progress, Shard, ShardState
from streamclient.operate.facts import FleetFacts, HeadFacts, RowFacts, StreamView, WorkerFacts
from streamclient.operate.overview import overview
from streamclient.server import LocalTablestore
from streamclient.testing.simulation.kernel import Entry
from streamclient.testing.simulation.laws import make_laws
from streamclient.testing.simulation.plan import Action, Plan
from streamclient.testing.simulation.simulated_faults import Do
from streamclient.testing.simulation.storm import SimulatedFleet, Storm
from streamclient.testing.simulation.world import SimulatedWorld
from tools.drawing import FAINT, FILL, LINE, LINE_HEIGHT, STRONG, Edge, Picture, draw_graph
from tools.journeys import TABLE, make_table
from tools.plots import CURVES, LATENCY_PLOTS, draw_curves, draw_latency, draw_plot, plotted_groups
from tools.structure import draw_floors

WIDE = 760.0
"""The width of a picture in pixels. A page has room for it."""


# --- the shards of a stream ----------------------------------------------------------------------------------------

SHARD_HEIGHT = 34.0


def draw_lineage() -> str:
    """Draw a stream of the local Tablestore after two splits and a merge: time to the right, keys downwards."""
    with LocalTablestore() as local:
        make_table(local.client())
        left, right = local.split(TABLE, at="m")
        _, middle = local.split(TABLE, left, at="g")
        local.merge(TABLE, middle, right)
        shards = {shard.shard_id: shard for shard in local.shards(TABLE)}
    age: dict[str, int] = {}
    for key, shard in shards.items():  # parents come first
        age[key] = 1 + max((age[parent] for parent in shard.parent_ids), default=-1)
    children = {parent: child for child in shards.values() for parent in child.parent_ids}
    lasts = {key: age[children[key].shard_id] if key in children else 1 + max(age.values()) for key in shards}
    keys = {"INF_MIN": 0.0, "g": 1.0, "m": 2.0, "INF_MAX": 3.0}
    picture = Picture(WIDE, 250, "A stream's shards after two splits and a merge")
    order = sorted(shards, key=lambda key: (age[key], keys[_ends(shards[key].key_range)[0]]))
    boxes: dict[str, tuple[float, float, float, float]] = {}
    for number, key in enumerate(order, 1):
        low, high = (keys[end] for end in _ends(shards[key].key_range))
        x, y = 20 + age[key] * 182, 40 + low * 64
        width, height = (lasts[key] - age[key]) * 182 - 40, (high - low) * 64 - 10
        boxes[key] = (x, y, width, height)
        picture.box(x, y, width, height, fill="#ffffff" if key in children else FILL)
        state = "closed" if key in children else "open"
        begin, end = (_key_text(each) for each in _ends(shards[key].key_range))
        picture.lines(x + width / 2, y + height / 2, [f"shard {number}, {state}", f"keys {begin} to {end}"])
    for key, shard in shards.items():
        for parent in shard.parent_ids:
            _join(picture, boxes[parent], boxes[key])
    picture.text(20, 20, "time →", colour=FAINT, anchor="start")
    picture.text(WIDE - 20, 20, "a child is read when all its parents are read to their ends", anchor="end")
    return picture.svg()


def _ends(key_range: str) -> tuple[str, str]:
    low, _, high = key_range.strip("[)").partition(", ")
    low, high = (re.sub(r"[(),']", "", end) for end in (low, high))
    return low, high


def _key_text(end: str) -> str:
    return {"INF_MIN": "-∞", "INF_MAX": "+∞"}.get(end, f"'{end}'")


def _join(picture: Picture, parent: tuple[float, ...], child: tuple[float, ...]) -> None:
    """Draw an arrow from parent to child, at the middle of the keys that both have in common."""
    low, high = max(parent[1], child[1]), min(parent[1] + parent[3], child[1] + child[3])
    y = (low + high) / 2
    picture.arrow((parent[0] + parent[2], y), (child[0], y), colour=LINE)


# --- a lease -------------------------------------------------------------------------------------------------------

ABSENT, FREE, HELD, MARKED, HANDED_OVER, FINISHED = "absent", "free", "held", "marked", "handed over", "finished"

_ROW = Lease("shard", "stream")
LEASES: Mapping[str, Lease] = {
    FREE: _ROW,
    HELD: evolve(_ROW, owner="A"),
    MARKED: evolve(_ROW, owner="A", stealer="B"),
    HANDED_OVER: evolve(_ROW, owner="B", stealer="B"),
    FINISHED: evolve(_ROW, owner="A", checkpoint=CheckpointPosition.SHARD_END),
}
"""A lease in each of its states."""

_PENDING = PendingCheckpoint("position", b"", 1, 1)
SENT: Mapping[str, tuple[Callable[[Lease], LeaseWrite], tuple[str, ...]]] = {
    "take": (lambda lease: leases.take(lease, "B"), (FREE, HANDED_OVER)),
    "take, if expired": (lambda lease: leases.take(lease, "C"), (HELD, MARKED)),
    "renew": (leases.renew, (HELD, MARKED, FINISHED)),
    "checkpoint": (lambda lease: leases.checkpoint(lease, "position"), (HELD, MARKED)),
    "prepare": (lambda lease: leases.prepare(lease, _PENDING), (HELD, MARKED)),
    "steal": (lambda lease: leases.steal(lease, "B"), (HELD,)),
    "transfer": (lambda lease: leases.transfer(lease, "B"), (HELD, MARKED)),
    "checkpoint at SHARD_END": (lambda lease: leases.checkpoint(lease, CheckpointPosition.SHARD_END), (HELD,)),
    "release": (leases.release, (HELD,)),
    "delete": (leases.delete, (FINISHED, FREE)),
}
"""The writes by name, each with the states in which workers send it. The write itself gives the next state."""


def lease_state(lease: Lease | None) -> str:
    """Return the state of a lease, given as its row; ``None`` if the row does not exist."""
    if lease is None:
        return ABSENT
    if lease.is_handed_over:
        return HANDED_OVER
    if lease.is_marked:
        return MARKED
    if lease.is_finished:
        return FINISHED
    return HELD if lease.owner else FREE


def lease_steps() -> Mapping[tuple[str, str], list[str]]:
    """Return the names of the writes that lead from a state of a lease to another state, by the two states."""
    steps: dict[tuple[str, str], list[str]] = defaultdict(list)
    steps[ABSENT, lease_state(leases.create(_ROW).result)].append(WriteKind.CREATE.value)
    for name, (write, states) in SENT.items():
        for state in states:
            steps[state, lease_state(write(LEASES[state]).result)].append(name)
    return steps


DIAGONALS = {(HELD, HANDED_OVER): 0.7, (HANDED_OVER, HELD): 0.3}
"""The positions of labels on arrows that cross, from 0 (begin) to 1 (end). Other labels are in the middle."""


def draw_lease_states() -> str:
    """Draw the states of a lease in the status table, with the writes that change the state."""
    places = {
        ABSENT: (90.0, 280.0),
        FREE: (90.0, 120.0),
        HELD: (370.0, 120.0),
        MARKED: (650.0, 120.0),
        HANDED_OVER: (650.0, 280.0),
        FINISHED: (370.0, 280.0),
    }
    picture = Picture(WIDE, 345, "States of a lease")
    edges = [
        Edge(
            begin=begin,
            end=end,
            labels=names,
            at=DIAGONALS.get((begin, end), 0.5),
            bend=-14.0 if begin == end == FINISHED else 14.0,
        )
        for (begin, end), names in lease_steps().items()
    ]
    draw_graph(picture, places, edges)
    for state, lease in LEASES.items():
        x, y = places[state]
        said = {"owner": lease.owner or "none", "stealer": lease.stealer}
        said["checkpoint"] = "SHARD_END" if lease.is_finished else ""
        below = 27 if state != FINISHED else 55
        picture.text(x, y + below, ", ".join(f"{name} {value}" for name, value in said.items() if value), colour=FAINT)
    return picture.svg()


# --- a consumer ----------------------------------------------------------------------------------------------------

PHASE_PLACES: Mapping[Phase, tuple[float, float]] = {
    Phase.STARTING: (90, 110),
    Phase.BACKING_OFF: (160, 330),
    Phase.HALTED: (70, 540),
    Phase.READING: (350, 110),
    Phase.DELIVERING: (660, 110),
    Phase.WAITING: (350, 330),
    Phase.PARKING: (660, 330),
    Phase.CLOSING: (400, 500),
    Phase.ENDED: (400, 610),
}
LABELS_AT: Mapping[tuple[Phase, Phase], float] = {
    (Phase.READING, Phase.PARKING): 0.25,
    (Phase.PARKING, Phase.READING): 0.25,
    (Phase.WAITING, Phase.DELIVERING): 0.25,
    (Phase.DELIVERING, Phase.WAITING): 0.25,
    (Phase.STARTING, Phase.CLOSING): 0.4,
    (Phase.BACKING_OFF, Phase.ENDED): 0.6,
}
"""The positions of labels on arrows that cross, from 0 (begin) to 1 (end). Other labels are in the middle."""

BENDS = {("parking", "parking"): -14.0, ("starting", "closing"): 0.0}

FRAME = (280.0, 40.0, 460.0, 340.0)
"""The box around the phases that are PROCESSING: left, top, width, height."""


def consumer_steps() -> Mapping[tuple[str, str], list[str]]:
    """Return the outcomes that lead from a phase of a consumer to another phase, by the names of the two phases.

    A step that leaves the state PROCESSING begins at ``PROCESSING``, because all phases of that state have the step.
    """
    steps: dict[tuple[str, str], list[str]] = defaultdict(list)
    for (phase, outcome), after in TRANSITIONS.items():
        is_inside = PUBLIC_STATES[phase] is ShardState.PROCESSING
        leaves = is_inside and PUBLIC_STATES[after] is not ShardState.PROCESSING
        begin = ShardState.PROCESSING.name if leaves else phase.value
        if outcome.value not in steps[begin, after.value]:
            steps[begin, after.value].append(outcome.value)
    return steps


def draw_consumer_states() -> str:
    """Draw the phases of a shard's consumer, with the outcomes that change the phase."""
    picture = Picture(WIDE, 640, "States of a shard's consumer")
    x, y, width, height = FRAME
    picture.box(x, y, width, height, fill="#ffffff", line=FAINT)
    picture.text(x + 10, y + 14, ShardState.PROCESSING.name, colour=FAINT, anchor="start")
    steps = dict(consumer_steps())
    leaving = steps.pop((ShardState.PROCESSING.name, Phase.CLOSING.value))
    closing = PHASE_PLACES[Phase.CLOSING]
    picture.arrow((closing[0] + 130, y + height), (closing[0] + 54, closing[1] - 8))
    picture.lines(closing[0] + 130, (y + height + closing[1]) / 2, _in_rows(leaving, 3), colour=LINE, anchor="start")
    at = {(begin.value, end.value): share for (begin, end), share in LABELS_AT.items()}
    edges = [
        Edge(
            begin=begin,
            end=end,
            labels=names,
            at=at.get((begin, end), 0.5),
            bend=BENDS.get((begin, end), 14.0),
        )
        for (begin, end), names in steps.items()
    ]
    draw_graph(picture, {phase.value: place for phase, place in PHASE_PLACES.items()}, edges)
    return picture.svg()


def _in_rows(names: list[str], each: int) -> list[str]:
    return [", ".join(names[number : number + each]) for number in range(0, len(names), each)]


# --- a hand-over ---------------------------------------------------------------------------------------------------

OLD, NEW = "worker-1", "worker-2"
JOINS_AT = 30.0
"""The simulated seconds after which the second worker starts. The first worker then holds all leases."""


def hand_over(seed: int = 1) -> list[Entry]:
    """Return a part of a simulated fleet's trace: from the mark of a lease to the first read by the new owner."""
    starts = (Action(at=0.0, do=Do.START, who=OLD), Action(at=JOINS_AT, do=Do.START, who=NEW))
    signals = ClientConfig().signal_interval_millis
    plan = Plan(seed=seed, shards=2, actions=starts, signal_interval_millis=signals, storm_seconds=60.0)
    world = SimulatedWorld(plan, make_laws)
    storm = Storm(SimulatedFleet(world))
    world.agenda.run_until(world.plan.storm_seconds)
    storm.calm()
    entries = world.trace.entries
    first = next(number for number, entry in enumerate(entries) if entry[2] == WriteKind.STEAL.value)
    key = entries[first][3]
    last = next(
        number for number, entry in enumerate(entries) if number > first and _is(entry, NEW, "starts to read", key)
    )
    return [entry for entry in entries[first : last + 1] if entry[3] == key and entry[2] != "stored"]


def _is(entry: Entry, worker: str, what: str, key: str) -> bool:
    return entry[1].startswith(worker) and entry[2:4] == (what, key)


def draw_hand_over() -> str:
    """Draw the trace of a hand-over from top to bottom: the worker that writes, and the lease row after each write."""
    entries = hand_over()
    step, top = 38.0, 62.0
    lanes = {OLD: 150.0, "row": 380.0, NEW: 610.0}
    picture = Picture(WIDE, top + step * len(entries) + 30, "A shard is handed over, in simulated time")
    bottom = top + step * (len(entries) - 1)
    reads_until = top + step * next(number for number, entry in enumerate(entries) if entry[2] == "ends reading")
    for name, x in lanes.items():
        picture.text(x, 20, "status table" if name == "row" else name, bold=True)
        picture.line([(x, 34), (x, bottom + 20)], dashed=True)
    picture.box(lanes[OLD] - 6, 34, 12, reads_until - 34)
    picture.box(lanes[NEW] - 6, bottom, 12, 20)
    stopped = next(entry[0] for entry in entries if entry[2] == "ends reading")
    silence = f"no worker reads the shard for {entries[-1][0] - stopped:.2f} s"
    picture.text(lanes["row"], bottom + 36, silence, colour=STRONG)
    for number, (at, actor, what, _, detail) in enumerate(entries):
        y = top + number * step
        worker = actor.partition("#")[0]
        picture.text(12, y, f"{at - entries[0][0]:.2f} s", colour=FAINT, anchor="start")
        if isinstance(detail, tuple):
            picture.arrow((lanes[worker] + (8 if worker == OLD else -8), y), (lanes["row"], y), colour=LINE)
            picture.text((lanes[worker] + lanes["row"]) / 2, y - 9, what)
            row = detail[1]
            side, anchor = (10.0, "start") if worker == OLD else (-10.0, "end")
            text = f"owner {row.owner}, stealer {row.stealer or '-'}"
            picture.text(lanes["row"] + side, y, text, colour=FAINT, anchor=anchor)
        else:
            side, anchor = (12.0, "start") if worker == OLD else (-12.0, "end")
            picture.text(lanes[worker] + side, y, what, colour=STRONG, anchor=anchor)
    return picture.svg()


# --- the commit of a batch -----------------------------------------------------------------------------------------

LETTERS = 66
"""The largest number of characters in a line of text about a step."""


def commit_steps() -> list[str]:
    """Return the steps of a commit, in order, from the docstring of the module that carries them out."""
    import streamclient.spark.processor.batch  # noqa: PLC0415 -- the other pictures do not need it

    text = inspect.getdoc(streamclient.spark.processor.batch) or ""
    return [" ".join(step.split()) for step in re.findall(r"^\d\. (.*?)(?=^\d\. |\Z)", text, re.DOTALL | re.MULTILINE)]


def draw_commit() -> str:
    """Draw the steps of a commit, with the effect of a crash at each of them."""
    steps = [textwrap.wrap(f"{number}. {step}", LETTERS) for number, step in enumerate(commit_steps(), 1)]
    heights = [len(lines) * LINE_HEIGHT + 16.0 for lines in steps]
    tops = [20 + sum(heights[:number]) + 18 * number for number in range(len(steps))]
    picture = Picture(WIDE, tops[-1] + heights[-1] + 20, "The commit of a batch")
    for number, (lines, top, height) in enumerate(zip(steps, tops, heights, strict=True)):
        picture.box(20, top, 440, height)
        picture.lines(32, top + height / 2, lines, anchor="start")
        if number:
            picture.arrow((240, tops[number - 1] + heights[number - 1]), (240, top), colour=LINE)
    prepared, stored = (
        next(number for number, lines in enumerate(steps) if words in " ".join(lines))
        for words in ("prepared checkpoint", "stores each shard's end position")
    )
    crashes = [
        (0, prepared, "a crash here: nothing is stored;", "the shard's records are read and cut again"),
        (prepared + 1, stored - 1, "a crash here: the same batch comes again, or", "is found in the destination"),
        (stored, stored, "a crash here: shards whose position is stored", "go on after it, the others as above"),
        (stored + 1, len(steps) - 1, "a crash here: nothing comes again", ""),
    ]
    for first, last, *texts in crashes:
        top, bottom = tops[first], tops[last] + heights[last]
        picture.line([(474, top), (482, top), (482, bottom), (474, bottom)], colour=STRONG)
        picture.lines(492, (top + bottom) / 2, [text for text in texts if text], colour=STRONG, anchor="start")
    return picture.svg()


# --- a terminal ----------------------------------------------------------------------------------------------------

COLUMNS, LINES = 80, 15
FONTS = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
"""The part of an SVG by which ``rich`` loads fonts from the network. It is removed: pages load nothing from there."""

NOON = 1_767_268_800_000_000
TICK = 2.0
"""The seconds between the two readings from which the rates are computed."""


def fleet(records_since: float) -> FleetFacts:
    """Return the facts about two live workers and a dead one, ``records_since`` seconds after a first reading.

    At the first reading, the progress of each shard was 1,000 records.
    """
    now = NOON + round(records_since * 1_000_000)
    rows = {}
    for shard, owner, beat, rate in (
        ("1020b52f", "worker-1", 2.0, 210),
        ("6215cac3", "worker-1", 2.0, 195),
        ("9818d7bc", "worker-2", 1.0, 302),
        ("c90a6d3f", "worker-3", 47.0, 0),
    ):
        progress = Progress(now, 1_000 + round(rate * records_since), 0)
        lease = Lease(shard, "stream", owner, 7, checkpoint="position", progress=progress)
        stamp = now - round(beat * 1_000_000)
        rows[shard] = RowFacts(shard_id=shard, lease=lease, beat_micros=stamp, checkpoint_micros=stamp, owner_micros=1)
    lags = {"1020b52f": 0.4, "6215cac3": 0.6, "9818d7bc": 1.1, "c90a6d3f": 48.0}
    lives = {"worker-1": "running", "worker-2": "running", "worker-3": "killed"}
    workers = {
        name: WorkerFacts(name=name, state=state, beat_micros=now - 1_000_000, info=WorkerInfo(host="host", pid=1))
        for name, state in lives.items()
    }
    return FleetFacts(
        now_micros=now,
        lease_duration_seconds=20.0,
        status_table_name="bids_status",
        stream=StreamView(
            table_name="bids", stream_id="stream", expiration_hours=24, listing={key: Shard(key) for key in rows}
        ),
        rows=rows,
        workers=workers,
        heads={key: HeadFacts(next_record_micros=now - round(lag * 1_000_000)) for key, lag in lags.items()},
    )


def draw_top() -> str:
    """Draw the screen of ``streamclient top`` for the fleet of ``fleet``, on a terminal of 80 columns."""
    text = plain_screen(overview(fleet(TICK), fleet(0.0)), COLUMNS, LINES)
    console = Console(record=True, width=COLUMNS, file=StringIO(), force_terminal=True, legacy_windows=False)
    console.print(Text(text, no_wrap=True, overflow="ellipsis"))
    return FONTS.sub("", console.export_svg(title="streamclient top", unique_id="top"))


# --- all of them ---------------------------------------------------------------------------------------------------


def pictures() -> Mapping[str, Callable[[], str]]:
    """Return the function that draws each picture, by the name of the picture's file."""
    plots = {f"benchmarks-{group}.svg": partial(draw_plot, group) for group in plotted_groups()}
    plots |= {f"{name}.svg": partial(draw_curves, name) for name in CURVES}
    plots |= {f"{name}.svg": partial(draw_latency, name) for name in LATENCY_PLOTS}
    return {
        "floors.svg": draw_floors,
        "lineage.svg": draw_lineage,
        "lease-states.svg": draw_lease_states,
        "consumer-states.svg": draw_consumer_states,
        "hand-over.svg": draw_hand_over,
        "commit.svg": draw_commit,
        "top.svg": draw_top,
        **plots,
    }


def write_pictures(folder: Path) -> None:
    """Draw all pictures, and write them into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, draw in pictures().items():
        (folder / name).write_text(draw(), encoding="utf-8")
