"""``streamclient.testing.run``: what it delivers, what it tells, that it ends, and that it does nothing else."""

from __future__ import annotations

import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from attrs import define, evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from streamclient import (
    ConfigurationError,
    FailurePolicy,
    InitializationInput,
    IRecordProcessor,
    IRecordProcessorFactory,
    KeyedProcessorFactory,
    MemoryParkingStore,
    OnFailure,
    ParkedRecord,
    ProcessRecordsInput,
    SequenceInfo,
    ShutdownInput,
    ShutdownReason,
    StreamRecord,
)
from streamclient.testing import ProcessorRun, RunFailed, put, run
from streamclient.testing.processor_run import MOST_RESTARTS


class Kept(IRecordProcessor):
    """Keeps each batch, checkpoints it, and notes all calls."""

    def __init__(self) -> None:
        self.kept: list[str] = []
        self.calls: list[str] = []
        self.inputs: list[InitializationInput] = []

    def initialize(self, initialization_input: InitializationInput) -> None:
        self.inputs.append(initialization_input)
        self.calls.append("initialize")

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        self.calls.append("process_records")
        self.kept += keys(process_records_input.records)
        process_records_input.checkpointer.checkpoint()

    def shutdown(self, shutdown_input: ShutdownInput) -> None:
        self.calls.append(shutdown_input.shutdown_reason.name)
        if shutdown_input.shutdown_reason is ShutdownReason.TERMINATE:
            shutdown_input.checkpointer.checkpoint()


class Buffering(Kept):
    """Checkpoints only when it is shut down."""

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        self.kept += keys(process_records_input.records)

    def shutdown(self, shutdown_input: ShutdownInput) -> None:
        shutdown_input.checkpointer.checkpoint()


class Refusing(Kept):
    """Raises for batches with one of some keys, ``times`` times in all or always."""

    def __init__(self, refused: Sequence[str], times: int = 10**9, error: type[BaseException] = OSError) -> None:
        super().__init__()
        self.refused, self.times, self.error = set(refused), times, error

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        found = self.refused & set(keys(process_records_input.records))
        if found and self.times > 0:
            self.times -= 1
            raise self.error(f"no room for {min(found)}")
        super().process_records(process_records_input)


def keys(records: Sequence[StreamRecord]) -> list[str]:
    return [str(record.key["id"]) for record in records]


def records(text: str) -> list[StreamRecord]:
    """One record for each letter, with that key."""
    return [put(letter) for letter in text]


def parking(**settings: Any) -> FailurePolicy:
    return FailurePolicy(**{"retries": 0, "then": OnFailure.PARK, "parking": MemoryParkingStore(), **settings})


# --- what is delivered and stored -------------------------------------------------------------------------------------


def test_the_records_come_in_one_call_and_the_worker_stops() -> None:
    processor = Kept()
    done = run(lambda: processor, [put("a", amount=12), put("b", amount=30)])

    assert (processor.kept, processor.calls) == (["a", "b"], ["initialize", "process_records", "STOLEN"])
    assert done == ProcessorRun(
        checkpoints=(2,),
        given=(
            (
                evolve(put("a", amount=12), sequence_info=SequenceInfo(1, 1, 0)),
                evolve(put("b", amount=30), sequence_info=SequenceInfo(1, 2, 0)),
            ),
        ),
        failures=(),
        parked=(),
        reasons=(),
    )


def test_a_batch_has_at_most_so_many_records() -> None:
    done = run(Kept, iter(records("abcde")), batch=2)

    assert [keys(batch) for batch in done.given] == [["a", "b"], ["c", "d"], ["e"]]
    assert done.checkpoints == (2, 4, 5)


@pytest.mark.parametrize("ends", [False, True])
def test_without_records_no_batch_comes(ends: bool) -> None:
    processor = Kept()
    done = run(lambda: processor, [], ends=ends)

    assert processor.calls == ["initialize", "TERMINATE" if ends else "STOLEN"]
    assert (done.given, done.checkpoints) == ((), (0,) if ends else ())


