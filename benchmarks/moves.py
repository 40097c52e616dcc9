"""``python -m benchmarks.moves`` (``make bench-leases``): moves, recovery and cost of leases.

Two kinds of fleets run in the simulator, with the same intervals, network and stream: workers with the production core,
and workers with a model of the Java client's algorithm. Time is simulated, so a figure is the same on every machine. A
fleet is *even* when each worker processes the same number of shards, give or take one.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from attrs import define, evolve, field, frozen

from streamclient import BalanceBy, Lease
from streamclient.core import events
from streamclient.core.write_rules import WorkerWriteKind, WriteKind
from streamclient.model import Shard
from streamclient.testing.simulation.actors.java.java_process import Answer
from streamclient.testing.simulation.actors.java.java_worker import JavaWorker
from streamclient.testing.simulation.actors.process_actor import PythonProcess
from streamclient.testing.simulation.kernel import Entry
from streamclient.testing.simulation.plan import Plan
from streamclient.testing.simulation.roles import ConsumerRole
from streamclient.testing.simulation.simulated_faults import Fate
from streamclient.testing.simulation.simulated_table import LeaseChange, Outsider
from streamclient.testing.simulation.storm import SimulatedFleet
from streamclient.testing.simulation.world import Habits, Law, SimulatedWorld

WORKERS, SHARDS = 10, 900
LEASE_SECONDS = 20.0
SETTLE_SECONDS = 600.0
"""The time-out, in seconds, for a fleet to become even. A Java worker marks only one lease per pass."""

REGULAR_SECONDS = 10.0
"""The seconds for which a fleet is even before a worker joins or leaves, so that every shard is read all the time."""

STEADY_SECONDS = 600.0
WATCH_SECONDS = 120.0
LOOK_SECONDS = 0.1
"""The seconds between two checks whether a fleet is even, which takes a second or more."""
RENEWALS_PER_REQUEST, WRITES_PER_REQUEST = 200, 50
"""The largest number of renewals and of other writes that a worker sends in one request."""

NETWORK_SECONDS = 0.01
WRITE_SECONDS, ROUND_SECONDS = 0.1, 0.05
"""The seconds between writes, and for a batch in a processor, on a busy stream. Every shard gets records ten times a
second, so only moves cause gaps."""

QUIET_WRITE_SECONDS, QUIET_ROUND_SECONDS = 30.0, 5.0
"""The seconds between writes, and for a batch in a processor, on a quiet stream, which serves to count calls."""
SEED = 1
MOMENTS = (0.0, 1.2, 2.4, 3.6, 4.8)
"""The additional seconds for which a fleet stays even before a worker leaves. Two scans are six seconds apart."""
HOT_WRITE_SECONDS = 1.0
AT_REST = Habits(prompt_seconds=0.0, queued_share=0.0)
"""The habits of user code that takes time only in its batches, as in the model of the Java client."""
MOVING = evolve(AT_REST, checkpointed_share=1.0)
"""The habits of user code that writes every batch immediately. A batch that it kept would look like a gap of a move."""

FLEET = Outsider("operator", "operator", "outside", is_python=False)
"""The writer of the lease rows that exist before a fleet starts."""


@define
class Cost:
    """The number of calls of the status table, and of the rows that they read."""

    requests: int = 0
    rows_read: int = 0

    def add(self, requests: int, rows_read: int = 0) -> None:
        """Add calls, and the rows that they read."""
        self.requests += requests
        self.rows_read += rows_read

    def less(self, other: Cost) -> Cost:
        """Return the difference to ``other``, an earlier value of this cost."""
        return Cost(self.requests - other.requests, self.rows_read - other.rows_read)


@define(eq=False)
class Meter:
    """Measures a simulated world: the shards that each worker processes, and when; the calls of the status table."""

    now: Callable[[], float]
    for_leases: Cost = field(factory=Cost)
    """The calls whose number grows with the number of leases: scans, and writes of single leases."""
    for_workers: Cost = field(factory=Cost)
    """The calls whose number grows with the number of workers: signals and heartbeats, which are sent together."""
    last: dict[str, tuple[str, float]] = field(factory=dict)
    """The worker that last processed each shard, and the time, by shard."""
    gaps: list[float] = field(factory=list)
    repeated: int = 0
    takes: int = 0
    resets: int = 0
    """The number of lease rows with an owner that a worker replaced by a new row."""
    checkpoints: int = 0
    """The number of checkpoints that processors have stored."""
    processed: dict[str, int] = field(factory=dict)
    read_by_others: dict[str, float] = field(factory=dict)
    """The time at which a new worker first processed each shard, by shard."""

    def worked(self, worker: str, lease_key: str, start: int, end: int) -> None:
        """Add that a worker processed the records from ``start`` to ``end`` of a shard."""
        before = self.last.get(lease_key)
        if before is not None and before[0] != worker:
            self.gaps.append(self.now() - before[1])
            self.read_by_others.setdefault(lease_key, self.now())
        self.last[lease_key] = (worker, self.now())
        self.repeated += max(0, min(end, self.processed.get(lease_key, 0)) - start)
        self.processed[lease_key] = max(end, self.processed.get(lease_key, 0))

    def reset(self) -> None:
        """Set all counts to zero, and forget the gaps."""
        self.for_leases, self.for_workers = Cost(), Cost()
        self.gaps, self.repeated, self.takes, self.read_by_others, self.checkpoints = [], 0, 0, {}, 0

    # --- methods of an observer ------------------------------------------------------------------------------

    def noted(self, entry: Entry) -> None:
        """Do nothing: the meter does not use the trace."""

    def handled(self, now: float, label: str, event: object, commands: Iterable[object]) -> None:
        """Count the requests in the ``commands`` of a core."""
        if isinstance(event, events.Answered) and isinstance(event.value, events.Scan):
            self.for_leases.add(0, len(event.value.rows) + len(event.value.workers or ()))
        elif isinstance(event, events.Answered) and isinstance(event.call, events.ReadSignals):
            self.for_workers.add(0, len(event.value or ()))
        heartbeats = writes = 0
        for command in commands:
            match command:
                case events.WriteLease() | events.WriteWorker():
                    is_heartbeat = command.write.kind in (WriteKind.RENEW, WorkerWriteKind.BEAT)
                    heartbeats, writes = heartbeats + is_heartbeat, writes + (not is_heartbeat)
                    self.checkpoints += command.write.kind is WriteKind.CHECKPOINT
                case events.ReadRows():
                    self.for_leases.add(2)
                case events.ReadRow() | events.DrawEpoch():
                    self.for_leases.add(1)
                case events.ReadSignals() | events.WakeWorkers():
                    self.for_workers.add(1)
        self.for_workers.add(-(-heartbeats // RENEWALS_PER_REQUEST))
        self.for_leases.add(-(-writes // WRITES_PER_REQUEST))


class Watching(Law):
    """A law of the simulator that tells the meter which records the sink accepts, and which workers take leases."""

    def __init__(self, world: SimulatedWorld, meter: Meter) -> None:
        super().__init__(world)
        self.meter = meter

    def records_written(self, consumer: ConsumerRole, start: int, end: int) -> None:
        """Tell the meter that records of a shard reached the sink."""
        self.meter.worked(consumer.process.name, consumer.lease_key, start, end)

    def row_changed(self, change: LeaseChange) -> None:
        """Count a take if the lease has another owner now."""
        before, after = change.before, change.after
        if before is not None and after is not None and before.owner not in ("", after.owner):
            self.meter.takes += 1
            self.meter.resets += after.owner == ""


class CountedJava(JavaWorker):
    """A Java worker that counts its calls of the status table."""

    def __init__(self, world: SimulatedWorld, name: str, life: int) -> None:
        super().__init__(world, name, life)
        self.cost = Cost()

    def land(self, operate: Callable[[], Answer], then: Callable[[Answer], None], fate: Fate) -> None:
        """Carry out a call, and count it."""
        super().land(lambda: self._counted(operate()), then, fate)

    def _counted(self, answer: Answer) -> Answer:
        """Count a call by its answer. A list of shards does not count, because it comes from the stream."""
        if not (isinstance(answer, tuple) and answer and isinstance(answer[0], Shard)):
            rows = len(answer) if isinstance(answer, list | set | tuple) else int(isinstance(answer, Lease))
            self.cost.add(1, rows)
        return answer


class MeasuredWorld(SimulatedWorld):
    """A simulated world without faults, with a meter in place of the laws that check it."""

    def __init__(self, plan: Plan) -> None:
        self.meter = Meter(lambda: self.now)
        super().__init__(plan, lambda world: [Watching(world, self.meter)], self.meter)
        self.fleet = SimulatedFleet(self)
        self.fleet.java_client = CountedJava
        self.disturbs_pages = False  # the model of the Java client has no wrong pages either

    def java_processed(self, lease_key: str, start: int, end: int) -> None:
        """Tell the meter that the owner of a lease, a Java worker, processed records."""
        self.meter.worked(self.table.rows[lease_key].owner, lease_key, start, end)
        self.sink.advance(lease_key, start, end)

    def counts_by_owner(self) -> Counter[str]:
        """Return the number of leases of each worker. A lease that is being handed over does not count."""
        return Counter(row.owner for row in self.table.rows.values() if not row.stealer)

    def is_even(self, workers: int) -> bool:
        """Return whether each shard's owner processes it, and the workers' numbers of leases differ by at most one."""
        counts = self.counts_by_owner()
        owners = {key: row.owner for key, row in self.table.rows.items()}
        reading = sum(self.meter.last.get(key, ("", 0.0))[0] == owner for key, owner in owners.items())
        is_complete = len(self.table.rows) == self.plan.shards == reading == sum(counts.values())
        return is_complete and len(counts) == workers and max(counts.values()) - min(counts.values()) <= 1

    def run_until(self, condition: Callable[[], bool], seconds: float) -> float:
        """Let time pass until ``condition`` holds; return the seconds that passed, or infinity after ``seconds``."""
        began = self.now
        while self.now < began + seconds:
            self.agenda.run_until(self.now + LOOK_SECONDS)
            if condition():
                return self.now - began
        return float("inf")

    def java_cost(self) -> Cost:
        """Return the calls of all Java workers since the beginning of the simulation."""
        costs = [worker.cost for worker in self.fleet.everybody if isinstance(worker, CountedJava)]
        return Cost(sum(cost.requests for cost in costs), sum(cost.rows_read for cost in costs))


@frozen
class Line:
    """A figure of this package's workers beside the same figure of the Java client."""

    what: str
    ours: str
    java: str


