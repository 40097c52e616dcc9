"""The methods of ``ILeaseManager`` for both lease managers of this package. Each method makes one ``LeaseWrite``."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence

from streamclient.core import leases as rule
from streamclient.core.leases import LeaseWrite
from streamclient.core.membership import WorkerWrite
from streamclient.core.write_rules import WriteKind, WriteOutcome
from streamclient.errors import ConfigurationError, StreamClientError
from streamclient.interfaces import ILeaseManager
from streamclient.model import Lease, Pause, PendingCheckpoint, Progress, RecordOrder
from streamclient.worker.lease.lease_store import WriteAnswer
from streamclient.worker.lease.own_columns import format_orders, format_pause, parse_orders, parse_pause


class WritingLeaseManager(ILeaseManager):
    """A lease manager whose methods all use ``write_many``, so that it is also a ``LeaseStore``."""

    @abstractmethod
    def write_many(self, writes: Sequence[LeaseWrite]) -> Sequence[WriteAnswer]:
        """Carry out independent writes; return one answer per write, in order. See ``LeaseStore.write_many``."""

    @abstractmethod
    def draw_epochs(self, lease_keys: Sequence[str]) -> Sequence[int | Exception]:
        """Draw an epoch for each key; return an epoch or an error per key, in order. See ``LeaseStore.draw_epochs``."""

    @abstractmethod
    def forget_epochs(self, lease_keys: Sequence[str]) -> None:
        """Drop the epochs of shards that have left the stream. See ``LeaseStore.forget_epochs``."""

    def create_lease(self, lease: Lease) -> bool:
        """Store the lease if no row has its key; return whether it was stored. An existing row stays unchanged."""
        return self._write(rule.create(lease))

    def renew_lease(self, lease: Lease) -> bool:
        """Add 1 to the row's counter, if counter, owner and stealer are as in ``lease``.

        Return whether the row was changed.
        """
        return self._write(rule.renew(lease))

    def take_lease(self, lease: Lease, owner: str, *, checkpoint: str | None = None) -> bool:
        """Set the row's owner, clear its stealer and add 1 to its counter, if counter and owner are as in ``lease``.

        Return whether the row was changed.
        """
        return self._write(rule.take(lease, owner, checkpoint=checkpoint))

    def steal_lease(self, lease: Lease, stealer: str) -> bool:
        """Set the row's stealer, if the owner is as in ``lease`` and no stealer is set. The counter stays unchanged.

        Return whether the row was changed.
        """
        return self._write(_argument_checked(lambda: rule.steal(lease, stealer)))

    def transfer_lease(self, lease: Lease, new_owner: str) -> bool:
        """Set the row's owner and stealer to ``new_owner``, and add 1 to its counter.

        Change the row only if counter and owner are as in ``lease``; return whether it was changed.
        """
        return self._write(_argument_checked(lambda: rule.transfer(lease, new_owner)))

    def update_lease(self, lease: Lease, checkpoint: str) -> bool:
        """Set the row's checkpoint and add 1 to its counter, if counter and owner are as in ``lease``.

        The same write removes a pending checkpoint, except in the case that ``PendingCheckpoint.survives`` describes.
        Return whether the row was changed.
        """
        return self._write(rule.checkpoint(lease, checkpoint))

    def prepare_lease(self, lease: Lease, pending: PendingCheckpoint) -> bool:
        """Set the row's pending checkpoint and add 1 to its counter, if counter and owner are as in ``lease``.

        Return whether the row was changed.
        """
        return self._write(rule.prepare(lease, pending))

    def delete_lease(self, lease: Lease) -> bool:
        """Remove the row, if counter and owner are as in ``lease``; return ``True`` if it was removed or is absent."""
        return self._write(rule.delete(lease))

    def draw_epoch(self, lease_key: str) -> int:
        """Return an epoch greater than all earlier epochs of this key, even if the lease's row was created again."""
        (drawn,) = self.draw_epochs([lease_key])
        if isinstance(drawn, Exception):
            raise drawn
        return drawn

    def forget_epoch(self, lease_key: str) -> None:
        """Drop the epoch of a shard that has left the stream for good."""
        self.forget_epochs([lease_key])

    def renew_leases(self, leases: Sequence[Lease]) -> Sequence[bool | Exception]:
        """Renew ``leases`` with few requests; return for each, in order, whether it was renewed, or the error."""
        return [
            answer.error if answer.error is not None else answer.outcome is WriteOutcome.ACCEPTED
            for answer in self.write_many([rule.renew(lease) for lease in leases])
        ]

    def _write(self, write: LeaseWrite) -> bool:
        (answer,) = self.write_many([write])
        if answer.error is not None:
            raise answer.error
        return answer.outcome is WriteOutcome.ACCEPTED


def check_write(write: LeaseWrite, stream_id: str) -> None:
    """Raise ``ConfigurationError`` if the write would leave a row that this client or the Java client cannot read.

    While one row is malformed, every scan of every Java worker fails. So no doubtful value may reach the status table.
    """
    if write.seen.stream_id != stream_id:
        raise ConfigurationError(
            f"lease {write.lease_key!r} belongs to stream {write.seen.stream_id!r}, but this lease "
            f"manager belongs to stream {stream_id!r}; make one lease manager per stream"
        )
    if write.result is not None:
        _check_row(write.result)
        _check_names(write, write.result)


