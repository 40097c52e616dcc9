"""What a worker tells operators about itself: the ``Info`` column of its row in the status table, as JSON.

Nothing is decided by it. A reader that finds it missing or malformed does without, and a worker of a later version may
say more: unknown members are ignored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from attrs import field, frozen

from streamclient.base.reasons import Cause, Reason, encodable
from streamclient.errors import printable

MOST_SHARDS = 200
"""Shards whose reason is told: first those that wait for somebody, then by key; the rest are counted. A worker with
more of them has one trouble, not two hundred, and the row stays below half a MiB, a fraction of what the service
takes."""

MOST_LEFT = 2_000
"""Shards that are named as left, the latest of them; the rest are counted. A hundred KiB, too."""

_NEEDS_SOMEBODY = ("decision", "processor", "parking", "user_code", "reading")
"""Kinds of reasons that tell most, in this order."""

LONGEST_REASON = 500
"""Characters of one text; the log has the rest."""

LONGEST_PART = 160
"""Characters of a subject or a detail; shard and worker ids are shorter, and the text above has more."""

_CAUSES = {cause.value: cause for cause in Cause}


@frozen
class ShardTrouble:
    """Why one held shard does not move."""

    reason: str
    """``ShardStatus.reason``, for people."""
    kind: str = ""
    """Value of ``ShardStatus.reason_kind``; empty from a worker that does not say."""
    reasons: tuple[Reason, ...] = ()
    """``ShardStatus.reasons``, as far as this version knows their causes; empty from a worker that does not say."""

    def to_document(self) -> dict[str, Any]:
        """As plain values; texts are cut to their bounds."""
        reasons = [
            {
                "cause": reason.cause.value,
                "subject": reason.subject[:LONGEST_PART],
                "detail": reason.detail[:LONGEST_PART],
            }
            for reason in self.reasons
        ]
        return {"kind": self.kind, "reason": self.reason[:LONGEST_REASON], "reasons": reasons}


@frozen(kw_only=True)
class WorkerInfo:
    """Everything that a worker tells. Texts are for people; a reader that decides goes by kinds and causes."""

    host: str = ""
    pid: int = 0
    space: str = ""
    """What ``pid`` counts in, as ``processes.process_space`` says it; empty if nobody can tell."""
    version: str = ""
    """Of this package."""
    started_micros: int = 0
    """When the process registered, by its own clock, in microseconds since 1970."""
    lease_duration_millis: int = 0
    """0 if the worker does not say."""
    trouble: str = ""
    """Why the worker is unhealthy; empty for a healthy one."""
    shards: Mapping[str, ShardTrouble] = field(factory=dict)
    """Held shards that do not move. One that is not named moves or is not held, unless some are ``unnamed``."""
    unnamed: int = 0
    """Held shards that do not move either, too many to be named."""
    left: tuple[str, ...] = ()
    """Shards that its processors are done with, the latest last: this worker never takes them again."""
    left_unnamed: int = 0
    """Shards that were left before those, too many to be named."""

    def to_json(self) -> str:
        """The text to store; equal values give equal texts."""
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
        if self.trouble:
            content["trouble"] = self.trouble[:LONGEST_REASON]
        if shards:
            content["shards"] = shards
        if unnamed:
            content["unnamed"] = unnamed
        if self.left:
            content["left"] = list(self.left[-MOST_LEFT:])
        if left_unnamed:
            content["left_unnamed"] = left_unnamed
        # It goes out with the heartbeat: no text of others may keep that from being sent.
        return encodable(json.dumps(content, ensure_ascii=False, separators=(",", ":")))

    @classmethod
    def from_json(cls, text: str) -> WorkerInfo:
        """What a stored text says; members that are missing or of another type are left at their defaults."""
        try:
            content = json.loads(text)
        except ValueError:
            return cls()
        if not isinstance(content, dict):
            return cls()
        shards, left = content.get("shards"), content.get("left")
        return cls(
            host=_text(content, "host"),
            pid=_whole(content, "pid"),
            space=_text(content, "space"),
            version=_text(content, "version"),
            started_micros=_whole(content, "started_micros"),
            lease_duration_millis=_whole(content, "lease_duration_millis"),
            trouble=_text(content, "trouble"),
            shards={key: _trouble(told) for key, told in shards.items()} if isinstance(shards, dict) else {},
            unnamed=_whole(content, "unnamed"),
            left=tuple(str(key) for key in left) if isinstance(left, list) else (),
            left_unnamed=_whole(content, "left_unnamed"),
        )

    def _urgency(self, key: str) -> tuple[int, str]:
        kind = self.shards[key].kind
        return (_NEEDS_SOMEBODY.index(kind) if kind in _NEEDS_SOMEBODY else len(_NEEDS_SOMEBODY)), key


def _trouble(told: Any) -> ShardTrouble:
    if not isinstance(told, dict):
        return ShardTrouble("it does not say why in a way that can be read")
    reasons = told.get("reasons")
    found = map(_reason, reasons) if isinstance(reasons, list) else ()
    return ShardTrouble(_text(told, "reason"), _text(told, "kind"), tuple(each for each in found if each is not None))


def _reason(told: Any) -> Reason | None:
    """``None`` if it cannot be read, or is of a later version's causes."""
    cause = _CAUSES.get(_text(told, "cause")) if isinstance(told, dict) else None
    return None if cause is None else Reason(cause, _text(told, "subject"), _text(told, "detail"))


def _text(content: Mapping[str, Any], name: str) -> str:
    value = content.get(name)
    return printable(value) if isinstance(value, str) else ""


def _whole(content: Mapping[str, Any], name: str) -> int:
    value = content.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0