def world_of(
    workers: int, shards: int, *, java: bool, has_rows: bool = True, habits: Habits = MOVING, **changes: Any
) -> MeasuredWorld:
    """Start all workers of a fleet together, on a stream with a steady writer.

    With ``has_rows``, lease rows exist already, because the stream was read earlier.
    """
    plan = Plan(
        seed=SEED,
        shards=shards,
        delay_seconds=NETWORK_SECONDS,
        write_seconds=WRITE_SECONDS,
        round_seconds=ROUND_SECONDS,
        signal_interval_millis=400,
    )
    world = MeasuredWorld(evolve(plan, **changes))
    world.habits = habits
    for shard_id in sorted(world.stream.open_ids) if has_rows else ():
        world.table.put(FLEET, "create", shard_id, Lease(shard_id, "stream"))
    for number in range(workers):
        world.fleet.start(f"w{number:02d}", java=java)
    return world


def cold_start(*, java: bool) -> tuple[str, str]:
    """Start ten workers together on an unread stream.

    Return the time until the fleet is even, and the number of lease rows with an owner that workers replaced.
    """
    world = world_of(WORKERS, SHARDS, java=java, has_rows=False)
    seconds = world.run_until(lambda: world.is_even(WORKERS), SETTLE_SECONDS)
    return _seconds(seconds), str(world.meter.resets)


