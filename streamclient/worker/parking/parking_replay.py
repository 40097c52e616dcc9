"""The replay of parked records: a processor gets the records again, in order within a key.

Records that were processed are removed from the parking store.
"""

from __future__ import annotations

import json
import math
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

from attrs import frozen

from streamclient.base import checks, logs
from streamclient.base.reasons import described
from streamclient.errors import ConfigurationError, StreamClientException
from streamclient.interfaces import (
    InitializationInput,
    IParkingStore,
    IPreparedCheckpoint,
    IRecordProcessor,
    IRecordProcessorCheckpointer,
    IShutdownMarker,
    ProcessRecordsInput,
    ShutdownInput,
)
from streamclient.model import CheckpointPosition, ParkedRecord, PendingCheckpoint, ShardInfo, ShutdownReason
from streamclient.records import PrimaryKey
from streamclient.worker.handlers.batches import RecordProcessorFactory
from streamclient.worker.handlers.handler_processor import blocking_maker
from streamclient.worker.parking.parked_fleets import require_one_fleet
from streamclient.worker.parking.parked_frames import key_text
from streamclient.worker.running import EXIT_CODE_OF_SIGTERM

_log = logs.logger(__name__)


@frozen
class KeyLeft:
    """A key that still has parked records after a replay."""

    stream_id: str
    key: PrimaryKey
    records: int
    """The number of records still parked, as far as the replay knows. A running worker may have parked more."""
    error: str
    """The first error in the replay of this key. Without an error, the text says that the processor did not checkpoint
    the first record that is left."""

    def __str__(self) -> str:
        noun = "record" if self.records == 1 else "records"
        return f"{key_text(self.key)}: {self.records} {noun} left: {self.error}"


@frozen
class ReplayReport:
    """The result of a replay: the number of replayed records, and the keys that still have parked records."""

    replayed: int
    """The number of records that the processor processed. They are no longer parked."""
    left: tuple[KeyLeft, ...]


def replay_document(report: ReplayReport) -> dict[str, Any]:
    """Return the result of a replay as ``parked replay --json`` prints it."""
    left = [
        {
            "stream_id": rest.stream_id,
            "key": json.loads(key_text(rest.key)),
            "records": rest.records,
            "error": rest.error,
        }
        for rest in report.left
    ]
    return {"replayed": report.replayed, "left": left}


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
    fleet: str | None = None,
) -> ReplayReport:
    """Deliver parked records again: the records of one key in their order, one record per batch.

    Each key gets a processor of its own for each shard of its records. A record is removed from the store as soon as
    two conditions are met: the processor has checkpointed the record, in ``process_records`` or in ``shutdown``, and
    the call that delivered the record has returned without an error. The first failure of a key ends the replay of that
    key; other keys go on. Workers may run meanwhile. They park further records of a key while the key has parked
    records, so repeat the replay until no record is left.

    A ``SystemExit`` of the processor is a failure of its key, as in a worker. Only a ``SystemExit`` with the code 143
    in the main thread ends the replay, because SIGTERM raises it there.

    Replay a store only once at a time. Before each record, the replay asks the store whether the record is still
    parked, and leaves out what another replay has finished or a person has discarded. A store without a
    ``still_parked`` of its own is asked only about once a second. Two replays that reach a record at the same moment
    both deliver it.

    The processor gets ``InitializationInput.is_replay`` and an epoch of 0. It gets ``shutdown(PROCESS_DONE)`` at the
    end, or ``PROCESS_RESTART`` after a failure. A sink that does not accept replays raises an error, and the records
    stay parked.

    Args:
        store: the store that has the parked records.
        processor_factory: makes the processors; the same kinds of objects are accepted as by ``Worker``.
        stream_id: the stream whose records are replayed; all streams by default.
        keys: the primary keys whose records are replayed; all keys by default.
        fleet: the status table of the fleet whose records are replayed, with those that name no fleet; all records by
            default.

    Raises:
        ConfigurationError: ``processor_factory`` makes no processors, or two fleets have parked records of one stream.
            Errors of ``store.parked`` are raised as they are. After any other error of the store, its key is left.
    """
    checks.implementation(IParkingStore).require("store", store)
    checks.optional(checks.text).require("stream_id", stream_id)
    _keys.require("keys", keys)
    checks.optional(checks.text).require("fleet", fleet)
    records = (
        parked
        for parked in store.parked(stream_id)
        if (keys is None or parked.record.primary_key in keys) and (fleet is None or parked.fleet in ("", fleet))
    )
    return replay_records(store, processor_factory, records)


def ends_replay(raised: BaseException) -> bool:
    """Return whether an error of a processor ends the whole replay, such as ``KeyboardInterrupt``."""
    if isinstance(raised, SystemExit):
        return raised.code == EXIT_CODE_OF_SIGTERM and threading.current_thread() is threading.main_thread()
    return not isinstance(raised, Exception)


