"""``Worker`` itself, with its real threads."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from streamclient import (
    ClientConfig,
    ConfigurationError,
    DependencyException,
    ErrorKind,
    IRecordProcessor,
    IRecordProcessorFactory,
    ShardState,
    ShutdownReason,
    StreamClientException,
    StreamConfig,
    Worker,
    WorkerFailedError,
    WorkerStatus,
)
from streamclient.interfaces import InitializationInput, ProcessRecordsInput, ShutdownInput
from streamclient.testing.fakes import FakeStream
from streamclient.worker.runtime import Runtime
from tests.at_once import AtOnce
from tests.interrupts import interrupted_after
from tests.patience import FOREVER_MILLIS, PATIENCE_SECONDS, until
from tests.simulation.scene import Journal, RecordingProcessor
from tests.worker.stage import Scene, records


@pytest.fixture
def scene() -> Scene:
    return Scene("a")


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Every thread of a worker ends with it."""
    before = set(threading.enumerate())
    yield

    def left() -> set[threading.Thread]:
        return {thread for thread in set(threading.enumerate()) - before if "left-behind" not in thread.name}

    until(lambda: not left(), left)


def started(worker: Worker) -> threading.Thread:
    runner = threading.Thread(target=worker.run, daemon=True)
    runner.start()
    return runner


def test_a_worker_reads_its_shards_and_hands_over_on_exit() -> None:
    scene = Scene("a", "b")
    scene.write("a", 12)
    with scene.worker() as worker:
        scene.until(lambda: len(scene.journal.delivered("a")) == 12 and "b" in scene.journal.by_shard)
        assert worker.worker_status is WorkerStatus.RUNNING
        assert set(worker.shard_statuses()) == {"a", "b"}
        assert worker.health.is_healthy

    assert worker.worker_status is WorkerStatus.SHUTDOWN
    assert worker.exception is None
    assert scene.journal.shutdowns("a") == scene.journal.shutdowns("b") == [ShutdownReason.STOLEN]
    lease = scene.leases.get_lease("a")
    assert lease is not None
    assert lease.checkpoint == "a@12"


def test_no_shard_waits_for_the_read_of_another() -> None:
    """Of a hundred busy shards: no read is answered before all of them have been asked for."""
    names = [f"shard-{number}" for number in range(100)]
    scene = Scene(*names)
    reading: set[str] = set()
    have_all_begun = threading.Event()

    def begin(shard_id: str) -> None:
        reading.add(shard_id)
        if len(reading) == len(names):
            have_all_begun.set()
        have_all_begun.wait(PATIENCE_SECONDS)

    scene.stream.before_read = begin
    for name in names:
        scene.write(name, 1)
    with scene.worker():
        came = have_all_begun.wait(PATIENCE_SECONDS)
        have_all_begun.set()
        assert came, f"only {len(reading)} shards were read at once"
        scene.until(lambda: all(scene.journal.delivered(name) for name in names))


def test_no_idle_shard_waits_for_the_read_of_another_that_hangs() -> None:
    """Idle shards share threads; those behind a read that hangs are read all the same."""
    names = [f"shard-{number}" for number in range(20)]
    scene = Scene(*names)
    has_hung, may_go_on = threading.Event(), threading.Event()
    counted: dict[str, int] = dict.fromkeys(names, 0)

    def hang(shard_id: str) -> None:
        counted[shard_id] += 1
        if shard_id == names[0] and min(counted.values()) >= 3:
            has_hung.set()
            may_go_on.wait(PATIENCE_SECONDS)

    scene.stream.before_read = hang
    with scene.worker(worker_idle_time_millis=300, max_idle_poll_interval_millis=300):
        came = has_hung.wait(PATIENCE_SECONDS)
        for name in names:
            scene.write(name, 1)
        scene.until(lambda: all(scene.journal.delivered(name) for name in names[1:]))
        was_delivered = scene.journal.delivered(names[0])
        may_go_on.set()
        assert came
        assert not was_delivered
        scene.until(lambda: bool(scene.journal.delivered(names[0])))


