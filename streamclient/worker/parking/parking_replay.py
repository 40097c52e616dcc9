"""Giving parked records to a processor again, in order per key, and forgetting those that it has dealt with."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import groupby

from attrs import frozen

from streamclient.base import checks, logs
from streamclient.base.reasons import described
from streamclient.config import processor_maker
from streamclient.errors import ConfigurationError, StreamClientException
from streamclient.interfaces import (
    InitializationInput,
    IParkingStore,
    IPreparedCheckpoint,
    IRecordProcessor,
    IRecordProcessorCheckpointer,
    IShutdownMarker,
    ProcessRecordsInput,
    RecordProcessorFactory,
    ShutdownInput,
)
from streamclient.model import CheckpointPosition, ParkedRecord, PendingCheckpoint, ShardInfo, ShutdownReason
from streamclient.records import PrimaryKey
from streamclient.worker.parking.parked_frames import key_text

_log = logs.logger(__name__)


@frozen
class KeyLeft:
    """A key of which records are still parked after a replay."""

    stream_id: str
    key: PrimaryKey
    records: int
    """How many, as far as the replay knows; a running worker may have parked more."""
    error: str
    """What the processor raised at the first of them, or that it did not checkpoint it."""

    def __str__(self) -> str:
        noun = "record" if self.records == 1 else "records"
        return f"{key_text(self.key)}: {self.records} {noun} left: {self.error}"


@frozen
class ReplayReport:
    """What a replay did."""

    replayed: int
    """Records that the processor dealt with; they are no longer parked."""
    left: tuple[KeyLeft, ...]


_keys = checks.Check(
    "a collection of primary keys or None",
    lambda value: value is None or (isinstance(value, Collection) and not isinstance(value, str | bytes)),
)


@checks.explains_names
def replay_parked(
    store: IParkingStore,
    processor_factory: RecordProcessorFactory,
    *,
    stream_id: str | None = None,
    keys: Collection[PrimaryKey] | None = None,
) -> ReplayReport:
    """Deliver parked records again: those of one key in their order, one record per batch.

    Each key gets a processor of its own for each shard that its records came from. A record is forgotten as soon as
    the processor has checkpointed it, in ``process_records`` or in ``shutdown``, and the call that delivered it has
    returned without an error. The first failure of a key ends the replay of that key; other keys go on. Workers may run
    meanwhile: they go on parking records of a key until none is left, so repeat the replay until nothing is.

    The processor is told ``InitializationInput.is_replay`` and an epoch of 0, and ``shutdown(PROCESS_DONE)`` at the
    end, ``PROCESS_RESTART`` after a failure. A sink that takes no replays raises, and the records stay parked.

    Args:
        store: where the records are.
        processor_factory: as for ``Worker``.
        stream_id: replay only what came from this stream.
        keys: replay only these primary keys.

    Raises:
        ConfigurationError: ``processor_factory`` is none. Reading the store raises what the store raises.
    """
    checks.implementation(IParkingStore).require("store", store)
    checks.optional(checks.text).require("stream_id", stream_id)
    _keys.require("keys", keys)
    records = (each for each in store.parked(stream_id) if keys is None or each.record.primary_key in keys)
    return replay_records(store, processor_factory, records)


def replay_records(
    store: IParkingStore, processor_factory: RecordProcessorFactory, records: Iterable[ParkedRecord]
) -> ReplayReport:
    """Replay these; of each key they must be all that is parked, or at least the first ones."""
    make = processor_maker("processor_factory", processor_factory)
    replayed, left = 0, []
    for group in _by_key(records):
        done, error = _replay_key(store, make, group)
        replayed += done
        if error:
            first = group[0]
            left.append(KeyLeft(first.stream_id, first.record.primary_key, len(group) - done, error))
            _log.info("replay: %s", left[-1])
    return ReplayReport(replayed, tuple(left))


def _by_key(records: Iterable[ParkedRecord]) -> Iterator[list[ParkedRecord]]:
    found: dict[tuple[str, PrimaryKey], list[ParkedRecord]] = {}
    for parked in records:
        found.setdefault((parked.stream_id, parked.record.primary_key), []).append(parked)
    for group in found.values():
        yield sorted(group, key=lambda parked: (parked.generation, parked.record_id))


def _replay_key(
    store: IParkingStore, make: Callable[[], IRecordProcessor], records: Sequence[ParkedRecord]
) -> tuple[int, str]:
    """How many were dealt with, and the error that ended it, if one did."""
    done = 0
    for _, run in groupby(records, lambda parked: parked.shard_id):
        replayer = _Replayer(store, list(run))
        error = replayer.replay(make)
        done += replayer.done
        if error:
            return done, error
    return done, ""


class _Marker(IShutdownMarker):
    """Remembers that the processor wanted to end."""

    def __init__(self) -> None:
        self.is_marked = False

    def mark_for_process_done(self) -> None:
        self.is_marked = True

    def mark_for_process_restart(self) -> None:
        self.is_marked = True


class _Prepared(IPreparedCheckpoint):
    def __init__(self, checkpointer: IRecordProcessorCheckpointer, pending: PendingCheckpoint) -> None:
        self._checkpointer = checkpointer
        self._pending = pending

    @property
    def pending(self) -> PendingCheckpoint:
        return self._pending

    def checkpoint(self) -> None:
        self._checkpointer.checkpoint(self._pending.value)


class _Replayer(IRecordProcessorCheckpointer):
    """Records of one key and shard, one processor, and the checkpointer that it is given. Positions are record ids."""

    def __init__(self, store: IParkingStore, records: Sequence[ParkedRecord]) -> None:
        self._store = store
        self._records = records
        self._start = records[0].position
        self._delivered = 0
        self._accepted = 0
        """How many of the records were delivered by calls that returned without an error."""
        self._checkpointed = 0
        self._lock = threading.Lock()
        self.done = 0
        """How many of the records, from the first one on, are accepted, checkpointed and forgotten."""

    def replay(self, make: Callable[[], IRecordProcessor]) -> str:
        """Deliver all of them; the first error, if there was one."""
        error = ""
        try:
            processor = make()
            error = self._run(processor)
            reason = ShutdownReason.PROCESS_RESTART if error else ShutdownReason.PROCESS_DONE
            processor.shutdown(ShutdownInput(reason, self))
        except Exception as raised:
            return error or described(raised)
        if not error and self.done < len(self._records):
            return "the processor did not checkpoint it; call checkpointer.checkpoint() in process_records or shutdown"
        return error

    def _run(self, processor: IRecordProcessor) -> str:
        first, marker = self._records[0], _Marker()
        shard = ShardInfo(first.shard_id, first.stream_id, frozenset(), f"replay-{uuid.uuid4()}")
        try:
            processor.initialize(InitializationInput(shard, first.position, self, marker, is_replay=True))
            for number, parked in enumerate(self._records, 1):
                self._delivered = number
                processor.process_records(ProcessRecordsInput((parked.record,), self, marker))
                with self._lock:
                    self._accepted = number
                    self._forget()
                if marker.is_marked:
                    return "the processor marked itself for its end"
        except Exception as error:
            with self._lock:
                # No checkpoint covers the record that failed, neither an earlier one nor one in shutdown.
                self._delivered = self._accepted
                self._checkpointed = min(self._checkpointed, self._accepted)
            return described(error)
        return ""

    @property
    def largest_permitted_checkpoint_value(self) -> str:
        """The id of the last record that was delivered and did not fail."""
        return self._start if self._delivered == 0 else self._records[self._delivered - 1].record_id

    def checkpoint(self, checkpoint_value: str | None = None) -> None:
        """Forget every record up to there; the one under delivery once its call has returned without an error."""
        with self._lock:
            self._checkpointed = max(self._checkpointed, self._place(checkpoint_value))
            self._forget()

    def _forget(self) -> None:
        upto = min(self._checkpointed, self._accepted)
        if upto > self.done:
            self._store.remove(self._records[self.done : upto])
            self.done = upto

    def prepare_checkpoint(self, checkpoint_value: str | None, state: bytes) -> IPreparedCheckpoint:
        """Stores nothing: after a crash, the record is still parked, and nobody knows of the state."""
        place = self._place(checkpoint_value)
        value = self._start if place == 0 else self._records[place - 1].record_id
        return _Prepared(self, PendingCheckpoint(value, state, max(0, place - self.done), 0))

    def _place(self, value: str | None) -> int:
        if value in (None, CheckpointPosition.SHARD_END):
            return self._delivered
        places = {self._start: 0} | {
            parked.record_id: number for number, parked in enumerate(self._records[: self._delivered], 1)
        }
        if value not in places:
            raise ConfigurationError(
                f"checkpoint {value!r} was not handed out; use a value of largest_permitted_checkpoint_value"
            )
        return places[value]


def processor_named(text: str, load: Callable[[str], object]) -> RecordProcessorFactory:
    """The factory that ``module:name`` names; ``load`` imports a module.

    Raises:
        StreamClientException: there is no such module or name, it makes no processors, or it takes arguments.
    """
    module_name, _, name = text.partition(":")
    try:
        found = getattr(load(module_name), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise StreamClientException(f"{text!r} names no factory, expected module:factory: {error}") from error
    except SystemExit as error:  # a supervisor would take it for an accident, and start the process again and again
        raise StreamClientException(
            f"{text!r} names no factory: importing {module_name} ends the program with {error.code!r}; keep what it "
            'does as a program behind  if __name__ == "__main__":'
        ) from error
    if not callable(getattr(found, "create_processor", found)):
        raise StreamClientException(f"{text!r} is {found!r}, which makes no processors")
    is_class_of_factories = isinstance(found, type) and hasattr(found, "create_processor")
    try:
        factory: RecordProcessorFactory = found() if is_class_of_factories else found
    except TypeError as error:
        raise StreamClientException(
            f"{text!r} takes arguments, and nothing gives it any; name a function that makes it: {error}"
        ) from error
    return factory
