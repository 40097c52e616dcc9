"""What this worker tells operators in its row of the status table. Owner thread only.

It goes out with heartbeats, so it costs no request; what has not changed costs no bytes either.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping

from attrs import evolve

from streamclient._version import __version__
from streamclient.core.worker_info import ShardTrouble, WorkerInfo
from streamclient.model import ShardStatus
from streamclient.processes import process_space
from streamclient.reasons import Cause
from streamclient.worker.health import WorkerHealth

STAND_IN_ROWS = frozenset({Cause.FINISHED, Cause.PARENT})
"""What the lease rows show anyway. What is said of a parent changes with each heartbeat of its owner, besides."""


class PublishedInfo:
    """Puts the text together, and remembers the last one."""

    def __init__(self, lease_duration_millis: int, started_micros: int) -> None:
        self._process = WorkerInfo(
            host=socket.gethostname(),
            pid=os.getpid(),
            space=process_space(),
            version=__version__,
            started_micros=started_micros,
            lease_duration_millis=lease_duration_millis,
        )
        self._last = self._process.to_json()

    @property
    def text(self) -> str:
        """What is told at present."""
        return self._last

    def changed(self, statuses: Mapping[str, ShardStatus], health: WorkerHealth, left: Iterable[str]) -> str | None:
        """The text for this state; ``None`` if it is the same as before."""
        info = evolve(
            self._process,
            trouble=health.reason,
            shards={key: _trouble(status) for key, status in statuses.items() if _is_told(status)},
            left=tuple(left),
        )
        text = info.to_json()
        if text == self._last:
            return None
        self._last = text
        return text


def _is_told(status: ShardStatus) -> bool:
    """Whether there is a reason that does not stand in the lease rows anyway."""
    return bool(status.reasons) and status.reasons[0].cause not in STAND_IN_ROWS


def _trouble(status: ShardStatus) -> ShardTrouble:
    return ShardTrouble(status.reason, status.reason_kind.value, status.reasons)
