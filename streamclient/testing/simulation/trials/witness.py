"""Sees everything that the user's processors are told, and judges it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from attrs import define, field, frozen

from streamclient.interfaces import IRecordProcessor
from streamclient.model import InitializationInput, ProcessRecordsInput, ShutdownInput
from streamclient.records import StreamRecord

if TYPE_CHECKING:
    from streamclient.testing.simulation.trials.trial import Trial


class TrialFailed(Exception):
    """Something is not as it must be, in the history of one seed."""

    def __init__(self, law: str, text: str) -> None:
        super().__init__(f"{law}: {text}")
        self.law = law
        self.text = text


@frozen
class Change:
    """One change of one row, as it was written to the stream."""

    key: str
    number: int
    """Counts the changes of this key, from 1."""

    def __str__(self) -> str:
        return f"{self.key}/{self.number}"


@frozen
class Run:
    """What ``check`` is told of one finished run."""

    seed: int
    written: tuple[Change, ...]
    """Every change, in the order of writing."""
    delivered: Mapping[Change, int]
    """How often each change was handed to a processor whose call returned."""
    newest: Mapping[str, int]
    """Number of the last change of each key."""
    faults: Mapping[str, int]
    """What went wrong, and how often."""


@define(eq=False)
class Witness:
    """Knows what was written and what was handed out.

    Laws: the changes of a key are handed out in order and without a gap, repetitions aside ("order per key"); calls for
    one shard never overlap, in one process or between processes that may both rely on its lease ("one reader"); calls
    of one processor come in their order ("calls in order"); everything is handed out in the end ("nothing is lost").
    """

    trial: Trial
    written: list[Change] = field(factory=list)
    newest: dict[str, int] = field(factory=dict)
    accepted: Counter[Change] = field(factory=Counter)
    seen: dict[str, int] = field(factory=dict)
    """The furthest change of each key that was handed out."""
    calls: dict[str, list[WitnessedProcessor]] = field(factory=dict)
    """Processors in a call, by shard."""
    current: dict[str, WitnessedProcessor] = field(factory=dict)
    """The processor of each shard that was initialized last."""
    errors: Counter[str] = field(factory=Counter)
    """What user code raised."""
    _changes: dict[tuple[str, int], Change] = field(factory=dict)

    def write(self, key: str, micros: int) -> Change:
        """Count one more change of a key, written at a time of its own."""
        number = self.newest[key] = self.newest.get(key, 0) + 1
        change = self._changes[key, micros] = Change(key, number)
        self.written.append(change)
        return change

    def change_of(self, record: StreamRecord) -> Change:
        """Which change a record tells of."""
        return self._changes[str(record.key["id"]), record.sequence_info.timestamp_micros]

    def begin(self, processor: WitnessedProcessor, call: str) -> None:
        """User code is about to be called."""
        others = self.calls.setdefault(processor.shard_id, [])
        for other in others:
            if other.worker == processor.worker or (other.is_valid() and processor.is_valid()):
                raise TrialFailed("one reader", f"{processor} is called ({call}) while {other} is in a call")
        others.append(processor)

    def end(self, processor: WitnessedProcessor) -> None:
        """User code has returned or raised."""
        self.calls[processor.shard_id].remove(processor)

    def handed_out(self, processor: WitnessedProcessor, changes: list[Change]) -> None:
        """A batch is being handed out."""
        for change in changes:
            seen = self.seen.get(change.key, 0)
            if change.number > seen + 1:
                text = f"{processor} was given {change}, but {change.key}/{seen + 1} was never handed out"
                raise TrialFailed("order per key", text)
            self.seen[change.key] = max(seen, change.number)

    def missing(self) -> list[Change]:
        """Changes that no call has accepted yet."""
        return [change for change in self.written if not self.accepted[change]]

    def is_read(self, shard_id: str, last: Change, end: str) -> bool:
        """Whether a processor that may go on has the last change of a shard, or was started behind it, at the end.

        That a processor had it before its worker died proves nothing: what it kept in memory is gone.
        """
        processor = self.current.get(shard_id)
        return processor is not None and processor.is_valid() and (processor.last == last or processor.begin == end)


class WitnessedProcessor(IRecordProcessor):
    """The user's processor, with the witness in front of it."""

    def __init__(self, trial: Trial, worker: str, make: Callable[[], IRecordProcessor]) -> None:
        self.trial, self.worker, self.shard_id, self.identifier = trial, worker, "", ""
        self._own = make()
        self._last_call = "make"
        self.begin = ""
        self.last: Change | None = None

    def initialize(self, initialization_input: InitializationInput) -> None:
        """Pass on."""
        info = initialization_input.shard_info
        self.shard_id, self.identifier = info.shard_id, info.lease_identifier
        self._follows("initialize", ("make",))
        self.begin = initialization_input.initial_checkpoint
        detail = f"at {self.begin}, epoch {info.epoch}"
        self._call("initialize", detail, lambda: self._own.initialize(initialization_input))
        self.trial.witness.current[self.shard_id] = self

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        """Judge, then pass on."""
        self._follows("process_records", ("initialize", "process_records"))
        changes = [self.trial.witness.change_of(record) for record in process_records_input.records]
        self._judged(lambda: self.trial.witness.handed_out(self, changes))
        names = " ".join(str(change) for change in changes)
        self._call("process_records", names, lambda: self._own.process_records(process_records_input))
        self.trial.witness.accepted.update(changes)
        self.last = changes[-1] if changes else self.last

    def shutdown(self, shutdown_input: ShutdownInput) -> None:
        """Pass on."""
        self._follows("shutdown", ("initialize", "process_records"))
        reason = shutdown_input.shutdown_reason.value
        self._call("shutdown", reason, lambda: self._own.shutdown(shutdown_input))

    def is_valid(self) -> bool:
        """Whether its worker lives, does not stand still, and relies on the lease."""
        return self.trial.relies_on_lease(self.worker, self.shard_id, self.identifier)

    def _follows(self, call: str, allowed: tuple[str, ...]) -> None:
        last, self._last_call = self._last_call, call
        if last not in allowed:
            self._judged(lambda: self._fail("calls in order", f"{self} is called ({call}) after {last}"))

    def _call(self, name: str, detail: str, call: Callable[[], None]) -> None:
        trial = self.trial
        self._judged(lambda: trial.witness.begin(self, name))
        trial.note(self.worker, f"{name} {self.shard_id}", detail)
        try:
            call()
        except Exception as error:
            trial.witness.errors[f"{type(error).__name__}: {error}"] += 1
            trial.note(self.worker, f"{name} {self.shard_id} raised", f"{type(error).__name__}: {error}")
            raise
        finally:
            trial.witness.end(self)

    def _judged(self, judge: Callable[[], None]) -> None:
        """A broken law must not look like a failure of user code, which the worker would only repeat."""
        try:
            judge()
        except TrialFailed as failed:
            self.trial.failed = self.trial.failed or failed
            raise

    @staticmethod
    def _fail(law: str, text: str) -> None:
        raise TrialFailed(law, text)

    def __str__(self) -> str:
        return f"the processor of {self.shard_id} in {self.worker}"
