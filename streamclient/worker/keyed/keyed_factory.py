"""The factory of processors that process records key by key."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable

from streamclient.base import checks
from streamclient.interfaces import IRecordProcessor
from streamclient.records import StreamRecord
from streamclient.worker.handing_over import ThreadedFactory
from streamclient.worker.keyed.keyed_processor import KeyedProcessor
from streamclient.worker.keyed.keyed_settings import KeyedSettings, primary_key
from streamclient.worker.keyed.lane_pool import LanePool


@checks.explains_names
class KeyedProcessorFactory(ThreadedFactory):
    """Processes records key by key: records of one key in order, and records of different keys at the same time.

    Give this factory to a ``Worker``. ``process_record`` is then called for each record, in one of ``threads`` threads
    that all shards of the factory share. For one key of a shard, calls never overlap. The function returns when the
    record is done, and raises if the record cannot be done.

    The factory stores checkpoints itself: it stores the last position before which *every* record is done. After a
    crash, a hand-over or a failure, reading resumes at that position, so later records come again even if they were
    done.

    If ``process_record`` raises, its thread retries the record, and other keys go on. If the record keeps failing, the
    shard starts again from its checkpoint. Until the shard is past that record, it finishes each batch before it takes
    the next batch. So only the batch with that record fails, and the worker's failure policy applies to the batch.

    Args:
        process_record: does the work for one record; called in a thread.
        threads: the largest number of records that are processed at the same time, over all shards.
        key: returns the key within which records stay in order; by default the primary key. It must be quick and must
            not raise.
        most_pending_bytes: the largest size of all records that wait or are processed, over all shards, in approximate
            bytes on the wire. At the limit the shards wait. A shard without pending records may always take one record.
        retries: the number of times that the thread retries a record whose processing raised an error.
        first_pause_millis: the pause before the first retry; it doubles with each retry. The thread waits, so keep the
            sum of all pauses short.
        checkpoint_interval_millis: the shortest time between two checkpoints of a shard while records are pending.
        slow_record_warning_millis: the time after which a record that is still processed is logged with the stack of
            its thread. It is logged again each time its duration has doubled.
        monotonic: returns seconds of a clock that is never set; replaceable for tests.

    Raises:
        ConfigurationError: an argument is invalid.
    """

    def __init__(
        self,
        process_record: Callable[[StreamRecord], object],
        *,
        threads: int = 16,
        key: Callable[[StreamRecord], Hashable] = primary_key,
        most_pending_bytes: int = 8 << 20,
        retries: int = 2,
        first_pause_millis: int = 100,
        checkpoint_interval_millis: int = 1_000,
        slow_record_warning_millis: int = 30_000,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lane_pool = LanePool(
            KeyedSettings(
                process_record=process_record,
                threads=threads,
                key=key,
                most_pending_bytes=most_pending_bytes,
                retries=retries,
                first_pause_millis=first_pause_millis,
                checkpoint_interval_millis=checkpoint_interval_millis,
                slow_record_warning_millis=slow_record_warning_millis,
                monotonic=monotonic,
            )
        )

    def create_processor(self) -> IRecordProcessor:
        """Make the processor of one shard."""
        return KeyedProcessor(self._lane_pool)

    def is_own_thread(self) -> bool:
        """Return whether the calling thread processes records of this factory. Usable from any thread."""
        return self._lane_pool.is_inside

    @property
    def pending_bytes(self) -> int:
        """The size of all records that wait or are processed now, over all shards, in bytes. Usable from any thread."""
        return self._lane_pool.pending.used_bytes
