"""The shared parts of a worker's consumers, and their turns of reading."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Any, Protocol

from attrs import evolve, field, frozen

from streamclient.base import checks, logs
from streamclient.base.outages import OutageLog
from streamclient.base.pools import once
from streamclient.base.reasons import Reason
from streamclient.config import ClientConfig
from streamclient.core.consumer.consumer_events import OrderEnded, Park
from streamclient.core.consumer.parked import first_generations
from streamclient.core.consumer.reading_pace import TablePace
from streamclient.core.consumer.transitions import Phase
from streamclient.core.events import ConsumerEnd
from streamclient.interfaces import IParkingStore, IRecordProcessor
from streamclient.model import ParkedRecord, RecordOrder, ShardInfo
from streamclient.tablestore.stream_api import StreamApi
from streamclient.worker.checkpointer import CheckpointTicket
from streamclient.worker.handing_over import ReceiverFactory
from streamclient.worker.instruments import Instruments
from streamclient.worker.owner_loop import OwnerLoop
from streamclient.worker.parking.parked_frames import record_id
from streamclient.worker.parking.parking_files import FileParkingStore
from streamclient.worker.read_calls import OwnerReads, PrefetchBudget
from streamclient.worker.statuses import StreamFacts
from streamclient.worker.usercode import UserCode, checked_keys

_log = logs.logger(__name__)

IN_TURN = frozenset({Phase.READING, Phase.DELIVERING, Phase.PARKING})
"""Phases in which a page is read or processed. In the other phases no page is in work, or ``shutdown`` runs."""


@frozen(kw_only=True)
class ConsumerParts:
    """The shared parts of a worker's consumers."""

    loop: OwnerLoop
    user_code: UserCode
    fetch_pool: Executor = field(converter=once)
    """The threads for lookups; records are read through ``reads``."""
    reads: OwnerReads
    prefetch: PrefetchBudget
    pace: TablePace
    stream_api: StreamApi
    make_processor: Callable[[], IRecordProcessor] | ReceiverFactory
    config: ClientConfig
    table_name: str
    max_records: int
    dice: random.Random
    facts: StreamFacts
    wall_micros: Callable[[], int]
    wait: Callable[[threading.Event, float], bool]
    send_checkpoint: Callable[[ShardInfo, CheckpointTicket, float], bool]
    confirm_end: Callable[[ShardInfo, float], bool]
    """Returns whether a consumer's shard has certainly ended. The arguments are the consumer's and the time at which
    the read of its last page began. If the end is not certain, ``end_judged`` is called later."""
    ended: Callable[[ShardInfo, ConsumerEnd], None]
    stalled: Callable[[ShardInfo, str], None]
    """Called when a consumer makes no progress. The text says why."""
    instruments: Instruments
    page_came: Callable[[str, int | None, int], None] = lambda shard_id, position_micros, first_micros: None
    """Called with each page of records, before the shard's position moves. The arguments are the shard's id, the time
    of its position if that is known, and the time of the first record."""
    store_of: Callable[[RecordOrder], IParkingStore] = field(factory=lambda: partial(ordered_store, None))
    """Returns the parking store that an operator's order names. It is called where user code runs."""
    ended_order: Callable[[ShardInfo, OrderEnded], None] = lambda shard, ended: None
    """Called when a consumer has obeyed an operator's order, or the order was withdrawn."""
    outages: OutageLog = field(factory=lambda: OutageLog(_log))
    """The outages of the service. They are shared, because one outage strikes all shards of a worker."""


class ReadingTurn(Protocol):
    """The times at which a consumer may read and process."""

    def ask(self, go: Callable[[], None]) -> None:
        """Call ``go`` in the consumer's turn: now or later. If ``end`` is called first, ``go`` is not called."""

    def end(self) -> None:
        """End the turn, or the wait for it, because no page is in work any more. A second call is harmless."""

    def hold_up(self) -> Reason | None:
        """Return the reason that the consumer waits for its turn; ``None`` if it does not wait."""


class AlwaysInTurn:
    """A consumer that needs no turns."""

    def ask(self, go: Callable[[], None]) -> None:
        """Call ``go`` now."""
        go()

    def end(self) -> None:
        """Do nothing: this consumer needs no turns."""

    def hold_up(self) -> Reason | None:
        """Return ``None``, because this consumer needs no turns."""
        return None


def ordered_store(client: Any, order: RecordOrder) -> IParkingStore:
    """Return the parking store that an operator's order names.

    Raises:
        ConfigurationError: the store cannot be used here.
    """
    if order.parking_table:
        from streamclient.worker.parking.parking_table import TableParkingStore  # noqa: PLC0415  # loads the SDK

        return TableParkingStore(client, order.parking_table)
    return FileParkingStore(order.parking_directory)


def park(command: Park, shard: ShardInfo, around: ConsumerParts) -> Sequence[ParkedRecord]:
    """Park records in the worker's own store, else in the store that their order names, and return them."""
    store, order = around.config.failure_policy.parking, command.order
    if store is None and order is not None:
        store = around.store_of(order)
        records = [command.page.records[index] for index in command.indices]
        keys = checked_keys(store.parked_keys(shard.stream_id))
        command = evolve(command, generations=first_generations(keys, shard.shard_id, records, record_id))
    parked = parked_records(command, shard, around.wall_micros())
    if store is not None:
        checks.done("park", store.park(parked))
    return parked


def parked_records(command: Park, shard: ShardInfo, now_micros: int) -> Sequence[ParkedRecord]:
    """Return the records to park, as the store receives them."""
    records, failure = command.page.records, command.failure
    return tuple(
        ParkedRecord(
            record_id=record_id(records[index]),
            stream_id=shard.stream_id,
            shard_id=shard.shard_id,
            record=records[index],
            position=command.position,
            index=index,
            generation=generation,
            error=failure.error,
            traceback=failure.traceback,
            attempts=failure.attempts,
            parked_micros=now_micros,
        )
        for index, generation in zip(command.indices, command.generations or (), strict=True)
    )
