"""One history of workers with loops: a time with faults, then a time until the programs have accepted all changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial

from attrs import define, evolve, field

from streamclient.config import Backoff, FailurePolicy
from streamclient.errors import StreamClientException
from streamclient.interfaces import IRecordProcessor
from streamclient.testing.history import LawBroken
from streamclient.testing.simulation.kernel import Dice, Observer, PlayedHistory, Trace
from streamclient.testing.simulation.loops.loop_programs import BodyFailed, LoopProgram
from streamclient.testing.simulation.loops.loop_witness import LEASES, RAISES, REASONS, LoopLife, LoopWitness
from streamclient.testing.simulation.loops.simulated_bridge import SimulatedBridge, SimulatedTask
from streamclient.testing.simulation.loops.simulated_consumption import GIVE_BACK_SECONDS, SimulatedConsumption
from streamclient.testing.simulation.plan import Action, LoopPlan
from streamclient.testing.simulation.simulated_faults import Do
from streamclient.testing.simulation.trials.trial import Trial, quiet_logs
from streamclient.testing.simulation.trials.trial_settings import Fault, Run, TrialSettings, simulated_config

RESTART_SECONDS = 10.0
"""The longest time, in seconds, between the end of a worker and the start of the process that replaces it."""

CONFIG = evolve(
    simulated_config(), failure_policy=FailurePolicy(retries=1), backoff=Backoff(restart_backoff_max_millis=5_000)
)
"""The settings of all workers. A failed batch is delivered once more; if it fails twice, a new processor gets it."""


def settings_of(plan: LoopPlan) -> TrialSettings:
    """Return the settings of the trial that runs the history of ``plan``."""
    shares = {"lost_requests": plan.rates.lost_request, "lost_answers": plan.rates.lost_answer}
    shares |= {"throttled": plan.rates.throttled, "failing_reads": plan.failing_reads}
    return TrialSettings(
        make_processor=_no_processor,
        shards=plan.shards,
        records=plan.records,
        keys=plan.keys,
        max_records=plan.max_records,
        faults=[Fault(choice, share=share) for choice, share in shares.items() if share],
        config=CONFIG,
    )


def _no_processor() -> IRecordProcessor:
    raise StreamClientException("loops make no processors")


@define(eq=False)
class LoopProcess:
    """One process with its worker, its event loop and its program."""

    life: LoopLife
    bridge: SimulatedBridge
    consumption: SimulatedConsumption
    program: LoopProgram
    task: SimulatedTask = field(init=False)
    waits: int = 0
    """The number of waits that the process's tasks have begun or, if the plan sets ``cancels_rung``, have ended."""

    @property
    def is_running(self) -> bool:
        """Whether the program has not ended, and its event loop still runs."""
        return not (self.task.is_over or self.bridge.is_closed or self.bridge.queue.is_frozen)