def _check_row(row: Lease) -> None:
    texts = {"lease_key": row.lease_key, "stream_id": row.stream_id, "checkpoint": row.checkpoint}
    for name, text in texts.items():
        if not isinstance(text, str) or not text:
            raise ConfigurationError(f"{name} of lease {row.lease_key!r} must be a non-empty string, not {text!r}")
    if isinstance(row.counter, bool) or not isinstance(row.counter, int) or not 0 <= row.counter < 2**63:
        raise ConfigurationError(f"counter of lease {row.lease_key!r} must be a 64-bit count, not {row.counter!r}")
    if row.pending is not None:
        _check_pending(row.lease_key, row.pending)
    if row.pause is not None:
        _check_pause(row.lease_key, row.pause)
    if row.orders:
        _check_orders(row.lease_key, row.orders)
    if row.progress is not None:
        _check_progress(row.lease_key, row.progress)
    for parent in row.parent_shard_ids:
        if not isinstance(parent, str) or not parent or "\n" in parent:
            raise ConfigurationError(
                f"parent_shard_ids of lease {row.lease_key!r} must be non-empty strings without line feeds, "
                f"not {parent!r}: the status table keeps one per line"
            )


def _check_pending(lease_key: str, pending: PendingCheckpoint) -> None:
    if not isinstance(pending.value, str) or not pending.value:
        raise ConfigurationError(
            f"pending value of lease {lease_key!r} must be a non-empty string, not {pending.value!r}"
        )
    if not isinstance(pending.state, bytes):
        raise ConfigurationError(f"pending state of lease {lease_key!r} must be bytes, not {pending.state!r}")
    _check_counts(lease_key, "pending", records=pending.records, epoch=pending.epoch)


def _check_pause(lease_key: str, pause: Pause) -> None:
    try:
        read_back = parse_pause(format_pause(pause))
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"the pause of lease {lease_key!r} could not be read back: {error}") from error
    if read_back != pause:
        raise ConfigurationError(f"the pause of lease {lease_key!r} would be read back as {read_back}, not as {pause}")


def _check_orders(lease_key: str, orders: tuple[RecordOrder, ...]) -> None:
    try:
        read_back = parse_orders(format_orders(orders))
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"the orders of lease {lease_key!r} could not be read back: {error}") from error
    if read_back != orders:
        raise ConfigurationError(
            f"the orders of lease {lease_key!r} would be read back as {read_back}, not as {orders}"
        )


def _check_progress(lease_key: str, progress: Progress) -> None:
    _check_counts(lease_key, "progress", micros=progress.record_micros, records=progress.records, bytes=progress.bytes)


def _check_counts(lease_key: str, what: str, **numbers: int) -> None:
    for name, number in numbers.items():
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < 2**63:
            raise ConfigurationError(f"{what} {name} of lease {lease_key!r} must be a 64-bit count, not {number!r}")


def _check_names(write: LeaseWrite, row: Lease) -> None:
    for name, text in (("owner", row.owner), ("stealer", row.stealer)):
        if not isinstance(text, str):
            raise ConfigurationError(f"{name} of lease {row.lease_key!r} must be a string, not {text!r}")
    if write.kind is WriteKind.TAKE and not row.owner:
        raise ConfigurationError(f"lease {row.lease_key!r} can only be taken by a worker with a name, not ''")
    if write.kind is WriteKind.STEAL and row.stealer in ("", row.owner):
        raise ConfigurationError(
            f"lease {row.lease_key!r} of {row.owner!r} can only be marked by another worker, not {row.stealer!r}"
        )


def check_worker_write(write: WorkerWrite, stream_id: str) -> None:
    """Raise ``ConfigurationError`` if the write is for another stream, or would leave a row that cannot be read."""
    if not isinstance(write.worker_id, str) or not write.worker_id:
        raise ConfigurationError(f"a worker row needs a non-empty worker identifier, not {write.worker_id!r}")
    for row in (write.seen, write.result):
        if row is not None and (row.stream_id, row.worker_id) != (stream_id, write.worker_id):
            raise ConfigurationError(
                f"row {row} of stream {row.stream_id!r} cannot be written as worker {write.worker_id!r} of stream "
                f"{stream_id!r}"
            )
    result = write.result
    if result is not None and (not isinstance(result.nonce, str) or not result.nonce):
        raise ConfigurationError(f"the nonce of worker {write.worker_id!r} must be a non-empty string")
    if result is not None and not 0 <= result.beat < 2**63:
        raise ConfigurationError(f"the beat of worker {write.worker_id!r} must be a 64-bit count, not {result.beat!r}")


def _argument_checked(make: Callable[[], LeaseWrite]) -> LeaseWrite:
    """Return the write that ``make`` makes; raise ``ConfigurationError`` if a rule rejects its arguments."""
    try:
        return make()
    except StreamClientError:
        raise
    except ValueError as error:
        raise ConfigurationError(str(error)) from error