def test_a_checkpoint_at_the_stop_is_stored() -> None:
    assert run(Buffering, records("abc"), batch=1).checkpoints == (3,)


def test_a_class_a_function_and_a_factory_make_processors() -> None:
    class Factory(IRecordProcessorFactory):
        def create_processor(self) -> IRecordProcessor:
            return Kept()

    assert [run(maker, records("ab")).checkpoints for maker in (Kept, partial(Kept), Factory())] == [(2,)] * 3


def test_the_processor_is_told_of_its_shard() -> None:
    processor = Kept()
    run(lambda: processor, records("a"))
    (told,) = processor.inputs

    assert (told.shard_info.table_name, told.shard_info.epoch, told.is_replay) == ("orders", 1, False)
    assert (told.initial_checkpoint, told.progress is not None and told.progress.records) == ("TRIM_HORIZON", 0)


def test_a_checkpoint_by_name_counts_the_records_before_it() -> None:
    class Late(Kept):
        """Stores the position of the batch before."""

        before: str | None = None

        def process_records(self, process_records_input: ProcessRecordsInput) -> None:
            checkpointer = process_records_input.checkpointer
            if self.before is not None:
                checkpointer.checkpoint(self.before)
            self.before = checkpointer.largest_permitted_checkpoint_value

    assert run(Late, records("abcd"), batch=2).checkpoints == (2,)


def test_a_checkpoint_in_two_phases_counts_when_it_is_completed() -> None:
    class Careful(Kept):
        def process_records(self, process_records_input: ProcessRecordsInput) -> None:
            prepared = process_records_input.checkpointer.prepare_checkpoint(None, b"state")
            assert prepared.pending.records == 2
            prepared.checkpoint()

    assert run(Careful, records("abcd"), batch=2).checkpoints == (2, 4)


def test_a_prepared_checkpoint_comes_to_the_next_processor() -> None:
    pending = []

    class Crashing(Kept):
        def initialize(self, initialization_input: InitializationInput) -> None:
            pending.append(initialization_input.pending_checkpoint)

        def process_records(self, process_records_input: ProcessRecordsInput) -> None:
            process_records_input.checkpointer.prepare_checkpoint(None, b"state")
            if len(pending) == 1:
                raise OSError("crash")

    done = run(Crashing, records("ab"))

    assert [each and each.state for each in pending] == [None, b"state"]
    assert done.checkpoints == ()


def test_a_thread_of_the_processor_may_checkpoint() -> None:
    class Threaded(Kept):
        def process_records(self, process_records_input: ProcessRecordsInput) -> None:
            thread = threading.Thread(target=process_records_input.checkpointer.checkpoint)
            thread.start()
            thread.join()

    assert run(Threaded, records("abc"), batch=1).checkpoints == (1, 2, 3)


def test_records_side_by_side_are_all_done_at_the_end_of_the_shard() -> None:
    kept: list[StreamRecord] = []
    done = run(KeyedProcessorFactory(kept.append, threads=4), records("abcabc"), batch=2, ends=True)

    assert sorted(keys(kept)) == sorted("abcabc")
    assert (done.checkpoints[-1], done.failures) == (6, ())


def test_a_processor_that_says_it_is_done_gets_no_more() -> None:
    class Satisfied(Kept):
        def process_records(self, process_records_input: ProcessRecordsInput) -> None:
            super().process_records(process_records_input)
            process_records_input.shutdown_marker.mark_for_process_done()

    processor = Satisfied()
    done = run(lambda: processor, records("abc"), batch=1)

    assert (processor.calls[-1], done.checkpoints) == ("PROCESS_DONE", (1,))


# --- the end of the shard ---------------------------------------------------------------------------------------------


def test_the_end_is_a_checkpoint_of_its_own() -> None:
    processor = Kept()
    done = run(lambda: processor, records("abc"), batch=2, ends=True)

    assert processor.calls == ["initialize", "process_records", "process_records", "TERMINATE"]
    assert done.checkpoints == (2, 3, 3)


