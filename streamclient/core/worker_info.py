"""What a worker tells operators about itself: the ``Info`` column of its row in the status table, as JSON.

Nothing is decided by it. A reader that finds it missing or malformed does without, and a worker of a later version may
say more: unknown members are ignored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from attrs import field, frozen

MOST_SHARDS = 200
"""Shards whose reason is told: first those that wait for somebody, then by key; the rest are counted. A worker with
more of them has one trouble, not two hundred, and the row stays near 100 KiB, a fraction of what the service takes."""

MOST_LEFT = 2_000
"""Shards that are named as left, the latest of them; the rest are counted. A hundred KiB, too."""

_NEEDS_SOMEBODY = ("decision", "processor", "parking", "user_code", "reading")
"""Kinds of reasons that tell most, in this order."""

LONGEST_REASON = 500
"""Characters of one reason; the log has the rest."""


@frozen
class ShardTrouble:
    """Why one held shard does not move."""

    reason: str
    """``ShardStatus.reason``."""
    kind: str = ""
    """Value of ``ShardStatus.reason_kind``; empty from a worker that does not say."""


@frozen(kw_only=True)
class WorkerInfo:
    """Everything that a worker tells. Texts are for people; no reader decides by them."""

    host: str = ""
    pid: int = 0
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
        shards = {key: _member(self.shards[key]) for key in told}
        unnamed = self.unnamed + len(self.shards) - len(shards)
        left_unnamed = self.left_unnamed + max(0, len(self.left) - MOST_LEFT)
        content: dict[str, Any] = {
            "host": self.host,
            "pid": self.pid,
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
        return json.dumps(content, ensure_ascii=False, separators=(",", ":"))

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


def _member(trouble: ShardTrouble) -> dict[str, str]:
    return {"kind": trouble.kind, "reason": trouble.reason[:LONGEST_REASON]}


def _trouble(told: Any) -> ShardTrouble:
    if not isinstance(told, dict):
        return ShardTrouble("it does not say why in a way that can be read")
    return ShardTrouble(_text(told, "reason"), _text(told, "kind"))


def _text(content: Mapping[str, Any], name: str) -> str:
    value = content.get(name)
    return value if isinstance(value, str) else ""


def _whole(content: Mapping[str, Any], name: str) -> int:
    value = content.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0
