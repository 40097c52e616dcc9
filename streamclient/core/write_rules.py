"""What each write of the status table compares, and what it changes: ``RULES``, for rows of every kind.

A *write* is a value: which row its writer saw, and how the row shall be. ``permits``, ``apply_write`` and
``was_applied`` are the rule, once. The memory store is that rule under a lock, the conditions and columns sent to
Tablestore are derived from it, and the simulated table is it again. Conditions on leases are at least as strict as the
Java client's, so both may work on one table:

* the counter alone fences renew, take, transfer and checkpoint there; we also compare the owner;
* a renewal also compares the stealer, so that a mark is noticed on the very next heartbeat, without a scan;
* a mark (steal) leaves the counter alone and needs an empty stealer;
* a lease is created only if its row is absent, and deleted only if unchanged.

Operators change rows beside the workers: a pause leaves the counter alone, so that it costs its owner nothing; a rewind
and a release move it, so that the owner's next heartbeat is refused and shows it the row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Protocol, TypeVar, cast

from attrs import fields, frozen

from streamclient.core.deadlines import NEVER
from streamclient.core.values import evolve
from streamclient.model import Lease

RowT = TypeVar("RowT")
RowT_co = TypeVar("RowT_co", covariant=True)


class WriteKind(Enum):
    """The operations on a lease row."""

    __hash__ = object.__hash__  # members are single, and Enum's own hash, of the name, costs a call per look-up

    CREATE = "create"
    RENEW = "renew"
    TAKE = "take"
    STEAL = "steal"
    TRANSFER = "transfer"
    CHECKPOINT = "checkpoint"
    PREPARE = "prepare"
    TAKE_PAUSE = "take pause"
    LEAVE_PAUSE = "leave pause"
    DELETE = "delete"

    RELEASE = "release"
    """An operator's, too: of a lease that its owner is not asked about."""

    # An operator's, never a worker's.
    SET_PAUSE = "set pause"
    REWIND = "rewind"


class WorkerWriteKind(Enum):
    """The operations on a worker row, but for the wake, which has no condition."""

    REGISTER = "register"
    BEAT = "beat"
    KILL = "kill"
    REMOVE = "remove"


class EpochWriteKind(Enum):
    """The operations on an epoch row."""

    DRAW = "draw"
    FORGET = "forget"


class WriteOutcome(Enum):
    """What is known after a write was sent."""

    ACCEPTED = "accepted"
    REFUSED = "refused"
    """The row did not meet the condition. After a retry the first try may have been applied: read back."""
    UNCERTAIN = "uncertain"
    """No usable answer: applied or not. Read back."""


@frozen
class Doubt:
    """Writes of one row, one after the other, that were not applied as far as their answers say.

    An answer that does not say so proves nothing: each may have been applied, or be yet. So the row is read back. If it
    shows a write, that may have been any of them; others count from then, so whoever relies on it counts from the
    earliest.
    """

    tries: int = 0
    """How many, as far as the row was read back."""
    not_before: float = NEVER
    """When the next one may be sent."""
    since: float | None = None
    """When the earliest was sent since the row is known."""

    def sent(self, at: float) -> Doubt:
        """One more has no answer that says that it was applied."""
        return self if self.since is not None and self.since <= at else evolve(self, since=at)

    def again(self, now: float, pause_seconds: Callable[[int], float]) -> Doubt:
        """The row shows none of them: another one may be sent, after a pause."""
        tries = self.tries + 1
        return evolve(self, tries=tries, not_before=now + pause_seconds(tries))


NO_DOUBT = Doubt()
"""Nothing was sent since the row is known."""


@frozen
class Rule:
    """One operation: fields are named as in the row's class."""

    if_same: tuple[str, ...]
    """Fields that must be as the writer saw them."""
    writes: tuple[str, ...] = ()
    """Fields that every such write stores; the row keeps all others. None: the row is removed."""
    may_write: tuple[str, ...] = ()
    """Fields that it stores where there is something to store."""
    shown_by: tuple[str, ...] = ()
    """Fields by which a row that is read back shows that the write was applied."""
    removes: bool = False
    """Whether the row is gone afterwards. A row that is absent already counts as removed."""


COUNTER, OWNER, STEALER = OWNERSHIP = ("counter", "owner", "stealer")
"""Fields that say who has a lease, and that it changed hands."""

RESTORED_FIELDS = ("checkpoint", "pending", "progress", "pause", "pause_taken")
"""What a lease row must get back that lost it, because somebody put it anew."""

STORED_FIELDS = tuple(
    name for name in (field.name for field in fields(Lease)) if name not in ("lease_key", "stream_id")
)
"""Fields of a lease that are columns."""

OWNERS = (COUNTER, OWNER)
"""What every write of an owner compares."""

SESSION = ("nonce", "beat", "state")
"""What every write of a worker row but the wake compares."""

MOVED = ("owner", "counter", "checkpoint", "is_handed_over")
"""A mark or a pause that arrived after the write does not hide it. A hand-over to the taker is not its take: both may
lead to the same owner and counter, when the old owner transferred the lease just before an expired one was taken."""

AND_PENDING = (*MOVED, "pending")
"""Of the writes that may store or remove what is pending."""