def test_an_end_that_is_not_stored_is_told() -> None:
    class Forgetful(Kept):
        def shutdown(self, shutdown_input: ShutdownInput) -> None:
            pass

    with pytest.raises(RunFailed, match=r"no new checkpoint in 10 restarts in a row: shard ended but") as failed:
        run(Forgetful, records("abc"), batch=2, ends=True)

    assert failed.value.run.checkpoints[:2] == (2, 3)
    assert failed.value.run.failures == ()


def test_an_end_that_is_stored_by_a_later_processor_is_good() -> None:
    made: list[Kept] = []

    class Second(Kept):
        def shutdown(self, shutdown_input: ShutdownInput) -> None:
            made.append(self)
            if len(made) == 2:
                super().shutdown(shutdown_input)

    assert run(Second, records("abc"), ends=True).checkpoints[0] == 3
    assert len(made) == 2


def test_who_stores_the_end_early_leaves_the_rest_and_it_shows() -> None:
    class Hasty(Kept):
        def process_records(self, process_records_input: ProcessRecordsInput) -> None:
            process_records_input.checkpointer.checkpoint("SHARD_END")

    done = run(Hasty, records("abcd"), batch=2)

    assert [keys(batch) for batch in done.given] == [["a", "b"]]
    assert done.checkpoints == (2,)


# --- failures ---------------------------------------------------------------------------------------------------------


def test_by_default_a_new_processor_starts_at_the_stored_checkpoint() -> None:
    made: list[Refusing] = []

    def make() -> Refusing:
        made.append(Refusing("c" if len(made) < 2 else ""))
        return made[-1]

    done = run(make, records("abcd"), batch=2)

    assert [keys(batch) for batch in done.given] == [["a", "b"], ["c", "d"], ["c", "d"], ["c", "d"]]
    assert [str(error) for error in done.failures] == ["no room for c"] * 2
    assert (len(made), done.checkpoints) == (3, (2, 4))


def test_a_record_that_always_fails_ends_the_run_with_its_error() -> None:
    made: list[Refusing] = []

    def make() -> Refusing:
        made.append(Refusing("c"))
        return made[-1]

    told = r"^the processor stored no new checkpoint in 10 restarts .*no room for c"
    with pytest.raises(RunFailed, match=told) as failed:
        run(make, records("abcd"), batch=1)

    assert len(made) == 1 + MOST_RESTARTS
    assert isinstance(failed.value.__cause__, OSError)
    assert failed.value.run.checkpoints == (1, 2)
    assert len(failed.value.run.failures) == 1 + MOST_RESTARTS
    assert all(processor.calls[-1] == "PROCESS_RESTART" for processor in made)


@pytest.mark.parametrize("method", ["initialize", "shutdown"])
def test_other_methods_may_raise(method: str) -> None:
    def refuse(*given: object) -> None:
        raise OSError(method)

    def make() -> Kept:
        processor = Kept()
        setattr(processor, method, refuse)
        return processor

    if method == "initialize":
        with pytest.raises(RunFailed, match="OSError: initialize"):
            run(make, records("ab"))
    else:
        done = run(make, records("ab"))
        assert ([str(error) for error in done.failures], done.checkpoints) == (["shutdown"], (2,))


def test_a_factory_that_raises_ends_the_run_with_its_error() -> None:
    with pytest.raises(RunFailed, match="division by zero") as failed:
        run(lambda: 1 / 0, records("a"))  # type: ignore[arg-type, return-value]

    assert failed.value.run.given == ()


def test_a_processor_that_always_wants_another_one_ends_the_run() -> None:
    class Restless(Kept):
        def process_records(self, process_records_input: ProcessRecordsInput) -> None:
            process_records_input.shutdown_marker.mark_for_process_restart()

    with pytest.raises(RunFailed, match="10 restarts") as failed:
        run(Restless, records("a"))

    assert (failed.value.__cause__, failed.value.run.failures) == (None, ())