def scale_out(*, java: bool) -> tuple[str, str, str]:
    """Add a tenth worker to nine; return time and moves until the fleet is even, the gaps, and the repeated records."""
    world = world_of(WORKERS - 1, SHARDS, java=java)
    world.run_until(lambda: world.is_even(WORKERS - 1), SETTLE_SECONDS)
    world.agenda.run_until(world.now + REGULAR_SECONDS)
    world.meter.reset()
    world.fleet.start(f"w{WORKERS - 1:02d}", java=java)
    seconds = world.run_until(lambda: world.is_even(WORKERS), SETTLE_SECONDS)
    return f"{_seconds(seconds)}, {world.meter.takes} moves", _gaps(world.meter.gaps), str(world.meter.repeated)


def shutdown(*, java: bool) -> tuple[str, str]:
    """Stop one of ten workers, at five moments; return the gaps, and the number of repeated records.

    A Java worker crashes instead: the Java client releases no lease, so its leases expire in either case.
    """
    gaps: list[float] = []
    repeated = 0
    for moment in MOMENTS:
        world, worker, theirs = _leaving(REGULAR_SECONDS + moment, java=java)
        if isinstance(worker, JavaWorker):
            worker.crash()
        else:
            worker.stop()
        world.run_until(partial(theirs.issubset, world.meter.read_by_others), WATCH_SECONDS)
        gaps += world.meter.gaps
        repeated += world.meter.repeated
    return _gaps(gaps), str(repeated)


