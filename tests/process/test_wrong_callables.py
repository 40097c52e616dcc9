"""User code that only makes what would do the work: refused when it is given, and failed when it hides."""

from __future__ import annotations

import asyncio
import gc
import threading
import warnings
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from tablestore import OTSClient

from streamclient import (
    Backoff,
    ClientConfig,
    FailurePolicy,
    IRecordProcessor,
    IRecordProcessorFactory,
    KeyedProcessorFactory,
    LeaseManager,
    MemoryLeaseManager,
    OnFailure,
    StreamConfig,
    Worker,
)
from streamclient.base import checks
from streamclient.errors import ConfigurationError, WorkerFailedError
from streamclient.interfaces import (
    IMetrics,
    InitializationInput,
    IRetryStrategy,
    ProcessRecordsInput,
    ShutdownInput,
)
from streamclient.metrics.labelled import labelled
from streamclient.metrics.metric_table import METRICS
from streamclient.model import ParkedKey
from streamclient.spark import SparkRecordProcessorFactory
from streamclient.testing.fakes import FakeStream
from streamclient.tunnel import (
    ChannelRecordsInput,
    IChannelProcessor,
    IChannelProcessorFactory,
    TunnelClient,
    TunnelWorker,
)
from streamclient.worker.parking import MemoryParkingStore, TableParkingStore, replay_parked
from tests.patience import PATIENCE_SECONDS, until
from tests.placed_records import make_record

CLIENT = OTSClient("http://127.0.0.1:1", "id", "secret", "instance")
"""Never called."""


async def a_coroutine(*arguments: Any, **named: Any) -> None: ...


async def an_async_generator(*arguments: Any, **named: Any) -> AsyncIterator[int]:
    yield 1


def a_generator(*arguments: Any, **named: Any) -> Iterator[int]:
    yield 1


class CalledAsync:
    async def __call__(self, *arguments: Any, **named: Any) -> None: ...


class Methods:
    async def method(self, *arguments: Any, **named: Any) -> None: ...


WRONG: dict[str, Callable[..., Any]] = {
    "async def": a_coroutine,
    "async generator": an_async_generator,
    "generator": a_generator,
    "partial": partial(a_coroutine, 1),
    "partial of partial": partial(partial(a_generator, 1), 2),
    "__call__": CalledAsync(),
    "partial of __call__": partial(CalledAsync(), 1),
    "bound method": Methods().method,
    "async lambda": lambda *arguments, **named: a_coroutine(),
}
HIDDEN = "async lambda"
"""Only its answer shows what it is."""


class Fine(IRecordProcessor):
    def initialize(self, initialization_input: InitializationInput) -> None: ...

    def process_records(self, process_records_input: ProcessRecordsInput) -> None: ...

    def shutdown(self, shutdown_input: ShutdownInput) -> None: ...


class Channel(IChannelProcessor):
    def process(self, records_input: ChannelRecordsInput) -> None: ...

    def shutdown(self) -> None: ...


class Strategy(IRetryStrategy):
    def should_retry(self, action: object, error: Exception, retries: int) -> bool:
        return True

    def backoff_millis(self, action: object, error: Exception, retries: int) -> int:
        return 1


class Metrics(IMetrics):
    def increment(self, metric: object, amount: float = 1, /, **labels: str) -> None: ...

    def set(self, metric: object, value: float, /, **labels: str) -> None: ...

    def observe(self, metric: object, seconds: float, /, **labels: str) -> None: ...


def with_method(kind: type, name: str, wrong: Callable[..., Any], *arguments: Any) -> Any:
    """An instance of the class whose one method is the wrong one."""
    return type(f"Wrong{kind.__name__}", (kind,), {name: staticmethod(wrong)})(*arguments)


STREAM = {"client": CLIENT, "data_table_name": "orders", "status_table_name": "status"}


def worker_of(factory: Any) -> Worker:
    return Worker("w", ClientConfig(), StreamConfig(**STREAM), factory)


class Factory(IRecordProcessorFactory):
    def create_processor(self) -> IRecordProcessor:
        return Fine()


class ChannelFactory(IChannelProcessorFactory):
    def create_processor(self) -> IChannelProcessor:
        return Channel()


def tunnel_of(processor: Any) -> TunnelWorker:
    return TunnelWorker("t", TunnelClient(CLIENT), processor)


