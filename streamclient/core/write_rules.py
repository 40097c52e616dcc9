"""The fields that each write of the status table compares and changes: ``RULES``, for rows of every kind.

A *write* is a value: the row that its writer saw, and the row that shall result. ``permits``, ``apply_write`` and
``was_applied`` implement the rules once. The memory store and the simulated table apply them under a lock. The
conditions and columns that are sent to Tablestore are derived from the rules. Conditions on leases are at least as
strict as the Java client's, so both may work on one table:

* the Java client fences renew, take, transfer and checkpoint by the counter alone; these rules also compare the owner;
* a renewal also compares the stealer, so that a mark is noticed at the next heartbeat, without a scan;
* a mark (steal) does not change the counter, and needs an empty stealer;
* a lease is created only if its row is absent, and deleted only if the row is unchanged.

Operators change rows, too. A pause does not change the counter, so it costs the owner nothing. Orders about records do
not change the counter, either. They come from several writers, so each write of orders compares the orders that it
replaces. A rewind and a release move the counter, so the owner's next heartbeat is refused, and the owner reads the
row.
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

    __hash__ = object.__hash__  # faster than Enum's own hash, which costs a Python call per look-up

    CREATE = "create"
    RENEW = "renew"
    TAKE = "take"
    STEAL = "steal"
    TRANSFER = "transfer"
    CHECKPOINT = "checkpoint"
    PREPARE = "prepare"
    TAKE_PAUSE = "take pause"
    LEAVE_PAUSE = "leave pause"
    END_ORDERS = "end orders"
    DELETE = "delete"

    RELEASE = "release"
    """The owner, or an operator who does not ask the owner, removes the owner from the row."""

    # The writes below are only made by operators, never by workers.
    SET_PAUSE = "set pause"
    SET_ORDERS = "set orders"
    REWIND = "rewind"


class WorkerWriteKind(Enum):
    """The operations on a worker row, except for the wake, which has no condition."""

    REGISTER = "register"
    BEAT = "beat"
    KILL = "kill"
    REMOVE = "remove"


class EpochWriteKind(Enum):
    """The operations on an epoch row."""

    DRAW = "draw"
    FORGET = "forget"


class WriteOutcome(Enum):
    """The result of a write that was sent, as far as it is known."""

    ACCEPTED = "accepted"
    REFUSED = "refused"
    """The row did not meet the condition. If there was a retry, the first try may have been applied, so the row must be
    read back."""
    UNCERTAIN = "uncertain"
    """No usable answer came. The write may be applied or not, so the row must be read back."""


@frozen
class Doubt:
    """Successive writes of one row that no answer has confirmed.

    Each of these writes may have been applied, or may still be applied, so the row is read back. If the row has
    changed, any of these writes may have changed it. Other workers measure the lease duration from that change. So the
    owner measures the lease duration from the earliest of these writes.
    """

    tries: int = 0
    """The number of times that the row was read back and showed none of the writes."""
    not_before: float = NEVER
    """The earliest time at which the row may be written again."""
    since: float | None = None
    """The time at which the first of these writes was sent; ``None`` without such a write."""

    def sent(self, at: float) -> Doubt:
        """Return the doubt after one more write, sent at ``at``, whose answer does not confirm it."""
        return self if self.since is not None and self.since <= at else evolve(self, since=at)

    def again(self, now: float, pause_seconds: Callable[[int], float]) -> Doubt:
        """Return the doubt after a read that showed none of the writes. The next write waits for a pause."""
        tries = self.tries + 1
        return evolve(self, tries=tries, not_before=now + pause_seconds(tries))


NO_DOUBT = Doubt()
"""The state without doubt: every write that was sent since the row was last known is confirmed."""


@frozen
class Rule:
    """The rule of one operation. Fields are named as in the class of the row."""

    if_same: tuple[str, ...]
    """The fields that must still have the values that the writer saw."""
    writes: tuple[str, ...] = ()
    """The fields that every such write stores. The row keeps all other fields. Empty if the row is removed."""
    may_write: tuple[str, ...] = ()
    """The fields that the write stores if it has a value for them."""
    shown_by: tuple[str, ...] = ()
    """The fields by which a row that is read back shows that the write was applied."""
    removes: bool = False
    """Whether the write removes the row. If the row is absent already, it counts as removed."""


COUNTER, OWNER, STEALER = OWNERSHIP = ("counter", "owner", "stealer")
"""The fields that identify the holder of a lease and show a change of the holder."""

RESTORED_FIELDS = ("checkpoint", "pending", "progress", "pause", "pause_taken", "orders")
"""The fields that a take may restore, because another program has overwritten the row with a new row."""

STORED_FIELDS = tuple(
    name for name in (field.name for field in fields(Lease)) if name not in ("lease_key", "stream_id")
)
"""The fields of ``Lease`` that are stored as columns."""

OWNERS = (COUNTER, OWNER)
"""The fields that every write of an owner compares."""

SESSION = ("nonce", "beat", "state")
"""The fields that every write of a worker row except a wake compares."""

MOVED = ("owner", "counter", "checkpoint", "is_handed_over")
"""The fields that show that a write was applied, even if a mark or a pause came after it. ``is_handed_over`` is one of
them, because a hand-over to a worker must not pass for that worker's own take. Both may lead to the same owner and
counter, if the old owner transfers the lease just before the worker takes it as expired."""

AND_ORDERS = (*MOVED, "orders")
"""The fields that show that the owner's removal of orders was applied. Operators add orders without moving the
counter."""

AND_PENDING = (*MOVED, "pending")
"""The fields that show that a write was applied; for the kinds of writes that may store or remove the pending
checkpoint."""

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
    WriteKind.END_ORDERS: Rule(if_same=(*OWNERS, "orders"), writes=(COUNTER, "orders"), shown_by=AND_ORDERS),
    WriteKind.DELETE: Rule(if_same=OWNERS, removes=True),
    WriteKind.SET_PAUSE: Rule(
        if_same=(OWNER,), writes=("pause",), may_write=("pause_taken",), shown_by=(OWNER, "pause")
    ),
    WriteKind.SET_ORDERS: Rule(if_same=(OWNER, "orders"), writes=("orders",), shown_by=(OWNER, "orders")),
    WriteKind.REWIND: Rule(if_same=OWNERSHIP, writes=(COUNTER, "checkpoint", "pending"), shown_by=AND_PENDING),
    WriteKind.RELEASE: Rule(if_same=OWNERS, writes=OWNERSHIP, shown_by=MOVED),
    WorkerWriteKind.REGISTER: Rule(if_same=SESSION, writes=(*SESSION, "balance_by", "info"), shown_by=SESSION),
    WorkerWriteKind.BEAT: Rule(if_same=SESSION, writes=("beat", "state"), may_write=("info",), shown_by=SESSION),
    WorkerWriteKind.KILL: Rule(if_same=SESSION, writes=("state",), shown_by=SESSION),
    WorkerWriteKind.REMOVE: Rule(if_same=SESSION, removes=True),
    EpochWriteKind.DRAW: Rule(if_same=("number",), writes=("number",), shown_by=("number",)),
    EpochWriteKind.FORGET: Rule(if_same=(), removes=True),
}
"""The rules of all operations. If the writer of a write saw no row, the write also needs the row to be absent."""


class Write(Protocol[RowT_co]):
    """One conditional change of one row.

    The functions of ``leases`` and ``membership``, and ``draw``, make such objects.
    """

    @property
    def rule(self) -> Rule:
        """The rule in ``RULES`` that this write follows."""

    @property
    def expected(self) -> RowT_co | None:
        """The row as its writer saw it; ``None`` if the row must be absent."""

    @property
    def result(self) -> RowT_co | None:
        """The row after the write is accepted; ``None`` if the row is removed."""

    @property
    def changes(self) -> tuple[str, ...]:
        """The fields that this write stores, with their values in ``result``."""


def permits(row: RowT | None, write: Write[RowT]) -> bool:
    """Return whether the stored row meets the write's condition."""
    expected = write.expected
    if row is None:
        return expected is None or write.rule.removes
    return expected is not None and _same(row, expected, write.rule.if_same)


