"""Settings, frozen and checked when made. Names and defaults are those of the Java client, with units in the name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from attrs import Attribute, field, frozen

from streamclient.base import checks, logs
from streamclient.errors import ConfigurationError
from streamclient.interfaces import (
    ILeaseManager,
    IMetrics,
    IParkingStore,
    IRecordProcessor,
    IRetryStrategy,
    RecordProcessorFactory,
)
from streamclient.model import BalanceBy, InitialPosition, OnFailure, TrimmedDataPolicy

_log = logs.logger(__name__)

BEATS_PER_LEASE = 3.3
"""Heartbeats and scans in a lease duration, as in the defaults of ``ClientConfig``: one may be lost."""

_retry_strategy = checks.optional(checks.implementation(IRetryStrategy))
lease_manager = checks.implementation(ILeaseManager)


def _client(instance: object, attribute: Attribute[Any], value: object) -> None:
    if value is not None:
        checks.client(instance, attribute, value)


def _is_class_of_factories(value: object) -> bool:
    return isinstance(value, type) and hasattr(value, "create_processor")


def _deferring_factory(value: object) -> str:
    """Why it makes no processors, or its processors would do no work."""
    if isinstance(value, type):
        return checks.deferring_method(IRecordProcessor, value)
    return checks.deferring(getattr(value, "create_processor", value))


processor_factory = checks.Check(
    "an IRecordProcessorFactory or a callable that makes a processor",
    lambda value: (
        callable(getattr(value, "create_processor", value))
        and not _is_class_of_factories(value)
        and not _deferring_factory(value)
    ),
    because=_deferring_factory,
)


def processor_maker(name: str, factory: object) -> Callable[[], IRecordProcessor]:
    """What makes processors, from anything that users may give for it.

    Raises:
        ConfigurationError: it makes none; ``name`` is that of the argument.
    """
    processor_factory.require(name, factory)
    return cast(Callable[[], IRecordProcessor], getattr(factory, "create_processor", factory))


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
    """What a worker does with records for which ``process_records`` raises.

    A failed batch is delivered again to the same processor, up to ``retries`` times. If it goes on failing it is cut
    in two, and the halves are delivered in order, each as a batch of its own; halves that fail are cut again, down to
    the single record that fails, which is tried ``retries`` times more. Then comes ``then``. So a processor must be
    able to see a record again that it has seen before, as after a crash.
    """

    retries: int = field(default=3, validator=checks.not_negative)
    """Choose them, and the pauses, to last longer than ordinary outages of what the processor writes to."""
    first_pause_millis: int = field(default=1_000, validator=checks.not_negative)
    """Before the first of these retries; doubles with each."""
    longest_pause_millis: int = field(default=60_000, validator=checks.not_negative)
    bisect: bool = field(default=True, validator=checks.flag)
    """Whether a failing batch is cut; if not, ``then`` concerns all of its records. RESTART never cuts: no part of a
    batch would be kept."""
    then: OnFailure = field(default=OnFailure.RESTART, converter=_then)
    parking: IParkingStore | None = field(default=None, validator=checks.optional(checks.implementation(IParkingStore)))
    """Where records go with PARK; see ``streamclient.worker.parking``. All workers of a fleet need the same one."""
    park_rest_of_key: bool = field(default=True, validator=checks.flag)
    """Whether later records of a parked key are parked too, without being tried, until the key has none parked any
    more. Without it they are delivered, and a replay puts an old change over a newer one."""
    most_parked_share: float = field(default=0.01, validator=checks.share)
    """A shard stops rather than park more than this share of its latest records: then it is not the records."""
    share_window_records: int = field(default=10_000, validator=checks.positive)
    """How many records of the shard that share is taken of."""

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
                "less than one record, so that none could ever be parked"
            )

    @property
    def most_parked(self) -> int:
        """How many of the latest ``share_window_records`` records of a shard may be parked."""
        return int(self.most_parked_share * self.share_window_records)


@checks.explains_names
@frozen(kw_only=True)
class Backoff:
    """Pauses before a failed processor is started again."""

    restart_backoff_min_millis: int = field(default=1_000, validator=checks.positive)
    """The first pause; doubles with each failure in a row."""
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
    """How long calls of one shard may take."""

    slow_processor_warning_millis: int = field(default=30_000, validator=checks.positive)
    """How long one call into user code may run before it is logged and named in the shard's status."""
    user_code_limit_millis: int = field(default=600_000, validator=checks.not_negative)
    """How long one call into user code may take, waiting for a thread included, before the worker lets the shard's
    lease go, so that another one can go on from the stored checkpoint; 0 for no limit."""
    read_limit_millis: int = field(default=120_000, validator=checks.not_negative)
    """The same for one read of a shard, waiting for a thread included; 0 for no limit. With a client's usual time-outs
    a read that gets no answer fails by itself before."""
    checkpoint_timeout_millis: int = field(default=30_000, validator=checks.positive)
    """How long ``checkpoint()`` waits for the status table before it raises."""


