"""Settings of workers and streams, as frozen objects whose values are checked when they are made.

Names and defaults are the same as in the Java client. Most names end with a unit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from typing import Any

from attrs import Attribute, Factory, field, frozen

from streamclient.base import checks, logs
from streamclient.errors import ConfigurationError
from streamclient.interfaces import (
    ILeaseManager,
    IMetrics,
    IParkingStore,
    IRecordProcessor,
    IRecordProcessorFactory,
    IRetryStrategy,
)
from streamclient.model import BalanceBy, InitialPosition, OnFailure, TrimmedDataPolicy

_log = logs.logger(__name__)

BEATS_PER_LEASE = 3.3
"""The number of heartbeats, and also of scans, in one lease duration with the defaults of ``ClientConfig``. So the loss
of a single heartbeat or scan does no harm."""

READS_PER_SECOND = 400
"""The largest number of polls a second that a worker may make, unless ``EAGER_SHARDS`` allows more. A poll is a read
that may find no record. A read right after a page that promised more records is not a poll. This number suffices for
four shards with traffic and a thousand quiet shards. On a busy machine, a thousand reads took about one second of a
processor core."""

EAGER_SHARDS = 6
"""The number of shards that a worker may always read every ``worker_idle_time_millis``, even if these are more than
``READS_PER_SECOND`` reads a second."""

_retry_strategy = checks.optional(checks.implementation(IRetryStrategy))
lease_manager = checks.implementation(ILeaseManager)


def _client(instance: object, attribute: Attribute[Any], value: object) -> None:
    if value is not None:
        checks.client(instance, attribute, value)


class ProcessorKind(Enum):
    """The kinds of objects that a program may give as its processor factory."""

    MAKER = "makes processors"
    """A factory object, or a class or function that makes a processor when it is called without arguments."""
    ASYNC_MAKER = "makes async processors"
    """A class whose instances are async processors."""
    HANDLER = "handles batches"
    """A function that takes one batch."""
    ASYNC_HANDLER = "handles batches in an event loop"


def processor_kind(given: object) -> ProcessorKind | str:
    """Return the kind of processor factory that ``given`` is.

    If a worker cannot use ``given``, return the reason as a text. For an object that cannot be called, such as
    ``None``, the text is empty.
    """
    if not isinstance(given, type) and callable(getattr(given, "create_processor", None)):
        return checks.deferring(getattr(given, "create_processor")) or ProcessorKind.MAKER  # noqa: B009
    if not callable(given):
        return ""
    made: Any = given
    while isinstance(made, partial):
        made = made.func
    if isinstance(made, type):
        return _kind_of_class(made, checks.required_parameters(given))
    return _kind_of_function(given, checks.required_parameters(given))


_ASYNC_METHODS = ("initialize", "process_records", "shutdown")


def _is_async_by_origin(made: type) -> bool:
    """Return whether ``process_records`` is an async function in ``made`` or in one of its base classes."""
    return any(checks.is_async(vars(each).get("process_records")) for each in made.__mro__)


def _kind_of_class(made: type, required: Sequence[str]) -> ProcessorKind | str:
    if hasattr(made, "create_processor"):
        return "it is a class of factories: give an instance of it"
    if required:
        return f"its instances cannot be made without {', '.join(required)}: give a function that makes them"
    if not issubclass(made, IRecordProcessor) and _is_async_by_origin(made):
        plain = [name for name in _ASYNC_METHODS if not checks.is_async(getattr(made, name, None))]
        return f"its {plain[0]} is not an async function" if plain else ProcessorKind.ASYNC_MAKER
    return checks.deferring_method(IRecordProcessor, made) or ProcessorKind.MAKER


def _kind_of_function(given: object, required: Sequence[str]) -> ProcessorKind | str:
    if len(required) > 1:
        return f"it needs {', '.join(required)}: a handler takes one batch, and a maker of processors takes nothing"
    if checks.is_async(given):
        return ProcessorKind.ASYNC_HANDLER if required else "it is an async function without a batch to handle"
    return checks.deferring(given) or (ProcessorKind.HANDLER if required else ProcessorKind.MAKER)


def _why_no_factory(given: object) -> str:
    kind = processor_kind(given)
    return "" if isinstance(kind, ProcessorKind) else kind


processor_factory = checks.Check(
    "an IRecordProcessorFactory, a class or function that makes a processor, or a function of one batch",
    lambda value: isinstance(processor_kind(value), ProcessorKind),
    because=_why_no_factory,
)


def _then(given: object) -> OnFailure:
    return checks.choice("then", OnFailure, given)


def _balance_by(given: object) -> BalanceBy:
    return checks.choice("balance_by", BalanceBy, given)


def _trimmed_data_policy(given: object) -> TrimmedDataPolicy:
    return checks.choice("trimmed_data_policy", TrimmedDataPolicy, given)


def _initial_position(given: object) -> InitialPosition:
    kinds = {"oldest": InitialPosition.oldest, "latest": InitialPosition.latest}
    if isinstance(given, str) and given.casefold() in kinds:
        return kinds[given.casefold()]()
    if isinstance(given, InitialPosition):
        return given
    raise ConfigurationError(
        "initial_position must be InitialPosition.oldest(), .latest() or .at(micros), or 'oldest' or 'latest', not "
        f"{checks.shown(given)}"
    )


@checks.explains_names
@frozen(kw_only=True)
class FailurePolicy:
    """The treatment of records for which ``process_records`` raises.

    The worker delivers a failed batch again to the same processor, up to ``retries`` times. If the batch still fails,
    the worker cuts it in two, and delivers the halves in order, each as a batch of its own. A half that fails is cut
    again, down to the single record that fails. This record is retried up to ``retries`` times; if it still fails, the
    field ``then`` decides the next step. So a processor must accept a record that it has seen already, as it must after
    a crash.
    """

    retries: int = field(default=3, validator=checks.not_negative)
    """The largest number of times that a failed batch is delivered again. The retries and their pauses together should
    outlast ordinary outages of the processor's sink."""
    first_pause_millis: int = field(default=1_000, validator=checks.not_negative)
    """The pause before the first retry; it doubles with each retry."""
    longest_pause_millis: int = field(default=60_000, validator=checks.not_negative)
    bisect: bool = field(default=True, validator=checks.flag)
    """Whether the worker cuts a failing batch in two. With ``False``, ``then`` applies to all records of the batch.
    With ``then=RESTART`` no batch is ever cut, because the new processor reads the whole batch again."""
    then: OnFailure = field(default=OnFailure.RESTART, converter=_then)
    parking: IParkingStore | None = field(default=None, validator=checks.optional(checks.implementation(IParkingStore)))
    """The store of parked records, required with ``then=PARK``; see ``streamclient.worker.parking``. All workers of a
    fleet need the same store, and each fleet of a stream needs a store of its own."""
    park_rest_of_key: bool = field(default=True, validator=checks.flag)
    """Whether later records of a parked key are parked too, without being tried, as long as the key has parked records.
    With ``False``, later records are delivered, and a replay may write an old change over a newer one."""
    most_parked_share: float = field(default=0.01, validator=checks.share)
    """The largest share of the shard's latest ``share_window_records`` records that may be parked. Beyond this share
    the shard stops, because the cause is probably not in the records."""
    share_window_records: int = field(default=10_000, validator=checks.positive)
    """The number of the shard's latest records from which the parked share is computed."""

    def __attrs_post_init__(self) -> None:
        if self.longest_pause_millis < self.first_pause_millis:
            raise ConfigurationError(
                f"longest_pause_millis={self.longest_pause_millis} must not be below "
                f"first_pause_millis={self.first_pause_millis}"
            )
        if (self.then is OnFailure.PARK) != (self.parking is not None):
            raise ConfigurationError(
                f"then={self.then.name} does not go with parking={self.parking!r}: PARK needs an IParkingStore, and "
                "nothing else uses one; streamclient.worker.parking has FileParkingStore and TableParkingStore"
            )
        if self.most_parked < 1:
            raise ConfigurationError(
                f"most_parked_share={self.most_parked_share} of share_window_records={self.share_window_records} is "
                "less than one record, so no record could ever be parked"
            )

    @property
    def most_parked(self) -> int:
        """The largest number of records that may be parked among the latest ``share_window_records`` of a shard."""
        return int(self.most_parked_share * self.share_window_records)