def running() -> Worker:
    config = StreamConfig(client=None, data_table_name="orders", status_table_name="status")
    return Worker("w", ClientConfig(), config, Fine, None, MemoryLeaseManager(), stream_api=FakeStream())


TAKERS: dict[str, Callable[[Any], Any]] = {
    "a factory": worker_of,
    "a factory of a stream": lambda wrong: StreamConfig(**STREAM, record_processor_factory=wrong),
    "create_processor": lambda wrong: worker_of(with_method(Factory, "create_processor", wrong)),
    "initialize of a class": lambda wrong: worker_of(type(with_method(Fine, "initialize", wrong))),
    "process_records of a class": lambda wrong: worker_of(type(with_method(Fine, "process_records", wrong))),
    "shutdown of a class": lambda wrong: worker_of(type(with_method(Fine, "shutdown", wrong))),
    "a callback of a tunnel": tunnel_of,
    "process of a channel": lambda wrong: tunnel_of(with_method(Channel, "process", wrong)),
    "shutdown of a channel": lambda wrong: tunnel_of(with_method(Channel, "shutdown", wrong)),
    "a factory of channels": lambda wrong: tunnel_of(with_method(ChannelFactory, "create_processor", wrong)),
    "a class on a tunnel": lambda wrong: tunnel_of(type(with_method(Fine, "process_records", wrong))),
    "process_record": KeyedProcessorFactory,
    "key": lambda wrong: KeyedProcessorFactory(print, key=wrong),
    "park": lambda wrong: FailurePolicy(then=OnFailure.PARK, parking=with_method(MemoryParkingStore, "park", wrong)),
    "remove": lambda wrong: FailurePolicy(
        then=OnFailure.PARK, parking=with_method(MemoryParkingStore, "remove", wrong)
    ),
    "a store to replay": lambda wrong: replay_parked(with_method(MemoryParkingStore, "remove", wrong), Fine),
    "a replaying factory": lambda wrong: replay_parked(MemoryParkingStore(), wrong),
    "a wait of a store": lambda wrong: TableParkingStore(CLIENT, "parked", wait=wrong),
    "should_retry": lambda wrong: ClientConfig(task_retry_strategy=with_method(Strategy, "should_retry", wrong)),
    "backoff_millis": lambda wrong: ClientConfig(
        lease_manager_retry_strategy=with_method(Strategy, "backoff_millis", wrong)
    ),
    "set of metrics": lambda wrong: ClientConfig(metrics=with_method(Metrics, "set", wrong)),
    "forget of metrics": lambda wrong: ClientConfig(metrics=with_method(Metrics, "forget", wrong)),
    "renew_lease": lambda wrong: StreamConfig(
        **STREAM, lease_manager=with_method(MemoryLeaseManager, "renew_lease", wrong)
    ),
    "prepare_lease": lambda wrong: StreamConfig(
        **STREAM, lease_manager=with_method(MemoryLeaseManager, "prepare_lease", wrong)
    ),
    "a clock": lambda wrong: LeaseManager(CLIENT, "status", "stream", clock=wrong),
    "get_stream_record": lambda wrong: Worker(
        "w",
        ClientConfig(),
        StreamConfig(**STREAM),
        Fine,
        stream_api=with_method(FakeStream, "get_stream_record", wrong),
    ),
    "until": lambda wrong: running().wait(0, until=wrong),
    "a sink": SparkRecordProcessorFactory,
    "a transform": lambda wrong: SparkRecordProcessorFactory("/nowhere", wrong),
    "a session": lambda wrong: SparkRecordProcessorFactory("/nowhere", session=wrong),
    "get_credentials": lambda wrong: StreamConfig(**{**STREAM, "client": with_provider(wrong)}),
}


class Provider:
    def __init__(self, wrong: Callable[..., Any]) -> None:
        self.get_credentials = wrong


def with_provider(wrong: Callable[..., Any]) -> OTSClient:
    return OTSClient("http://127.0.0.1:1", "", "", "instance", credentials_provider=Provider(wrong))


@pytest.mark.parametrize("wrong", [name for name in WRONG if name != HIDDEN])
@pytest.mark.parametrize("taker", list(TAKERS))
def test_what_defers_is_refused_when_it_is_given(taker: str, wrong: str) -> None:
    refusal = r"it is an? (async function|async generator|generator)(, whose calls| without a batch to handle)"
    with pytest.raises(ConfigurationError, match=refusal):
        TAKERS[taker](WRONG[wrong])


