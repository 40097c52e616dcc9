"""Whether a process of this machine runs, for workers that say where they run."""

from __future__ import annotations

from streamclient.base.processes import STOPPED_STATES, process_space, process_state
from streamclient.core.worker_info import WorkerInfo
from streamclient.operate.facts import Process


def process_of(info: WorkerInfo) -> Process:
    """What this machine says about the worker's process; ``ELSEWHERE`` unless the worker's id is one of those here.

    The name of a host does not tell that: containers share it, and each counts its processes from 1.
    """
    if not info.pid or not info.space or info.space != process_space():
        return Process.ELSEWHERE
    state = process_state(info.pid)
    if state is None:
        return Process.GONE
    return Process.STOPPED if state in STOPPED_STATES else Process.RUNNING
