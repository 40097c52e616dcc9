"""A worker's information for operators: the ``Info`` column of its row in the status table, as JSON.

No decision of a worker depends on this information. If the information is missing or malformed, programs that read it
go on without it, and commands that need it refuse to run. A worker of a later version may write more members; unknown
members are ignored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from attrs import field, frozen

from streamclient.base.kept_formats import parse_json
from streamclient.base.reasons import Cause, Reason, encodable
from streamclient.core.costs import Cost
from streamclient.errors import printable

MOST_SHARDS = 200
"""The largest number of shards without progress that the worker lists, with the reasons why they make none. Shards that
need an operator come first, and all others follow by key. Shards beyond this number are only counted: when more shards
than this make no progress, most of them probably have the same cause. With this limit, the worker's row stays below
half a MiB, a fraction of the service's limit."""

MOST_LEFT = 2_000
"""The largest number of shards in the list ``left``: the latest ones. Earlier shards are only counted. In addition to
the size that ``MOST_SHARDS`` permits, this list takes up to a hundred KiB of the worker's row."""

_NEEDS_OPERATOR = ("decision", "processor", "parking", "user_code", "reading")
"""The kinds of reasons whose shards are listed before all other shards, in this order."""

LONGEST_REASON = 500
"""The largest number of characters of one reason. The log has the complete text."""

LONGEST_PART = 160
"""The largest number of characters of a reason's subject or detail. Ids of shards and workers are shorter. Longer
details are in the text of the reason."""

_CAUSES = {cause.value: cause for cause in Cause}


@frozen
class ShardTrouble:
    """The reason why one held shard makes no progress."""

    reason: str
    """The text of ``ShardStatus.reason``, for people."""
    kind: str = ""
    """The value of ``ShardStatus.reason_kind``; empty if the worker does not state the kind."""
    reasons: tuple[Reason, ...] = ()
    """The items of ``ShardStatus.reasons`` whose causes this version knows; empty if the worker does not state any."""

    def to_document(self) -> dict[str, Any]:
        """Return the fields as plain values, with texts cut to their limits."""
        reasons = [_reason_document(reason) for reason in self.reasons]
        return {"kind": self.kind, "reason": self.reason[:LONGEST_REASON], "reasons": reasons}


