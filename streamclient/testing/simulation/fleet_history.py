"""The document of a fleet's history, made from the simulated world in which the history ran."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import cast

from streamclient.base.reasons import counted
from streamclient.core.events import CheckpointOutcome, Severity
from streamclient.core.write_rules import WriteKind
from streamclient.model import Lease
from streamclient.testing.simulation.history_document import (
    FORMAT,
    Event,
    HistoryDocument,
    HistoryFault,
    HistoryLife,
    HistoryShard,
    HistoryViolation,
    Kind,
    Span,
    Stored,
    chosen_events,
    moment,
    records_of,
)
from streamclient.testing.simulation.kernel import Entry, SimulatedProcess
from streamclient.testing.simulation.plan import Action
from streamclient.testing.simulation.runner import HistoryVerdict, Violation
from streamclient.testing.simulation.simulated_faults import Do
from streamclient.testing.simulation.simulated_stream import KEY_SPACE, place_of
from streamclient.testing.simulation.world import SimulatedWorld

POSITION_WRITES = frozenset({WriteKind.CHECKPOINT.value, WriteKind.PREPARE.value})

TOLD_BY_THE_ROW = CheckpointOutcome.STORED.value
"""The outcome ``STORED``. Documents show no event for a checkpoint with this outcome, because the change of the lease
row already is an event."""

TROUBLES = frozenset({Severity.WARNING.value, Severity.ERROR.value, *(each.value for each in CheckpointOutcome)})

OUTSIDE = "outside"


def fleet_history(world: SimulatedWorld, verdict: HistoryVerdict) -> HistoryDocument:
    """Return the document of a history, given the world and the verdict that ``play_plan`` returned."""
    entries = world.trace.entries
    times = sorted(set(chain.from_iterable(shard.times for shard in world.stream.shards.values())))
    stored, events = list(stored_positions(entries, place_of)), list(_events(entries))
    shown = chosen_events(events)
    calm = next((at for at, who, what, *_ in entries if who == OUTSIDE and what == "calm"), None)
    return HistoryDocument(
        format=FORMAT,
        seed=verdict.plan.seed,
        digest=verdict.digest,
        seconds=moment(verdict.seconds),
        handled=verdict.events,
        calm=None if calm is None else moment(calm),
        violation=violation_of(verdict.violation),
        writes=[moment(time) for time in times],
        shards=_shards(world, times),
        lives=_lives(world),
        spans=sorted((*owner_spans(entries, verdict.seconds), *_reading_spans(world)), key=lambda span: span[2]),
        checkpoints=stored,
        faults=_faults(world),
        events=shown,
        events_left_out=len(events) - len(shown),
    )


def violation_of(violation: Violation | None) -> HistoryViolation | None:
    """Return ``violation`` in the form that documents have; return ``None`` for ``None``."""
    if violation is None:
        return None
    return HistoryViolation(law=violation.law, shard=violation.lease_key, at=violation.at, text=violation.text)


# --- shards and lives ------------------------------------------------------------------------------------------------


def _shards(world: SimulatedWorld, times: list[float]) -> list[HistoryShard]:
    places, stream = {time: place for place, time in enumerate(times)}, world.stream
    opened, left = stream.listed_times()
    closed = {parent: opened[name] for name, parents in stream.parents.items() for parent in parents}
    found = []
    for name, shard in stream.shards.items():
        first, records = records_of(shard.times, places)
        entry = HistoryShard(
            shard=name,
            parents=list(stream.parents[name]),
            low=round(shard.low / KEY_SPACE, 6),
            high=round(shard.high / KEY_SPACE, 6),
            opened=moment(opened[name]),
            closed=moment(closed[name]) if name in closed else None,
            left=moment(left[name]) if name in left else None,
            first_write=first,
            records=records,
        )
        found.append(entry)
    return found


def _lives(world: SimulatedWorld) -> list[HistoryLife]:
    found = []
    for actor, started in world.born_at.items():
        process = cast("SimulatedProcess", actor)
        life = HistoryLife(
            worker=actor.name,
            label=actor.label,
            client="python" if actor.is_python else "java",
            started=moment(started),
            ended=moment(process.ended[0]) if process.ended is not None else None,
            manner=process.ended[1] if process.ended is not None else "",
            frozen=[(moment(since), moment(until)) for since, until in process.freezes],
        )
        found.append(life)
    return found


def _faults(world: SimulatedWorld) -> list[HistoryFault]:
    """Return the actions of the plan up to the end of the history, including actions without an effect."""
    happened = [action for action in world.plan.actions if action.at <= world.now]
    return [
        HistoryFault(
            at=moment(action.at),
            kind=action.do.value,
            worker=action.who,
            seconds=action.seconds,
            text=_text_of(world, action),
        )
        for action in happened
    ]


def _text_of(world: SimulatedWorld, action: Action) -> str:
    """Return an action as text. For a split or a merge, the text names the shards, which the plan does not know."""
    if action.do not in (Do.SPLIT, Do.MERGE):
        return str(action)
    opened, _ = world.stream.listed_times()
    children = [name for name, at in opened.items() if at == action.at and world.stream.parents[name]]
    parents = dict.fromkeys(parent for name in children for parent in world.stream.parents[name])
    return f"{action.do.value} {' '.join(parents)} into {' '.join(children)}" if children else f"{action}, in vain"


# --- spans and positions ---------------------------------------------------------------------------------------------


def owner_spans(entries: list[Entry], end: float) -> Iterator[Span]:
    """Yield the time ranges in which workers owned shards, according to the row changes in ``entries``.

    The last time ranges end at ``end``.
    """
    since: dict[str, tuple[str, float]] = {}
    for at, _, _, shard, detail in entries:
        rows = rows_of(detail)
        if rows is None:
            continue
        after = "" if rows[1] is None else rows[1].owner
        owner, began = since.get(shard, ("", at))
        if owner != after:
            if owner:
                yield shard, owner, moment(began), moment(at), "owns"
            since[shard] = (after, at)
    for shard, (owner, began) in since.items():
        if owner:
            yield shard, owner, moment(began), moment(end), "owns"


def _reading_spans(world: SimulatedWorld) -> Iterator[Span]:
    """Yield the time ranges in which processes had a consumer of a shard. A crash also ends a time range."""
    since: dict[tuple[str, str, str], float] = {}
    for at, who, what, shard, detail in world.trace.entries:
        if what == "starts to read":
            since[who, shard, str(detail)] = at
        elif what == "ends reading":
            began = next((key for key in since if key[:2] == (who, shard) and f" {detail} " in key[2]), None)
            if began is not None:
                yield shard, who, moment(since.pop(began)), moment(at), "reads"
    for (who, shard, _), at in since.items():
        yield shard, who, moment(at), moment(world.now), "reads"


def stored_positions(entries: list[Entry], place: Callable[[str], int]) -> Iterator[Stored]:
    """Yield each new stored position of a shard in the trace ``entries``.

    ``place`` maps a position, except the end of the shard, to the number of its next record.
    """
    for at, _, _, shard, detail in entries:
        rows = rows_of(detail)
        if rows is None or rows[1] is None or (rows[0] is not None and rows[0].checkpoint == rows[1].checkpoint):
            continue
        yield moment(at), shard, None if rows[1].is_finished else place(rows[1].checkpoint)


def rows_of(detail: object) -> tuple[Lease | None, Lease | None] | None:
    """Return the lease rows before and after the change in ``detail``, which is the detail of a trace entry.

    Return ``None`` if ``detail`` does not contain a lease row.
    """
    if not isinstance(detail, tuple) or not any(isinstance(row, Lease) for row in detail):
        return None
    before, after = detail
    return before, after


# --- events ----------------------------------------------------------------------------------------------------------


def _events(entries: list[Entry]) -> Iterator[Event]:
    for entry in entries:
        at, who, what, shard, detail = entry
        if what != TOLD_BY_THE_ROW:
            yield moment(at), who, _kind_of(entry), shard, _event_text(what, detail)


def _kind_of(entry: Entry) -> Kind:
    _, who, what, shard, detail = entry
    if who == OUTSIDE or (not shard and detail == ""):  # a process starts or stops
        return "fault"
    if what in POSITION_WRITES:
        return "position"
    return "trouble" if what in TROUBLES else "owner"


def _event_text(what: str, detail: object) -> str:
    rows = rows_of(detail)
    if rows is None:
        parts = [str(part or "no row") for part in detail] if isinstance(detail, tuple) else [str(detail)]
        return f"{what} {' → '.join(parts)}".strip()
    if what == WriteKind.PREPARE.value and rows[1] is not None and rows[1].pending is not None:
        return f"{what} {counted(rows[1].pending.records, 'record')}"
    if what in POSITION_WRITES and rows[1] is not None:
        return stored_text(rows[1], place_of)
    return f"{what}: {row_text(rows[0])} → {row_text(rows[1])}"


def stored_text(row: Lease, place: Callable[[str], int]) -> str:
    """Return a text about the stored position of ``row``. ``place`` maps a position to its next record's number."""
    return "stored the end" if row.is_finished else f"stored position {place(row.checkpoint)}"


def row_text(row: Lease | None) -> str:
    """Return a text with the owner in a lease row and the worker that asks for the lease."""
    if row is None:
        return "no row"
    asked = f", {'handed over' if row.is_handed_over else f'asked for by {row.stealer}'}" if row.stealer else ""
    return f"{row.owner or 'free'}{asked}"
