"""The state of a worker's process, if it runs on this machine and the worker publishes its process id."""

from __future__ import annotations

from streamclient.base.processes import STOPPED_STATES, process_space, process_state
from streamclient.core.worker_info import WorkerInfo
from streamclient.operate.facts import Process


def process_of(info: WorkerInfo) -> Process:
    """Return the state of a worker's process; ``ELSEWHERE`` if this program cannot see the process.

    The program can see a process if both share one space of process ids. Equal host names do not prove this: containers
    may have the same host name, and each container numbers its processes from 1.
    """
    if not info.pid or not info.space or info.space != process_space():
        return Process.ELSEWHERE
    state = process_state(info.pid)
    if state is None:
        return Process.GONE
    return Process.STOPPED if state in STOPPED_STATES else Process.RUNNING
