"""Every setting of every public class and function is checked when it is given, and every mistake is named."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import settings as with_settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from tablestore import OTSClient

from streamclient import (
    Backoff,
    BalanceBy,
    CallLimits,
    ClientConfig,
    ConfigurationError,
    FailurePolicy,
    FileParkingStore,
    InitialPosition,
    KeyedProcessorFactory,
    LeaseManager,
    MemoryLeaseManager,
    MemoryParkingStore,
    OnFailure,
    Prefetch,
    StreamConfig,
    TableParkingStore,
    TablestoreStreamApi,
    TrimmedDataPolicy,
    Worker,
    changes,
    replay_parked,
)
from streamclient.base import checks
from streamclient.copying import MergeLimits, Mirror, Replication, mirror, parse_settings
from streamclient.destinations import DeltaDestination, IcebergDestination, Key, PostgresDestination
from streamclient.metrics import OpenTelemetryMetrics, PrometheusMetrics
from streamclient.server import Fail, FailRows, FaultRule, LateAnswer, Latency, LocalTablestore, LoseAnswer
from streamclient.spark import SparkConfig, SparkRecordProcessorFactory, local_session
from streamclient.tablestore import (
    Connection,
    ConnectionLimits,
    Integrity,
    ReadRetry,
    StreamSpecification,
    with_integrity,
)
from streamclient.tablestore.integrity import integrity_of
from streamclient.testing import StreamSimulation, run
from streamclient.testing.fakes import FakeStream
from streamclient.tunnel import (
    StartOffset,
    StreamTunnelConfig,
    TunnelClient,
    TunnelDaemon,
    TunnelWorker,
    TunnelWorkerConfig,
)
from tools.structure import FACES

CLIENT = OTSClient("http://127.0.0.1:1", "id", "secret", "instance")
"""Never called: nothing here gets as far as a request."""

BAD_ENDPOINTS = ["http://h:abc", "http://h:99999", "https://h:0", "http://a..b", f"http://{'a' * 64}.b", "http://"]

STREAM = {"client": CLIENT, "data_table_name": "orders", "status_table_name": "orders_status"}


def process(*arguments: object) -> None:
    """A processor, a sink, a function of records: never called."""


class Catalog:
    """What pyiceberg's have: never called."""

    def load_table(self) -> None: ...


_SIDE = {"endpoint": "http://127.0.0.1:1", "instanceName": "i", "tableName": "t", "accessId": "a", "accessKey": "b"}
REPLICATED = parse_settings(
    {"ots-reader": {**_SIDE, "tunnelName": "copy"}, "ots-writer": {**_SIDE, "tableName": "u"}}, {}
)

CLASSES: dict[type, dict[str, Any]] = {
    ClientConfig: {},
    Backoff: {},
    CallLimits: {},
    Prefetch: {},
    FailurePolicy: {},
    StreamConfig: STREAM,
    InitialPosition: {"kind": "oldest"},
    SparkConfig: {},
    TunnelWorkerConfig: {},
    StreamTunnelConfig: {},
    ReadRetry: {},
    StreamSpecification: {"enable_stream": True, "expiration_time_hours": 24},
    Latency: {"seconds": 1},
    Fail: {"code": "OTSServerBusy"},
    LoseAnswer: {},
    LateAnswer: {"seconds": 1},
    FailRows: {"every": 2},
    FaultRule: {"operation": "*", "action": Latency(1)},
    MergeLimits: {},
    Key: {"name": "id"},
    Connection: {},
    ConnectionLimits: {},
    Replication: {"settings": REPLICATED, "say": process, "show": process},
}
"""Settings that are attrs classes, with arguments that work."""

