"""The witness of a trial, which observes and judges all calls to the user's processors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container

from attrs import define, field

from streamclient.interfaces import InitializationInput, IRecordProcessor, ProcessRecordsInput, ShutdownInput
from streamclient.model import CheckpointPosition
from streamclient.records import StreamRecord
from streamclient.testing.history import (
    INITIALIZE,
    SHUTDOWN,
    Called,
    CallsOneByOne,
    Delivered,
    EpochsHaveOneOwner,
    Fact,
    Judge,
    KeysInOrder,
    LawBroken,
    OneReliesOnIt,
    ParentsBeforeChildren,
    ReaderBegan,
    ReaderOver,
    Returned,
    ancestors,
)
from streamclient.testing.simulation.trials.trial_settings import Change
from streamclient.testing.simulation.workers import SimulatedWorker
from streamclient.worker.handing_over import shut_down


@define(eq=False)
class Life:
    """One process, from its start to its end. A later process under the same name is another life."""

    name: str
    worker: SimulatedWorker | None = None
    """The worker of the process; ``None`` until the worker is made."""
    started: float = 0.0
    """The time when the process started, in seconds since the run began."""

    def relies_on_lease(self, shard_id: str, identifier: str) -> bool:
        """Return whether the worker is alive, is not frozen, and holds the lease ``identifier`` by its own clock."""
        worker = self.worker
        if worker is None or worker.is_over or worker.is_frozen:
            return False
        held = worker.holdings.held.get(shard_id)
        if held is None or held.acquisition.identifier != identifier:
            return False
        return min(held.valid_until, worker.holdings.session_valid_until) > worker.simulation.now


@define(eq=False)
class Witness:
    """The record of all written changes and all deliveries, which judges the deliveries.

    The laws come from ``streamclient.testing.history``. A reader is user code for one shard, from ``initialize`` to
    ``shutdown``. In the end readers must have accepted all changes.

    A reader accepts a batch when the call with the batch returns, or once a checkpoint after the batch is stored. After
    such a checkpoint no reader gets the batch again, whatever the result of the call.
    """

    note: Callable[[str, str, str], None]
    """A function that records a step, given its actor, the event, and further detail."""
    finished: Callable[[], Container[str]]
    """A function that returns the ids of the shards that were read to their ends, according to the status table."""
    failed: LawBroken | None = None
    """The first violation of a law; ``None`` as long as all laws hold."""
    written: list[Change] = field(factory=list)
    newest: dict[str, int] = field(factory=dict)
    accepted: Counter[Change] = field(factory=Counter)
    current: dict[str, WitnessedReader] = field(factory=dict)
    """The newest reader of each shard, by shard id."""
    places: dict[Change, tuple[str, int]] = field(factory=dict)
    """The shard of each change, and the number of changes that were written to this shard before the change."""
    errors: Counter[str] = field(factory=Counter)
    """The number of times that user code raised each error, by the error's text."""
    parents: dict[str, tuple[str, ...]] = field(factory=dict)
    """The parents of each shard, by shard id."""
    _changes: dict[tuple[str, int], Change] = field(factory=dict)
    _judges: tuple[Judge, ...] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._judges = (
            CallsOneByOne(),
            OneReliesOnIt(WitnessedReader.is_valid, begins_late=True),
            EpochsHaveOneOwner(),
            ParentsBeforeChildren(lambda shard: ancestors(shard, self.parents), lambda shard: shard in self.finished()),
            KeysInOrder(),
        )

    def write(self, key: str, micros: int) -> Change:
        """Record the next change of ``key``, and return the change. No other change has the time ``micros``."""
        number = self.newest[key] = self.newest.get(key, 0) + 1
        change = self._changes[key, micros] = Change(key, number)
        self.written.append(change)
        return change

    def change_of(self, record: StreamRecord) -> Change:
        """Return the change that a record describes."""
        return self._changes[str(record.key["id"]), record.sequence_info.timestamp_micros]

    def tell(self, fact: Fact) -> None:
        """Judge ``fact``; remember and raise the first violation.

        The violation is remembered in ``failed``, because a worker may treat the raised error as a failure of user
        code, and retry.
        """
        for judge in self._judges:
            for broken in judge.see(fact):
                self.failed = self.failed or broken
                raise broken

    def handed_out(self, reader: WitnessedReader, changes: list[Change]) -> None:
        """Judge a batch that ``reader`` gets, and note that the reader has not accepted the changes yet."""
        self.tell(delivered(reader, changes))
        reader.in_hand = list(changes)

    def stored(self, shard_id: str, checkpoint: str) -> None:
        """Record that the shard's newest reader has accepted all changes before the stored ``checkpoint``."""
        reader = self.current.get(shard_id)
        if reader is not None:
            reader.accepts([change for change in reader.in_hand if self._is_before(change, shard_id, checkpoint)])

    def _is_before(self, change: Change, shard_id: str, checkpoint: str) -> bool:
        shard, _, read = checkpoint.rpartition("@")
        _, number = self.places[change]
        return checkpoint == CheckpointPosition.SHARD_END or (shard == shard_id and number < int(read))

    def missing(self) -> list[Change]:
        """Return the written changes that no reader has accepted yet."""
        return [change for change in self.written if not self.accepted[change]]

    def is_read(self, shard_id: str, last: Change, end: str) -> bool:
        """Return whether the shard's newest reader is alive, and has read the shard up to its present end.

        ``last`` is the shard's last change, and ``end`` is the position after this change. A reader has read up to the
        end if it got ``last``, or began at ``end``. A reader of a dead worker does not count, because its memory is
        lost.
        """
        reader = self.current.get(shard_id)
        return reader is not None and reader.is_valid() and (reader.last == last or reader.begin == end)


