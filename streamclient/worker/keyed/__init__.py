"""Processing the records of a shard key by key, different keys side by side, with exact checkpoints."""

from __future__ import annotations

from streamclient.worker.keyed.keyed_factory import KeyedProcessorFactory

__all__ = ["KeyedProcessorFactory"]
