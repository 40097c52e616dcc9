"""Carries out the commands that need the service, outside the owner thread, and reports each as one event."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from functools import partial

from attrs import evolve, frozen

from streamclient.core import leases as rule
from streamclient.core.events import (
    Event,
    ResolveAndCreate,
    RowReadBack,
    RowsRead,
    RowsUnreadable,
    RowUnreadable,
    ShardsListed,
    ShardsUnlistable,
    WriteAnswered,
)
from streamclient.core.leases import LeaseWrite, WriteKind, WriteOutcome
from streamclient.errors import StreamClientException
from streamclient.lease.store import LeaseStore, WriteAnswer
from streamclient.stream.api import StreamApi
from streamclient.worker.loop import OwnerLoop

RENEWALS_PER_REQUEST = 200
"""What one BatchWriteRow may hold."""

OTHER_WRITES_PER_REQUEST = 50
"""Takes, checkpoints and hand-overs go out in smaller groups, side by side: a lease manager that makes one request per
write still answers each within a second or so."""


@frozen(kw_only=True)
class ServiceCalls:
    """The owner's hands. Methods are called in the owner thread and return at once; ``emit`` is called there, too.

    Every call is made once. The lease manager and the stream API have repeated what is worth repeating before they
    fail; another layer of retries would multiply with theirs. What to do after a failure is a decision, so ``Holdings``
    makes it.
    """

    stream_id: str
    store: LeaseStore
    stream_api: StreamApi
    loop: OwnerLoop
    status_pool: Executor
    """For the status table and the list of shards; reading records never keeps it busy."""
    fetch_pool: Executor
    emit: Callable[[Event], None]

    def read_rows(self) -> None:
        """Scan the status table."""
        self._read(lambda: RowsRead(tuple(self.store.list_leases())), RowsUnreadable)

    def read_row(self, lease_key: str) -> None:
        """Read one row of the status table."""
        self._read(lambda: RowReadBack(lease_key, self.store.get_lease(lease_key)), partial(RowUnreadable, lease_key))

    def list_shards(self) -> None:
        """Read the complete list of shards."""
        self._read(
            lambda: ShardsListed(tuple(self.stream_api.describe_stream(self.stream_id).shards)), ShardsUnlistable
        )

    def write(self, writes: Sequence[LeaseWrite]) -> None:
        """Send writes of different rows, renewals together and the others together."""
        renewals = [write for write in writes if write.kind is WriteKind.RENEW]
        others = [write for write in writes if write.kind is not WriteKind.RENEW]
        for group in [*_groups(renewals, RENEWALS_PER_REQUEST), *_groups(others, OTHER_WRITES_PER_REQUEST)]:
            self.status_pool.submit(self._send, group)

    def resolve_and_create(self, command: ResolveAndCreate) -> None:
        """Look the first checkpoint up, then create the row with it."""
        self.fetch_pool.submit(self._resolve, command)

    def _read(self, read: Callable[[], Event], failed: Callable[[Exception], Event]) -> None:
        def call() -> None:
            try:
                event = read()
            except Exception as error:
                event = failed(error)
            self.loop.post(partial(self.emit, event))

        self.status_pool.submit(call)

    def _send(self, writes: Sequence[LeaseWrite]) -> None:
        # Before the request leaves: from then on a lease is valid, whatever the answer's delay.
        sent_at = self.loop.now()
        answers = _answers(self.store, writes)
        self.loop.post(partial(self._report, writes, answers, sent_at))

    def _report(self, writes: Sequence[LeaseWrite], answers: Sequence[WriteAnswer], sent_at: float) -> None:
        for write, answer in zip(writes, answers, strict=True):
            self.emit(WriteAnswered(write, answer.outcome, sent_at, answer.error))

    def _resolve(self, command: ResolveAndCreate) -> None:
        lease, sent_at = command.lease, self.loop.now()
        try:
            iterator = self.stream_api.get_shard_iterator(self.stream_id, lease.lease_key, command.timestamp_micros)
        except Exception as error:
            unanswered = WriteAnswered(rule.create(lease), WriteOutcome.UNCERTAIN, sent_at, error)
            self.loop.post(partial(self.emit, unanswered))
        else:
            self.loop.post(partial(self.write, [rule.create(evolve(lease, checkpoint=iterator))]))


def _groups(writes: Sequence[LeaseWrite], size: int) -> Iterable[Sequence[LeaseWrite]]:
    return (writes[start : start + size] for start in range(0, len(writes), size))


def _answers(store: LeaseStore, writes: Sequence[LeaseWrite]) -> Sequence[WriteAnswer]:
    """One answer per write, also from a store that breaks its promise never to raise."""
    try:
        answers = store.write_many(writes)
    except Exception as error:
        return [WriteAnswer(WriteOutcome.UNCERTAIN, error)] * len(writes)
    if len(answers) == len(writes):
        return answers
    mistake = StreamClientException(f"write_many gave {len(answers)} answers for {len(writes)} writes")
    return [WriteAnswer(WriteOutcome.UNCERTAIN, mistake)] * len(writes)
