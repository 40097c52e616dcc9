"""The operations of the status table that a worker needs, for any ``ILeaseManager``.

The worker sends many writes (``LeaseWrite``) together. The lease managers of this package carry them out together; for
a user's own ``ILeaseManager``, one method is called per write.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, cast

from attrs import frozen

from streamclient.base import checks, logs
from streamclient.base.reasons import counted
from streamclient.core.events import NoteOrder
from streamclient.core.leases import LeaseWrite
from streamclient.core.membership import WorkerRow, WorkerWrite
from streamclient.core.write_rules import WriteKind, WriteOutcome
from streamclient.errors import ConfigurationError, StreamClientException
from streamclient.interfaces import ILeaseManager
from streamclient.model import Lease

_log = logs.logger(__name__)


@frozen
class WriteAnswer:
    """The answer to one write: its outcome, as far as the outcome is known after the request."""

    outcome: WriteOutcome
    """The outcome of the write. ``REFUSED`` means that the write's condition was not met. Every other failure is
    ``UNCERTAIN``, with an ``error``."""
    error: Exception | None = None
    """The error that makes the outcome uncertain. If it is a ``DependencyException``, the error's ``kind`` says whether
    the write may have been applied."""


class LeaseStore(Protocol):
    """The leases of one stream, as the worker uses them. Implementations are thread-safe."""

    def list_leases(self) -> Sequence[Lease]:
        """Return all leases, sorted by lease key, as the store has them now. Raises ``DependencyException``."""

    def get_lease(self, lease_key: str) -> Lease | None:
        """Return the lease, or ``None`` if its row does not exist. Raises ``DependencyException``."""

    def write_many(self, writes: Sequence[LeaseWrite]) -> Sequence[WriteAnswer]:
        """Carry out independent writes; return one answer per write, in order. Failures are answers, never exceptions.

        No write is repeated after an uncertain answer; the caller reads the row back and decides.
        """

    def draw_epochs(self, lease_keys: Sequence[str]) -> Sequence[int | Exception]:
        """Draw an epoch for each key, greater than all epochs that any process has drawn for the key.

        Return an epoch or an error per key, in order. If an epoch was drawn, but the answer with it is lost on
        its way to the worker, this epoch is never drawn again.
        """

    def forget_epochs(self, lease_keys: Sequence[str]) -> None:
        """Drop the epochs of shards that have left the stream.

        Failures are only logged, because a remaining row does no harm.
        """


class WorkerDirectory(Protocol):
    """The rows of the workers of one stream, kept beside its leases by a ``LeaseStore``. Thread-safe.

    A store need not keep worker rows. Without worker rows, workers know each other by their leases alone.
    """

    def list_workers(self, *, with_info: bool = False) -> Sequence[WorkerRow]:
        """Return all present worker rows, sorted by worker; ``info`` is read only with ``with_info``.

        Raises ``DependencyException``.
        """

    def read_workers(self, worker_ids: Sequence[str]) -> Sequence[WorkerRow]:
        """Return the rows of ``worker_ids``, without ``info``, in any order; absent rows are left out.

        All ``worker_ids`` must be different. The read is tried once, because a worker that watches other workers soon
        reads again. Raises ``DependencyException``.
        """

    def write_many(self, writes: Sequence[LeaseWrite | WorkerWrite]) -> Sequence[WriteAnswer]:
        """Carry out writes as ``LeaseStore.write_many`` does.

        Writes of leases and writes of workers may be sent together.
        """

    def wake(self, worker_ids: Sequence[str]) -> None:
        """Increase ``wake`` in the rows of ``worker_ids``, whatever its value is; ignore absent rows.

        All ``worker_ids`` must be different. Raises ``DependencyException`` if it is uncertain whether all these
        workers were woken.
        """


class OrderNotes(Protocol):
    """The audit rows of one stream, kept beside its leases by a ``LeaseStore``. Thread-safe."""

    def note_order(self, note: NoteOrder) -> None:
        """Store an audit row that says how an operator's order to park or skip records ended.

        If the method returns, the row is certainly stored. Otherwise it raises ``StreamClientError``.
        """


def as_order_notes(manager: ILeaseManager) -> OrderNotes | None:
    """Return ``manager`` as the store of audit rows; ``None`` if it does not keep audit rows."""
    return cast(OrderNotes, manager) if callable(getattr(manager, "note_order", None)) else None


def as_worker_directory(manager: ILeaseManager) -> WorkerDirectory | None:
    """Return ``manager`` as the store of worker rows; ``None`` if it does not keep worker rows."""
    names = ("write_many", "list_workers", "read_workers", "wake")
    if all(callable(getattr(manager, name, None)) for name in names):
        return cast(WorkerDirectory, manager)
    return None


def as_lease_store(manager: ILeaseManager) -> LeaseStore:
    """Return ``manager`` itself if it is a ``LeaseStore``, otherwise an adapter that calls its methods."""
    if all(callable(getattr(manager, name, None)) for name in ("write_many", "draw_epochs", "forget_epochs")):
        return cast(LeaseStore, manager)
    return _VerbStore(manager)


def calls_verbs(store: LeaseStore) -> bool:
    """Return whether ``store`` calls one method of a user's ``ILeaseManager`` for each write and each epoch.

    Such a store makes the writes of one call one after the other. Each write adds 1 to the counter, whatever counter
    its result has.
    """
    return isinstance(store, _VerbStore)


def renews_together(store: LeaseStore) -> bool:
    """Return whether ``store`` can renew several leases at a time.

    That is so unless the store calls ``renew_lease`` of a user's ``ILeaseManager`` once per lease.
    """
    return not isinstance(store, _VerbStore) or store.renews_together


class _VerbStore:
    """A ``LeaseStore`` that calls one method of an ``ILeaseManager`` per write. Only renewals are sent together."""

    def __init__(self, manager: ILeaseManager) -> None:
        self._manager = manager
        self._verbs: dict[WriteKind, Callable[[LeaseWrite], object]] = {
            WriteKind.CREATE: lambda write: manager.create_lease(write.seen),
            WriteKind.TAKE: self._take,
            WriteKind.STEAL: lambda write: manager.steal_lease(write.seen, _after(write).stealer),
            WriteKind.TRANSFER: lambda write: manager.transfer_lease(write.seen, _after(write).owner),
            WriteKind.CHECKPOINT: lambda write: manager.update_lease(write.seen, _after(write).checkpoint),
            WriteKind.PREPARE: self._prepare,
            WriteKind.DELETE: lambda write: manager.delete_lease(write.seen),
        }

    @property
    def renews_together(self) -> bool:
        """Whether the manager has a ``renew_leases`` of its own. The default calls ``renew_lease`` once per lease."""
        return getattr(self._manager.renew_leases, "__func__", None) is not ILeaseManager.renew_leases

    def list_leases(self) -> Sequence[Lease]:
        return self._manager.list_leases()

    def get_lease(self, lease_key: str) -> Lease | None:
        return self._manager.get_lease(lease_key)

    def write_many(self, writes: Sequence[LeaseWrite]) -> Sequence[WriteAnswer]:
        renewals = [index for index, write in enumerate(writes) if write.kind is WriteKind.RENEW]
        answers = dict(zip(renewals, self._renew([writes[index].seen for index in renewals]), strict=True))
        for index, write in enumerate(writes):
            if index not in answers:
                answers[index] = self._write(write)
        return [answers[index] for index in range(len(writes))]

    def draw_epochs(self, lease_keys: Sequence[str]) -> Sequence[int | Exception]:
        return [self._draw(key) for key in lease_keys]

    def forget_epochs(self, lease_keys: Sequence[str]) -> None:
        for key in lease_keys:
            try:
                checks.done("forget_epoch", self._manager.forget_epoch(key))  # type: ignore[func-returns-value]
            except Exception as error:
                _log.warning("the epoch of shard %s, which has left the stream, was not deleted: %s", key, error)

    def _draw(self, lease_key: str) -> int | Exception:
        try:
            epoch = checks.done("draw_epoch", self._manager.draw_epoch(lease_key))
        except Exception as error:
            return error
        if isinstance(epoch, int) and not isinstance(epoch, bool) and epoch > 0:
            return epoch
        return StreamClientException(f"draw_epoch answered {epoch!r}; it must return a number above 0")

    def _write(self, write: LeaseWrite) -> WriteAnswer:
        verb = self._verbs.get(write.kind)
        if verb is None:
            name = type(self._manager).__name__
            problem = ConfigurationError(f"{name} has no method for {write.kind.value!r}: implement write_many")
            return WriteAnswer(WriteOutcome.UNCERTAIN, problem)
        try:
            return _answer(verb(write), write.kind.value)
        except Exception as error:
            return WriteAnswer(WriteOutcome.UNCERTAIN, error)

    def _take(self, write: LeaseWrite) -> object:
        result = _after(write)
        restored = None if result.checkpoint == write.seen.checkpoint else result.checkpoint
        return self._manager.take_lease(write.seen, result.owner, checkpoint=restored)

    def _prepare(self, write: LeaseWrite) -> object:
        pending = _after(write).pending
        if pending is None:
            raise ValueError(f"{write} has no pending checkpoint to prepare")
        return self._manager.prepare_lease(write.seen, pending)

    def _renew(self, leases: list[Lease]) -> list[WriteAnswer]:
        if not leases:
            return []
        try:
            renewed = self._manager.renew_leases(leases)
            given = [_answer(value, "renew") for value in checks.done("renew_leases", renewed, may_yield=True)]
        except Exception as error:
            return [WriteAnswer(WriteOutcome.UNCERTAIN, error)] * len(leases)
        if len(given) != len(leases):
            mistake = StreamClientException(
                f"renew_leases of {type(self._manager).__name__} gave {counted(len(given), 'answer')} for "
                f"{counted(len(leases), 'lease')}; "
                "it must give one per lease, in order"
            )
            return [WriteAnswer(WriteOutcome.UNCERTAIN, mistake)] * len(leases)
        return given


def _after(write: LeaseWrite) -> Lease:
    if write.result is None:
        raise ValueError(f"{write} leaves no row to read the new columns from")
    return write.result


def _answer(value: object, verb: str) -> WriteAnswer:
    """Return the answer to one write. ``value`` is the result of the lease manager's method for ``verb``.

    ``True`` means that the write was made, and ``False`` means that it was refused. With any other result, such as the
    ``None`` of a method without ``return``, the outcome is uncertain.
    """
    if checks.done(verb, value) is True:
        return WriteAnswer(WriteOutcome.ACCEPTED)
    if value is False:
        return WriteAnswer(WriteOutcome.REFUSED)
    if isinstance(value, Exception):
        return WriteAnswer(WriteOutcome.UNCERTAIN, value)
    mistake = StreamClientException(f"the lease manager answered {verb} with {value!r}; it must return True or False")
    return WriteAnswer(WriteOutcome.UNCERTAIN, mistake)
