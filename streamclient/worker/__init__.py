"""The threads, the clocks and the calls with which a worker carries out the decisions of ``core``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamclient.base._lazy import loader

if TYPE_CHECKING:
    from streamclient.worker.runtime import Runtime
    from streamclient.worker.worker import Worker

__all__ = ["Runtime", "Worker"]

__getattr__ = loader(__name__, {"Runtime": "runtime", "Worker": "worker"})
