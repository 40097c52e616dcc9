"""The objects that all consumers of a stream share, and the interface that decides when a consumer may read."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from attrs import evolve, field, frozen

from streamclient.base import checks, logs
from streamclient.base.outages import OutageLog
from streamclient.base.reasons import Reason
from streamclient.config import ClientConfig
from streamclient.core.consumer.consumer_events import OrderEnded, Park
from streamclient.core.consumer.machine import ConsumerMachine
from streamclient.core.consumer.parked import first_generations
from streamclient.core.consumer.reading_pace import TablePace
from streamclient.core.consumer.transitions import Phase
from streamclient.core.events import ConsumerEnd, StartConsumer
from streamclient.core.shard_tree import ShardTree
from streamclient.interfaces import IParkingStore, IRecordProcessor
from streamclient.model import ParkedKey, ParkedRecord, RecordOrder, ShardInfo
from streamclient.tablestore.stream_api import StreamApi
from streamclient.worker.checkpointer import CheckpointTicket
from streamclient.worker.handing_over import ReceiverFactory
from streamclient.worker.instruments import Instruments
from streamclient.worker.owner_loop import OwnerLoop
from streamclient.worker.parking.parked_fleets import require_own
from streamclient.worker.parking.parked_frames import key_text, record_id
from streamclient.worker.parking.parking_files import FileParkingStore
from streamclient.worker.read_calls import OwnerReads, PrefetchBudget
from streamclient.worker.statuses import StreamFacts
from streamclient.worker.usercode import UserCode, checked_keys

_log = logs.logger(__name__)

IN_TURN = frozenset({Phase.READING, Phase.DELIVERING, Phase.PARKING})
"""The phases in which a consumer reads or processes a page. A consumer that leaves these phases ends its
``ReadingTurn``."""


@frozen(kw_only=True)
class ConsumerParts:
    """The objects, settings and callbacks that all consumers of one stream of a worker share."""

    loop: OwnerLoop
    user_code: UserCode
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
    """A function that returns whether a shard has certainly ended. Its arguments are the ``own_info`` of the shard's
    consumer, and the time at which the read of the last page began. After ``False``, the consumer's ``end_judged`` is
    called later with the result."""
    ended: Callable[[ShardInfo, ConsumerEnd], None]
    stalled: Callable[[ShardInfo, str], None]
    """A function that is called when a consumer makes no progress. Its arguments are the shard and the reason."""
    instruments: Instruments
    page_came: Callable[[str, int | None, int], None] = lambda shard_id, position_micros, first_micros: None
    """A function that is called for each page with records, before the shard's position moves. Its arguments are the
    shard's id, the time of the shard's position (``None`` if unknown), and the time of the page's first record."""
    store_of: Callable[[RecordOrder], IParkingStore] = field(factory=lambda: partial(ordered_store, None))
    """A function that returns the parking store that an operator's order names. It is called in the threads of user
    code."""
    ended_order: Callable[[ShardInfo, OrderEnded], None] = lambda shard, ended: None
    """A function that is called when a consumer has obeyed an operator's order, or when the order was withdrawn."""
    tree: Callable[[], ShardTree] = ShardTree
    """A function that returns the shards of the stream that are known now. Only the owner thread may call it."""
    fleet: str = ""
    """The fleet that parks records: the name of its status table. A tunnel leaves it empty, because its records have
    the tunnel's id as their stream."""
    outages: OutageLog = field(factory=lambda: OutageLog(_log))
    """The log of outages of the service. All consumers share the log, because an outage concerns all shards."""
    full_page_records: int | None = None
    """The largest number of records that a read returns; ``None`` if the service decides, as in a tunnel."""
    moves_when_idle: bool = False
    """Whether the position of a shard moves with time even if no record is written, as in a tunnel's channel."""

    def machine(self, start: StartConsumer) -> ConsumerMachine:
        """Return the state machine that decides for the new consumer that ``start`` describes."""
        return ConsumerMachine(
            start,
            self.config,
            self.dice,
            record_id=record_id,
            key_text=key_text,
            table_pace=self.pace,
            full_page_records=self.full_page_records,
            moves_when_idle=self.moves_when_idle,
            tree=self.tree,
        )


class ReadingTurn(Protocol):
    """The permission of one consumer to read and process a page. A consumer may have to wait for its turn."""

    def ask(self, go: Callable[[], None]) -> None:
        """Call ``go`` when the consumer's turn comes, either immediately or later.

        If ``end`` is called first, ``go`` is not called.
        """

    def end(self) -> None:
        """End the turn, or the wait for the turn, because the consumer has no page to process.

        A second call is harmless.
        """

    def hold_up(self) -> Reason | None:
        """Return why the consumer waits for its turn; ``None`` if it does not wait."""


class AlwaysInTurn:
    """The turn of a consumer that may always read."""

    def ask(self, go: Callable[[], None]) -> None:
        """Call ``go`` immediately."""
        go()

    def end(self) -> None:
        """Do nothing: this consumer needs no turns."""

    def hold_up(self) -> Reason | None:
        """Return ``None``, because this consumer needs no turns."""
        return None


def ordered_store(client: Any, order: RecordOrder) -> IParkingStore:
    """Return the parking store that an operator's order names.

    Raises:
        ConfigurationError: this worker cannot use the store.
    """
    if order.parking_table:
        from streamclient.worker.parking.parking_table import TableParkingStore  # noqa: PLC0415  # loads the SDK

        return TableParkingStore(client, order.parking_table)
    return FileParkingStore(order.parking_directory)


def parked_keys(store: IParkingStore, shard: ShardInfo, around: ConsumerParts) -> list[ParkedKey]:
    """Return the keys of the stream that have parked records in ``store``.

    Raises:
        ConfigurationError: another fleet has parked records of the stream in ``store``, or the answer is not usable.
    """
    keys = checked_keys(store.parked_keys(shard.stream_id))
    require_own(around.fleet, keys, store)
    return keys


def park(command: Park, shard: ShardInfo, around: ConsumerParts) -> Sequence[ParkedRecord]:
    """Park the records that ``command`` names, and return them in the form that a parking store takes.

    If the failure policy of the worker has no parking store, use the store that the operator's order names.
    """
    store, order = around.config.failure_policy.parking, command.order
    if store is None and order is not None:
        store = around.store_of(order)
        records = [command.page.records[index] for index in command.indices]
        keys = parked_keys(store, shard, around)
        generations = first_generations(keys, shard.shard_id, records, record_id, command.tree)
        command = evolve(command, generations=generations)
    parked = parked_records(command, shard, around.wall_micros(), around.fleet)
    if store is not None:
        checks.done("park", store.park(parked))
    return parked


def parked_records(command: Park, shard: ShardInfo, now_micros: int, fleet: str) -> Sequence[ParkedRecord]:
    """Return the records that ``command`` names, in the form that a parking store takes."""
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
            fleet=fleet,
        )
        for index, generation in zip(command.indices, command.generations or (), strict=True)
    )
