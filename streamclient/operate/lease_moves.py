"""The owners of shards over time, and the orders of operators. Pure.

The owners come from readings of lease rows, whose stamps say when an owner, a checkpoint and a pause were written. The
orders come from audit rows.

Laws:

* One reading of a row shows the last change of the owner, the end of the shard, and a pause that has not ended. It does
  not show earlier changes and former owners. Two successive readings show the changes between them. If the owner
  changed several times between two readings, only the last of these changes is known.
* The time of a change is a stamp of the service. Without a stamp, the time of the reading takes its place, and
  ``at_is_seen`` is true.
* A living owner loses a lease only by handing it over. So a new owner has ``taken`` a lease if the former owner was
  killed or silent. Otherwise the lease was ``handed-over``.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypedDict

from attrs import frozen

from streamclient.base.kept_formats import parse_json
from streamclient.base.times import MICROS_PER_HOUR, MICROS_PER_SECOND
from streamclient.model import Lease, Pause
from streamclient.operate.facts import SILENT_SHARE, FleetFacts, RowFacts, WorkerFacts
from streamclient.operate.liveness import is_pause_on, last_beat_micros
from streamclient.worker.lease.audit_rows import AuditRecord

MOST_MOVES = 500
"""The largest number of moves and orders in a document. People would not read more, and the audit has all orders."""

KEPT_MICROS = 24 * MICROS_PER_HOUR
"""The time, in microseconds, for which a span (the time during which a worker held a shard) is kept after its end. It
is a day, which is the default retention of a stream."""

MOST_SPANS = 2_000
"""The largest number of spans in a document. A span is the time during which a worker held a shard. If there are more,
the document has the spans that began or ended last. A picture has no room for more spans, and the document already
takes 200 kB."""

LeaseMoveKind = Literal["taken", "handed-over", "released", "finished", "paused", "resumed", "order"]

LeaseMove = TypedDict(
    "LeaseMove",
    {
        "id": str,
        "at_micros": int,
        "at_is_seen": bool,
        "shard": str,
        "kind": LeaseMoveKind,
        "from": str | None,
        "to": str | None,
        "seconds": float | None,
        "who": str | None,
        "command": str | None,
        "reason": str | None,
        "outcome": str | None,
    },
)
"""A change of a lease, or an order of an operator. Members that do not apply, or are not known, are ``None``.

If ``at_is_seen`` is true, the change happened between the reading at ``at_micros`` and the reading before it. ``from``
and ``to`` are workers. ``seconds`` is the time in which no worker read the shard: from the old owner's last sign or
hand-over to the new owner's acquisition. An order has ``who``, ``command``, ``reason`` and ``outcome``; a pause has
``who`` and ``reason``."""


class LaneSpan(TypedDict):
    """The time during which a worker held a shard, in microseconds since 1970."""

    shard: str
    from_micros: int
    to_micros: int
    """The end of the span. If the worker still holds the shard, this is the time of the last reading."""


class WorkerLane(TypedDict):
    """The times during which one worker held shards."""

    id: str
    """The worker's name."""
    spans: list[LaneSpan]
    """The times during which the worker held a shard, ordered by their beginnings."""


class MovesDocument(TypedDict):
    """The document of the known changes of leases, orders of operators, and times during which workers held shards."""

    complete_since_micros: int
    """The time of the first reading; 0 if nothing was read yet. Earlier moves are known only if lease rows or audit
    rows still show them."""
    moves: list[LeaseMove]
    """The newest moves and orders, sorted newest first."""
    lanes: list[WorkerLane]
    """One lane for each worker, including workers that hold no shard."""


@frozen
class _Held:
    worker: str
    shard: str
    from_micros: int