def loss(*, java: bool) -> str:
    """Crash one of ten workers, at five moments; return the time until other workers process its shards."""
    seconds: list[float] = []
    for moment in MOMENTS:
        world, worker, theirs = _leaving(moment, java=java)
        crashed_at = world.now
        worker.crash()
        world.run_until(partial(theirs.issubset, world.meter.read_by_others), WATCH_SECONDS)
        seconds += [world.meter.read_by_others.get(key, float("inf")) - crashed_at for key in theirs]
    return f"median {statistics.median(seconds):.1f} s, longest {_seconds(max(seconds))}"


def _leaving(after: float, *, java: bool) -> tuple[MeasuredWorld, PythonProcess | JavaWorker, set[str]]:
    """Run a fleet until it was even for ``after`` seconds, and reset the meter.

    Return the fleet's world, one of its workers, and the shards of that worker.
    """
    world = world_of(WORKERS, SHARDS, java=java)
    world.run_until(partial(world.is_even, WORKERS), SETTLE_SECONDS)
    world.agenda.run_until(world.now + after)
    name = f"w{WORKERS - 1:02d}"
    world.meter.reset()
    return world, world.fleet.workers[name], {key for key, row in world.table.rows.items() if row.owner == name}


def steady(workers: int, *, java: bool) -> tuple[str, str, str, str]:
    """Watch a fleet at rest; return moves per hour, and requests and rows per minute for each lease and each worker.

    Figures for each worker are measured only for this package's workers.
    """
    quiet: dict[str, Any] = {"write_seconds": QUIET_WRITE_SECONDS, "round_seconds": QUIET_ROUND_SECONDS}
    world = world_of(workers, SHARDS, java=java, habits=AT_REST, **quiet)
    world.run_until(lambda: world.is_even(workers), SETTLE_SECONDS)
    world.agenda.run_until(world.now + 2 * LEASE_SECONDS)
    world.meter.reset()
    before = world.java_cost()
    world.agenda.run_until(world.now + STEADY_SECONDS)
    minutes = STEADY_SECONDS / 60
    for_leases = world.java_cost().less(before) if java else world.meter.for_leases
    for_workers = world.meter.for_workers
    checkpoints = "" if java else f", {world.meter.checkpoints / SHARDS / minutes:.2f} of them checkpoints"
    return (
        f"{world.meter.takes * 60 / minutes:.0f}",
        f"{for_leases.requests / SHARDS / minutes:.2f}{checkpoints}",
        f"{for_leases.rows_read / SHARDS / minutes:.1f}",
        f"{for_workers.requests / workers / minutes:.0f} and {for_workers.rows_read / workers / minutes:.0f}",
    )