def test_what_defers_says_what_to_use() -> None:
    with pytest.raises(ConfigurationError) as raised:
        KeyedProcessorFactory(a_coroutine)
    assert str(raised.value) == (
        f"process_record must be callable with one StreamRecord, not {a_coroutine!r}: it is an async function, whose "
        "calls are never run; write a plain function, without async and yield, that has done its work when it returns "
        "(it may call asyncio.run)"
    )
    with pytest.raises(ConfigurationError, match=r"parking must be an .* or None, not .*: its park: it is a g"):
        FailurePolicy(parking=with_method(MemoryParkingStore, "park", a_generator))


def test_answers_that_are_gone_through_may_be_generated() -> None:
    """As before: what a worker iterates over, a generator may give."""

    class Generous(MemoryParkingStore):
        def parked_keys(self, stream_id: str) -> Iterator[ParkedKey]:  # type: ignore[override]
            yield from ()

    class Lazy(MemoryLeaseManager):
        def list_leases(self) -> Iterator[Any]:  # type: ignore[override]
            yield from super().list_leases()

    FailurePolicy(then=OnFailure.PARK, parking=Generous())
    StreamConfig(**STREAM, lease_manager=Lazy())


@pytest.mark.parametrize(
    "plain",
    [print, len, Fine, partial(print, 1), lambda: None, Factory().create_processor, {}.get, type, asyncio.run],
)
def test_what_does_its_work_is_taken(plain: Callable[..., Any]) -> None:
    assert checks.deferring(plain) == ""


# --- what hides: its answer shows it ------------------------------------------------------------------------------


class Awaitable:
    def __await__(self) -> Iterator[None]:
        yield None


def closed_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    loop.close()
    return loop


ANSWERS: dict[str, Callable[[], Any]] = {
    "coroutine": a_coroutine,
    "generator": a_generator,
    "async generator": an_async_generator,
    "awaitable": Awaitable,
    "future": lambda: asyncio.Future(loop=closed_loop()),
}


