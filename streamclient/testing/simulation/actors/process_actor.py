"""A simulated process with a worker of this package: the production ``Holdings`` with simulated calls.

The code around the core does what ``streamclient.worker`` does. It sends the writes of a turn immediately, all renewals
in one request, and reads ``sent_at`` before a request leaves. The answer to each call is one event. A frozen process
handles no event. Its events wait until the process continues, and are handled in order.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from streamclient.core import events, leases
from streamclient.core.consumer.reading_pace import WorkerPace
from streamclient.core.events import Answered, Call, Command, Event
from streamclient.core.holdings import Holdings
from streamclient.core.leases import LeaseWrite
from streamclient.core.membership import WorkerWrite
from streamclient.core.write_rules import WorkerWriteKind, WriteKind, WriteOutcome
from streamclient.model import InitialPosition, Lease
from streamclient.testing.simulation.actors.consumer_actor import Consumer
from streamclient.testing.simulation.kernel import ERRORS, NO_ANSWER, UNREADABLE, Dice, SimulatedProcess
from streamclient.testing.simulation.roles import ConsumerRole
from streamclient.testing.simulation.simulated_faults import Fate
from streamclient.testing.simulation.simulated_stream import STREAM_ID
from streamclient.testing.simulation.world import SimulatedWorld

TICK_LAG_SECONDS = 1e-6
"""The time, in seconds, from a deadline of the core to the tick that handles the deadline. Without this time, a tick
could come before its deadline because of rounded clocks."""

NEVER_DUE = float("inf")

WRITES = (events.WriteLease, events.WriteWorker)

CARRIED_OUT = (Fate.LOST_ANSWER, Fate.DEAF, Fate.LATE_REQUEST)
"""The outcomes of calls that the service carries out, but whose answers do not arrive."""


class PythonProcess(SimulatedProcess):
    """One process of a Python worker, from its start to its crash or end."""

    kind = "worker"
    is_python = True

    def __init__(self, world: SimulatedWorld, name: str, life: int) -> None:
        plan, self.world, self.life = world.plan, world, life
        super().__init__(world, name, f"{name}#{life}", Dice.of(plan.seed, "process", name, life))
        self.set_clock(plan.drift)
        self.is_stopping = False
        self.is_selective = False
        """Whether a processor of the worker has marked itself as done. The worker never takes the shard of such a
        processor again."""
        self.pace = WorkerPace(world.config).table()
        self.consumers: dict[str, Consumer] = {}
        """The consumers that have not ended, by the identifier of their acquisition."""
        self.identifiers = 0
        self.held_by_program: dict[str | None, None] = {}
        """The shards that the worker's own program paused; ``None`` stands for the whole worker."""
        self.decided: dict[str, LeaseWrite] = {}
        """By lease key, the last write that the core decided. Older writes of the process may reach the table late."""
        self._tick_due = NEVER_DUE
        """The deadline of the tick that is scheduled; infinite if no tick is scheduled."""
        position = InitialPosition.oldest() if plan.position == "oldest" else InitialPosition.latest()
        self.holdings = Holdings(
            name,
            STREAM_ID,
            world.config,
            position,
            Dice.of(plan.seed, "holdings", name, life),
            new_identifier=self._new_identifier,
            wall_start_micros=world.wall_micros(),
            has_worker_rows=plan.has_sessions,
        )

    # --- life --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin the recurring events: takes, renewals, and syncs of shards."""
        config = self.world.config
        for event, millis in (
            (events.TakeDue(), config.taker_interval_millis),
            (events.RenewDue(), config.renewer_interval_millis),
            (events.SyncDue(), config.sync_shard_interval_millis),
        ):
            self._beat(event, millis / 1_000)

    def crash(self) -> None:
        """End the process immediately, with its consumers."""
        super().crash()
        for consumer in self.consumers.values():
            consumer.vanish()
        self.consumers.clear()

    def stop(self) -> None:
        """Ask the worker for an orderly stop."""
        if not self.is_stopping:
            self.is_stopping = True
            self.deliver(events.StopRequested())

    def hold(self, lease_key: str | None) -> None:
        """Let the worker's own program pause a shard, or the whole worker."""
        self.deliver(events.PauseRequested(lease_key, "maintenance"))

    def let_go(self, lease_key: str | None) -> None:
        """Let the worker's own program end a pause."""
        self.deliver(events.ResumeRequested(lease_key))

    def believes(self, consumer: ConsumerRole) -> bool:
        """Return whether the worker relies on its session, and on the lease under which ``consumer`` reads."""
        held = self.holdings.held.get(consumer.lease_key)
        is_same = held is not None and held.identifier == consumer.identifier
        if not self.is_alive or not is_same or held is None:
            return False
        return min(held.valid_until, self.holdings.session_valid_until) > self.local()

    # --- events ------------------------------------------------------------------------------------------------

    def deliver(self, event: Event) -> None:
        """Let the process handle ``event`` immediately, or after a freeze. A dead process ignores the event."""
        self.when_awake(self.handle, event)

    def handle(self, event: Event) -> None:
        """Let the core handle an event, and carry out its commands."""
        world = self.world
        world.events += 1
        if type(event) is events.PauseRequested:
            self.held_by_program[event.lease_key] = None
        elif type(event) is events.ResumeRequested:
            self.held_by_program.pop(event.lease_key, None)
        commands = self.holdings.handle(event, self.local())
        if world.observer is not None:
            world.observer.handled(self.agenda.now, self.label, event, commands)
        heartbeats: list[LeaseWrite | WorkerWrite] = []
        for command in commands:
            if isinstance(command, WRITES):
                self._sort_write(command.write, heartbeats)
            else:
                _CARRY_OUT[type(command)](self, command)
        if heartbeats:
            self._send(heartbeats)
        if world.contested:
            world.laws.event_handled(self)
        self._schedule_tick()
        if self.is_stopping and self.holdings.is_drained:
            self.end("stopped")
            world.note(self.label, "has stopped")

    def _beat(self, event: Event, seconds: float) -> None:
        if self.is_alive:
            self.deliver(event)
            self.agenda.after(seconds, self._beat, event, seconds)

    def _schedule_tick(self) -> None:
        deadline = self.holdings.next_deadline(self.local())
        if deadline is not None and deadline < self._tick_due:
            self._tick_due = deadline
            moment = (deadline - self.clock_offset) / self.clock_rate + TICK_LAG_SECONDS
            self.agenda.at(moment, self.when_awake, self._tick, deadline)

    def _tick(self, due: float) -> None:
        """Handle the deadline ``due``. If the core has postponed the deadline, schedule another tick instead."""
        if self._tick_due != due:
            return
        self._tick_due = NEVER_DUE
        deadline = self.holdings.next_deadline(self.local())
        if deadline is not None and deadline <= self.local():
            self.handle(events.Tick())
        else:
            self._schedule_tick()

    def _new_identifier(self) -> str:
        self.identifiers += 1
        return f"{self.label}.{self.identifiers}"

    # --- reading -----------------------------------------------------------------------------------------------

    def _answer_after(self, seconds: float, fate: Fate, event: Event) -> None:
        if fate is Fate.LATE_ANSWER:
            seconds += self.network.lateness(self.dice)
        self.agenda.after(seconds, self.deliver, event)

    def _ask(
        self, call: Call[Any], land: Callable[..., None], *arguments: Any, effect: Callable[[], object] | None = None
    ) -> None:
        """Send a call to the service.

        If the answer reaches the process, the service runs ``land`` with the outcome and ``arguments``. If the service
        carries out the call but the answer is lost, the service runs ``effect`` instead.
        """
        fate = self.network.fate(self.name, self.dice)
        if effect is not None and fate in CARRIED_OUT:
            self.agenda.after(self.network.delay(self.name, self.dice), effect)
        if fate not in UNREADABLE:
            self.agenda.after(self.network.delay(self.name, self.dice), land, fate, *arguments)
            return
        is_prompt = fate is Fate.THROTTLED
        seconds = self.network.delay(self.name, self.dice) if is_prompt else self.network.timeout(self.dice)
        self.agenda.after(seconds, self.deliver, Answered(call, error=ERRORS.get(fate, NO_ANSWER)))

    def _answer(self, fate: Fate, call: Call[Any], look: Callable[[], Any]) -> None:
        """Send the present result of ``look`` to the process, as the answer to ``call``."""
        answer = Answered(call, look())
        self._answer_after(self.network.delay(self.name, self.dice), fate, answer)

    def _read_rows(self, command: events.ReadRows) -> None:
        self._ask(command, self._scan_first_part)

    def _scan_first_part(self, fate: Fate) -> None:
        """Read the first part of the lease rows. A scan reads two parts at different times, so it is not a snapshot."""
        rows, keys = self.world.table.rows, self.world.table.sorted_keys()
        place = self.dice.randrange(len(keys) + 1)
        first = [rows[key] for key in keys[:place]]
        middle = keys[place] if place < len(keys) else None
        self.agenda.after(self.network.delay(self.name, self.dice) / 2, self._scan_second_part, fate, first, middle)

    def _scan_second_part(self, fate: Fate, first: list[Lease], middle: str | None) -> None:
        """Read the second part of the lease rows, and afterwards the worker rows by another request."""
        world, table = self.world, self.world.table
        second = [table.rows[key] for key in table.sorted_keys() if middle is not None and key >= middle]

        def scan() -> events.Scan:
            workers = table.workers_of(table.workers) if world.plan.has_sessions else None
            return events.Scan((*first, *second), world.wall_micros(), workers)

        if world.plan.has_sessions:
            self.agenda.after(self.network.delay(self.name, self.dice), self._answer, fate, events.ReadRows(), scan)
        else:
            self._answer(fate, events.ReadRows(), scan)

    def _read_signals(self, command: events.ReadSignals) -> None:
        self._ask(command, self._answer, command, lambda: self.world.table.workers_of(command.names))

    def _wake_workers(self, command: events.WakeWorkers) -> None:
        """Send wake-up signals to other workers. These writes have no condition, and late writes do no harm."""
        fate, names = self.network.fate(self.name, self.dice), command.names
        delay = self.network.delay(self.name, self.dice)
        if not fate.is_unsent:
            self.agenda.after(delay, self.world.table.wake, names)
        error = ERRORS.get(fate, NO_ANSWER) if fate in UNREADABLE else None
        seconds = 2.0 * delay if error is None else self.network.timeout(self.dice)
        self._answer_after(seconds, fate, Answered(command, error=error))

    def _read_row(self, command: events.ReadRow) -> None:
        self._ask(command, self._answer, command, lambda: self.world.table.rows.get(command.lease_key))

    def _list_shards(self, command: events.ListShards) -> None:
        self._ask(command, self._answer, command, lambda: events.ShardList(self.world.listing()))

    def _draw_epoch(self, command: events.DrawEpoch) -> None:
        draw = partial(self.world.table.draw_epoch, command.lease_key)
        self._ask(command, self._answer, command, draw, effect=draw)

    def _note_order(self, command: events.NoteOrder) -> None:
        note = partial(self.world.notes.add, (command.lease_key, command.order.request_id))
        self._ask(command, self._answer, command, note, effect=note)

    def _forget_epoch(self, command: events.ForgetEpoch) -> None:
        if not self.network.fate(self.name, self.dice).is_unsent:
            delay = self.network.delay(self.name, self.dice)
            self.agenda.after(delay, self.world.table.epochs.pop, command.lease_key, None)

    # --- writing -----------------------------------------------------------------------------------------------

    def _sort_write(self, write: LeaseWrite | WorkerWrite, heartbeats: list[LeaseWrite | WorkerWrite]) -> None:
        if isinstance(write, LeaseWrite):
            self.decided[write.lease_key] = write
        if write.kind in (WriteKind.RENEW, WorkerWriteKind.BEAT):
            heartbeats.append(write)
        else:
            self._send([write])

    def _resolve_and_create(self, command: events.ResolveAndCreate) -> None:
        self.agenda.after(self.network.delay(self.name, self.dice), self._resolved, command)

    def _resolved(self, command: events.ResolveAndCreate) -> None:
        lease = command.lease
        place = self.world.stream.place_at(lease.lease_key, self.world.moment_of(command.timestamp_micros))
        found = Lease(
            lease.lease_key,
            lease.stream_id,
            checkpoint=f"{place}:resolved",
            parent_shard_ids=lease.parent_shard_ids,
        )
        self._send([leases.create(found)])

    def _send(self, writes: list[LeaseWrite | WorkerWrite]) -> None:
        """Send ``writes`` in one request. All rows of a request have the same outcome."""
        network, dice, after = self.network, self.dice, self.agenda.after
        sent_at, fate = self.local(), network.fate(self.name, dice)
        if fate in (Fate.FINE, Fate.LATE_ANSWER, Fate.FALSE_REFUSAL):
            after(network.delay(self.name, dice), self._land_and_answer, fate, writes, sent_at)
            return
        error = ERRORS.get(fate, NO_ANSWER)
        answers = [_answered(write, WriteOutcome.UNCERTAIN, sent_at, error) for write in writes]
        if fate is Fate.THROTTLED:
            after(network.delay(self.name, dice), self._deliver_all, answers)
            return
        seconds = network.timeout(dice)
        after(seconds, self._deliver_all, answers)
        if fate in (Fate.LOST_ANSWER, Fate.DEAF):
            after(network.delay(self.name, dice), self._land_all, writes)
        elif fate is Fate.LATE_REQUEST:
            after(seconds + network.lateness(dice), self._land_all, writes)

    def _land(self, write: LeaseWrite | WorkerWrite) -> bool:
        table = self.world.table
        return table.land(self, write) if isinstance(write, LeaseWrite) else table.land_worker(self, write)

    def _land_all(self, writes: list[LeaseWrite | WorkerWrite]) -> None:
        for write in writes:
            self._land(write)

    def _land_and_answer(self, fate: Fate, writes: list[LeaseWrite | WorkerWrite], sent_at: float) -> None:
        answers: list[Event] = []
        for write in writes:
            is_applied = self._land(write) and fate is not Fate.FALSE_REFUSAL
            outcome = WriteOutcome.ACCEPTED if is_applied else WriteOutcome.REFUSED
            answers.append(_answered(write, outcome, sent_at))
        seconds = self.network.delay(self.name, self.dice)
        if fate is Fate.LATE_ANSWER:
            seconds += self.network.lateness(self.dice)
        self.agenda.after(seconds, self._deliver_all, answers)

    def _deliver_all(self, answers: list[Event]) -> None:
        for event in answers:
            self.deliver(event)

    # --- consumers ---------------------------------------------------------------------------------------------

    def _start_consumer(self, command: events.StartConsumer) -> None:
        consumer = Consumer(self.world, self, command)
        self.world.consumer_started(consumer)
        self.consumers[consumer.identifier] = consumer
        consumer.begin()

    def forget(self, consumer: ConsumerRole) -> None:
        """Remove ``consumer``, which has ended, from the process."""
        del self.consumers[consumer.identifier]

    def _stop_consumer(self, command: events.StopConsumer) -> None:
        consumer = self.consumers.get(command.consumer_id)
        if consumer is not None:
            consumer.ask_to_stop(command.reason)

    def _give_orders(self, command: events.GiveOrders) -> None:
        consumer = self.consumers.get(command.consumer_id)
        if consumer is not None:
            consumer.obey(command.orders)

    def _answer_checkpoint(self, command: events.AnswerCheckpoint) -> None:
        self.world.checkpoint_answered(self, command)

    def _answer_end(self, command: events.AnswerEnd) -> None:
        consumer = self.consumers.get(command.consumer_id)
        if consumer is not None:
            consumer.end_judged(command)

    def _report(self, command: events.Report) -> None:
        self.world.reported(self, command)

    def __repr__(self) -> str:
        return f"<{self.label}: {self.holdings!r}>"