@checks.explains_names
@frozen(kw_only=True)
class Prefetch:
    """How far is read ahead while processors work, in bytes as the service sends them."""

    prefetch_bytes: int = field(default=2 << 20, validator=checks.not_negative)
    """For one shard; 0 for not at all. One page may always be read ahead, however large; more of them make up for
    batches that take differently long."""
    prefetch_total_bytes: int = field(default=32 << 20, validator=checks.positive)
    """For all shards of a worker together. Decoded, records take about four times as much memory."""


@checks.explains_names
@frozen(kw_only=True)
class ClientConfig:
    """How a worker behaves. All workers of a fleet, in every language, must agree on ``lease_duration_millis``."""

    lease_duration_millis: int = field(default=20_000, validator=checks.positive)
    """A lease whose counter an observer saw unchanged for longer than this has expired."""
    renewer_interval_millis: int = field(default=6_000, validator=checks.positive)
    taker_interval_millis: int = field(default=6_000, validator=checks.positive)
    """Between scans of the status table; the one scan feeds taking, balancing, hand-overs and parent checks."""
    worker_idle_time_millis: int = field(default=20, validator=checks.positive)
    """Shortest pause before reading an idle shard again."""
    max_wait_table_ready_time_millis: int = field(default=120_000, validator=checks.positive)
    check_table_ready_interval_millis: int = field(default=100, validator=checks.positive)
    sync_shard_interval_millis: int = field(default=10_000, validator=checks.positive)
    max_duration_before_last_successful_renew_or_take_lease: int = field(default=60_000, validator=checks.positive)
    """Milliseconds without a successful renewal or scan after which the worker reports itself unhealthy."""
    status_table_read_capacity: int = field(default=0, validator=checks.not_negative)
    status_table_write_capacity: int = field(default=0, validator=checks.not_negative)
    auto_steal_lease: bool = field(default=True, validator=checks.flag)
    """Whether to ask loaded workers for leases."""
    renew_thread_pool_size: int = field(default=20, validator=checks.positive)
    """Upper bound of threads for heartbeats, which go out in batches, and of as many for the worker's other calls about
    leases."""
    task_retry_strategy: IRetryStrategy | None = field(default=None, validator=_retry_strategy)
    lease_manager_retry_strategy: IRetryStrategy | None = field(default=None, validator=_retry_strategy)

    # From here on: settings that the Java client does not have.
    signal_interval_millis: int = field(default=400, validator=checks.positive)
    """Between looks at a few rows of workers: how soon a worker notices that it is woken, or that another one died. At
    most a tenth of the lease duration is used."""
    balance_by: BalanceBy = field(default=BalanceBy.COUNT, converter=_balance_by)
    """What is made even; also as a string. By load only while all workers of the fleet are of this package: beside Java
    workers, which count, numbers are made even."""
    max_idle_poll_interval_millis: int = field(default=5_000, validator=checks.positive)
    """Longest pause before reading an idle shard again, reached after ten minutes of silence. After one minute the
    pause is 1.5 s, after a second 0.2 s; it also follows the rhythm of arrivals."""
    prefetch: Prefetch = field(default=Prefetch(), validator=checks.instance(Prefetch))
    deliver_empty_batches: bool = field(default=False, validator=checks.flag)
    """Whether ``process_records`` is called when a read returned nothing, as the Java client always does."""
    backoff: Backoff = field(default=Backoff(), validator=checks.instance(Backoff))
    failure_policy: FailurePolicy = field(default=FailurePolicy(retries=0), validator=checks.instance(FailurePolicy))
    """What follows when ``process_records`` raises: by default a new processor, without end. ``task_retry_strategy``,
    if given, decides about retries in its place."""
    trimmed_data_policy: TrimmedDataPolicy = field(
        default=TrimmedDataPolicy.STOP_SHARD,
        converter=_trimmed_data_policy,
    )
    """What follows when records are lost to retention; also as a string."""
    limits: CallLimits = field(default=CallLimits(), validator=checks.instance(CallLimits))
    shutdown_timeout_millis: int = field(default=30_000, validator=checks.positive)
    """Bound of a whole shutdown: running calls, ``shutdown`` callbacks and hand-overs together."""
    end_on_sigterm: bool = field(default=True, validator=checks.flag)
    """Whether SIGTERM ends a worker in order whose ``run`` is in the program's main thread, as Ctrl-C does: the program
    then exits with 143 (128 + 15). A handler of the program's own always stays in place."""
    metrics: IMetrics | None = field(default=None, validator=checks.optional(checks.implementation(IMetrics)))
    """Where measurements go; workers may share one. ``None`` measures nothing."""

    @classmethod
    def for_lease(cls, seconds: float, **settings: Any) -> ClientConfig:
        """Settings for a lease duration, with heartbeats and scans as far apart as the defaults have them.

        Raises:
            ConfigurationError: it is no number of seconds above 0, or a setting cannot work.
        """
        if not checks.seconds.fits(seconds):
            raise ConfigurationError(f"the lease duration must be {checks.seconds.expected}, not {seconds!r}")
        millis = round(seconds * 1_000)
        beat = max(1, round(millis / BEATS_PER_LEASE))
        made_of_it: dict[str, Any] = {
            "lease_duration_millis": millis,
            "renewer_interval_millis": beat,
            "taker_interval_millis": beat,
        }
        if given := sorted(settings.keys() & made_of_it):
            raise ConfigurationError(
                f"{given[0]} is what for_lease makes of the lease duration; use ClientConfig({given[0]}=...) and the "
                "other intervals to choose it"
            )
        return cls(**made_of_it, **settings)

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