@pytest.fixture
def without_warnings() -> Iterator[None]:
    """Nothing that nobody awaited is left."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield
        gc.collect()


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("answer", list(ANSWERS))
@pytest.mark.usefixtures("without_warnings")
def test_an_answer_that_nobody_runs_has_failed_and_is_closed(answer: str) -> None:
    made = ANSWERS[answer]()
    with pytest.raises(ConfigurationError, match=r"process returned <.*, which is never run, so its work is not done"):
        checks.done("process", made)


def hidden_coroutine() -> Any:
    """Looks plain."""
    return a_coroutine()


class Hidden(IRecordProcessor):
    """A method that returns what defers."""

    def __init__(self, method: str) -> None:
        self.method = method

    def initialize(self, initialization_input: InitializationInput) -> Any:
        return a_coroutine() if self.method == "initialize" else None

    def process_records(self, process_records_input: ProcessRecordsInput) -> Any:
        if self.method == "process_records":
            return a_coroutine()
        process_records_input.checkpointer.checkpoint()
        return None

    def shutdown(self, shutdown_input: ShutdownInput) -> Any:
        return a_coroutine() if self.method == "shutdown" else None


class HiddenMethods:
    """Looks plain, and each call of the one method returns a coroutine."""

    def __init__(self, inner: Any, name: str) -> None:
        self._inner, self._name = inner, name

    def __getattr__(self, name: str) -> Any:
        if name == self._name:
            return lambda *arguments, **named: a_coroutine()
        return getattr(self._inner, name)


def parts(hidden: str) -> dict[str, Any]:
    """What a worker is made of, with one part that hides what it is."""
    made: dict[str, Any] = {"factory": Fine, "leases": MemoryLeaseManager(), "stream": FakeStream(), "config": {}}
    made["stream"].append("shard-1", make_record("a", 1))
    if hidden in ("initialize", "process_records"):
        made["factory"] = partial(Hidden, hidden)
    elif hidden == "the processor factory":
        made["factory"] = hidden_coroutine
    elif hidden == "a made processor":
        made["factory"] = lambda: with_method(Fine, "process_records", a_coroutine)
    elif hidden == "process_record":
        made["factory"] = KeyedProcessorFactory(lambda record: a_coroutine(), retries=0)
    elif hidden == "key":
        made["factory"] = KeyedProcessorFactory(print, key=lambda record: a_coroutine())
    elif hidden in ("park", "parked_keys"):
        parking = HiddenMethods(MemoryParkingStore(), hidden)
        policy = FailurePolicy(retries=0, then=OnFailure.PARK, parking=parking, most_parked_share=1)  # type: ignore[arg-type]
        made["config"], made["factory"] = {"failure_policy": policy}, partial(Hidden, "process_records")
    elif hidden in ("should_retry", "backoff_millis"):
        made["config"]["task_retry_strategy"] = HiddenMethods(Strategy(), hidden)
        made["factory"] = partial(Hidden, "process_records")
    else:
        made["stream" if hasattr(made["stream"], hidden) else "leases"] = HiddenMethods(
            made["stream"] if hasattr(made["stream"], hidden) else made["leases"], hidden
        )
    return made


def told(worker: Worker) -> str:
    """Everything that the worker says of itself."""
    reasons = [status.reason for status in worker.shard_statuses().values()]
    return "; ".join([*reasons, worker.health.reason])


@pytest.mark.usefixtures("without_warnings")
@pytest.mark.parametrize(
    "hidden",
    [
        "initialize",
        "process_records",
        "the processor factory",
        "a made processor",
        "process_record",
        "key",
        "park",
        "parked_keys",
        "should_retry",
        "backoff_millis",
        "list_stream",
        "describe_stream",
        "get_stream_record",
        "create_lease_table_if_not_exists",
        "wait_until_lease_table_ready",
        "list_leases",
        "write_many",
        "draw_epochs",
    ],
)
def test_a_worker_stores_nothing_for_a_call_that_did_no_work_and_names_it(
    hidden: str, caplog: pytest.LogCaptureFixture
) -> None:
    made = parts(hidden)
    caplog.set_level("INFO")
    config: dict[str, Any] = {
        "backoff": Backoff(restart_backoff_min_millis=10),
        "taker_interval_millis": 100,
        "sync_shard_interval_millis": 100,
        "renewer_interval_millis": 100,
        "max_duration_before_last_successful_renew_or_take_lease": 100,
        **made["config"],
    }
    worker = Worker(
        "w",
        ClientConfig(**config),
        StreamConfig(client=None, data_table_name="orders", status_table_name="status"),
        made["factory"],
        None,
        made["leases"],
        stream_api=made["stream"],
    )
    thread = threading.Thread(target=lambda: _run(worker))
    thread.start()
    said: list[str] = []

    def is_named() -> bool:
        said.append(told(worker) + caplog.text)
        return " never run" in said[-1] and (hidden in said[-1] or hidden.startswith("a made"))

    try:
        until(is_named, lambda: said[-1])
    finally:
        worker.shutdown()
        thread.join(PATIENCE_SECONDS)
    leases = made["leases"]._inner if isinstance(made["leases"], HiddenMethods) else made["leases"]
    assert {lease.checkpoint for lease in leases.list_leases()} <= {"TRIM_HORIZON"}


def _run(worker: Worker) -> None:
    with suppress(WorkerFailedError):  # which the log tells, too
        worker.run()


@pytest.mark.usefixtures("without_warnings")
def test_metrics_that_hide_what_they_are_are_named_once_and_disturb_nothing(caplog: pytest.LogCaptureFixture) -> None:
    metrics = labelled(HiddenMethods(Metrics(), "set"), stream="s", worker="w")  # type: ignore[arg-type]
    for _ in range(3):
        metrics.set(METRICS[0], 1)

    (record,) = caplog.records
    assert "set returned <coroutine object" in record.getMessage()


@pytest.mark.usefixtures("without_warnings")
def test_a_wait_for_what_hides_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match="until returned <coroutine"):
        running().wait(PATIENCE_SECONDS, until=hidden_coroutine)  # type: ignore[arg-type,return-value]


@pytest.mark.usefixtures("without_warnings")
def test_a_callback_of_a_tunnel_that_hides_has_failed() -> None:
    from streamclient.tunnel.channel_processors import CallbackProcessor, ChannelRecordProcessor

    records: Sequence[Any] = (make_record("a"),)
    with pytest.raises(ConfigurationError, match="the callback returned <coroutine"):
        CallbackProcessor(lambda records: a_coroutine()).process(ChannelRecordsInput(records, "c"))  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"the processor factory made <.*its process: it is an async function"):
        ChannelRecordProcessor(with_method(Channel, "process", a_coroutine), 1, is_shared=False)