CALLS: dict[Callable[..., Any], dict[str, Any]] = {
    Worker: {
        "worker_identifier": "w1",
        "client_config": ClientConfig(),
        "stream_config": StreamConfig(**STREAM),
        "record_processor_factory": process,
    },
    KeyedProcessorFactory: {"process_record": process},
    LeaseManager: {"client": CLIENT, "status_table_name": "s", "stream_id": "orders_1"},
    MemoryLeaseManager: {},
    TablestoreStreamApi: {"client": CLIENT},
    TableParkingStore: {"client": CLIENT, "table_name": "parked"},
    FileParkingStore: {"directory": "/nowhere"},
    replay_parked: {"store": MemoryParkingStore(), "processor_factory": process},
    LocalTablestore: {},
    SparkRecordProcessorFactory: {"destination": process},
    local_session: {},
    TunnelClient: {"client": CLIENT},
    TunnelWorker: {"tunnel_id": "t", "client": CLIENT, "processor": process},
    TunnelDaemon: {"tunnel_id": "t", "client": CLIENT, "processor": process},
    PrometheusMetrics: {},
    PrometheusMetrics(CollectorRegistry()).serve: {"port": 0},
    TunnelDaemon("t", CLIENT, process).serve_health: {"port": 0},
    OpenTelemetryMetrics: {},
    StreamSimulation().run: {"factory": process},
    run: {"processor": process, "records": ()},
    DeltaDestination: {"url": "/nowhere"},
    PostgresDestination: {"conninfo": "host=nowhere", "table": "orders"},
    IcebergDestination: {"catalog": Catalog(), "identifier": "lake.orders"},
    Mirror: {"client": CLIENT, "table": "orders", "status_table": "s", "to": "/nowhere"},
    mirror: {"client": CLIENT, "table": "orders", "status_table": "s", "to": "/nowhere"},
}
"""Classes and functions that take settings as arguments, with arguments that work."""

_MADE_HERE = """
BatchContext ChangeView ChangesView Channel ChannelCheckpoint ChannelInfo ChannelRecordsInput ChannelView Commit
Comparison Cut Day Delivery Difference Distribution Exchange FailingShard FaultStatus FrameColumn InitializationInput
Java KeyLeft Lease LeaseHistory LeaseWriting LogEntry Manifest MemoryPlace Metric MirrorDifference ParkedKey
ParkedRecord Pause PendingCheckpoint ProcessRecordsInput ProcessorRun Progress Reason RecordColumn RecordOrder
RecordPage RejectedRecord ReplayReport RequestCount RowView Run SequenceInfo Series Shard ShardHistory ShardInfo
ShardRange ShardSpan ShardStatus ShardView ShutdownInput SimulationResult StreamDescription StreamDetails StreamRecord
StreamSummary TableDescription TableOptionsInForce TableView TrimmedRange TunnelDescription TunnelInfo TunnelView
UnfitReport Verdict WorkerHealth WriteAnswer
"""
MADE_HERE = frozenset(_MADE_HERE.split())
"""Public attrs classes that are no settings: the package makes them, and users read them."""


def public_classes() -> Iterator[type]:
    for face in sorted(FACES):
        module = importlib.import_module(face)
        for name in getattr(module, "__all__", vars(module)):
            found = getattr(module, name)
            if inspect.isclass(found) and attrs.has(found) and not issubclass(found, Exception):
                yield found


def settings() -> list[tuple[Callable[..., Any], str]]:
    """Every setting there is, as what takes it and its name."""
    found = []
    for taker in [*CLASSES, *CALLS]:
        for name, parameter in inspect.signature(taker).parameters.items():
            if parameter.kind is not parameter.VAR_KEYWORD:
                found.append((taker, name))
    return found


def named(value: object) -> str:
    return getattr(value, "__qualname__", str(value))


def make(taker: Callable[..., Any], **changes: Any) -> Any:
    return taker(**{**{**CLASSES, **CALLS}[taker], **changes})


# --- every field --------------------------------------------------------------------------------------------------


def test_every_public_class_is_known_as_a_setting_or_as_a_value() -> None:
    assert {each.__name__ for each in public_classes()} <= MADE_HERE | {each.__name__ for each in CLASSES}


@pytest.mark.parametrize("taker", CLASSES, ids=named)
def test_every_field_has_a_check(taker: type) -> None:
    fields = attrs.fields(taker)

    assert [field.name for field in fields if field.validator is None and field.converter is None] == []


class Junk:
    """Fits nothing: it has no method, no length, and no number."""