RULES: Mapping[WriteKind | WorkerWriteKind | EpochWriteKind, Rule] = {
    WriteKind.CREATE: Rule(if_same=(), writes=STORED_FIELDS, shown_by=AND_PENDING),
    WriteKind.RENEW: Rule(if_same=OWNERSHIP, writes=(COUNTER,), shown_by=MOVED),
    WriteKind.TAKE: Rule(if_same=OWNERS, writes=OWNERSHIP, may_write=RESTORED_FIELDS, shown_by=AND_PENDING),
    WriteKind.STEAL: Rule(if_same=(OWNER, STEALER), writes=(STEALER,), shown_by=(OWNER, STEALER)),
    WriteKind.TRANSFER: Rule(if_same=OWNERS, writes=OWNERSHIP, shown_by=MOVED),
    WriteKind.CHECKPOINT: Rule(
        if_same=OWNERS, writes=(COUNTER, "checkpoint"), may_write=("pending", "progress"), shown_by=AND_PENDING
    ),
    WriteKind.PREPARE: Rule(if_same=OWNERS, writes=(COUNTER, "pending"), shown_by=AND_PENDING),
    WriteKind.TAKE_PAUSE: Rule(if_same=OWNERS, writes=(COUNTER, "pause_taken"), shown_by=MOVED),
    WriteKind.LEAVE_PAUSE: Rule(if_same=OWNERS, writes=(COUNTER, "pause_taken"), shown_by=(*MOVED, "pause_taken")),
    WriteKind.DELETE: Rule(if_same=OWNERS, removes=True),
    WriteKind.SET_PAUSE: Rule(
        if_same=(OWNER,), writes=("pause",), may_write=("pause_taken",), shown_by=(OWNER, "pause")
    ),
    WriteKind.REWIND: Rule(if_same=OWNERSHIP, writes=(COUNTER, "checkpoint", "pending"), shown_by=AND_PENDING),
    WriteKind.RELEASE: Rule(if_same=OWNERS, writes=OWNERSHIP, shown_by=MOVED),
    WorkerWriteKind.REGISTER: Rule(if_same=SESSION, writes=(*SESSION, "balance_by", "info"), shown_by=SESSION),
    WorkerWriteKind.BEAT: Rule(if_same=SESSION, writes=("beat", "state"), may_write=("info",), shown_by=SESSION),
    WorkerWriteKind.KILL: Rule(if_same=SESSION, writes=("state",), shown_by=SESSION),
    WorkerWriteKind.REMOVE: Rule(if_same=SESSION, removes=True),
    EpochWriteKind.DRAW: Rule(if_same=("number",), writes=("number",), shown_by=("number",)),
    EpochWriteKind.FORGET: Rule(if_same=(), removes=True),
}
"""The one table. A write whose writer saw no row needs the row to be absent, whatever else its rule says."""


class Write(Protocol[RowT_co]):
    """One conditional change of one row. Made by the functions of ``leases`` and ``membership``, and by ``draw``."""

    @property
    def rule(self) -> Rule:
        """Its line in ``RULES``."""

    @property
    def expected(self) -> RowT_co | None:
        """The row as its writer saw it; ``None``: it must be absent."""

    @property
    def result(self) -> RowT_co | None:
        """The row afterwards if accepted; ``None`` if it is removed."""

    @property
    def changes(self) -> tuple[str, ...]:
        """Fields that this very write stores, with their values in ``result``."""


def permits(row: RowT | None, write: Write[RowT]) -> bool:
    """Whether the stored row meets the write's condition."""
    expected = write.expected
    if row is None:
        return expected is None or write.rule.removes
    return expected is not None and _same(row, expected, write.rule.if_same)


def apply_write(row: RowT | None, write: Write[RowT]) -> RowT | None:
    """The row after a permitted write: only the fields that the operation writes change.

    Raises ``ValueError`` if the row does not permit it; callers ask ``permits`` under the same lock first.
    """
    if not permits(row, write):
        raise ValueError(f"{row or 'an absent row'} does not permit {write}")
    if row is None or write.result is None or row == write.expected:
        return write.result
    return cast(RowT, evolve(cast(Any, row), **{name: getattr(write.result, name) for name in write.changes}))


def was_applied(row: RowT | None, write: Write[RowT]) -> bool:
    """Whether a row that was read back shows that this write was applied, and nothing since that would hide it."""
    if row is None or write.result is None:
        return row is None and write.result is None
    return _same(row, write.result, write.rule.shown_by)


def _same(row: object, other: object, names: tuple[str, ...]) -> bool:
    return all(getattr(row, name) == getattr(other, name) for name in names)


# --- rows that count acquisitions ----------------------------------------------------------------------------------


@frozen
class EpochRow:
    """The last number that was drawn for a lease; it outlives the lease."""

    lease_key: str
    number: int


@frozen
class EpochWrite:
    """One conditional change of one epoch row."""

    kind: EpochWriteKind
    lease_key: str
    expected: EpochRow | None
    """The row must have this number; ``None``: it must be absent."""
    result: EpochRow | None
    """The row afterwards if accepted; ``None`` after FORGET."""

    @property
    def rule(self) -> Rule:
        """What such a write compares and stores."""
        return RULES[self.kind]

    @property
    def changes(self) -> tuple[str, ...]:
        """Fields of ``EpochRow`` that are written."""
        return self.rule.writes


def draw(lease_key: str, last: EpochRow | None) -> EpochWrite:
    """Draw the next number of a lease, if the last one is still as read."""
    number = 1 if last is None else last.number + 1
    return EpochWrite(EpochWriteKind.DRAW, lease_key, last, EpochRow(lease_key, number))


def forget(lease_key: str) -> EpochWrite:
    """Delete the row of a lease whose shard left the stream, whatever it holds."""
    return EpochWrite(EpochWriteKind.FORGET, lease_key, EpochRow(lease_key, 0), None)