def test_restarts_that_store_something_new_are_not_counted() -> None:
    class Fresh(Kept):
        """One batch for each processor."""

        def process_records(self, process_records_input: ProcessRecordsInput) -> None:
            super().process_records(process_records_input)
            process_records_input.shutdown_marker.mark_for_process_restart()

    done = run(Fresh, [put(str(number)) for number in range(5 * MOST_RESTARTS)], batch=1)

    assert done.checkpoints == tuple(range(1, 5 * MOST_RESTARTS + 1))


def test_retries_come_to_the_same_processor() -> None:
    processor = Refusing("b", times=2)
    done = run(lambda: processor, records("abc"), policy=FailurePolicy(retries=2))

    assert [keys(batch) for batch in done.given] == [["a", "b", "c"]] * 3
    assert processor.calls == ["initialize", "process_records", "STOLEN"]
    assert (len(done.failures), done.checkpoints) == (2, (3,))


def test_a_shard_that_stops_ends_the_run() -> None:
    processor = Refusing("c")
    done = run(lambda: processor, records("abcd"), policy=FailurePolicy(retries=0, then=OnFailure.STOP_SHARD))

    assert [keys(batch) for batch in done.given] == [["a", "b", "c", "d"], ["a", "b"], ["c"]]
    assert processor.calls[-1] == "PROCESS_RESTART"
    assert (len(done.failures), done.checkpoints, done.parked) == (2, (0,), ())


def test_a_record_is_parked_with_its_reason_and_so_is_the_rest_of_its_key() -> None:
    done = run(lambda: Refusing("b"), records("abcb"), policy=parking())

    assert keys(done.parked) == ["b", "b"]
    assert done.parked[0].sequence_info == SequenceInfo(1, 2, 0)
    assert done.reasons == ("OSError: no room for b", "not tried: an earlier record of its key is parked")
    assert done.checkpoints[-1] == 4
    assert keys([record for batch in done.given for record in batch]).count("b") > 1


def test_the_store_of_the_policy_is_left_alone() -> None:
    class Never(MemoryParkingStore):
        def park(self, records: Sequence[ParkedRecord]) -> None:
            raise AssertionError("this store is in production")

    done = run(lambda: Refusing("b"), records("abc"), policy=parking(parking=Never()))

    assert (keys(done.parked), done.checkpoints[-1]) == (["b"], 3)


def test_too_many_parked_records_stop_the_shard() -> None:
    policy = parking(most_parked_share=0.01, share_window_records=100)
    done = run(lambda: Refusing("bd"), records("abcd"), batch=1, policy=policy)

    assert (keys(done.parked), done.checkpoints[-1]) == (["b"], 3)
    assert [str(error) for error in done.failures] == ["no room for b", "no room for d"]


class Stop(BaseException):
    """No ``Exception``, as ``KeyboardInterrupt`` and the outcomes of pytest."""


@pytest.mark.parametrize("is_replay", [False, True])
def test_what_is_no_exception_is_raised_at_once(is_replay: bool) -> None:
    processor = Refusing("b", error=Stop)
    with pytest.raises(Stop, match="no room for b"):
        run(lambda: processor, records("abc"), batch=1, is_replay=is_replay)

    assert processor.kept == ["a"]


def test_a_processor_that_defers_its_work_is_told() -> None:
    class Deferring(Kept):
        def process_records(self, process_records_input: ProcessRecordsInput) -> Any:
            return (number for number in range(3))

    with pytest.raises(RunFailed, match="never run") as failed:
        run(Deferring, records("a"))

    assert isinstance(failed.value.__cause__, ConfigurationError)


# --- replays ----------------------------------------------------------------------------------------------------------