@define(eq=False)
class LoopTrial(Trial):
    """The trial that runs one history of workers with loops, with the program of each process."""

    plan: LoopPlan = field(kw_only=True)
    trace: Trace = field(kw_only=True)
    befell: Callable[[str], None] = field(kw_only=True)
    """A function that the programs call with the name of each mishap that happens."""
    witness: LoopWitness = field(init=False)
    processes: list[LoopProcess] = field(factory=list)
    recovery_seconds: float | None = None
    is_closed: bool = False
    _calm_since: float = 0.0
    _is_ending: bool = False

    def _make_witness(self) -> LoopWitness:
        plan = self.plan
        return LoopWitness(
            self.note,
            self._finished,
            is_quiet=plan.is_quiet,
            stores_turns=not plan.commit_every,
            tells_ends=plan.commit_every > 0 and not plan.is_processor,
        )

    # --- the run -----------------------------------------------------------------------------------------------

    def _start_workers(self) -> None:
        """Start no worker: the actions of the plan start all workers."""

    def _schedule(self) -> Iterator[tuple[float, Callable[[], None]]]:
        acts: list[tuple[float, Callable[[], None]]] = []
        for _ in range(self.settings.records):
            acts.append((self.plan.storm_seconds * self.dice.random(), self._write))
        acts += [(action.at, partial(self._act, action)) for action in self.plan.actions]
        return iter(sorted(acts, key=lambda act: act[0]))

    def _act(self, action: Action) -> None:
        if action.do is Do.START:
            self._start_worker(action.who)
        elif self._living() or action.do in (Do.SPLIT, Do.MERGE, Do.CUT):
            self._befall(action.do, Dice.of(self.seed, action.do.value, action.at))

    def _calm(self) -> None:
        super()._calm()
        self._calm_since = self.simulation.now

    def _stop_all(self) -> None:
        self.recovery_seconds, self._is_ending = self.simulation.now - self._calm_since, True
        dice = Dice.of(self.seed, "end")
        for worker in self._living():
            self._ask_to_stop(self._process_of(worker.name), dice)

    def _judged_by_user(self) -> Run:
        self._until(
            lambda: not any(process.is_running for process in self.processes),
            lambda: f"these programs did not end: {[each.life.name for each in self.processes if each.is_running]}",
        )
        return super()._judged_by_user()

    # --- processes ---------------------------------------------------------------------------------------------

    def _start_worker(self, name: str) -> None:
        if self._is_ending:
            return  # the start was postponed past the end of the history
        plan, life, number = self.plan, LoopLife(name), len(self.processes)
        bridge = SimulatedBridge(self.simulation, name, self._raised)
        consumption = SimulatedConsumption(
            self.simulation,
            self.witness,
            life,
            bridge,
            make_worker=partial(self._make_worker, name),
            config=CONFIG,
            commit="explicit" if plan.commit_every else "turn",
        )
        program = LoopProgram(
            life=life,
            plan=plan,
            dice=Dice.of(self.seed, "program", number),
            witness=self.witness,
            bridge=bridge,
            consumption=consumption,
            is_calm=lambda: self.leases.is_calm,
            befell=self.befell,
        )
        process = LoopProcess(life, bridge, consumption, program)
        self.report(name, "starts")
        self.fleet.append(life)
        self.processes.append(process)
        process.task = bridge.start(program.run(), partial(self._program_ended, process))
        consumption.wakes_when_ended(partial(self._worker_ended, process))
        if plan.cancels_rung:
            bridge.rung = partial(self._count, process)
        else:
            bridge.waited = partial(self._count, process)

    def _count(self, process: LoopProcess) -> None:
        """Count a wait of a program. Cancel the program if this is the wait ``cancel_at`` of the plan."""
        process.waits += 1
        if process.waits == self.plan.cancel_at and not self.leases.is_calm and process.task.cancel():
            self.befell("cancel")
            self.note(process.life.name, "is cancelled", f"at wait {process.waits}")

    def _program_ended(self, process: LoopProcess, error: BaseException | None) -> None:
        name = process.life.name
        self.note(name, "ends its program", "" if error is None else type(error).__name__)
        if isinstance(error, asyncio.CancelledError) and process.task.cancellations:
            return
        if error is not None and not isinstance(error, BodyFailed | LawBroken):
            text = f"the program of {name} ended with {type(error).__name__}: {error}"
            self.witness.break_law(REASONS, "", text)

    def _worker_ended(self, process: LoopProcess) -> None:
        """Start a new process after a while, as a supervisor does. At the end of the history, start no process."""
        name = process.life.name
        self.note(name, "ends", "")
        if process.consumption.failure is not None:
            self._raised(process.consumption.failure)
        if not self._is_ending:
            seconds = RESTART_SECONDS * Dice.of(self.seed, "restart", len(self.processes)).random()
            self.simulation.agenda.after(seconds, self._start_worker, name)

    def _raised(self, error: BaseException) -> None:
        self.witness.failed = self.witness.failed or LawBroken(RAISES, "", f"{type(error).__name__}: {error}")

    def _process_of(self, name: str) -> LoopProcess:
        """Return the last process that was started under ``name``."""
        return next(process for process in reversed(self.processes) if process.life.name == name)

    # --- ends --------------------------------------------------------------------------------------------------

    def _stop(self, dice: Dice) -> bool:
        self._ask_to_stop(self._process_of(dice.choice(self._living()).name), dice)
        return True

    def _ask_to_stop(self, process: LoopProcess, dice: Dice) -> None:
        """Ask a process to stop: shut its worker down, or close the object that its program iterates over."""
        how, changes = dice.choice(("shutdown", "close", "aclose")), process.program.changes()
        self.report(process.life.name, "is asked to stop", how)
        if how == "shutdown":
            process.consumption.worker.shutdown(wait=False)
        elif how == "close" or changes is None:
            process.consumption.stop()
        else:
            process.bridge.start(changes.aclose(), lambda error: None)
        if how != "aclose":
            self.simulation.agenda.after(GIVE_BACK_SECONDS, self._require_hand_over, process)

    def _require_hand_over(self, process: LoopProcess) -> None:
        """Judge a worker that was asked to stop.

        The worker may keep the lease of a shard only while its program has a batch of the shard.
        """
        worker = process.life.worker
        if not self.plan.is_quiet or worker is None or worker.is_over:
            return
        kept = set(worker.holdings.held) - {call.shard_id for call in process.life.claimed}
        if kept:
            text = f"{process.life.name} was asked to stop, and keeps the leases of {', '.join(sorted(kept))}"
            self.witness.break_law(LEASES, min(kept), text)

    # --- steps -------------------------------------------------------------------------------------------------

    def note(self, who: str, what: str, detail: str) -> None:
        """Record one step of the history, and add the step to the trace."""
        if not self.is_closed:
            super().note(who, what, detail)
            words, shards = what.split(), self.witness.parents.keys()
            text = " ".join(word for word in words if word not in shards)
            self.trace.note(self.elapsed, who, text, next((word for word in words if word in shards), ""), detail)

    def close(self) -> None:
        """End the trial: close all coroutines of programs that still wait."""
        self.is_closed = True
        with quiet_logs():
            for process in self.processes:
                process.bridge.close_tasks()


class LoopWorld(PlayedHistory):
    """One history of workers with loops. Call ``run`` once; it raises ``LawBroken`` if a law is broken."""

    plan: LoopPlan

    def __init__(self, plan: LoopPlan, observer: Observer | None = None) -> None:
        super().__init__(plan, observer)
        self._trial = LoopTrial(settings_of(plan), plan.seed, plan=plan, trace=self.trace, befell=self._befell)

    @property
    def now(self) -> float:
        """The time, in seconds, since the history began."""
        return self._trial.elapsed

    def run(self) -> None:
        """Run the whole history: the time with faults, the time without faults, and the end of all processes."""
        trial = self._trial
        try:
            trial.run()
        finally:
            self.injected.update({kind.value: number for kind, number in trial.injected.items()})
            self.counts.update(trial.witness.counts)
            self.events, self.recovery_seconds = len(self.trace.entries), trial.recovery_seconds
            trial.close()

    def _befell(self, name: str) -> None:
        self.injected[name] += 1