def load_spread(by: BalanceBy) -> str:
    """Write ten times as fast to every tenth shard; return the smallest and largest records per second of a worker."""
    hot_stream: dict[str, Any] = {"balance_by": by.value, "write_seconds": HOT_WRITE_SECONDS}
    world = world_of(WORKERS, 100, java=False, habits=AT_REST, **hot_stream)
    hot = set(sorted(world.stream.open_ids)[::10])
    _write_more(world, hot)
    world.agenda.run_until(SETTLE_SECONDS)
    before = dict(world.meter.processed)
    world.agenda.run_until(world.now + WATCH_SECONDS)
    rates: Counter[str] = Counter()
    for key, row in world.table.rows.items():
        rates[row.owner] += world.meter.processed.get(key, 0) - before.get(key, 0)
    numbers = [count / WATCH_SECONDS for count in rates.values()]
    return f"{min(numbers):.1f} to {max(numbers):.1f} records/s"


def _write_more(world: MeasuredWorld, hot: set[str]) -> None:
    for key in sorted(hot):
        world.stream.write(key, 15, world.now)
    world.agenda.after(HOT_WRITE_SECONDS, _write_more, world, hot)


def _gaps(gaps: Sequence[float]) -> str:
    if not gaps:
        return "no move"
    return f"median {statistics.median(gaps):.2f} s, longest {max(gaps):.2f} s ({len(gaps)} shards)"


def _seconds(seconds: float) -> str:
    return f"not within {SETTLE_SECONDS:.0f} s" if seconds == float("inf") else f"{seconds:.1f} s"


def measure() -> list[Line]:
    """Measure every figure, for this package's workers and for Java workers."""
    ours, java = cold_start(java=False), cold_start(java=True)
    lines = [Line("cold start until even", ours[0], java[0]), Line("owned rows put anew by it", ours[1], java[1])]
    moved, stolen = scale_out(java=False), scale_out(java=True)
    names = ("9 to 10 workers until even", "gap of a move, last record to first", "records repeated by these moves")
    lines += [Line(name, mine, theirs) for name, mine, theirs in zip(names, moved, stolen, strict=True)]
    stopped, left = shutdown(java=False), shutdown(java=True)
    lines.append(Line("gap when a worker is shut down", stopped[0], left[0]))
    lines.append(Line("records repeated by it", stopped[1], left[1]))
    lines.append(Line("loss of a worker until read elsewhere", loss(java=False), loss(java=True)))
    for workers in (5, 10, 20):
        mine, theirs = steady(workers, java=False), steady(workers, java=True)
        lines.append(Line(f"moves per hour at rest, {workers} workers", mine[0], theirs[0]))
        lines.append(Line(f"requests for each lease and minute, {workers} workers", mine[1], theirs[1]))
        lines.append(Line(f"rows read for each lease and minute, {workers} workers", mine[2], theirs[2]))
        lines.append(Line(f"requests and rows for each worker and minute, {workers} workers", mine[3], "-"))
    count, load = load_spread(BalanceBy.COUNT), load_spread(BalanceBy.RECORDS)
    lines.append(Line("load per worker, one shard in ten is hot, by count", count, "-"))
    lines.append(Line("load per worker, one shard in ten is hot, by records", load, "-"))
    return lines


def main() -> None:
    """Measure all figures, and print them as a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.moves", description=__doc__)
    parser.parse_args()
    began = time.monotonic()
    lines = measure()
    print(f"{WORKERS} workers, {SHARDS} shards, lease duration {LEASE_SECONDS:.0f} s, simulated time, seed {SEED}.\n")
    print("| Figure | streamclient | model of the Java client |\n|---|---|---|")
    for line in lines:
        print(f"| {line.what} | {line.ours} | {line.java} |")
    print(f"\nIt took {time.monotonic() - began:.0f} s.")


if __name__ == "__main__":
    main()