def apply_write(row: RowT | None, write: Write[RowT]) -> RowT | None:
    """Return the row after a permitted write, which changes only the fields that the operation writes.

    Raises:
        ValueError: the row does not permit the write. Callers check ``permits`` first, under the same lock.
    """
    if not permits(row, write):
        raise ValueError(f"{row or 'an absent row'} does not permit {write}")
    if row is None or write.result is None or row == write.expected:
        return write.result
    return cast(RowT, evolve(cast(Any, row), **{name: getattr(write.result, name) for name in write.changes}))


def was_applied(row: RowT | None, write: Write[RowT]) -> bool:
    """Return whether a row that was read back shows that the write was applied. A later write may hide that."""
    if row is None or write.result is None:
        return row is None and write.result is None
    return _same(row, write.result, write.rule.shown_by)


def _same(row: object, other: object, names: tuple[str, ...]) -> bool:
    return all(getattr(row, name) == getattr(other, name) for name in names)


# --- rows that count acquisitions ----------------------------------------------------------------------------------


@frozen
class EpochRow:
    """The row with the last epoch of a lease. The row outlives the lease."""

    lease_key: str
    number: int


@frozen
class EpochWrite:
    """One conditional change of one epoch row."""

    kind: EpochWriteKind
    lease_key: str
    expected: EpochRow | None
    """The row as its writer saw it. The stored row must have the same epoch. ``None`` if the row must be absent."""
    result: EpochRow | None
    """The row after the write is accepted; ``None`` after FORGET."""

    @property
    def rule(self) -> Rule:
        """The rule of this write: its comparisons, and the fields that it stores."""
        return RULES[self.kind]

    @property
    def changes(self) -> tuple[str, ...]:
        """The fields of ``EpochRow`` that this write stores, with their values in ``result``."""
        return self.rule.writes


def draw(lease_key: str, last: EpochRow | None) -> EpochWrite:
    """Return the write that draws the next epoch of a lease, if the epoch in the row is still that of ``last``."""
    number = 1 if last is None else last.number + 1
    return EpochWrite(EpochWriteKind.DRAW, lease_key, last, EpochRow(lease_key, number))


def forget(lease_key: str) -> EpochWrite:
    """Return the write that deletes the epoch row of a lease whose shard left the stream.

    The epoch in the row does not matter.
    """
    return EpochWrite(EpochWriteKind.FORGET, lease_key, EpochRow(lease_key, 0), None)