@pytest.mark.parametrize(("taker", "name"), settings(), ids=named)
@with_settings(max_examples=5, deadline=None)
@given(junk=st.builds(Junk) | st.complex_numbers() | st.binary())
def test_junk_of_another_type_is_refused_with_name_value_and_expectation(
    taker: Callable[..., Any], name: str, junk: object
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        make(taker, **{name: junk})

    told = str(caught.value)
    assert told.startswith(f"{name} must be ")
    assert checks.shown(junk) in told or type(junk).__name__ in told


PLAIN: dict[str, tuple[object, tuple[str, ...]]] = {
    "nothing": (None, ("None",)),
    "a text": ("no such thing", ("str", "Path")),
    "a number": (-7, ("int", "float")),
}
"""Values that are right for some settings, with the words of an annotation for which they are."""


def is_of_another_type(taker: Callable[..., Any], name: str, junk: str) -> bool:
    if (taker, name, junk) == (StreamConfig, "client", "nothing"):
        return False  # a worker with a stream API and a lease manager of its own needs none
    annotation = str(inspect.signature(taker).parameters[name].annotation)
    return not re.search(rf"\b({'|'.join(PLAIN[junk][1])})\b", annotation)


@pytest.mark.parametrize(
    ("taker", "name", "junk"),
    [(*setting, junk) for setting in settings() for junk in PLAIN if is_of_another_type(*setting, junk)],
    ids=named,
)
def test_a_plain_value_is_refused_by_name_where_another_type_is_expected(
    taker: Callable[..., Any], name: str, junk: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"^{name} must be "):
        make(taker, **{name: PLAIN[junk][0]})


@pytest.mark.parametrize("endpoint", BAD_ENDPOINTS)
@pytest.mark.parametrize(
    "taker", [each for each in [*CLASSES, *CALLS] if "client" in inspect.signature(each).parameters]
)
def test_a_client_of_an_endpoint_that_cannot_be_is_refused(taker: Callable[..., Any], endpoint: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"^endpoint must be http.*, not '{re.escape(endpoint)}': "):
        make(taker, client=OTSClient(endpoint, "id", "secret", "instance"))


@pytest.mark.parametrize("taker", [each for each in [*CLASSES, *CALLS] if each is not local_session], ids=named)
def test_a_misspelt_name_is_refused_with_the_right_one(taker: Callable[..., Any]) -> None:
    for name in inspect.signature(taker).parameters:
        words = name.split("_")
        camel_case = words[0] + "".join(word.capitalize() for word in words[1:])
        for wrong in {camel_case, f"set{camel_case[0].upper()}{camel_case[1:]}", name + "x"} - {name}:
            with pytest.raises(ConfigurationError) as caught:
                make(taker, **{wrong: 1})
            assert str(caught.value).endswith(f"has no setting {wrong}; did you mean {name}?")


# --- what may be given as a string ----------------------------------------------------------------------------------


@pytest.mark.parametrize("given", ["RESTART_AT_OLDEST", "restart_at_oldest", TrimmedDataPolicy.RESTART_AT_OLDEST])
def test_a_choice_may_be_a_string_in_any_case(given: Any) -> None:
    assert ClientConfig(trimmed_data_policy=given).trimmed_data_policy is TrimmedDataPolicy.RESTART_AT_OLDEST


def _then(text: str) -> OnFailure:
    return FailurePolicy(then=text, parking=MemoryParkingStore() if text == "PARK" else None).then  # type: ignore[arg-type]


def test_every_choice_takes_the_names_and_values_of_its_members() -> None:
    takers: list[tuple[Callable[[str], Any], type]] = [
        (
            lambda text: FailurePolicy(then=text, parking=MemoryParkingStore() if text == "PARK" else None).then,
            OnFailure,
        ),
        (lambda text: ClientConfig(balance_by=text).balance_by, BalanceBy),
        (lambda text: ClientConfig(trimmed_data_policy=text).trimmed_data_policy, TrimmedDataPolicy),
        (lambda text: StreamTunnelConfig(start=text).start, StartOffset),
    ]
    for take, kind in takers:
        for member in kind:  # type: ignore[attr-defined]
            assert take(member.name) is member
            assert take(member.value) is member


def test_a_choice_that_is_nearly_one_is_refused_with_the_right_one() -> None:
    with pytest.raises(ConfigurationError, match=r"not 'RESTART_AT_OLDST'; did you mean RESTART_AT_OLDEST\?"):
        ClientConfig(trimmed_data_policy="RESTART_AT_OLDST")


@pytest.mark.parametrize("given", ["LATEST", "latest", InitialPosition.latest()])
def test_an_initial_position_may_be_a_string(given: Any) -> None:
    assert StreamConfig(**STREAM, initial_position=given).initial_position == InitialPosition.latest()


@pytest.mark.parametrize(
    "arguments", [("lates",), ("timestamp",), ("oldest", 5), ("timestamp", -1), ("timestamp", "0")]
)
def test_an_initial_position_that_is_none_is_refused(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(ConfigurationError):
        InitialPosition(*arguments)


# --- settings that do not go together -------------------------------------------------------------------------------


def test_the_status_table_is_not_the_data_table() -> None:
    with pytest.raises(ConfigurationError, match="status_table_name='orders' is the data table itself"):
        StreamConfig(client=CLIENT, data_table_name="orders", status_table_name="orders")


def test_the_status_table_of_one_stream_is_not_the_data_table_of_another() -> None:
    first = StreamConfig(client=CLIENT, data_table_name="orders", status_table_name="leases")
    second = StreamConfig(client=CLIENT, data_table_name="leases", status_table_name="others")
    with pytest.raises(ConfigurationError, match="data_table_name='leases' is the status table of another"):
        Worker("w1", ClientConfig(), [first, second], process)


def test_a_stream_without_a_client_needs_a_stream_api_and_a_lease_manager() -> None:
    config = StreamConfig(client=None, data_table_name="orders", status_table_name="s")
    given: dict[str, Any] = {"stream_api": FakeStream("orders", ("a",)), "lease_manager": MemoryLeaseManager()}
    assert Worker("w1", ClientConfig(), config, process, **given)
    for left_out in given:
        with pytest.raises(ConfigurationError, match="client of stream orders must be"):
            Worker("w1", ClientConfig(), config, process, **{**given, left_out: None})


# --- the checks themselves ------------------------------------------------------------------------------------------


def test_an_interface_may_be_fulfilled_without_inheriting_it_but_not_by_a_class() -> None:
    class Duck:
        def should_retry(self, *arguments: object) -> bool:
            return False

        def backoff_millis(self, *arguments: object) -> int:
            return 0

    duck = Duck()
    assert ClientConfig(task_retry_strategy=duck).task_retry_strategy is duck  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="task_retry_strategy must be an IRetryStrategy or None"):
        ClientConfig(task_retry_strategy=Duck)  # type: ignore[arg-type]


def test_a_secret_is_not_shown_when_it_is_refused() -> None:
    with pytest.raises(ConfigurationError) as caught:
        LocalTablestore(access_key_secret=" s3cret ")

    assert "s3cret" not in str(caught.value)


def test_a_missing_setting_is_named() -> None:
    with pytest.raises(ConfigurationError, match="StreamConfig needs data_table_name, status_table_name"):
        StreamConfig(client=CLIENT)  # type: ignore[call-arg]


def test_a_name_like_no_other_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ConfigurationError, match="SparkConfig has no setting zzz; it has max_age_millis, max_buffered"):
        SparkConfig(zzz=1)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: ClientConfig(maxRecords=3), "ClientConfig has no setting maxRecords; max_records is a setting of St"),  # type: ignore[call-arg]
        (lambda: ClientConfig(max_records=3), "has no setting max_records; max_records is a setting of StreamConfig"),  # type: ignore[call-arg]
        (lambda: ClientConfig(maxRecrods=3), "has no setting maxRecrods; did you mean max_records of StreamConfig?"),  # type: ignore[call-arg]
        (lambda: ClientConfig(prefetchBytes=3), "prefetch_bytes is a setting of Prefetch"),  # type: ignore[call-arg]
        (lambda: ClientConfig(retries=3), "has no setting retries; retries is a setting of FailurePolicy"),  # type: ignore[call-arg]
        (lambda: changes("orders", leaseDurationMillis=3), "lease_duration_millis is a setting of ClientConfig"),  # type: ignore[call-arg]
        (lambda: StreamConfig(client=CLIENT, leaseDuration=3), "did you mean lease_duration_millis of ClientConfig?"),  # type: ignore[call-arg]
    ],
    ids=["camel case", "of streams", "misspelt", "of a group", "of a policy", "of a loop", "nearly"],
)
def test_a_setting_of_another_class_is_refused_with_that_class(make: Callable[[], object], said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        make()

    assert said in str(caught.value)
    assert "it has" not in str(caught.value)


def test_the_names_that_there_are_begin_with_the_most_similar_one() -> None:
    with pytest.raises(ConfigurationError) as caught:
        SparkConfig(wait=1)  # type: ignore[call-arg]

    assert str(caught.value).startswith("SparkConfig has no setting wait; it has max_wait_millis, ")


def test_a_value_whose_repr_raises_or_is_long_is_refused_all_the_same() -> None:
    class Broken:
        def __repr__(self) -> str:
            raise ValueError("no")

    with pytest.raises(ConfigurationError, match="not a Broken whose repr raises ValueError"):
        ClientConfig(auto_steal_lease=Broken())  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError) as caught:
        ClientConfig(auto_steal_lease="x" * 10_000)  # type: ignore[arg-type]
    assert len(str(caught.value)) < 300