@frozen
class _Change:
    """The row of one shard in two successive readings."""

    before: FleetFacts
    after: FleetFacts
    old: RowFacts
    old_lease: Lease
    row: RowFacts
    lease: Lease

    @property
    def session(self) -> WorkerFacts | None:
        """The session row of the former owner, as it was last read; ``None`` if neither reading has one."""
        owner = self.old_lease.owner
        return self.after.workers.get(owner, self.before.workers.get(owner))

    def last_sign_micros(self) -> int:
        """Return the time of the former owner's last write that the two readings show."""
        beats = [last_beat_micros(facts, self.old_lease.owner) for facts in (self.before, self.after)]
        return max(self.old.beat_micros, *beats)

    def is_taken(self) -> bool:
        """Return whether the new owner took the lease without a hand-over by the former owner."""
        if self.session is not None and self.session.state != "running":
            return self.session.state == "killed"
        return self._is_silent(self.last_sign_micros(), self.row.owner_micros)

    def idle_seconds(self) -> float | None:
        """Return the seconds from the last sign of the former owner, which is dead, to the new owner's acquisition.

        Return ``None`` if the former owner may have given a later sign that no reading shows.
        """
        sign = self.last_sign_micros()
        if self.session is None and not self._is_silent(sign, self.before.now_micros):
            return None
        return _seconds(sign, self.row.owner_micros)

    def _is_silent(self, sign_micros: int, at_micros: int) -> bool:
        return _seconds(sign_micros, at_micros) > self.after.lease_duration_seconds * SILENT_SHARE


