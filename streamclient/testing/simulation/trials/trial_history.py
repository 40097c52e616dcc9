"""The document of one trial's history, in the format of documents about simulated fleets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import chain

from streamclient.model import CheckpointPosition
from streamclient.testing.history import INITIALIZE, SHUTDOWN, LawBroken
from streamclient.testing.simulation.fleet_history import owner_spans, row_text, rows_of, stored_positions, stored_text
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
    chosen_events,
    moment,
    records_of,
)
from streamclient.testing.simulation.kernel import Entry
from streamclient.testing.simulation.simulated_faults import Do
from streamclient.testing.simulation.trials.trial import Trial
from streamclient.testing.simulation.workers import STARTED_AT_SECONDS

CALM = "nothing goes wrong any more"

FAULTS: Mapping[str, str] = {
    "starts": Do.START.value,
    "is killed": Do.CRASH.value,
    "is asked to stop": Do.STOP.value,
    "stands still": Do.FREEZE.value,
    "the status table is unreachable": Do.CUT.value,
    "split": Do.SPLIT.value,
    "merge": Do.MERGE.value,
    CALM: "calm",
}
"""The kinds that documents of histories give to steps from outside the fleet. The keys are the texts of the steps."""


def trial_history(trial: Trial, failed: LawBroken | None) -> HistoryDocument:
    """Return the document of a finished trial. ``failed`` is the violation, or ``None`` after success."""
    entries = trial.entries
    times = sorted(set(chain.from_iterable(trial.written_at.values())))
    lives = _lives(trial)

    stored = list(stored_positions(entries, _place_of))
    events = [_event(entry) for entry in entries]
    shown = chosen_events(events)
    return HistoryDocument(
        format=FORMAT,
        seed=trial.seed,
        digest="",
        seconds=moment(trial.elapsed),
        handled=len(entries),
        calm=next((moment(at) for at, _, what, *_ in entries if what == CALM), None),
        violation=None if failed is None else _violation(trial, failed),
        writes=[moment(time) for time in times],
        shards=_shards(trial, times),
        lives=lives,
        spans=sorted((*owner_spans(entries, trial.elapsed), *_reading_spans(trial, lives)), key=lambda span: span[2]),
        checkpoints=stored,
        faults=[_fault(entry) for entry in entries if entry[2] in FAULTS],
        events=shown,
        events_left_out=len(events) - len(shown),
    )


def _place_of(checkpoint: str) -> int:
    return 0 if checkpoint == CheckpointPosition.TRIM_HORIZON else int(checkpoint.rpartition("@")[2])


def _event(entry: Entry) -> Event:
    at, who, what, shard, detail = entry
    rows, kind = rows_of(detail), _kind_of(entry)
    text = f"{what} {detail}".strip()
    if rows is not None and rows[1] is not None:
        is_stored = kind == "position"
        text = stored_text(rows[1], _place_of) if is_stored else f"{row_text(rows[0])} → {row_text(rows[1])}"
    return moment(at), who, kind, shard, text


def _violation(trial: Trial, failed: LawBroken) -> HistoryViolation:
    at = round(trial.elapsed, 6)
    return HistoryViolation(law=failed.law, shard=failed.lease_key, at=at, text=failed.text)


def _kind_of(entry: Entry) -> Kind:
    _, _, what, _, detail = entry
    if what in FAULTS:
        return "fault"
    rows = rows_of(detail)
    if rows is not None:
        before, after = rows
        is_moved = before is None or after is None or (before.owner, before.stealer) != (after.owner, after.stealer)
        return "owner" if is_moved else "position"
    if what in (INITIALIZE, SHUTDOWN):
        return "owner"
    return "trouble" if what.endswith(" raised") else "position"


def _fault(entry: Entry) -> HistoryFault:
    at, who, what, _, detail = entry
    lasts = str(detail).startswith("for ")
    return HistoryFault(
        at=moment(at),
        kind=FAULTS[what],
        worker="" if who in ("network", "stream") else who,
        seconds=float(str(detail).split()[1]) if lasts else 0.0,
        text=f"{who} {what} {detail}".strip(),
    )


def _shards(trial: Trial, times: list[float]) -> list[HistoryShard]:
    parents = trial.witness.parents
    places, ranges = {time: place for place, time in enumerate(times)}, _ranges(parents)
    closed = {parent: trial.opened[name] for name, above in parents.items() for parent in above}
    found = []
    for name, opened in trial.opened.items():
        first, records = records_of(trial.written_at.get(name, []), places)
        entry = HistoryShard(
            shard=name,
            parents=list(parents[name]),
            low=ranges[name][0],
            high=ranges[name][1],
            opened=moment(opened),
            closed=moment(closed[name]) if name in closed else None,
            left=None,
            first_write=first,
            records=records,
        )
        found.append(entry)
    return found


def _ranges(parents: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[float, float]]:
    """Return a range of the key space, from 0 to 1, for each shard.

    The ranges are only for pictures, because shards of a trial do not divide the keys by their order. Children divide
    or join the ranges of their parents. A merged shard whose parents are not neighbours gets its first parent's range.
    """
    first = [name for name, above in parents.items() if not above]
    found: dict[str, tuple[float, float]] = {}
    for name, above in parents.items():
        if not above:
            place = first.index(name)
            found[name] = (place / len(first), (place + 1) / len(first))
        elif len(above) == 1:
            low, high = found[above[0]]
            middle = (low + high) / 2
            is_second = any(low == other[0] and parents[each] == above for each, other in found.items())
            found[name] = (middle, high) if is_second else (low, middle)
        else:
            lower, upper = sorted(found[parent] for parent in above)
            found[name] = (lower[0], upper[1]) if abs(lower[1] - upper[0]) < 1e-9 else found[above[0]]
    return found


def _lives(trial: Trial) -> list[HistoryLife]:
    numbers: Counter[str] = Counter()
    found = []
    for life in trial.fleet:
        numbers[life.name] += 1
        worker = life.worker
        ended = None if worker is None else worker.ended
        entry = HistoryLife(
            worker=life.name,
            label=f"{life.name}#{numbers[life.name]}",
            client="python",
            started=moment(life.started),
            ended=None if ended is None else moment(ended[0] - STARTED_AT_SECONDS),
            manner="" if ended is None else ended[1],
            frozen=[]
            if worker is None
            else [(moment(a - STARTED_AT_SECONDS), moment(b - STARTED_AT_SECONDS)) for a, b in worker.freezes],
        )
        found.append(entry)
    return found


def _reading_spans(trial: Trial, lives: list[HistoryLife]) -> Iterator[Span]:
    """Yield the time ranges in which processes had a processor of a shard, up to the end of the process."""
    since: dict[tuple[str, str], float] = {}
    newest: dict[str, HistoryLife] = {}
    by_start = sorted(lives, key=lambda life: life["started"])
    for at, who, what, shard, _ in trial.entries:
        if what == "starts":
            newest[who] = by_start.pop(next(n for n, life in enumerate(by_start) if life["worker"] == who))
        elif what == INITIALIZE:
            since[newest[who]["label"], shard] = at
        elif what == SHUTDOWN and (began := since.pop((newest[who]["label"], shard), None)) is not None:
            yield shard, newest[who]["label"], moment(began), moment(at), "reads"
    ends = {life["label"]: life["ended"] for life in lives}
    for (label, shard), began in since.items():
        ended = ends[label]
        yield shard, label, moment(began), moment(trial.elapsed) if ended is None else ended, "reads"