def test_an_executor_of_one_thread_is_enough() -> None:
    """Shards that end together, checkpoints and children, all over a single thread."""
    scene = Scene("p", "q")
    scene.write("p", 3)
    scene.stream.split("p", "c1", "c2")
    scene.stream.merge("c1", "q", "d")
    scene.stream.append("c2", *records(2))
    scene.write("d", 4)
    with ThreadPoolExecutor(1) as executor, scene.worker(executor=executor):
        scene.until(lambda: len(scene.journal.delivered("d")) == 4 and len(scene.journal.delivered("c2")) == 2)

    assert executor.submit is not None
    assert scene.journal.shutdowns("p") == scene.journal.shutdowns("c1") == [ShutdownReason.TERMINATE]


def test_running_a_second_time_disturbs_nothing(scene: Scene) -> None:
    with scene.worker() as worker:
        scene.until(lambda: "a" in scene.journal.by_shard)
        with pytest.raises(StreamClientException, match="w1 is RUNNING and runs only once"):
            worker.run()
        scene.write("a", 2)
        scene.until(lambda: len(scene.journal.delivered("a")) == 2)
        assert worker.worker_status is WorkerStatus.RUNNING
        assert worker.exception is None
    with pytest.raises(StreamClientException, match="SHUTDOWN"):
        worker.run()


def test_shutdown_before_run_is_final() -> None:
    worker = Scene().worker()

    assert worker.worker_status is WorkerStatus.NOT_RUNNING
    assert worker.shard_statuses() == {}
    assert worker.shutdown()
    assert worker.worker_status is WorkerStatus.SHUTDOWN
    with pytest.raises(StreamClientException):
        worker.run()


def test_shutdown_from_user_code_does_not_wait_for_itself(scene: Scene) -> None:
    answers: list[bool] = []
    scene.journal.on_process = lambda processor, given: answers.append(worker.shutdown())
    scene.write("a", 1)
    worker = scene.worker(executor=None, shutdown_timeout_millis=FOREVER_MILLIS)
    runner = started(worker)
    runner.join(PATIENCE_SECONDS)

    assert answers == [False]
    assert worker.worker_status is WorkerStatus.SHUTDOWN
    assert scene.journal.shutdowns("a") == [ShutdownReason.STOLEN]


