"""The calls to the service that the owner's commands request. Each result comes back to the owner as an event.

The calls run outside the owner thread. The writes that are requested in one turn of the owner are sent in groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Any, TypeVar

from attrs import evolve, field, frozen

from streamclient.base import checks
from streamclient.base.pools import start_call
from streamclient.base.reasons import as_error, counted, described
from streamclient.core import leases as rule
from streamclient.core.events import (
    Answered,
    Call,
    Command,
    DrawEpoch,
    Event,
    ForgetEpoch,
    ListShards,
    NoteOrder,
    ReadRow,
    ReadRows,
    ReadSignals,
    ResolveAndCreate,
    Scan,
    ShardList,
    WakeWorkers,
    WriteLease,
    WriteWorker,
)
from streamclient.core.leases import LeaseWrite
from streamclient.core.membership import WorkerWrite
from streamclient.core.write_rules import WorkerWriteKind, WriteKind, WriteOutcome
from streamclient.errors import StreamClientException
from streamclient.model import Lease, Shard
from streamclient.tablestore.stream_api import StreamApi, StreamDescription
from streamclient.worker.fetcher import checked_iterator
from streamclient.worker.lease.lease_store import (
    LeaseStore,
    OrderNotes,
    WorkerDirectory,
    WriteAnswer,
    calls_verbs,
    renews_together,
)
from streamclient.worker.owner_loop import OwnerLoop

Each = TypeVar("Each")

RENEWALS_PER_REQUEST = 200
"""The largest number of heartbeats in one BatchWriteRow request. The service accepts no more rows in a request."""

HEARTBEATS = (WriteKind.RENEW, WorkerWriteKind.BEAT)
"""The kinds of writes that keep leases and the worker's session alive. They are sent before all other writes."""

OTHER_WRITES_PER_REQUEST = 50
"""The largest number of takes, checkpoints and hand-overs in one group. Groups are small, and are sent at the same
time."""

RENEWALS_PER_CALL = 20
"""The largest number of heartbeats in one call of ``renew_leases`` that a user's own ``ILeaseManager`` implements. The
implementation may still renew one lease after the other, and all leases of the call count from the time before it."""

DRAWS_PER_REQUEST = 100
"""The largest number of leases for which epochs are drawn together. The service reads no more rows in one request."""


