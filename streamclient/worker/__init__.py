"""Runs processors: threads, clocks and calls to the service around the decisions of ``core``."""

from streamclient.worker.health import WorkerHealth
from streamclient.worker.runtime import Runtime
from streamclient.worker.worker import Worker

__all__ = ["Runtime", "Worker", "WorkerHealth"]