@checks.explains_names
@frozen(kw_only=True)
class StreamConfig:
    """What to read, and where progress is kept."""

    client: Any = field(validator=_client)
    """A ``tablestore.OTSClient``, used for the data table, its stream and the status table. ``None`` is for a worker
    that is given a ``stream_api`` and a ``lease_manager``, and needs no client."""
    data_table_name: str = field(validator=checks.identifier)
    status_table_name: str = field(validator=checks.identifier)
    """One per consuming application: the rows carry no group name. Streams of different tables may share one."""
    max_records: int = field(default=1_000, validator=checks.positive)
    """Limit of records per read."""
    initial_position: InitialPosition = field(factory=InitialPosition.oldest, converter=_initial_position)
    """Where shards without a stored checkpoint start; the oldest and the latest record also as a string."""
    name: str = field(validator=checks.identifier)
    """Tells the streams of one worker apart, in statuses and logs; the name of the data table unless given."""
    record_processor_factory: RecordProcessorFactory | None = field(
        default=None, validator=checks.optional(processor_factory)
    )
    """Makes the processors of this stream, instead of the worker's factory."""
    lease_manager: ILeaseManager | None = field(default=None, validator=checks.optional(lease_manager))
    """Keeps the leases of this stream, instead of the status table."""

    @name.default
    def _name_of_the_table(self) -> str:
        return self.data_table_name

    @name.validator
    def _has_no_slash(self, attribute: Attribute[Any], value: str) -> None:
        if "/" in value:
            raise ConfigurationError(f"name must have no '/', which stands between it and a shard id, not {value!r}")

    def __attrs_post_init__(self) -> None:
        if self.status_table_name == self.data_table_name:
            raise ConfigurationError(
                f"status_table_name={self.status_table_name!r} is the data table itself; leases need their own one"
            )