@frozen(kw_only=True)
class ServiceCalls:
    """The owner's calls to the service.

    All methods are called in the owner thread, and return immediately. Each result is later passed to ``emit``, in that
    thread.

    Every call is made once. The lease manager and the stream API retry failed requests themselves, so another layer of
    retries would multiply the requests. ``Holdings`` decides how to react to a failure.
    """

    stream_id: str
    store: LeaseStore
    directory: WorkerDirectory | None = None
    """The access to the store's worker rows; ``None`` if the store keeps no worker rows."""
    notes: OrderNotes | None = None
    """The access to the store's audit rows; ``None`` if the store keeps no audit rows."""
    stream_api: StreamApi
    loop: OwnerLoop
    scan_pool: Executor
    """The threads for reads of the status table and of the list of shards. A read may be retried for long by the user's
    retry strategy. Writes have other threads, because a lease expires if its renewal waits."""
    status_pool: Executor
    """The threads for writes to the status table, except heartbeats."""
    renew_pool: Executor
    """The threads for heartbeats, so that other writes do not delay them."""
    fetch_pool: Executor
    emit: Callable[[Event], None]
    wall_micros: Callable[[], int]
    _waiting: list[Any] = field(init=False, factory=list)

    def put(self, command: Command) -> None:
        """Carry ``command`` out immediately, or at the end of the turn together with other commands of its kind."""
        match command:
            case ReadRows():
                self.read_rows()
            case ReadSignals(names):
                self.read_signals(names)
            case ReadRow(lease_key):
                self.read_row(lease_key)
            case ListShards():
                self.list_shards()
            case NoteOrder():
                self.note_order(command)
            case ResolveAndCreate():
                self.resolve_and_create(command)
            case _:
                if not self._waiting:
                    self.loop.at_end(self.flush)
                self._waiting.append(command)

    def drop(self) -> None:
        """Drop all commands that wait for the end of the turn."""
        self._waiting.clear()

    def flush(self) -> None:
        """Send all waiting commands in groups, because one request may carry many rows."""
        waiting: dict[type, list[Any]] = {}
        for command in self._waiting:
            waiting.setdefault(_GROUPS[type(command)], []).append(command)
        self.drop()
        if WriteLease in waiting:
            self.write([command.write for command in waiting[WriteLease]])
        if WakeWorkers in waiting:
            self.wake_workers(tuple(sorted({name for command in waiting[WakeWorkers] for name in command.names})))
        if DrawEpoch in waiting:
            self.draw_epochs([command.lease_key for command in waiting[DrawEpoch]])
        if ForgetEpoch in waiting:
            self.forget_epochs([command.lease_key for command in waiting[ForgetEpoch]])

    def read_rows(self) -> None:
        """Read all leases and all worker rows from the status table."""
        self._call(ReadRows(), self._scanned, self.scan_pool)

    def read_signals(self, worker_ids: tuple[str, ...]) -> None:
        """Read the rows of the workers ``worker_ids``."""
        directory = self.directory
        if directory is not None:
            self._call(ReadSignals(worker_ids), lambda: tuple(directory.read_workers(worker_ids)), self.scan_pool)

    def wake_workers(self, worker_ids: tuple[str, ...]) -> None:
        """Wake other workers, so that they scan the status table."""
        self._call(WakeWorkers(worker_ids), partial(self._wake, worker_ids), self.status_pool)

    def read_row(self, lease_key: str) -> None:
        """Read the row of the lease ``lease_key`` from the status table."""
        self._call(ReadRow(lease_key), partial(self._row, lease_key), self.scan_pool)

    def note_order(self, note: NoteOrder) -> None:
        """Store an audit row that says how an operator's order to park or skip records ended.

        If the store has no audit rows, do nothing.
        """
        self._call(note, partial(self._note, note), self.status_pool)

    def list_shards(self) -> None:
        """Read the complete list of shards."""
        self._call(ListShards(), self._described, self.scan_pool)

    def write(self, writes: Sequence[LeaseWrite | WorkerWrite]) -> None:
        """Send writes of different rows in groups. Heartbeats have their own groups and threads.

        If the store calls one method of a user's ``ILeaseManager`` per row, each row is a group. Otherwise the first
        answers of a group would wait for its last row, and all its leases would count from the time before its first.
        """
        renewals = [write for write in writes if write.kind in HEARTBEATS]
        others = [write for write in writes if write.kind not in HEARTBEATS]
        most_renewals, most_others = RENEWALS_PER_REQUEST, OTHER_WRITES_PER_REQUEST
        if self.directory is None and calls_verbs(self.store):
            most_renewals, most_others = (RENEWALS_PER_CALL if renews_together(self.store) else 1), 1
        for group in _groups(renewals, most_renewals):
            self._start(self.renew_pool, partial(self._send, group))
        for group in _groups(others, most_others):
            self._start(self.status_pool, partial(self._send, group))

    def draw_epochs(self, lease_keys: Sequence[str]) -> None:
        """Draw a new epoch for each of ``lease_keys``, with one request for up to ``DRAWS_PER_REQUEST`` leases.

        A user's own ``ILeaseManager`` draws each epoch in a call of its own.
        """
        for group in _groups(lease_keys, 1 if calls_verbs(self.store) else DRAWS_PER_REQUEST):
            self._start(self.status_pool, partial(self._draw, group))

    def forget_epochs(self, lease_keys: Sequence[str]) -> None:
        """Drop the stored epochs of shards that have left the stream."""
        self._start(self.status_pool, partial(self.store.forget_epochs, lease_keys))

    def resolve_and_create(self, command: ResolveAndCreate) -> None:
        """Look up the first position of a shard, and create its lease with that position as the checkpoint."""
        self._start(self.fetch_pool, partial(self._resolve, command))

    def _scanned(self) -> Scan:
        # Read the leases first: a worker's row is conclusive only for leases that were read before that row.
        rows = tuple(_checked("list_leases", Lease, row) for row in _listed("list_leases", self.store.list_leases()))
        workers = None if self.directory is None else tuple(self.directory.list_workers())
        return Scan(rows, self.wall_micros(), workers)

    def _wake(self, worker_ids: tuple[str, ...]) -> None:
        if self.directory is not None:
            self.directory.wake(worker_ids)

    def _note(self, note: NoteOrder) -> None:
        if self.notes is not None:
            self.notes.note_order(note)

    def _row(self, lease_key: str) -> Lease | None:
        row = checks.done("get_lease", self.store.get_lease(lease_key))
        return None if row is None else _checked("get_lease", Lease, row)

    def _described(self) -> ShardList:
        stream = _checked("describe_stream", StreamDescription, self.stream_api.describe_stream(self.stream_id))
        shards = tuple(_checked("describe_stream", Shard, shard) for shard in stream.shards)
        return ShardList(shards, stream.expiration_time_hours)

    def _call(self, call: Call[Each], carry_out: Callable[[], Each], pool: Executor) -> None:
        def run() -> None:
            try:
                answer = Answered(call, carry_out())
            except BaseException as error:
                answer = Answered(call, error=as_error(error))
            self.loop.post(partial(self.emit, answer))

        self._start(pool, run)

    def _start(self, pool: Executor, call: Callable[[], object]) -> None:
        """Run ``call`` in ``pool``. If the system refuses the pool a thread, the owner retries later."""
        self.loop.start(pool, partial(start_call, pool, call))

    def _send(self, writes: Sequence[LeaseWrite | WorkerWrite]) -> None:
        # The lease duration counts from this time, before the request is sent, however late the response comes.
        sent_at = self.loop.now()
        answers = _answers(self.directory or self.store, writes)
        self.loop.post(partial(self._report, writes, answers, sent_at))

    def _report(
        self, writes: Sequence[LeaseWrite | WorkerWrite], answers: Sequence[WriteAnswer], sent_at: float
    ) -> None:
        for write, answer in zip(writes, answers, strict=True):
            call = WriteWorker(write) if isinstance(write, WorkerWrite) else WriteLease(write)
            self.emit(Answered(call, answer.outcome, sent_at, answer.error))

    def _draw(self, lease_keys: Sequence[str]) -> None:
        try:
            drawn = list(checks.done("draw_epochs", self.store.draw_epochs(lease_keys), may_yield=True))
        except BaseException as error:
            drawn = [as_error(error)] * len(lease_keys)
        if len(drawn) != len(lease_keys):
            answers, leases = counted(len(drawn), "answer"), counted(len(lease_keys), "lease")
            mistake = StreamClientException(f"draw_epochs gave {answers} for {leases}")
            drawn = [mistake] * len(lease_keys)
        self.loop.post(partial(self._report_drawn, lease_keys, drawn))

    def _report_drawn(self, lease_keys: Sequence[str], drawn: Sequence[int | Exception]) -> None:
        for key, epoch in zip(lease_keys, drawn, strict=True):
            call = DrawEpoch(key)
            self.emit(Answered(call, error=epoch) if isinstance(epoch, Exception) else Answered(call, epoch))

    def _resolve(self, command: ResolveAndCreate) -> None:
        lease, sent_at = command.lease, self.loop.now()
        try:
            micros = command.timestamp_micros
            iterator = checked_iterator(self.stream_api.get_shard_iterator(self.stream_id, lease.lease_key, micros))
        except BaseException as error:
            failure = StreamClientException(f"looking up the first position failed: {described(error)}")
            failure.__cause__ = error
            unanswered = Answered(WriteLease(rule.create(lease)), WriteOutcome.UNCERTAIN, sent_at, failure)
            self.loop.post(partial(self.emit, unanswered))
        else:
            self.loop.post(partial(self.write, [rule.create(evolve(lease, checkpoint=iterator))]))


