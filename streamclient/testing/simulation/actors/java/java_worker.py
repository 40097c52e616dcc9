"""The model of one Java worker: its main loop, its shard sync and its consumers."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from functools import partial

from attrs import define

from streamclient.model import CheckpointPosition, Lease, Shard
from streamclient.testing.simulation.actors.java.java_leases import LeaseRenewer, LeaseTaker, OwnedLease
from streamclient.testing.simulation.actors.java.java_process import JavaProcess
from streamclient.testing.simulation.simulated_stream import place_of
from streamclient.testing.simulation.world import SimulatedWorld

LOOP_SECONDS = 0.5
"""The interval of the main loop, in seconds. The real Java client loops every 20 ms, which makes no difference to other
workers."""

PARENT_POLL_SECONDS = 5.0

FRESH_SECONDS = 60.0
"""The longest allowed time, in seconds, since the taker's last successful pass, and also since the renewer's last pass.
If one of the two times is longer, the Java worker ends. The number is for a lease duration of 20 s. The limit grows in
proportion to the lease duration."""

SDK_RETRIES = 4
"""The number of retries that the SDK makes when the worker lists the shards. If all retries fail, the worker ends."""

BATCH_RECORDS = 5


class State(Enum):
    """The state of a Java worker's shard consumer. The values are the Java client's names of the states."""

    WAITING = "WAITING_ON_PARENT_SHARDS"
    INITIALIZING = "INITIALIZING"
    PROCESSING = "PROCESSING"
    COMPLETE = "SHUTDOWN_COMPLETE"


@define(eq=False)
class JavaConsumer:
    """A shard consumer of a Java worker. At most one of its tasks runs at a time."""

    key: str
    identifier: str
    state: State = State.WAITING
    is_busy: bool = False
    stop: str = ""
    position: int = 0


class JavaWorker(JavaProcess):
    """One Java worker, from the start to the end of its process."""

    def __init__(self, world: SimulatedWorld, name: str, life: int) -> None:
        super().__init__(world, name, life)
        self.renewer = LeaseRenewer(self)
        self.taker = LeaseTaker(self, self.renewer)
        self._consumers: dict[str, JavaConsumer] = {}
        self._synced_at = world.now
        self._is_syncing = False

    def start(self) -> None:
        """Begin the first shard sync, and schedule the passes of taker and renewer, and the main loop."""
        self._sync()
        self.later(0.5, self.taker.run)
        self.later(0.5, self.renewer.run)
        self.later(LOOP_SECONDS, self._loop)

    def holds(self) -> set[str]:
        """Return the keys of the worker's leases that have not expired by its own clock."""
        return {key for key, owned in self.renewer.owned.items() if not self.renewer.is_expired(owned)}

    # --- the main loop -----------------------------------------------------------------------------------------

    def _loop(self) -> None:
        held = {key: owned for key, owned in self.renewer.owned.items() if not self.renewer.is_expired(owned)}
        for key in sorted(held):
            if not held[key].stealer:
                self._consume(key, held[key])
        if self.local() - self._synced_at > self.world.plan.sync_shard_interval_millis / 1_000 and not self._is_syncing:
            self._sync()
        for consumer in list(self._consumers.values()):
            self._retire(consumer, held.get(consumer.key))
        if (
            self.local() - min(self.taker.succeeded_at, self.renewer.ran_at)
            > FRESH_SECONDS * self.duration_seconds / 20.0
        ):
            self.die("taker or renewer too old")
        self.later(LOOP_SECONDS, self._loop)

    def _consume(self, key: str, owned: OwnedLease) -> None:
        consumer = self._consumers.get(owned.identifier)
        if consumer is None:
            consumer = self._consumers[owned.identifier] = JavaConsumer(key, owned.identifier)
        self._poke(consumer)

    def _retire(self, consumer: JavaConsumer, owned: OwnedLease | None) -> None:
        """Stop a consumer whose lease is requested or lost. After the stop, hand a requested lease over."""
        is_held = owned is not None and owned.identifier == consumer.identifier
        if is_held and owned is not None and not owned.stealer:
            return
        consumer.stop = "STOLEN" if is_held else "ZOMBIE"
        self._poke(consumer)
        if consumer.state is State.COMPLETE and not consumer.is_busy:
            del self._consumers[consumer.identifier]
            if is_held:
                self.renewer.transfer(consumer.key, consumer.identifier)

    # --- consumers ---------------------------------------------------------------------------------------------

    def _poke(self, consumer: JavaConsumer) -> None:
        if consumer.is_busy or consumer.state is State.COMPLETE:
            return
        if consumer.state is State.WAITING:
            consumer.is_busy = True
            self._check_parents(consumer)
        elif consumer.stop:
            consumer.state = State.COMPLETE
        elif consumer.state is State.INITIALIZING:
            consumer.is_busy = True
            self._initialize(consumer)
        else:
            self._process(consumer)

    def _check_parents(self, consumer: JavaConsumer) -> None:
        """Check whether all parents are finished. A parent without a row counts as finished.

        A stop request has no effect while a parent is unfinished.
        """
        rows = self.world.table.rows
        own = self.renewer.owned.get(consumer.key)
        parents = own.lease.parent_shard_ids if own is not None else frozenset[str]()

        def answered(is_open: bool) -> None:
            if not is_open:
                self.later(PARENT_POLL_SECONDS, self._free, consumer)
                return
            consumer.state = State.COMPLETE if consumer.stop else State.INITIALIZING
            self._free(consumer)

        def look() -> bool:
            return all(rows[parent].is_finished for parent in sorted(parents) if parent in rows)

        self.call(look, answered, lambda: self.die("a parent could not be read"))

    def _initialize(self, consumer: JavaConsumer) -> None:
        rows = self.world.table.rows

        def answered(row: Lease | None) -> None:
            checkpoint = CheckpointPosition.TRIM_HORIZON if row is None else row.checkpoint
            is_finished = checkpoint == CheckpointPosition.SHARD_END
            consumer.position = self.world.stream.shards[consumer.key].size if is_finished else place_of(checkpoint)
            consumer.state = State.COMPLETE if is_finished else State.PROCESSING
            self._free(consumer)

        self.call(lambda: rows.get(consumer.key), answered, lambda: self.die("a checkpoint could not be read"))

    def _process(self, consumer: JavaConsumer) -> None:
        """Fetch, process and checkpoint one batch. A shard that has left the stream ends the worker."""
        shard = self.world.stream.shards[consumer.key]
        if not shard.is_listed:
            self.die(f"{consumer.key} is trimmed")
        elif consumer.position < shard.size or not shard.is_open:
            backlog = (shard.size - consumer.position) // 4
            end = min(consumer.position + 1 + self.dice.randrange(BATCH_RECORDS) + backlog, shard.size)
            consumer.is_busy = True
            seconds = self.world.plan.round_seconds * (0.5 + self.dice.random())
            self.later(seconds, self._done, consumer, end)

    def _done(self, consumer: JavaConsumer, end: int) -> None:
        shard = self.world.stream.shards[consumer.key]
        self.world.java_processed(consumer.key, consumer.position, end)
        consumer.position = end
        is_end = not shard.is_open and end == shard.size
        value = CheckpointPosition.SHARD_END if is_end else self.world.new_value(end)

        def stored(was_stored: bool) -> None:
            if is_end and was_stored:
                consumer.state = State.COMPLETE
                self._sync()
            self._free(consumer)

        self.renewer.update(consumer.key, consumer.identifier, value, stored)

    @staticmethod
    def _free(consumer: JavaConsumer) -> None:
        consumer.is_busy = False

    # --- shard sync --------------------------------------------------------------------------------------------

    def _sync(self) -> None:
        """Create rows for the shards that have none, and delete the rows of shards that are gone, unconditionally."""
        self._is_syncing, self._synced_at = True, self.local()
        self.call(self.world.listing, self._listed, lambda: self.die("shards could not be listed"), retries=SDK_RETRIES)

    def _listed(self, shards: tuple[Shard, ...]) -> None:
        rows = self.world.table.rows

        def scanned(known: set[str]) -> None:
            missing = [shard for shard in shards if shard.shard_id not in known]
            garbage = sorted(known - {shard.shard_id for shard in shards})
            new = [Lease(each.shard_id, "stream", parent_shard_ids=each.parent_shard_ids) for each in missing]
            creations = [partial(self._put, "create", lease.lease_key, lease) for lease in new]
            self._write_next([*creations, *(partial(self._put, "delete", key, None) for key in garbage)])

        self.call(lambda: set(rows), scanned, lambda: self.die("leases could not be listed"))

    def _write_next(self, writes: Sequence[partial[None]]) -> None:
        """Carry out ``writes`` one after the other. A write that fails ends the worker."""
        if not writes:
            self._is_syncing = False
            return
        problem = f"a lease could not be {writes[0].args[0]}d"
        self.call(writes[0], lambda _: self._write_next(writes[1:]), lambda: self.die(problem))

    def _put(self, what: str, key: str, row: Lease | None) -> None:
        table = self.world.table
        if key in table.rows:
            self.world.destroyed(key)
        elif row is None:
            return
        table.put(self, what, key, row)

    def __repr__(self) -> str:
        return f"<{self.label}: {sorted(self.holds())}>"
