"""The fixture ``stream_simulation``: what it checks, what it tells, and that a seed is a history."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from streamclient import ConfigurationError, IRecordProcessor, IRecordProcessorFactory, ShutdownReason
from streamclient.core.consumer.machine import ConsumerMachine
from streamclient.core.peers import Peers
from streamclient.interfaces import InitializationInput, ProcessRecordsInput, ShutdownInput
from streamclient.tablestore import RecordPage
from streamclient.testing import Faults, Run, SimulationFailed, StreamSimulation
from streamclient.testing.fakes import FakeStream
from streamclient.testing.history import INITIALIZE, SHUTDOWN, Called, LawBroken, ReaderBegan, ReaderOver, Returned
from streamclient.testing.simulation.trials.trial import Trial
from streamclient.testing.simulation.trials.trial_settings import Change, TrialSettings
from streamclient.testing.simulation.trials.witness import Life, Witness, WitnessedProcessor

ROOT = Path(__file__).resolve().parents[2]
SMALL: dict[str, Any] = {"workers": 2, "shards": 2, "records": 60, "keys": 8}
KILLS = (Faults.crash(4), Faults.lost_answers(0.3))


class Sink(IRecordProcessor):
    """Checkpoints every batch after it was kept."""

    def __init__(self, kept: dict[str, list[int]]) -> None:
        self.kept = kept

    def initialize(self, initialization_input: InitializationInput) -> None:
        pass

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        for record in process_records_input.records:
            self.kept.setdefault(str(record.key["id"]), []).append(int(record.columns[0].value or 0))
        process_records_input.checkpointer.checkpoint()

    def shutdown(self, shutdown_input: ShutdownInput) -> None:
        if shutdown_input.shutdown_reason is not ShutdownReason.ZOMBIE:
            shutdown_input.checkpointer.checkpoint()


class Stubborn(Sink):
    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        raise OSError("the disk is full")


def simulation(**options: Any) -> StreamSimulation:
    return StreamSimulation(**{"tell": lambda line: None, **options})


def run(make: Callable[[dict[str, list[int]]], IRecordProcessor] = Sink, **options: Any) -> dict[str, list[int]]:
    kept: dict[str, list[int]] = {}
    simulation().run(lambda: make(kept), before=kept.clear, **{**SMALL, "seeds": 1, **options})
    return kept


# --- what it does ----------------------------------------------------------------------------------------------------


def test_without_faults_every_change_is_delivered_once_and_in_order() -> None:
    kept = run()

    assert sum(len(numbers) for numbers in kept.values()) == 60
    assert all(numbers == list(range(1, len(numbers) + 1)) for numbers in kept.values())


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_under_all_faults_every_change_arrives_and_the_last_one_stays(seed: int) -> None:
    seen: list[Run] = []
    kept = run(faults=Faults.everything(), seeds=[seed], check=seen.append)
    (found,) = seen

    assert {key: numbers[-1] for key, numbers in kept.items()} == dict(found.newest)
    assert found.faults["crash"] == found.faults["split"] == 1
    assert sum(found.delivered.values()) >= 60


def test_the_same_seed_is_the_same_history() -> None:
    def lines(seed: int) -> list[str]:
        told: list[str] = []
        kept: dict[str, list[int]] = {}
        simulation(seed=seed, tell=told.append).run(lambda: Sink(kept), faults=[Faults.crash()], **SMALL)
        return told

    assert lines(1) == lines(1)
    assert lines(1) != lines(2)


def test_a_factory_object_and_columns_of_ones_own_are_used() -> None:
    kept: dict[str, list[int]] = {}

    class Factory(IRecordProcessorFactory):
        def create_processor(self) -> IRecordProcessor:
            return Sink(kept)

    simulation().run(Factory(), columns=lambda key, number: {"tens": 10 * number}, seeds=1, **SMALL)

    assert all(numbers == [10 * n for n in range(1, len(numbers) + 1)] for numbers in kept.values())


def test_more_seeds_or_another_one_can_be_asked_for_from_outside() -> None:
    seeds: list[int] = []
    options: dict[str, Any] = {**SMALL, "seeds": 2, "check": lambda run: seeds.append(run.seed)}
    simulation(seeds=3).run(lambda: Sink({}), **options)
    simulation(seed=9).run(lambda: Sink({}), **options)

    assert seeds == [0, 1, 2, 9]


# --- what it finds ---------------------------------------------------------------------------------------------------


def test_a_failed_check_names_seed_faults_steps_and_how_to_run_it_again() -> None:
    def check(run: Run) -> None:
        assert not run.faults, "there were faults"

    with pytest.raises(SimulationFailed) as failure:
        run(faults=[Faults.stop(), Faults.crash()], check=check)
    text = str(failure.value)

    assert text.startswith("seed 0 (of 1) fails: check: there were faults")
    assert "the failure needs only: Faults.crash(1)" in text
    assert "is killed" in text
    assert "--simulation-seed 0 -s" in text
    assert (failure.value.seed, failure.value.law) == (0, "check")


def test_a_check_that_returns_false_fails() -> None:
    with pytest.raises(SimulationFailed, match="it returned False"):
        run(check=lambda run: False)


def test_a_processor_that_never_accepts_loses_everything_and_its_error_is_named() -> None:
    with pytest.raises(SimulationFailed, match=r"60 changes were not accepted .* OSError: the disk is full"):
        run(Stubborn)


def witness() -> Witness:
    trial = Trial(TrialSettings(make_processor=lambda: Sink({})), seed=1)
    for micros in (1, 2):
        trial.witness.write("k", micros)
    return trial.witness


def test_a_change_that_was_passed_over_is_out_of_order() -> None:
    present = witness()
    processor = reading(present, Life("w1"))

    with pytest.raises(LawBroken, match=r"order per key: .* change 2 of key k, but no reader had change 1"):
        present.handed_out(processor, [Change("k", 2)])


def reading(present: Witness, life: Life) -> WitnessedProcessor:
    """A processor of the shard ``s`` in a process."""
    processor = WitnessedProcessor(present, life, lambda: Sink({}))
    processor.shard_id = "s"
    return processor


def began(present: Witness, life: Life, epoch: int = 0) -> WitnessedProcessor:
    processor = reading(present, life)
    present.tell(ReaderBegan(processor, life, "s", epoch))
    present.tell(Called(processor, "s", INITIALIZE))
    return processor


def test_two_processors_of_one_shard_at_once_in_one_process_are_two_readers() -> None:
    present, life = witness(), Life("w1")
    began(present, life)

    with pytest.raises(LawBroken, match="one reader"):
        began(present, life)


def test_a_processor_of_a_killed_process_is_none_of_the_next_one_of_its_name() -> None:
    """Its call never returns, and nothing of it happens any more."""
    present = witness()
    began(present, Life("w1"))

    began(present, Life("w1"))


def test_calls_of_a_processor_come_in_their_order() -> None:
    present = witness()
    processor = began(present, Life("w1"))

    with pytest.raises(LawBroken, match=r"calls in order: .* is called \(process_records\) while initialize runs"):
        present.tell(Called(processor, "s", "process_records"))


def test_a_child_is_not_read_before_its_parents_ended() -> None:
    present = witness()
    present.parents.update(p=(), s=("p",))

    with pytest.raises(LawBroken, match=r"parents first: .* although p has not ended"):
        began(present, Life("w1"))


def test_two_processes_have_no_epoch_in_common() -> None:
    present = witness()
    began(present, Life("w1"), epoch=3)

    with pytest.raises(LawBroken, match="epochs grow: epoch 3 of s"):
        began(present, Life("w2"), epoch=3)


class Relying(Life):
    def relies_on_lease(self, shard_id: str, identifier: str) -> bool:
        return True


def test_two_processes_that_rely_on_one_lease_are_two_readers_even_between_calls() -> None:
    present = witness()
    first = began(present, Relying("w1"))
    present.tell(Returned(first, "s"))

    with pytest.raises(LawBroken, match=r"one reader: .* in w2 .* in w1 has the lease, too"):
        began(present, Relying("w2"))
    present.tell(Called(first, "s", SHUTDOWN))
    present.tell(Returned(first, "s"))
    present.tell(ReaderOver(first, "s"))
    began(present, Relying("w2"))


def handed_out(present: Witness) -> WitnessedProcessor:
    """A processor that is in a call with both changes of its shard."""
    processor = reading(present, Life("w1"))
    present.places = {change: ("s", number) for number, change in enumerate(present.written)}
    present.current["s"] = processor
    present.handed_out(processor, list(present.written))
    return processor


def test_what_a_call_that_never_returns_has_stored_is_not_lost_and_nothing_else() -> None:
    present = witness()
    handed_out(present)
    assert present.missing() == [Change("k", 1), Change("k", 2)]
    present.stored("s", "s@1")

    assert present.missing() == [Change("k", 2)]


def test_a_batch_that_was_stored_and_returned_is_delivered_once() -> None:
    present = witness()
    processor = handed_out(present)
    present.stored("s", "SHARD_END")
    processor.accepts(list(present.written))

    assert set(present.accepted.values()) == {1}


def test_a_checkpoint_behind_a_batch_that_failed_does_not_accept_it() -> None:
    """A worker that skips what a processor refused is found out, whatever is stored later."""
    present = witness()
    processor = handed_out(present)
    present.handed_out(processor, [Change("k", 2)])
    present.stored("s", "s@2")

    assert present.missing() == [Change("k", 1)]


# --- correct processors are not accused ------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_correct_processor_passes_when_its_process_dies_between_a_stored_checkpoint_and_the_return() -> None:
    """Looked for seed by seed, since whatever a worker does decides which ones have it."""
    kept: dict[str, list[int]] = {}
    returned: set[Change] = set()
    unreturned: list[Change] = []

    class Noting(Sink):
        def process_records(self, process_records_input: ProcessRecordsInput) -> None:
            super().process_records(process_records_input)
            for record in process_records_input.records:
                returned.add(Change(str(record.key["id"]), int(record.columns[0].value or 0)))

    def check(run: Run) -> None:
        unreturned.extend(change for change in run.written if change not in returned)
        assert all(run.delivered[change] for change in run.written)

    for seed in range(60):
        returned.clear()
        simulation().run(lambda: Noting(kept), faults=KILLS, seeds=[seed], check=check)
        if unreturned:
            return
    pytest.fail("in no history did a process die there")


# --- and defects are found -------------------------------------------------------------------------------------------


class Hasty(Sink):
    """Checkpoints a batch before it is kept."""

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        process_records_input.checkpointer.checkpoint()
        super().process_records(process_records_input)


class Careless(Sink):
    """Its destination fails now and then, and it does not care."""

    calls = 0

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        Careless.calls += 1
        if Careless.calls % 5:
            super().process_records(process_records_input)
        else:
            process_records_input.checkpointer.checkpoint()


class Failing(Sink):
    """Its destination fails now and then, and it says so."""

    calls = 0

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        Failing.calls += 1
        if Failing.calls % 5 == 0:
            raise OSError("the destination is away")
        super().process_records(process_records_input)


class Away(Failing):
    """As long as its destination is away, nothing of it works, and shutdown meets what initialize left half-made."""

    begun = 0

    def initialize(self, initialization_input: InitializationInput) -> None:
        Away.begun += 1
        if Away.begun % 2:
            raise OSError("the destination is away")
        self.begin = initialization_input.initial_checkpoint

    def shutdown(self, shutdown_input: ShutdownInput) -> None:
        assert self.begin
        if shutdown_input.shutdown_reason is ShutdownReason.PROCESS_RESTART:
            raise OSError("the destination is away")
        super().shutdown(shutdown_input)


def judged(make: Callable[[dict[str, list[int]]], IRecordProcessor], *, once: bool = False, **options: Any) -> None:
    """Run with what a user would check: everything arrived, and if it claims so, only once."""
    kept: dict[str, list[int]] = {}

    def check(run: Run) -> None:
        for key, newest in run.newest.items():
            numbers = kept.get(key, [])
            assert set(numbers) == set(range(1, newest + 1)), f"{key} has {numbers}"
            assert not once or len(numbers) == newest, f"{key} has {numbers}"

    simulation().run(lambda: make(kept), before=kept.clear, check=check, **{**SMALL, **options})


def test_a_processor_is_over_when_its_shutdown_raised() -> None:
    """The next one of the same worker is no second reader."""
    judged(Away, seeds=2)


@pytest.mark.slow
@pytest.mark.parametrize("make", [Sink, Failing, Away])
def test_a_processor_that_is_right_passes_its_check(make: Any) -> None:
    judged(make, faults=KILLS, seeds=5)


@pytest.mark.slow
@pytest.mark.parametrize(("make", "once"), [(Hasty, False), (Careless, False), (Sink, True)])
def test_a_processor_that_loses_or_repeats_is_found_out(make: Any, once: bool) -> None:
    with pytest.raises(SimulationFailed, match=r"check: key-\d+ has"):
        judged(make, once=once, faults=KILLS, seeds=60)


def skipped(page: RecordPage, entry: Any) -> RecordPage:
    return evolve(page, records=page.records[1:]) if len(page.records) > 1 else page


def kept_back(page: RecordPage, entry: Any) -> RecordPage:
    return evolve(page, records=page.records[:-1]) if page.next_position.text.endswith("@20") else page


@pytest.mark.parametrize(("broken", "law"), [(skipped, "order per key"), (kept_back, "nothing is lost|order per key")])
def test_records_that_a_worker_skips_are_missed(
    broken: Callable[[RecordPage, Any], RecordPage], law: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = FakeStream._page
    monkeypatch.setattr(FakeStream, "_page", lambda self, entry, *place: broken(page(self, entry, *place), entry))

    with pytest.raises(SimulationFailed, match=law):
        run(seeds=5)


def test_a_worker_that_goes_on_after_a_failure_loses_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ConsumerMachine, "_refused", lambda self, error: self._page_done())

    with pytest.raises(SimulationFailed, match="nothing is lost"):
        run(Failing, seeds=5)


def test_a_worker_that_takes_leases_of_the_living_makes_two_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Peers, "_is_still", lambda self, watch: watch.still_seconds > self.duration_seconds / 5)

    with pytest.raises(SimulationFailed, match="one reader"):
        run(seeds=5)


# --- arguments -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"workers": 0}, "workers must be a whole number above 0"),
        ({"records": True}, "records must be a whole number"),
        ({"seeds": 0}, "seeds must be"),
        ({"faults": ["crash"]}, "made by Faults"),
    ],
)
def test_wrong_arguments_are_named(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        run(**options)


@pytest.mark.parametrize(
    "make", [lambda: Faults.crash(0), lambda: Faults.lost_answers(0.9), lambda: Faults.split(True)]
)
def test_wrong_faults_are_named(make: Callable[[], object]) -> None:
    with pytest.raises(ConfigurationError, match="must be a"):
        make()


def test_the_factory_must_make_processors() -> None:
    with pytest.raises(ConfigurationError, match="factory must be an IRecordProcessorFactory"):
        simulation().run(7)  # type: ignore[arg-type]


# --- the plugin ------------------------------------------------------------------------------------------------------


def test_the_plugin_is_light() -> None:
    """It is imported in every run of pytest of everybody who has the package installed."""
    program = (
        "import sys, streamclient.testing.pytest_plugin\n"
        "heavy = [name for name in sys.modules if name.startswith(('streamclient.worker', 'streamclient.core'))]\n"
        "assert not heavy and 'apscheduler' not in sys.modules, heavy\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)


@pytest.mark.slow
def test_the_fixture_is_there_by_itself_and_tells_every_step_of_one_seed(tmp_path: Path) -> None:
    test = tmp_path / "test_mine.py"
    test.write_text(
        "from tests.simulation.test_stream_simulation import SMALL, Sink\n"
        "def test_it(stream_simulation):\n"
        "    stream_simulation.run(lambda: Sink({}), **SMALL)\n"
    )
    command = [sys.executable, "-m", "pytest", str(test), "-q", "-s", "--simulation-seed", "3"]
    done = subprocess.run(
        [*command, "-c", "/dev/null", "--rootdir", str(ROOT)], capture_output=True, text=True, cwd=ROOT, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "w1       starts" in done.stdout
    assert done.stdout.count("process_records") > 10