@pytest.mark.parametrize(("of", "method"), [("leases", "write_many"), ("stream", "get_stream_record")])
def test_shutdown_from_a_call_of_what_the_user_gave_does_not_wait_for_itself(
    scene: Scene, of: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hand-over would wait for the write, and the write for the hand-over."""
    given, answers = getattr(scene, of), list[bool]()
    call = getattr(given, method)

    def stop(*arguments: Any) -> Any:
        answers.append(worker.shutdown())
        return call(*arguments)

    worker = scene.worker(shutdown_timeout_millis=FOREVER_MILLIS)
    runner = started(worker)
    scene.until(lambda: "a" in scene.journal.by_shard)
    monkeypatch.setattr(given, method, stop)
    scene.write("a", 1)
    runner.join(PATIENCE_SECONDS)

    assert worker.worker_status is WorkerStatus.SHUTDOWN
    assert True not in answers[:1]
    assert scene.leases.list_leases()[0].owner == ""


def test_a_worker_that_does_not_answer_is_not_said_to_have_nothing_to_accept(scene: Scene) -> None:
    worker = scene.worker(runtime=Runtime(wait=lambda event, seconds: False))
    worker.prepare()  # and no thread runs its turns

    silent = "^worker w1 did not answer within 10 s"
    with pytest.raises(
        StreamClientException, match=rf"{silent}; it may still accept the loss: see shard_statuses\(\)$"
    ):
        worker.accept_loss("a")
    with pytest.raises(StreamClientException, match=rf"{silent}; it may still accept the end: see shard_statuses\(\)$"):
        worker.accept_end("a")
    with pytest.raises(StreamClientException, match=rf"{silent}$"):
        worker.shard_statuses()


@pytest.mark.slow
def test_shutdown_is_bounded_and_idempotent_from_many_threads(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    """A processor that hangs costs the time-out, once, and blocks neither the caller nor the exit."""
    hang, returned = threading.Event(), threading.Event()

    def process(processor: RecordingProcessor, given: ProcessRecordsInput) -> None:
        hang.wait(PATIENCE_SECONDS)
        returned.set()

    scene.journal.on_process = process
    scene.write("a", 1)
    worker = scene.worker(shutdown_timeout_millis=300)
    runner = started(worker)
    scene.until(lambda: scene.journal.delivered("a") != [])
    answers: list[bool] = []
    callers = [threading.Thread(target=lambda: answers.append(worker.shutdown())) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in [*callers, runner]:
        caller.join(PATIENCE_SECONDS)
    assert not returned.is_set(), "it waited for the processor"
    hang.set()

    assert answers == [True] * 4
    assert "shard a: gave up waiting for the end of delivering; its lease" in caplog.text
    left = worker.shard_statuses()["a"]
    assert (left.state, left.reason) == (ShardState.SHUTTING_DOWN, "being handed over: its worker gives it away")
    assert worker.worker_status is WorkerStatus.SHUTDOWN


def test_no_user_code_begins_after_the_worker_ended() -> None:
    """A call that still waits in the user's executor when the time is up is taken back."""
    scene = Scene("a", "b")
    hang = scene.hang()
    scene.write("a", 1)
    scene.write("b", 1)
    with ThreadPoolExecutor(1) as executor:
        with scene.worker(executor=executor, shutdown_timeout_millis=200):
            scene.until(lambda: bool(scene.journal.delivered("a") or scene.journal.delivered("b")))
        told = len(scene.journal.entries)
        hang.set()
        executor.submit(lambda: None).result(PATIENCE_SECONDS)

    assert len(scene.journal.entries) == told


def test_shutdown_without_waiting_returns_at_once(scene: Scene) -> None:
    worker = scene.worker()
    runner = started(worker)
    scene.until(lambda: "a" in scene.journal.by_shard)
    worker.shutdown(wait=False)
    runner.join(PATIENCE_SECONDS)

    assert worker.worker_status is WorkerStatus.SHUTDOWN


class DeniedStream(FakeStream):
    """Answers every look-up with an error, a number of times."""

    def __init__(self, error: Exception, times: int) -> None:
        super().__init__()
        self.error, self.left = error, times

    def list_stream(self, table_name: str | None = None) -> Any:
        if self.left:
            self.left -= 1
            raise self.error
        return super().list_stream(table_name)


def test_wrong_permission_at_start_ends_the_worker_in_error(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene()
    denied = DependencyException("no permission", kind=ErrorKind.PERMANENT, code="OTSAuthFailed")
    scene.stream = DeniedStream(denied, 1)
    worker = scene.worker()
    with pytest.raises(WorkerFailedError) as failure:
        worker.run()

    assert worker.worker_status is WorkerStatus.ERROR
    assert worker.exception is denied
    assert str(failure.value) == "worker w1 ends reading orders: looking up the stream failed: no permission"
    assert worker.health.reason == "ended: looking up the stream failed: DependencyException: no permission"
    assert failure.value.errors == {"orders": denied}
    assert str(failure.value) in caplog.text
    assert "Traceback" not in caplog.text


def test_a_worker_that_waits_for_the_service_can_be_stopped() -> None:
    scene = Scene()
    scene.stream = stream = DeniedStream(DependencyException("busy", kind=ErrorKind.THROTTLED), 1_000_000)
    worker = scene.worker()
    runner = started(worker)
    until(lambda: stream.left < 1_000_000)
    assert worker.shutdown()
    runner.join(PATIENCE_SECONDS)

    assert worker.worker_status is WorkerStatus.SHUTDOWN
    assert worker.exception is None


def says(worker: Worker, words: str) -> bool:
    return any(words in status.reason for status in worker.shard_statuses().values())


def test_an_executor_that_cannot_work_is_named_and_harms_no_lease(scene: Scene) -> None:
    closed = ThreadPoolExecutor(1)
    closed.shutdown()
    for executor, reason in ((closed, "cannot schedule new futures"), (AtOnce(), "threads of its own")):
        with scene.worker(executor=executor) as worker:
            until(partial(says, worker, reason), reason)
        assert worker.exception is None
        assert scene.journal.entries == []


def test_a_call_that_the_executor_gives_up_is_noticed() -> None:
    """An executor that is shut down under the worker cancels its waiting calls; nobody waits for them for ever."""
    scene = Scene("a", "b")
    hang = scene.hang()
    scene.write("a", 1)
    scene.write("b", 1)
    executor = ThreadPoolExecutor(1)
    with scene.worker(executor=executor, shutdown_timeout_millis=FOREVER_MILLIS) as worker:
        scene.until(lambda: bool(scene.journal.delivered("a") or scene.journal.delivered("b")))
        blocked = "b" if scene.journal.delivered("a") else "a"
        executor.shutdown(wait=False, cancel_futures=True)
        until(lambda: "the executor did not run" in worker.shard_statuses()[blocked].reason, worker.shard_statuses)
        hang.set()

    assert worker.worker_status is WorkerStatus.SHUTDOWN


def test_an_interrupt_hands_over_before_it_is_raised_again(scene: Scene) -> None:
    """Ctrl-C in a program that just calls ``run()``."""
    worker = scene.worker()
    with interrupted_after(lambda: scene.until(lambda: "a" in scene.journal.by_shard)):
        worker.run()

    assert scene.journal.shutdowns("a") == [ShutdownReason.STOLEN]
    assert worker.worker_status is WorkerStatus.SHUTDOWN


@pytest.mark.slow
def test_an_interrupt_waits_for_processors_that_take_their_time_to_stop(scene: Scene) -> None:
    """Threads that the interrupt struck while they were waited for still count as running."""
    checkpoint_end = scene.journal.on_shutdown

    def shut_down(processor: RecordingProcessor, given: ShutdownInput) -> None:
        threading.Event().wait(0.3)
        checkpoint_end(processor, given)
        scene.journal.note(processor, "stopped", None)

    scene.journal.on_shutdown = shut_down
    worker = scene.worker()
    with interrupted_after(lambda: scene.until(lambda: "a" in scene.journal.by_shard)):
        worker.run()

    assert scene.journal.by_shard["a"][-1] == ("stopped", None)
    assert (worker.worker_status, worker.exception) == (WorkerStatus.SHUTDOWN, None)


class Factory(IRecordProcessorFactory):
    """A factory object, as in Java."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal

    def create_processor(self) -> IRecordProcessor:
        return RecordingProcessor(self.journal)


class DuckProcessor:
    """A processor that inherits nothing."""

    told: list[str] = []  # noqa: RUF012  # shared by design of the test
    changed = threading.Event()

    def initialize(self, given: InitializationInput) -> None:
        self.told.append("initialize")

    def process_records(self, given: ProcessRecordsInput) -> None:
        self.told.append("process")
        self.changed.set()

    def shutdown(self, given: ShutdownInput) -> None:
        self.told.append("shutdown")


def test_factories_may_be_objects_or_callables_or_processor_classes(scene: Scene) -> None:
    scene.write("a", 1)
    settings = ClientConfig(), StreamConfig(client=None, data_table_name="orders", status_table_name="s")
    with Worker("w1", *settings, Factory(scene.journal), None, scene.leases, stream_api=scene.stream):
        scene.until(lambda: scene.journal.delivered("a") == ["k0"])
    scene.write("a", 1)
    with Worker("w1", *settings, DuckProcessor, None, scene.leases, stream_api=scene.stream):  # type: ignore[arg-type]
        assert DuckProcessor.changed.wait(PATIENCE_SECONDS)

    assert DuckProcessor.told[-1] == "shutdown"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"worker_identifier": ""}, "worker_identifier must be a non-empty string, not ''"),
        ({"worker_identifier": 7}, "worker_identifier must be a non-empty string, not 7"),
        ({"client_config": None}, "client_config must be a ClientConfig, not None"),
        ({"stream_config": {}}, "stream_config must be a StreamConfig"),
        ({"record_processor_factory": None}, "record_processor_factory must be"),
        ({"record_processor_factory": Factory}, "record_processor_factory must be"),
        ({"executor": 4}, "executor must be a concurrent.futures.Executor or None, not 4"),
        ({"lease_manager": "table"}, "lease_manager must be an ILeaseManager or None"),
    ],
)
def test_wrong_arguments_are_named_before_anything_happens(change: dict[str, Any], message: str) -> None:
    scene = Scene()
    given: dict[str, Any] = {
        "worker_identifier": "w1",
        "client_config": ClientConfig(),
        "stream_config": StreamConfig(client=None, data_table_name="orders", status_table_name="s"),
        "record_processor_factory": scene.journal.make,
        "lease_manager": scene.leases,
        "stream_api": scene.stream,
    }
    with pytest.raises(ConfigurationError) as caught:
        Worker(**{**given, **change})

    assert message in str(caught.value)


def test_only_changes_of_state_are_logged_at_info(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "streamclient"), scene.worker():
        scene.until(lambda: "a" in scene.journal.by_shard)
        quiet = len(caplog.records)
        scene.write("a", 50)
        scene.until(lambda: len(scene.journal.delivered("a")) == 50)
        assert len(caplog.records) == quiet
