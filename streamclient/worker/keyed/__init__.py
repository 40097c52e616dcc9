"""Processing of records key by key: in order within a key, different keys at the same time, with exact checkpoints."""

from __future__ import annotations

from streamclient.worker.keyed.keyed_factory import KeyedProcessorFactory

__all__ = ["KeyedProcessorFactory"]