@checks.explains_names
@frozen(kw_only=True)
class Backoff:
    """The pauses between the failure of a processor and the start of a new processor."""

    restart_backoff_min_millis: int = field(default=1_000, validator=checks.positive)
    """The first pause; it doubles with each consecutive failure."""
    restart_backoff_max_millis: int = field(default=60_000, validator=checks.positive)

    def __attrs_post_init__(self) -> None:
        if self.restart_backoff_max_millis < self.restart_backoff_min_millis:
            raise ConfigurationError(
                f"restart_backoff_max_millis={self.restart_backoff_max_millis} must not be below "
                f"restart_backoff_min_millis={self.restart_backoff_min_millis}"
            )


@checks.explains_names
@frozen(kw_only=True)
class CallLimits:
    """The longest durations of the calls that a worker makes for one shard."""

    slow_processor_warning_millis: int = field(default=30_000, validator=checks.positive)
    """The duration after which a call into user code is logged and named in the shard's status."""
    user_code_limit_millis: int = field(default=600_000, validator=checks.not_negative)
    """The longest duration of a call into user code, including the wait for a thread. After this time the worker
    releases the shard's lease, so that another worker can continue from the stored checkpoint; 0 sets no limit."""
    read_limit_millis: int = field(default=120_000, validator=checks.not_negative)
    """The longest duration of one read of a shard, including the wait for a thread. After this time the worker releases
    the shard's lease, so that another worker can read the shard; 0 sets no limit. With the usual time-outs of the SDK's
    client, a read fails earlier than this limit."""
    checkpoint_timeout_millis: int = field(default=30_000, validator=checks.positive)
    """The time that ``checkpoint()`` waits for the status table before it raises."""


