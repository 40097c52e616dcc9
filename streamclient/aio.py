"""Changes in an event loop: ``async for``, coroutines as handlers, processors with ``await``."""

from streamclient.loops.aio.async_iterating import AsyncChanges, changes
from streamclient.worker.handlers.batches import AsyncBatch, AsyncRecordProcessor

__all__ = ["AsyncBatch", "AsyncChanges", "AsyncRecordProcessor", "changes"]
