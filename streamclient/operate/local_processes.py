"""The processes of workers on this machine, for workers that publish where they run."""

from __future__ import annotations

from streamclient.base.processes import STOPPED_STATES, process_space, process_state
from streamclient.core.worker_info import WorkerInfo
from streamclient.operate.facts import Process


def process_of(info: WorkerInfo) -> Process:
    """Return the state of the worker's process. It is ``ELSEWHERE`` unless its id is counted in the same space as ours.

    The name of the host does not decide that: containers share it, and each counts its processes from 1.
    """
    if not info.pid or not info.space or info.space != process_space():
        return Process.ELSEWHERE
    state = process_state(info.pid)
    if state is None:
        return Process.GONE
    return Process.STOPPED if state in STOPPED_STATES else Process.RUNNING