def test_a_replay_gives_each_record_alone_and_key_by_key() -> None:
    made: list[Kept] = []

    def make() -> Kept:
        made.append(Kept())
        return made[-1]

    done = run(make, records("abab"), is_replay=True)

    assert [keys(batch) for batch in done.given] == [["a"], ["a"], ["b"], ["b"]]
    assert [processor.inputs[0].is_replay for processor in made] == [True, True]
    assert (made[0].inputs[0].shard_info.epoch, made[0].calls[-1]) == (0, "PROCESS_DONE")
    assert (done.checkpoints, done.parked, done.reasons) == ((1, 2, 3, 4), (), ())


def test_a_replay_leaves_a_key_that_fails() -> None:
    done = run(lambda: Refusing("a"), records("aba"), is_replay=True)

    assert [keys(batch) for batch in done.given] == [["a"], ["b"]]
    assert (keys(done.parked), done.reasons) == (["a", "a"], ("OSError: no room for a",) * 2)
    assert ([str(error) for error in done.failures], done.checkpoints) == (["no room for a"], (1,))


def test_a_replay_that_checkpoints_nothing_leaves_everything_and_says_so() -> None:
    class Silent(Kept):
        def process_records(self, process_records_input: ProcessRecordsInput) -> None:
            pass

    done = run(Silent, records("ab"), is_replay=True)

    assert (keys(done.parked), done.checkpoints) == (["a", "b"], ())
    assert "did not checkpoint the record" in done.reasons[0]


# --- laws -------------------------------------------------------------------------------------------------------------


POLICIES: dict[str, Callable[[], FailurePolicy | None]] = {
    "default": lambda: None,
    "retries": lambda: FailurePolicy(retries=2),
    "stop": lambda: FailurePolicy(retries=1, then=OnFailure.STOP_SHARD),
    "park": lambda: parking(most_parked_share=1, share_window_records=100),
    "park one by one": lambda: parking(most_parked_share=1, share_window_records=100, park_rest_of_key=False),
    "park whole batches": lambda: parking(most_parked_share=1, share_window_records=100, bisect=False),
}


@define
class Shakes:
    """How the processors of one run behave."""

    fails: dict[str, int]
    """How often each key still fails."""
    every: int
    """Of how many batches one is checkpointed."""
    stores_at_stop: bool


SHAKES = st.builds(
    Shakes,
    fails=st.dictionaries(st.sampled_from("abcde"), st.sampled_from([1, 2, 10**9]), max_size=3),
    every=st.integers(1, 3),
    stores_at_stop=st.booleans(),
)


class Shaky(IRecordProcessor):
    """Fails for some keys, for a while or always; stores every n-th batch, the shard's end and, if it likes, a stop."""

    def __init__(self, world: Shakes) -> None:
        self.world, self.batches = world, 0

    def initialize(self, initialization_input: InitializationInput) -> None:
        pass

    def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        given = keys(process_records_input.records)
        for key in given:
            if self.world.fails.get(key, 0) > 0:
                self.world.fails[key] -= 1
                raise OSError(key)
        self.batches += 1
        if self.batches % self.world.every == 0:
            process_records_input.checkpointer.checkpoint()

    def shutdown(self, shutdown_input: ShutdownInput) -> None:
        reason = shutdown_input.shutdown_reason
        if self.world.stores_at_stop or reason is ShutdownReason.TERMINATE:
            shutdown_input.checkpointer.checkpoint()


