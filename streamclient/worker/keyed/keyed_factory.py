"""The factory of processors that process records key by key."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable

from streamclient.base import checks
from streamclient.interfaces import IRecordProcessor, IRecordProcessorFactory
from streamclient.records import StreamRecord
from streamclient.worker.keyed.keyed_processor import KeyedProcessor
from streamclient.worker.keyed.keyed_settings import KeyedSettings, primary_key
from streamclient.worker.keyed.lane_pool import LanePool


@checks.explains_names
class KeyedProcessorFactory(IRecordProcessorFactory):
    """Processes records key by key: the records of one key in order, those of different keys at the same time.

    Give it to a ``Worker`` as its processor factory. ``process_record`` is called for each record in one of ``threads``
    threads that all shards of the factory share, never twice at once for one key of a shard. It returns when the record
    is done, and raises if the record cannot be done.

    Checkpoints are made here: the stored position is the last one before which *every* record is done. After a crash, a
    hand-over or a failure, reading resumes there, so later records come again even if they were done.

    If ``process_record`` raises, the record is tried again in place while other keys go on. If it keeps failing, the
    shard starts again from its checkpoint. Until it is past that record, it finishes each batch before it takes the
    next one. So ``process_records`` raises for exactly the batch with the record, and the worker's failure policy
    applies to it.

    Args:
        process_record: does the work for one record.
        threads: the largest number of records under way at once, over all shards.
        key: returns the key within which records stay in order; by default the primary key. It must be quick and not
            raise.
        most_pending_bytes: the largest number of bytes that wait or are under way, over all shards, about as on the
            wire. A shard with nothing pending may always take one record. At the limit ``process_records`` waits.
        retries: the number of times that a record that raised is tried again in place.
        first_pause_millis: the pause before the first retry; it doubles with each retry. The thread waits, so keep the
            sum short.
        checkpoint_interval_millis: the shortest time between two checkpoints of a shard while records are pending.
        slow_record_warning_millis: the time after which a record under way is logged with the stack of its thread,
            again at each doubling.
        monotonic: returns seconds that never step; replaceable for tests.

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

    @property
    def pending_bytes(self) -> int:
        """Bytes that wait or are under way now, over all shards. Usable from any thread."""
        return self._lane_pool.pending.used_bytes