class LeaseMoves:
    """The moves of one fleet, collected from one reading after another. Not thread-safe."""

    def __init__(self) -> None:
        self._since = 0
        self._last: FleetFacts | None = None
        self._moves: dict[str, LeaseMove] = {}
        self._held: dict[str, _Held] = {}
        self._past: list[tuple[_Held, int]] = []

    def read(self, facts: FleetFacts) -> None:
        """Add a reading. It must be complete, and not older than the last reading that was added."""
        before, self._last = self._last, facts
        self._since = self._since or facts.now_micros
        for shard, row in facts.rows.items():
            old = None if before is None else before.rows.get(shard)
            if row.lease is None:
                continue
            if before is None or old is None or old.lease is None:
                self._remembered(facts, row, row.lease)
            else:
                self._changed(_Change(before, facts, old, old.lease, row, row.lease))
        for shard in self._held.keys() - facts.rows.keys():
            self._end_span(shard, facts.now_micros)
        self._forget(facts.now_micros)

    def audited(self, records: Iterable[AuditRecord]) -> None:
        """Add rows of the audit, in any order.

        A row replaces the same row of an earlier call, because the outcome may be new.
        """
        for record in records:
            before, after = _fields(record.before), _fields(record.after)
            self._add(
                "order",
                record.shard_id,
                record.at_micros,
                name=f"order {record.key}",
                old=before.get("owner"),
                new=after.get("stealer") or after.get("owner"),
                who=record.who,
                command=record.command,
                reason=record.reason,
                outcome=record.outcome,
            )
        self._forget(0 if self._last is None else self._last.now_micros)

    def document(self) -> MovesDocument:
        """Return the known moves and lanes, up to the last reading."""
        return {
            "complete_since_micros": self._since,
            "moves": sorted(self._moves.values(), key=_newest_first)[:MOST_MOVES],
            "lanes": self._lanes(),
        }

    # --- rows ------------------------------------------------------------------------------------------------------

    def _remembered(self, facts: FleetFacts, row: RowFacts, lease: Lease) -> None:
        """Add the moves that the first reading of a shard's row shows."""
        if lease.is_handed_over:
            self._add("handed-over", row.shard_id, row.owner_micros, new=lease.owner)
        elif lease.owner:
            self._add("taken", row.shard_id, row.owner_micros, new=lease.owner)
            self._begin_span(lease.owner, row.shard_id, row.owner_micros)
        elif _was_released(row, lease):
            self._add("released", row.shard_id, row.owner_micros)
        if lease.is_finished:
            self._finished(row, lease)
        self._paused(facts, row.shard_id, None, row)

    def _changed(self, change: _Change) -> None:
        row, lease, old = change.row, change.lease, change.old_lease
        if (row.owner_micros, lease.owner) != (change.old.owner_micros, old.owner):
            self._owner_changed(change)
        if lease.is_finished and not old.is_finished:
            self._finished(row, lease)
        if old.is_finished and not lease.is_finished and lease.owner and not lease.is_handed_over:
            self._begin_span(lease.owner, row.shard_id, max(row.owner_micros, row.checkpoint_micros))
        if lease.pause is not None or old.pause is not None:
            self._paused(change.after, row.shard_id, change, row)

    def _owner_changed(self, change: _Change) -> None:
        row, lease, old = change.row, change.lease, change.old_lease
        shard, at = row.shard_id, row.owner_micros
        former = old.owner if old.owner and not old.is_handed_over else None
        if not lease.owner:
            self._end_span(shard, at)
            self._add("released", shard, at, old=former)
        elif lease.is_handed_over:
            self._end_span(shard, at)
            self._add("handed-over", shard, at, old=former, new=lease.owner)
        elif old.is_handed_over and old.owner == lease.owner:
            self._picked_up(change)
            self._begin_span(lease.owner, shard, at)
        else:
            self._new_owner(change, former)
        if lease.is_finished and old.is_finished:
            self._end_span(shard, at)

    def _picked_up(self, change: _Change) -> None:
        """Store the duration of a hand-over that an earlier reading showed as not yet finished."""
        name = _name("handed-over", change.row.shard_id, change.old.owner_micros)
        if name in self._moves:  # make a new dictionary, because callers may hold the old one
            seconds = _seconds(change.old.owner_micros, change.row.owner_micros)
            self._moves[name] = {**self._moves[name], "seconds": seconds}

    def _new_owner(self, change: _Change, former: str | None) -> None:
        """Add the move of a lease to a new owner, from the owner ``former`` or from no owner."""
        shard, at, owner = change.row.shard_id, change.row.owner_micros, change.lease.owner
        kind: LeaseMoveKind = "taken"
        seconds = None
        if former is None:
            is_since_known = change.old_lease.is_handed_over or _was_released(change.old, change.old_lease)
            seconds = _seconds(change.old.owner_micros, at) if is_since_known else None
        elif former == owner:
            pass  # the worker was restarted: its session row no longer tells when the former process ended
        elif change.is_taken():
            seconds = change.idle_seconds()
        else:
            kind = "handed-over"
        idle_micros = round((seconds or 0.0) * MICROS_PER_SECOND)  # the former owner's span ends at its last sign
        self._end_span(shard, at - idle_micros)
        self._begin_span(owner, shard, at)
        self._add(kind, shard, at, old=former, new=owner, seconds=seconds)

    def _finished(self, row: RowFacts, lease: Lease) -> None:
        is_owners = lease.owner and row.owner_micros <= row.checkpoint_micros
        self._add("finished", row.shard_id, row.checkpoint_micros, old=lease.owner if is_owners else None)
        self._end_span(row.shard_id, row.checkpoint_micros)

    def _paused(self, facts: FleetFacts, shard: str, change: _Change | None, row: RowFacts) -> None:
        old = None if change is None else _standing(change.old_lease, change.before)
        new = None if row.lease is None else _standing(row.lease, facts)
        if new is not None and new != old:
            self._add("paused", shard, row.pause_micros, who=new.by, reason=new.reason)
        elif old is not None and new is None:
            ran_out = old.until_micros is not None and old.until_micros <= facts.now_micros
            self._add("resumed", shard, old.until_micros or 0 if ran_out else 0)

    # --- storage ---------------------------------------------------------------------------------------------------

    def _add(
        self,
        kind: LeaseMoveKind,
        shard: str,
        stamp: int,
        *,
        name: str = "",
        old: str | None = None,
        new: str | None = None,
        seconds: float | None = None,
        who: str | None = None,
        command: str | None = None,
        reason: str | None = None,
        outcome: str | None = None,
    ) -> None:
        at = stamp or (0 if self._last is None else self._last.now_micros)
        name = name or _name(kind, shard, at)
        self._moves[name] = {
            "id": name,
            "at_micros": at,
            "at_is_seen": not stamp,
            "shard": shard,
            "kind": kind,
            "from": old or None,
            "to": new or None,
            "seconds": seconds,
            "who": who,
            "command": command,
            "reason": reason,
            "outcome": outcome,
        }

    def _begin_span(self, worker: str, shard: str, at_micros: int) -> None:
        self._end_span(shard, at_micros)
        self._held[shard] = _Held(worker, shard, at_micros)

    def _end_span(self, shard: str, at_micros: int) -> None:
        held = self._held.pop(shard, None)
        if held is not None and at_micros >= held.from_micros:
            self._past.append((held, at_micros))

    def _forget(self, now_micros: int) -> None:
        if len(self._moves) > 2 * MOST_MOVES:  # the factor 2 makes sorting rare
            self._moves = {
                move["id"]: move for move in heapq.nsmallest(MOST_MOVES, self._moves.values(), key=_newest_first)
            }
        self._past = [(held, to) for held, to in self._past if to > now_micros - KEPT_MICROS]
        if len(self._past) > 2 * MOST_SPANS:
            self._past = heapq.nlargest(MOST_SPANS, self._past, key=lambda span: span[1])

    def _lanes(self) -> list[WorkerLane]:
        if self._last is None:
            return []
        now = self._last.now_micros
        first = now - KEPT_MICROS
        closed = [(to, held, to) for held, to in self._past]
        standing = [(held.from_micros, held, now) for held in self._held.values()]
        shown = heapq.nlargest(MOST_SPANS, [*closed, *standing], key=lambda span: span[0])
        lanes: dict[str, list[LaneSpan]] = {name: [] for name in {*self._last.workers, *self._last.beats}}
        for _, held, to in shown:
            span: LaneSpan = {"shard": held.shard, "from_micros": max(held.from_micros, first), "to_micros": to}
            if span["to_micros"] >= span["from_micros"]:
                lanes.setdefault(held.worker, []).append(span)
        return [
            {"id": name, "spans": sorted(lanes[name], key=lambda span: (span["from_micros"], span["shard"]))}
            for name in sorted(lanes)
        ]