def _groups(items: Sequence[Each], size: int) -> Sequence[Sequence[Each]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


def _listed(call: str, answer: Iterable[Each]) -> Iterable[Each]:
    return checks.done(call, answer, may_yield=True)


def _checked(call: str, kind: type[Each], answer: object) -> Each:
    """Return ``answer`` if it is an instance of ``kind``; otherwise raise an error that names ``call``."""
    if isinstance(answer, kind):
        return answer
    checks.done(call, answer)
    raise StreamClientException(
        f"{call} answered with {checks.shown(answer)} where it must answer with a {kind.__name__}"
    )


def _answers(store: Any, writes: Sequence[LeaseWrite | WorkerWrite]) -> Sequence[WriteAnswer]:
    """Send ``writes``, and return one answer per write, even if the store breaks its contract and raises."""
    try:
        answers: Sequence[WriteAnswer] = list(checks.done("write_many", store.write_many(writes), may_yield=True))
    except BaseException as error:
        return [WriteAnswer(WriteOutcome.UNCERTAIN, as_error(error))] * len(writes)
    if len(answers) == len(writes) and all(isinstance(answer, WriteAnswer) for answer in answers):
        return answers
    mistake = StreamClientException(
        f"write_many gave {counted(len(answers), 'answer')} for {counted(len(writes), 'write')}; it must give one "
        "WriteAnswer for each"
    )
    return [WriteAnswer(WriteOutcome.UNCERTAIN, mistake)] * len(writes)


_GROUPS: Mapping[type, type] = {
    WriteLease: WriteLease,
    WriteWorker: WriteLease,
    WakeWorkers: WakeWorkers,
    DrawEpoch: DrawEpoch,
    ForgetEpoch: ForgetEpoch,
}
"""The types of commands that wait for the end of the owner's turn. The value is the type of commands together with
which they are sent."""