def delivered(reader: WitnessedReader, changes: list[Change]) -> Delivered:
    """Return a ``Delivered``, the fact which says that ``changes`` reach ``reader``."""
    keys, numbers = [change.key for change in changes], [change.number for change in changes]
    return Delivered(reader, reader.shard_id, keys, numbers)


class WitnessedReader:
    """User code for one shard, from ``initialize`` to ``shutdown``, which the witness observes."""

    def __init__(self, witness: Witness, life: Life) -> None:
        self.witness, self.life, self.shard_id, self.identifier = witness, life, "", ""
        self.begin = ""
        self.last: Change | None = None
        self.in_hand: list[Change] = []
        """The changes of the last batch, without the changes that user code has already accepted."""

    def begins(self, given: InitializationInput) -> str:
        """Report the beginning of this reader to the witness; return a text about the beginning."""
        info = given.shard_info
        self.shard_id, self.identifier, self.begin = info.shard_id, info.lease_identifier, given.initial_checkpoint
        self.witness.tell(ReaderBegan(self, self.life, self.shard_id, info.epoch))
        return f"at {self.begin}, epoch {info.epoch}"

    def accepts(self, changes: list[Change]) -> None:
        """Record that user code has accepted ``changes``. A batch that is accepted twice counts once."""
        self.witness.accepted.update(change for change in changes if change in self.in_hand)
        self.in_hand = [change for change in self.in_hand if change not in changes]

    def is_valid(self) -> bool:
        """Return whether the reader's worker is alive, is not frozen, and relies on the lease."""
        return self.life.relies_on_lease(self.shard_id, self.identifier)

    def __str__(self) -> str:
        return f"the processor of {self.shard_id} in {self.life.name}"


class WitnessedProcessor(WitnessedReader, IRecordProcessor):
    """The user's processor, whose calls the witness observes."""

    def __init__(self, witness: Witness, life: Life, make: Callable[[], IRecordProcessor]) -> None:
        super().__init__(witness, life)
        self._own = make()

    def initialize(self, initialization_input: InitializationInput) -> None:
        """Report the beginning of the reader, and pass the call on."""
        detail = self.begins(initialization_input)
        self._call(INITIALIZE, detail, lambda: self._own.initialize(initialization_input))
        self.witness.current[self.shard_id] = self

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        """Judge the batch, pass the call on, and record that user code has accepted the batch."""
        changes = [self.witness.change_of(record) for record in process_records_input.records]
        self.witness.handed_out(self, changes)
        names = " ".join(str(change) for change in changes)
        self._call("process_records", names, lambda: self._own.process_records(process_records_input))
        self.accepts(changes)
        self.last = changes[-1] if changes else self.last

    def shutdown(self, shutdown_input: ShutdownInput) -> None:
        """Pass the call on. The reader has ended even if the call raises, because no further call follows."""
        reason = shutdown_input.shutdown_reason.value
        try:
            self._call(SHUTDOWN, reason, lambda: shut_down(self._own, shutdown_input))
        finally:
            self.witness.tell(ReaderOver(self, self.shard_id))

    def _call(self, name: str, detail: str, call: Callable[[], None]) -> None:
        witness = self.witness
        witness.tell(Called(self, self.shard_id, name))
        witness.note(self.life.name, f"{name} {self.shard_id}", detail)
        try:
            call()
        except Exception as error:
            witness.errors[f"{type(error).__name__}: {error}"] += 1
            witness.note(self.life.name, f"{name} {self.shard_id} raised", f"{type(error).__name__}: {error}")
            raise
        finally:
            witness.tell(Returned(self, self.shard_id))