@frozen(kw_only=True)
class WorkerInfo:
    """All information of a worker. Texts are for people; code that decides uses kinds and causes."""

    host: str = ""
    pid: int = 0
    space: str = ""
    """The space of process ids to which ``pid`` belongs, from ``processes.process_space``; empty if it is unknown."""
    version: str = ""
    """The version of this package that the worker runs."""
    started_micros: int = 0
    """The time when the process registered, by its own clock, in microseconds since 1970."""
    lease_duration_millis: int = 0
    """The lease duration in milliseconds; 0 if the worker does not state it."""
    obeys_orders: bool = False
    """Whether the worker obeys operators' orders to park or skip records. Workers of an earlier version deliver these
    records."""
    trouble: str = ""
    """The reason why the worker is unhealthy; empty for a healthy worker."""
    pace: str = ""
    """A text that says how far the limits on reads slow this worker down; empty if they do not."""
    cost: Cost | None = None
    """The cost of the worker's requests in the last minute or longer; ``None`` in the first minute, or if the worker
    does not count its requests."""
    shards: Mapping[str, ShardTrouble] = field(factory=dict)
    """The held shards without progress, with their reasons. Further held shards without progress are only counted, in
    ``unnamed``."""
    unnamed: int = 0
    """The number of held shards that make no progress and are not in ``shards``."""
    left: tuple[str, ...] = ()
    """Shards that the worker's processors left before the end (``PROCESS_DONE``), the latest last. The worker never
    takes their leases again."""
    left_unnamed: int = 0
    """The number of shards that were left earlier and are not in ``left``."""
    parked: int = 0
    """The number of records that the process has parked since its start, including records that were replayed since
    then."""
    parked_of: Mapping[str, int] = field(factory=dict)
    """The number of records that the process has parked, by shard; only for the ``MOST_SHARDS`` shards with the most
    parked records."""
    set_aside: tuple[str, ...] = ()
    """Held shards, at most ``MOST_SHARDS``, that are read to their newest record although their checkpoints are
    earlier. The records after such a checkpoint were parked or skipped, so no processor has stored a later
    checkpoint."""

    def to_json(self) -> str:
        """Return the information as JSON text. Equal information gives equal texts."""
        told = sorted(sorted(self.shards, key=self._urgency)[:MOST_SHARDS])
        shards = {key: self.shards[key].to_document() for key in told}
        unnamed = self.unnamed + len(self.shards) - len(shards)
        left_unnamed = self.left_unnamed + max(0, len(self.left) - MOST_LEFT)
        content: dict[str, Any] = {
            "host": self.host,
            "pid": self.pid,
            "space": self.space,
            "version": self.version,
            "started_micros": self.started_micros,
            "lease_duration_millis": self.lease_duration_millis,
        }
        if self.obeys_orders:
            content["obeys_orders"] = True
        if self.trouble:
            content["trouble"] = self.trouble[:LONGEST_REASON]
        if self.pace:
            content["pace"] = self.pace[:LONGEST_REASON]
        if self.cost is not None:
            content["cost"] = self.cost.to_document()
        if shards:
            content["shards"] = shards
        if unnamed:
            content["unnamed"] = unnamed
        if self.left:
            content["left"] = list(self.left[-MOST_LEFT:])
        if left_unnamed:
            content["left_unnamed"] = left_unnamed
        if self.parked:
            most = sorted(self.parked_of, key=lambda key: (-self.parked_of[key], key))[:MOST_SHARDS]
            content["parked"] = self.parked
            content["parked_of"] = {key: self.parked_of[key] for key in sorted(most)}
        if self.set_aside:
            content["set_aside"] = list(self.set_aside[:MOST_SHARDS])
        # The text is sent with the heartbeat, and a text from outside must never make a heartbeat fail.
        return encodable(json.dumps(content, ensure_ascii=False, separators=(",", ":")))

    @classmethod
    def from_json(cls, text: str) -> WorkerInfo:
        """Return the information in a stored text. A member that is missing or of another type keeps its default."""
        try:
            content = parse_json(text)
        except ValueError:
            return cls()
        if not isinstance(content, dict):
            return cls()
        shards, left, cost = content.get("shards"), content.get("left"), content.get("cost")
        parked_of, set_aside = content.get("parked_of"), content.get("set_aside")
        return cls(
            host=_text(content, "host"),
            pid=_whole(content, "pid"),
            space=_text(content, "space"),
            version=_text(content, "version"),
            started_micros=_whole(content, "started_micros"),
            lease_duration_millis=_whole(content, "lease_duration_millis"),
            obeys_orders=content.get("obeys_orders") is True,
            trouble=_text(content, "trouble"),
            pace=_text(content, "pace"),
            cost=Cost.from_document(cost) if isinstance(cost, dict) else None,
            shards={key: _trouble(told) for key, told in shards.items()} if isinstance(shards, dict) else {},
            unnamed=_whole(content, "unnamed"),
            left=tuple(str(key) for key in left) if isinstance(left, list) else (),
            left_unnamed=_whole(content, "left_unnamed"),
            parked=_whole(content, "parked"),
            parked_of={key: _whole(parked_of, key) for key in parked_of} if isinstance(parked_of, dict) else {},
            set_aside=tuple(str(key) for key in set_aside) if isinstance(set_aside, list) else (),
        )

    def _urgency(self, key: str) -> tuple[int, str]:
        kind = self.shards[key].kind
        return (_NEEDS_OPERATOR.index(kind) if kind in _NEEDS_OPERATOR else len(_NEEDS_OPERATOR)), key


def _reason_document(reason: Reason) -> dict[str, str]:
    told = {
        "cause": reason.cause.value,
        "subject": reason.subject[:LONGEST_PART],
        "detail": reason.detail[:LONGEST_PART],
    }
    return {**told, "record": reason.record_id[:LONGEST_PART]} if reason.record_id else told


def _trouble(told: Any) -> ShardTrouble:
    if not isinstance(told, dict):
        return ShardTrouble("its reason is unreadable")
    reasons = told.get("reasons")
    known = map(_reason, reasons) if isinstance(reasons, list) else ()
    return ShardTrouble(
        _text(told, "reason"), _text(told, "kind"), tuple(reason for reason in known if reason is not None)
    )


def _reason(told: Any) -> Reason | None:
    """Return the reason in ``told``; ``None`` if it cannot be read, or if its cause is unknown to this version."""
    cause = _CAUSES.get(_text(told, "cause")) if isinstance(told, dict) else None
    if cause is None:
        return None
    return Reason(cause, _text(told, "subject"), _text(told, "detail"), _text(told, "record"))


def _text(content: Mapping[str, Any], name: str) -> str:
    value = content.get(name)
    return printable(value) if isinstance(value, str) else ""


def _whole(content: Mapping[str, Any], name: str) -> int:
    value = content.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0