def _name(kind: LeaseMoveKind, shard: str, at_micros: int) -> str:
    return f"{kind} {shard} {at_micros}"


def _newest_first(move: LeaseMove) -> tuple[int, str]:
    return -move["at_micros"], move["id"]


def _seconds(from_micros: int, to_micros: int) -> float:
    return max(0, to_micros - from_micros) / MICROS_PER_SECOND


def _was_released(row: RowFacts, lease: Lease) -> bool:
    """Return whether a lease has no owner now, and certainly had one earlier.

    The service stamps all columns of a new row with the same time. If the column of the owner has a newer stamp than
    the column of the checkpoint, a worker has become the owner since then, and was taken out again.
    """
    return not lease.owner and lease.counter > 0 and row.owner_micros > row.checkpoint_micros


def _standing(lease: Lease, facts: FleetFacts) -> Pause | None:
    """Return the pause of ``lease`` that is in effect at the time of ``facts``, or ``None``.

    An order to accept the shard's end has the form of a pause, but pauses nothing, so it does not count.
    """
    pause = lease.pause
    return pause if pause is not None and not pause.accepts_end and is_pause_on(pause, facts.now_micros) else None


def _fields(text: str) -> Mapping[str, Any]:
    """Return the fields of a lease that ``text`` from an audit row holds; empty if ``text`` does not hold a lease."""
    try:
        found = parse_json(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