@given(st.floats(min_value=0.01, max_value=86_400))
def test_settings_for_a_lease_keep_three_beats_in_it_as_the_defaults_do(seconds: float) -> None:
    made = ClientConfig.for_lease(seconds, end_on_sigterm=False)

    assert made.lease_duration_millis == round(seconds * 1_000)
    assert made.renewer_interval_millis == made.taker_interval_millis
    assert made.renewer_interval_millis * 3 <= made.lease_duration_millis
    assert not made.end_on_sigterm
    assert ClientConfig.for_lease(20).lease_duration_millis == ClientConfig().lease_duration_millis


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), True, "20", None])
def test_a_lease_that_lasts_no_time_is_refused(seconds: Any) -> None:
    with pytest.raises(ConfigurationError, match="the lease duration must be a number of seconds above 0, not"):
        ClientConfig.for_lease(seconds)


@pytest.mark.parametrize("name", ["lease_duration_millis", "renewer_interval_millis", "taker_interval_millis"])
def test_what_is_made_of_a_lease_duration_cannot_be_given_beside_it(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^for_lease derives {name} from the lease duration"):
        ClientConfig.for_lease(20, **{name: 5})


@pytest.mark.parametrize("moment", [1_700_000_000, 1_700_000_000_000])
def test_a_start_in_seconds_or_milliseconds_is_refused(moment: int) -> None:
    with pytest.raises(
        ConfigurationError, match=r"must be microseconds since 1970, .* neither seconds nor milliseconds"
    ):
        InitialPosition.at(moment)
    assert InitialPosition.at(moment * 1_000_000 if moment < 10**12 else moment * 1_000)


@pytest.mark.parametrize("given", ["md5", "MD5", Integrity.MD5])
def test_integrity_may_be_a_string(given: Any) -> None:
    assert integrity_of(with_integrity(CLIENT, given)) is Integrity.MD5


@pytest.mark.parametrize("channels", [["c"], [("c", "OPN")], [("c",)], [(None, "OPEN")], [("c", None)]])
def test_channels_that_are_none_are_refused_before_anything_is_sent(channels: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^(channels|the status of a channel) must be "):
        TunnelClient(CLIENT).schedule("tunnel", channels)


def test_settings_that_fit_are_kept_as_they_are() -> None:
    with ThreadPoolExecutor(1) as pool:
        assert TunnelWorkerConfig(read_records_executor=pool, max_channel_parallel=-1).read_records_executor is pool
    assert FailurePolicy(most_parked_share=1).most_parked == 10_000
