"""The status table of a trial, in memory. A simulated network lets calls fail as the seed decides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from streamclient.core.leases import LeaseWrite
from streamclient.core.membership import WorkerRow, WorkerWrite
from streamclient.core.write_rules import WriteOutcome
from streamclient.errors import DependencyException, ErrorKind
from streamclient.model import Lease
from streamclient.testing.simulation.kernel import ERRORS, NO_ANSWER, Dice
from streamclient.testing.simulation.simulated_faults import Do, Fate
from streamclient.worker.lease import MemoryLeaseManager, WriteAnswer

CALL_KINDS = (Fate.LOST_REQUEST, Fate.LOST_ANSWER, Fate.THROTTLED)


class TrialLeases(MemoryLeaseManager):
    """The status table of one trial. Not thread-safe: in a simulation only one thread runs at a time."""

    def __init__(
        self,
        stream_id: str,
        dice: Dice,
        shares: Mapping[Do | Fate, float],
        injected: Counter[Do | Fate],
        changed: Callable[[Lease | None, Lease], None],
    ) -> None:
        """Make an empty table.

        Args:
            stream_id: the id of the stream whose leases the table stores.
            dice: the random numbers that decide which calls fail.
            shares: the probability of each fault of a call.
            injected: the counts to which each fault of a call is added.
            changed: a function that gets the lease row before and after each change, even if the writer gets no answer.
                Renewals, which change only the counter, do not count as changes.
        """
        super().__init__(stream_id)
        self._tell_change = changed
        self.is_unreachable = False
        self.is_calm = False
        self._dice, self._shares, self._injected = dice, shares, injected

    def finished(self) -> set[str]:
        """Return the keys of the leases whose shards were read to the end. This call never fails."""
        return {lease.lease_key for lease in super().list_leases() if lease.is_finished}

    def list_leases(self) -> Sequence[Lease]:
        """Return all leases, or raise the error of a simulated fault."""
        self._raise_for_reads()
        return super().list_leases()

    def get_lease(self, lease_key: str) -> Lease | None:
        """Return one lease, or raise the error of a simulated fault."""
        self._raise_for_reads()
        return super().get_lease(lease_key)

    def list_workers(self, *, with_info: bool = False) -> Sequence[WorkerRow]:
        """Return all worker rows, or raise the error of a simulated fault."""
        self._raise_for_reads()
        return super().list_workers(with_info=with_info)

    def read_workers(self, worker_ids: Sequence[str]) -> Sequence[WorkerRow]:
        """Return the rows of the workers ``worker_ids``, or raise the error of a simulated fault."""
        self._raise_for_reads()
        return super().read_workers(worker_ids)

    def wake(self, worker_ids: Sequence[str]) -> None:
        """Send wake-up signals to the workers ``worker_ids``, or raise the error of a simulated fault."""
        self._raise_for_reads()
        super().wake(worker_ids)

    def write_many(self, writes: Sequence[LeaseWrite | WorkerWrite]) -> Sequence[WriteAnswer]:
        """Carry out ``writes``, and return the answers; a simulated fault makes all answers uncertain.

        The writes are carried out if there is no fault, or if the fault loses only the answer.
        """
        fate = self._fate()
        if fate in (None, Fate.LOST_ANSWER):
            before = self._present_rows()
            answers = super().write_many(writes)
            for key, row in self._present_rows().items():
                if _told(before.get(key)) != _told(row):
                    self._tell_change(before.get(key), row)
            if fate is None:
                return answers
        return [WriteAnswer(WriteOutcome.UNCERTAIN, ERRORS.get(fate, NO_ANSWER))] * len(writes)

    def _present_rows(self) -> dict[str, Lease]:
        return {lease.lease_key: lease for lease in super().list_leases()}

    def _raise_for_reads(self) -> None:
        fate = self._fate()
        if fate is not None:
            raise ERRORS.get(fate, NO_ANSWER).with_traceback(None)  # a shared error's traceback would grow

    def _fate(self) -> Fate | None:
        if self.is_unreachable:
            return Fate.CUT
        for kind in CALL_KINDS:
            share = self._shares.get(kind, 0.0)
            if not self.is_calm and self._dice.chance(share):
                self._injected[kind] += 1
                return kind
        return None


def _told(row: Lease | None) -> tuple[str, str, str] | None:
    return None if row is None else (row.owner, row.stealer, row.checkpoint)


READ_FAILED = DependencyException("the service did not deliver this page", kind=ErrorKind.TRANSIENT)