@settings(max_examples=100)
@given(
    text=st.text("abcde", max_size=12),
    batch=st.integers(1, 5),
    policy=st.sampled_from(sorted(POLICIES)),
    ends=st.booleans(),
    world=SHAKES,
)
def test_laws_of_every_run(text: str, batch: int, policy: str, ends: bool, world: Shakes) -> None:
    fails, has_failed = dict(world.fails), False
    try:
        done = run(lambda: Shaky(world), records(text), batch=batch, policy=POLICIES[policy](), ends=ends)
    except RunFailed as failed:
        done, has_failed = failed.run, True

    def place(record: StreamRecord) -> int:
        return record.sequence_info.timestamp_micros

    reached = {place(record) for each in done.given for record in each} | {place(record) for record in done.parked}
    # No checkpoint is ahead of the records that the processor was given or the store has.
    assert all(set(range(1, stored + 1)) <= reached for stored in done.checkpoints)
    # Checkpoints never go back.
    assert list(done.checkpoints) == sorted(done.checkpoints)
    # A call has records in order, at most so many.
    for each in done.given:
        assert 0 < len(each) <= batch
        assert [place(record) for record in each] == sorted({place(record) for record in each})
    # Every record that fails is told, and only a policy that parks parks.
    assert {str(error) for error in done.failures} <= fails.keys()
    assert len(done.parked) == len(done.reasons)
    assert policy.startswith("park") or not done.parked
    # A run that comes to its end has dealt with all records; a run that does not has a record that always fails.
    always = {key for key, times in fails.items() if times > 10} & set(text)
    if has_failed or (policy == "stop" and done.failures):
        assert always or policy == "stop"
    else:
        assert reached == set(range(1, len(text) + 1))
    if ends and not has_failed and policy != "stop":
        assert done.checkpoints[-1] == len(text)


# --- what it costs ----------------------------------------------------------------------------------------------------


def test_nothing_sleeps_connects_or_starts_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: Any, **options: Any) -> Any:
        raise AssertionError("not in a run")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(time, "sleep", refuse)
    policy = parking(retries=5, first_pause_millis=3_600_000, longest_pause_millis=3_600_000)
    done = run(lambda: Refusing("b"), records("abcb"), policy=policy, ends=True)

    assert keys(done.parked) == ["b", "b"]
    assert len(done.failures) >= 6


def test_runs_are_alike() -> None:
    runs = [run(lambda: Refusing("b"), records("abcb"), batch=2, policy=parking(retries=2)) for _ in range(2)]

    assert evolve(runs[0], failures=()) == evolve(runs[1], failures=())
    assert list(map(str, runs[0].failures)) == list(map(str, runs[1].failures))


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"processor": 7},
            "^processor must be an IRecordProcessorFactory, a class or function that makes .*, not 7",
        ),
        ({"records": 7}, "^records must be an iterable of StreamRecords, not 7$"),
        ({"records": put("a")}, "^records must be an iterable of StreamRecords, not StreamRecord"),
        ({"records": ["a"]}, r"^records\[0\] must be a StreamRecord, as put, update and delete make it, not 'a'$"),
        ({"batch": 0}, "^batch must be a whole number above 0, not 0$"),
        ({"policy": "PARK"}, "^policy must be a FailurePolicy or None, not 'PARK'$"),
        ({"ends": 1}, "^ends must be True or False, not 1$"),
        ({"is_replay": True, "ends": True}, "^is_replay cannot be combined with policy or ends"),
        ({"is_replay": True, "policy": FailurePolicy()}, "^is_replay cannot be combined with policy or ends"),
        ({"batches": 1}, r"^run has no setting batches; did you mean batch\?$"),
    ],
)
def test_arguments_that_cannot_work_are_refused_before_any_call(change: dict[str, Any], message: str) -> None:
    made: list[Kept] = []

    def make() -> Kept:
        made.append(Kept())
        return made[-1]

    with pytest.raises(ConfigurationError, match=message):
        run(**{"processor": make, "records": records("a"), **change})

    assert made == []


def test_a_call_that_a_turn_in_another_thread_adds_in_the_meantime_ends_the_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each call is in the line only after the first look for it."""

    class Late(deque[Any]):
        is_late = False

        def append(self, call: Any) -> None:
            super().append(call)
            self.is_late = True

        def __bool__(self) -> bool:
            was_late, self.is_late = self.is_late, False
            return len(self) > 0 and not was_late

    monkeypatch.setattr("streamclient.testing.processor_run.deque", Late)

    assert run(Kept, records("abc"), ends=True).checkpoints[-1] == 3