def replay_records(
    store: IParkingStore,
    processor_factory: RecordProcessorFactory,
    records: Iterable[ParkedRecord],
    ends: Callable[[BaseException], bool] = ends_replay,
) -> ReplayReport:
    """Replay ``records``. The records of each key must begin with its first parked record, and have no gaps.

    ``ends`` returns whether an error of a processor ends the replay. Any other error is a failure of its key.

    Raises:
        ConfigurationError: two fleets have parked records of one stream, or ``processor_factory`` makes no processors.
    """
    make = blocking_maker("processor_factory", processor_factory)
    chosen = list(records)
    require_one_fleet(chosen)
    replayed, left, present = 0, [], _Present(store, chosen)
    for group in _by_key(chosen):
        done, rest, error = _replay_key(store, present, make, group, ends)
        replayed += done
        if error:
            first = group[0]
            left.append(KeyLeft(first.stream_id, first.record.primary_key, rest, error))
            _log.info("replay: %s", left[-1])
    return ReplayReport(replayed, tuple(left))


def _by_key(records: Iterable[ParkedRecord]) -> Iterator[list[ParkedRecord]]:
    groups: dict[tuple[str, PrimaryKey], list[ParkedRecord]] = {}
    for parked in records:
        groups.setdefault((parked.stream_id, parked.record.primary_key), []).append(parked)
    for group in groups.values():
        yield sorted(group, key=lambda parked: (parked.generation, parked.record_id))


def _replay_key(
    store: IParkingStore,
    present: _Present,
    make: Callable[[], IRecordProcessor],
    records: Sequence[ParkedRecord],
    ends: Callable[[BaseException], bool],
) -> tuple[int, int, str]:
    """Replay the records of one key; return the number of processed records, of records left, and the first error.

    Without an error, the last element is ``""``.
    """
    done, left, error = 0, len(records), ""
    for _, run in groupby(records, lambda parked: parked.shard_id):
        replayer = _Replayer(store, present, list(run), ends)
        error = replayer.replay(make)
        done += replayer.done
        left -= replayer.done + replayer.gone
        if error:
            break
    return done, left, error


_LEAST_SECONDS = 1.0
"""The shortest time between two questions to a store that may read all of its records for an answer."""

_PAUSES_PER_ANSWER = 10
"""The time between two such questions, in times of the last answer. So they take a tenth of a replay at most."""


class _Present:
    """The answer of a store to the question which records are still parked.

    A store with a ``still_parked`` of its own is asked for each record. Any other store may read all of its records for
    an answer, so it is asked at most every ``_LEAST_SECONDS``, and for a small share of the time.
    """

    def __init__(self, store: IParkingStore, records: Sequence[ParkedRecord]) -> None:
        self._store = store
        self._records = records
        self._looks_up = (
            getattr(type(store), "still_parked", IParkingStore.still_parked) is not IParkingStore.still_parked
        )
        self._found: set[tuple[str, str, str]] = set()
        self._next_at = -math.inf

    def has(self, parked: ParkedRecord) -> bool:
        """Return whether ``parked`` is still parked, as far as the last answer shows."""
        if self._looks_up:
            return bool(self._store.still_parked([parked]))
        if not hasattr(self._store, "parked_keys"):
            return True  # a store with the abstract methods alone
        began = time.monotonic()
        if began >= self._next_at:
            self._found = {_identity(each) for each in IParkingStore.still_parked(self._store, self._records)}
            ended = time.monotonic()
            self._next_at = ended + max(_LEAST_SECONDS, _PAUSES_PER_ANSWER * (ended - began))
        return _identity(parked) in self._found


def _identity(parked: ParkedRecord) -> tuple[str, str, str]:
    return parked.stream_id, parked.shard_id, parked.record_id