def _answered(
    write: LeaseWrite | WorkerWrite, outcome: WriteOutcome, sent_at: float, error: Exception | None = None
) -> Event:
    call = events.WriteLease(write) if isinstance(write, LeaseWrite) else events.WriteWorker(write)
    return Answered(call, outcome, sent_at, error=error)


_CARRY_OUT: dict[type[Command], Callable[[PythonProcess, Any], None]] = {
    events.ReadRows: PythonProcess._read_rows,
    events.ReadSignals: PythonProcess._read_signals,
    events.WakeWorkers: PythonProcess._wake_workers,
    events.ReadRow: PythonProcess._read_row,
    events.ListShards: PythonProcess._list_shards,
    events.DrawEpoch: PythonProcess._draw_epoch,
    events.ForgetEpoch: PythonProcess._forget_epoch,
    events.ResolveAndCreate: PythonProcess._resolve_and_create,
    events.StartConsumer: PythonProcess._start_consumer,
    events.StopConsumer: PythonProcess._stop_consumer,
    events.GiveOrders: PythonProcess._give_orders,
    events.NoteOrder: PythonProcess._note_order,
    events.AnswerCheckpoint: PythonProcess._answer_checkpoint,
    events.AnswerEnd: PythonProcess._answer_end,
    events.Report: PythonProcess._report,
}