@checks.explains_names
@frozen(kw_only=True)
class Prefetch:
    """The limits for pages that are read ahead while processors work, in bytes as the service sends them."""

    prefetch_bytes: int = field(default=2 << 20, validator=checks.not_negative)
    """The largest size of the pages read ahead for one shard. With 0 the worker reads no page ahead. With any other
    value it may always read one page ahead, whatever the size of the page. More pages help when batches take unequal
    times to process."""
    prefetch_total_bytes: int = field(default=32 << 20, validator=checks.positive)
    """The largest size of the pages read ahead for all shards of a worker together. Decoded records take about four
    times as much memory."""


@checks.explains_names
@frozen(kw_only=True)
class ClientConfig:
    """Settings of a worker. All workers of a fleet, in every language, must agree on ``lease_duration_millis``."""

    lease_duration_millis: int = field(default=20_000, validator=checks.positive)
    """The time after which other workers treat a lease as expired if the lease's counter has not changed."""
    renewer_interval_millis: int = field(default=6_000, validator=checks.positive)
    taker_interval_millis: int = field(default=6_000, validator=checks.positive)
    """The time between scans of the status table. After each scan the worker takes, balances and hands over leases, and
    checks whether parent shards are finished."""
    worker_idle_time_millis: int = field(default=15, validator=checks.positive)
    """The time from the beginning of one read to the beginning of the next, for a shard that had no new records
    although its table has traffic. A smaller value finds records sooner and costs more reads. A table counts as having
    traffic for 10 s after this worker reads a record of any of its shards. A shard of that table is read at this
    interval for 60 s after its own last record, and then less often."""
    max_wait_table_ready_time_millis: int = field(default=120_000, validator=checks.positive)
    check_table_ready_interval_millis: int = field(default=100, validator=checks.positive)
    sync_shard_interval_millis: int = field(default=10_000, validator=checks.positive)
    max_duration_before_last_successful_renew_or_take_lease: int = field(default=60_000, validator=checks.positive)
    """The longest time, in milliseconds, for which renewals or scans may fail. After this time the worker reports
    itself unhealthy."""
    status_table_read_capacity: int = field(default=0, validator=checks.not_negative)
    status_table_write_capacity: int = field(default=0, validator=checks.not_negative)
    auto_steal_lease: bool = field(default=True, validator=checks.flag)
    """Whether this worker asks workers with more load for some of their leases."""
    renew_thread_pool_size: int = field(default=20, validator=checks.positive)
    """The largest number of threads for heartbeats, which are sent in batches. The worker's other calls about leases
    have a pool of the same size. An ``ILeaseManager`` of your own gets up to this number of calls at a time from each
    of the two pools."""
    task_retry_strategy: IRetryStrategy | None = field(default=None, validator=_retry_strategy)
    lease_manager_retry_strategy: IRetryStrategy | None = field(default=None, validator=_retry_strategy)

    # The Java client does not have the settings below.
    signal_interval_millis: int = field(default=400, validator=checks.positive)
    """The time between two reads of workers' rows in the status table; each read covers a few workers. The time decides
    how soon a worker notices another worker's message or death. A value above a tenth of the lease duration counts as
    that tenth."""
    read_threads: int = field(default=128, validator=checks.positive)
    """The largest number of reads that a worker makes at the same time. If the worker has no more shards than this, no
    read ever waits for another read. A thread is started only when all existing threads are reading."""
    balance_by: BalanceBy = field(default=BalanceBy.COUNT, converter=_balance_by)
    """The quantity that workers balance, as a ``BalanceBy`` or its string. Records and bytes are balanced only while
    all workers of the fleet use this package. Java workers count leases, so a fleet with a Java worker balances the
    number of leases."""
    max_idle_poll_interval_millis: int = field(default=900, validator=checks.positive)
    """The longest time between two reads of a shard without new records. The time grows in proportion to the age of the
    shard's last record, and reaches this value after ten minutes. All shards without traffic together are read at most
    200 times a second. So with more than 160 such shards the time is longer: about five seconds for a thousand
    shards."""
    max_reads_per_second: int | None = field(default=None, validator=checks.optional(checks.positive))
    """The largest number of reads a second over all shards of the worker. A read that follows records is not counted,
    and never slowed. A worker that would exceed this number lengthens all times between reads by the same factor, and
    shows that factor in its row. ``None`` stands for 400, or for the number of reads a second
    with which six shards are each read every ``worker_idle_time_millis``, whichever is more."""
    prefetch: Prefetch = field(default=Prefetch(), validator=checks.instance(Prefetch))
    deliver_empty_batches: bool = field(default=False, validator=checks.flag)
    """Whether ``process_records`` is called after a read that returned no records. The Java client always calls it."""
    backoff: Backoff = field(default=Backoff(), validator=checks.instance(Backoff))
    failure_policy: FailurePolicy = field(default=FailurePolicy(retries=0), validator=checks.instance(FailurePolicy))
    """The treatment of records for which ``process_records`` raises. By default a new processor starts after each
    failure, without a limit. If ``task_retry_strategy`` is given, that strategy decides about retries instead."""
    trimmed_data_policy: TrimmedDataPolicy = field(
        default=TrimmedDataPolicy.STOP_SHARD,
        converter=_trimmed_data_policy,
    )
    """The treatment of a shard whose next records have left the stream unread, as a ``TrimmedDataPolicy`` or its
    string."""
    limits: CallLimits = field(default=CallLimits(), validator=checks.instance(CallLimits))
    unhealthy_after_failing_millis: int = field(default=0, validator=checks.not_negative)
    """The milliseconds for which the processor of a shard may fail before the worker reports itself unhealthy. With 0,
    ``health`` names such a shard, but the worker stays healthy, because the fault may lie in a single record."""
    shutdown_timeout_millis: int = field(default=30_000, validator=checks.positive)
    """The longest duration of a whole shutdown: running calls, ``shutdown`` callbacks and hand-overs together."""
    end_on_sigterm: bool = field(default=True, validator=checks.flag)
    """Whether SIGTERM shuts the worker down, as Ctrl-C does, if its ``run`` is in the program's main thread. The
    program then exits with 143 (128 + 15). A signal handler that the program has set is never replaced."""
    metrics: IMetrics | None = field(default=None, validator=checks.optional(checks.implementation(IMetrics)))
    """The receiver of measurements; workers may share it. ``None`` measures nothing."""

    @property
    def reads_ceiling(self) -> int:
        """The value of ``max_reads_per_second``, or the number that replaces ``None``."""
        own = self.max_reads_per_second
        return own or max(READS_PER_SECOND, EAGER_SHARDS * 1_000 // self.worker_idle_time_millis)

    @classmethod
    def for_lease(cls, seconds: float, **settings: Any) -> ClientConfig:
        """Make settings for a lease duration of ``seconds``; heartbeats and scans keep the proportions of the defaults.

        Raises:
            ConfigurationError: ``seconds`` is not a number above 0, or a setting is invalid.
        """
        if not checks.seconds.fits(seconds):
            raise ConfigurationError(f"the lease duration must be {checks.seconds.expected}, not {seconds!r}")
        millis = round(seconds * 1_000)
        beat = max(1, round(millis / BEATS_PER_LEASE))
        derived: dict[str, Any] = {
            "lease_duration_millis": millis,
            "renewer_interval_millis": beat,
            "taker_interval_millis": beat,
        }
        if given := sorted(settings.keys() & derived):
            raise ConfigurationError(
                f"for_lease derives {given[0]} from the lease duration; to choose it, use ClientConfig({given[0]}=...) "
                "and give the other intervals too"
            )
        return cls(**derived, **settings)

    def __attrs_post_init__(self) -> None:
        for name in ("renewer_interval_millis", "taker_interval_millis"):
            interval = getattr(self, name)
            if interval >= self.lease_duration_millis:
                raise ConfigurationError(
                    f"{name}={interval} must be below lease_duration_millis={self.lease_duration_millis}: "
                    "a lease would expire between two heartbeats; use at most a third of the duration"
                )
            if interval * 3 > self.lease_duration_millis:
                _log.warning(
                    "%s=%s is above a third of lease_duration_millis=%s: one lost heartbeat can lose a lease",
                    name,
                    interval,
                    self.lease_duration_millis,
                )


def _name_of_the_table(config: StreamConfig) -> str:
    return config.data_table_name


@checks.explains_names
@frozen(kw_only=True)
class StreamConfig:
    """The stream to read, and the table that stores its leases and checkpoints."""

    client: Any = field(validator=_client)
    """A ``tablestore.OTSClient``, used for the data table, its stream and the status table. It may be ``None`` if the
    worker is given a ``stream_api`` and a ``lease_manager``."""
    data_table_name: str = field(validator=checks.identifier)
    status_table_name: str = field(validator=checks.identifier)
    """The status table. Each consuming application needs its own status table, because rows carry no group name.
    Streams of different tables may share one status table."""
    max_records: int = field(default=1_000, validator=checks.positive)
    """The largest number of records that one read returns."""
    initial_position: InitialPosition = field(factory=InitialPosition.oldest, converter=_initial_position)
    """The start of shards without a stored checkpoint; ``"oldest"`` and ``"latest"`` are accepted too."""
    name: str = field(default=Factory(_name_of_the_table, takes_self=True), validator=checks.identifier)
    """The name of the stream in statuses and logs, different for each stream of a worker; by default the name of the
    data table."""
    record_processor_factory: IRecordProcessorFactory | Callable[..., object] | None = field(
        default=None, validator=checks.optional(processor_factory)
    )
    """The maker of this stream's processors, or the handler of its batches, used instead of the worker's factory."""
    lease_manager: ILeaseManager | None = field(default=None, validator=checks.optional(lease_manager))
    """The store of this stream's leases, used instead of the status table."""

    @name.validator
    def _has_no_slash(self, attribute: Attribute[Any], value: str) -> None:
        if "/" in value:
            raise ConfigurationError(f"name must not contain '/', which separates it from a shard id: {value!r}")

    def __attrs_post_init__(self) -> None:
        if self.status_table_name == self.data_table_name:
            raise ConfigurationError(
                f"status_table_name={self.status_table_name!r} is the data table itself; leases need their own table"
            )