class _Marker(IShutdownMarker):
    """A marker that remembers whether the processor has asked to end or to be replaced."""

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
    """Replays the records of one key and shard to one processor, and is its checkpointer. Positions are record ids."""

    def __init__(
        self,
        store: IParkingStore,
        present: _Present,
        records: list[ParkedRecord],
        ends: Callable[[BaseException], bool],
    ) -> None:
        self._store = store
        self._present = present
        self._ends = ends
        self._records = records
        """The records to deliver; without those that were found to be no longer parked."""
        self._start = records[0].position
        self._delivered = 0
        self._accepted = 0
        """The number of records, from the first on, whose call of ``process_records`` returned without an error."""
        self._checkpointed = 0
        self._lock = threading.Lock()
        self.done = 0
        """The number of records, from the first on, that were accepted, checkpointed and removed from the store."""
        self.gone = 0
        """The number of records that were left out, because they were no longer parked."""

    def replay(self, make: Callable[[], IRecordProcessor]) -> str:
        """Deliver the records that are still parked to a processor of ``make``; return the first error, or ``""``."""
        error = ""
        try:
            if not self._keeps_next():
                return ""
            processor = make()
            error = self._run(processor)
            reason = ShutdownReason.PROCESS_RESTART if error else ShutdownReason.PROCESS_DONE
            processor.shutdown(ShutdownInput(reason, self))
        except BaseException as raised:
            if self._ends(raised):
                raise
            return error or described(raised)
        if not error and self.done < len(self._records):
            return (
                "the processor did not checkpoint the record; call checkpointer.checkpoint() in process_records or "
                "shutdown"
            )
        return error

    def _run(self, processor: IRecordProcessor) -> str:
        first, marker = self._records[0], _Marker()
        shard = ShardInfo(first.shard_id, first.stream_id, frozenset(), f"replay-{uuid.uuid4()}")
        try:
            processor.initialize(InitializationInput(shard, first.position, self, marker, is_replay=True))
            has_next = True
            while has_next:
                parked = self._records[self._delivered]
                self._delivered += 1
                processor.process_records(ProcessRecordsInput((parked.record,), self, marker))
                with self._lock:
                    self._accepted = self._delivered
                    self._forget()
                if marker.is_marked:
                    return "the processor marked itself as done or for a restart"
                has_next = self._keeps_next()
        except BaseException as error:
            if self._ends(error):
                raise
            with self._lock:
                # A checkpoint, whether made earlier or in shutdown, must not include the failed record.
                self._delivered = self._accepted
                self._checkpointed = min(self._checkpointed, self._accepted)
            return described(error)
        return ""

    def _keeps_next(self) -> bool:
        """Leave out records that are no longer parked before the next one to deliver; return whether there is one."""
        while self._delivered < len(self._records):
            if self._present.has(self._records[self._delivered]):
                return True
            with self._lock:
                del self._records[self._delivered]
            self.gone += 1
        return False

    @property
    def largest_permitted_checkpoint_value(self) -> str:
        """The id of the record that was delivered last; after a failure, of the last record before the failed one.

        If there is no such record, it is the position at which the page of the first parked record was read.
        """
        return self._start if self._delivered == 0 else self._records[self._delivered - 1].record_id

    def checkpoint(self, checkpoint_value: str | None = None) -> None:
        """Remove every record up to the checkpoint from the store.

        The record that is being delivered is removed only if its call returns without an error.
        """
        with self._lock:
            self._checkpointed = max(self._checkpointed, self._count_up_to(checkpoint_value))
            self._forget()

    def _forget(self) -> None:
        upto = min(self._checkpointed, self._accepted)
        if upto > self.done:
            self._store.remove(self._records[self.done : upto])
            self.done = upto

    def prepare_checkpoint(self, checkpoint_value: str | None, state: bytes) -> IPreparedCheckpoint:
        """Return a prepared checkpoint, which is not stored.

        So after a crash the records up to this checkpoint are still parked, and ``state`` is lost.
        """
        count = self._count_up_to(checkpoint_value)
        value = self._start if count == 0 else self._records[count - 1].record_id
        return _Prepared(self, PendingCheckpoint(value, state, max(0, count - self.done), 0))

    def _count_up_to(self, value: str | None) -> int:
        if value in (None, CheckpointPosition.SHARD_END):
            return self._delivered
        counts = {self._start: 0} | {
            parked.record_id: number for number, parked in enumerate(self._records[: self._delivered], 1)
        }
        if value not in counts:
            raise ConfigurationError(
                f"checkpoint {value!r} was not handed out; use a value of largest_permitted_checkpoint_value"
            )
        return counts[value]


def object_named(text: str, load: Callable[[str], object], noun: str) -> object:
    """Return the object that ``text`` names as ``module:name``.

    ``load`` imports a module. ``noun`` names the expected object in error messages.

    Raises:
        StreamClientException: the module or the name does not exist.
    """
    module_name, _, name = text.partition(":")
    if not module_name or not name:
        raise StreamClientException(f"{text!r} names no {noun}, expected module:{noun}, such as orders:Print")
    try:
        return getattr(load(module_name), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise StreamClientException(f"{text!r} names no {noun}, expected module:{noun}: {error}") from error
    except SystemExit as error:  # not passed on, because a supervisor would restart the process for ever
        raise StreamClientException(
            f"{text!r} names no {noun}: importing {module_name} ends the program with {error.code!r}; put its main "
            'program under  if __name__ == "__main__":'
        ) from error


def processor_named(text: str, load: Callable[[str], object]) -> RecordProcessorFactory:
    """Return the factory that ``text`` names as ``module:name``; ``load`` imports a module.

    Raises:
        StreamClientException: the module or name does not exist, or the object makes no processors, or it takes
            arguments.
    """
    named: Any = object_named(text, load, "factory")
    if not callable(getattr(named, "create_processor", named)):
        raise StreamClientException(f"{text!r} is {named!r}, which makes no processors")
    is_class_of_factories = isinstance(named, type) and hasattr(named, "create_processor")
    try:
        factory: RecordProcessorFactory = named() if is_class_of_factories else named
    except SystemExit as error:
        raise StreamClientException(f"{text!r} cannot be made: it ends the program with {error.code!r}") from error
    except TypeError as error:
        raise StreamClientException(
            f"{text!r} takes arguments, and gets none here; name a function that makes it: {error}"
        ) from error
    return factory
