"""Settings, frozen and checked when made. Names and defaults are those of the Java client, with units in the name."""

from __future__ import annotations

import logging
from typing import Any

from attrs import Attribute, field, frozen

from streamclient.errors import ConfigurationError
from streamclient.interfaces import ILeaseManager, IMetrics, IParkingStore, IRetryStrategy, RecordProcessorFactory
from streamclient.model import BalanceBy, InitialPosition, OnFailure, TrimmedDataPolicy

_log = logging.getLogger(__name__)


def _positive(instance: object, attribute: Attribute[Any], value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise ConfigurationError(f"{attribute.name} must be a whole number above 0, not {value!r}")


def _not_negative(instance: object, attribute: Attribute[Any], value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ConfigurationError(f"{attribute.name} must be a whole number of at least 0, not {value!r}")


def _text(instance: object, attribute: Attribute[Any], value: Any) -> None:
    if not isinstance(value, str) or not value:
        raise ConfigurationError(f"{attribute.name} must be a non-empty string, not {value!r}")


def _balance_by(value: object) -> BalanceBy:
    try:
        return BalanceBy(value)
    except ValueError as error:
        choices = ", ".join(repr(choice.value) for choice in BalanceBy)
        raise ConfigurationError(f"balance_by must be one of {choices}, not {value!r}") from error


def _metrics(instance: object, attribute: Attribute[Any], value: Any) -> None:
    if value is not None and not isinstance(value, IMetrics):
        raise ConfigurationError(
            f"{attribute.name} must be an IMetrics or None, not {value!r}; streamclient.metrics has some"
        )


def _share(instance: object, attribute: Attribute[Any], value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise ConfigurationError(f"{attribute.name} must be a number above 0 and up to 1, not {value!r}")


@frozen(kw_only=True)
class FailurePolicy:
    """What a worker does with records for which ``process_records`` raises.

    A failed batch is delivered again to the same processor, up to ``retries`` times. If it goes on failing it is cut
    in two, and the halves are delivered in order, each as a batch of its own; halves that fail are cut again, down to
    the single record that fails, which is tried ``retries`` times more. Then comes ``then``. So a processor must be
    able to see a record again that it has seen before, as after a crash.
    """

    retries: int = field(default=3, validator=_not_negative)
    """Choose them, and the pauses, to last longer than ordinary outages of what the processor writes to."""
    first_pause_millis: int = field(default=1_000, validator=_not_negative)
    """Before the first of these retries; doubles with each."""
    longest_pause_millis: int = field(default=60_000, validator=_not_negative)
    bisect: bool = True
    """Whether a failing batch is cut; if not, ``then`` concerns all of its records. RESTART never cuts: no part of a
    batch would be kept."""
    then: OnFailure = OnFailure.RESTART
    parking: IParkingStore | None = None
    """Where records go with PARK; see ``streamclient.parking``. All workers of a fleet need the same one."""
    park_rest_of_key: bool = True
    """Whether later records of a parked key are parked too, without being tried, until the key has none parked any
    more. Without it they are delivered, and a replay puts an old change over a newer one."""
    most_parked_share: float = field(default=0.01, validator=_share)
    """A shard stops rather than park more than this share of its latest records: then it is not the records."""
    share_window_records: int = field(default=10_000, validator=_positive)
    """How many records of the shard that share is taken of."""

    def __attrs_post_init__(self) -> None:
        if self.longest_pause_millis < self.first_pause_millis:
            raise ConfigurationError(
                f"longest_pause_millis={self.longest_pause_millis} must not be below "
                f"first_pause_millis={self.first_pause_millis}"
            )
        if self.parking is not None and not isinstance(self.parking, IParkingStore):
            raise ConfigurationError(f"parking must be an IParkingStore or None, not {self.parking!r}")
        if not isinstance(self.then, OnFailure):
            raise ConfigurationError(f"then must be an OnFailure, not {self.then!r}")
        if (self.then is OnFailure.PARK) != (self.parking is not None):
            raise ConfigurationError(
                f"then={self.then.name} does not go with parking={self.parking!r}: PARK needs an IParkingStore, and "
                "nothing else uses one; streamclient.parking has FileParkingStore and TableParkingStore"
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


@frozen(kw_only=True)
class ClientConfig:
    """How a worker behaves. All workers of a fleet, in every language, must agree on ``lease_duration_millis``."""

    lease_duration_millis: int = field(default=20_000, validator=_positive)
    """A lease whose counter an observer saw unchanged for longer than this has expired."""
    renewer_interval_millis: int = field(default=6_000, validator=_positive)
    taker_interval_millis: int = field(default=6_000, validator=_positive)
    """Between scans of the status table; the one scan feeds taking, balancing, hand-overs and parent checks."""
    parent_shard_poll_interval_millis: int = field(default=5_000, validator=_positive)
    """Kept for ported configurations; waiting costs no polling here, as parents are read off the shared scan."""
    worker_idle_time_millis: int = field(default=20, validator=_positive)
    """Shortest pause before reading an idle shard again."""
    max_wait_table_ready_time_millis: int = field(default=120_000, validator=_positive)
    check_table_ready_interval_millis: int = field(default=100, validator=_positive)
    sync_shard_interval_millis: int = field(default=10_000, validator=_positive)
    max_duration_before_last_successful_renew_or_take_lease: int = field(default=60_000, validator=_positive)
    """Milliseconds without a successful renewal or scan after which the worker reports itself unhealthy."""
    status_table_read_capacity: int = field(default=0, validator=_not_negative)
    status_table_write_capacity: int = field(default=0, validator=_not_negative)
    auto_steal_lease: bool = True
    """Whether to ask loaded workers for leases."""
    renew_thread_pool_size: int = field(default=20, validator=_positive)
    """Upper bound of threads for heartbeats, which go out in batches, and of as many for the worker's other calls about
    leases."""
    task_retry_strategy: IRetryStrategy | None = None
    lease_manager_retry_strategy: IRetryStrategy | None = None

    # From here on: settings that the Java client does not have.
    signal_interval_millis: int = field(default=400, validator=_positive)
    """Between looks at a few rows of workers: how soon a worker notices that it is woken, or that another one died. At
    most a tenth of the lease duration is used."""
    balance_by: BalanceBy = field(default=BalanceBy.COUNT, converter=_balance_by)
    """What is made even; also as a string. By load only while all workers of the fleet are of this package: beside Java
    workers, which count, numbers are made even."""
    max_idle_poll_interval_millis: int = field(default=5_000, validator=_positive)
    """Longest pause before reading an idle shard again, reached after ten minutes of silence. After one minute the
    pause is 1.5 s, after a second 0.2 s; it also follows the rhythm of arrivals."""
    prefetch_bytes: int = field(default=1 << 20, validator=_not_negative)
    """How far a shard is read ahead while its processor works, in bytes as the service sends them; 0 for not at all.
    One page may always be read ahead, however large; more of them make up for batches that take differently long."""
    prefetch_total_bytes: int = field(default=32 << 20, validator=_positive)
    """The same for all shards of a worker together. Decoded, records take about four times as much memory."""
    deliver_empty_batches: bool = False
    """Whether ``process_records`` is called when a read returned nothing, as the Java client always does."""
    restart_backoff_min_millis: int = field(default=1_000, validator=_positive)
    """First pause before a failed processor is started again; doubles with each failure in a row."""
    restart_backoff_max_millis: int = field(default=60_000, validator=_positive)
    failure_policy: FailurePolicy = FailurePolicy(retries=0)
    """What follows when ``process_records`` raises: by default a new processor, without end. ``task_retry_strategy``,
    if given, decides about retries in its place."""
    trimmed_data_policy: TrimmedDataPolicy = TrimmedDataPolicy.STOP_SHARD
    slow_processor_warning_millis: int = field(default=30_000, validator=_positive)
    """How long one call into user code may run before it is logged and named in the shard's status."""
    user_code_limit_millis: int = field(default=600_000, validator=_not_negative)
    """How long one call into user code may take, waiting for a thread included, before the worker lets the shard's
    lease go, so that another one can go on from the stored checkpoint; 0 for no limit."""
    read_limit_millis: int = field(default=120_000, validator=_not_negative)
    """The same for one read of a shard, waiting for a thread included; 0 for no limit. With a client's usual time-outs
    a read that gets no answer fails by itself before."""
    shutdown_timeout_millis: int = field(default=30_000, validator=_positive)
    """Bound of a whole shutdown: running calls, ``shutdown`` callbacks and hand-overs together."""
    end_on_sigterm: bool = True
    """Whether SIGTERM ends a worker in order whose ``run`` is in the program's main thread, as Ctrl-C does: the program
    then exits with 143 (128 + 15). A handler of the program's own always stays in place."""
    checkpoint_timeout_millis: int = field(default=30_000, validator=_positive)
    """How long ``checkpoint()`` waits for the status table before it raises."""
    metrics: IMetrics | None = field(default=None, validator=_metrics)
    """Where measurements go; workers may share one. ``None`` measures nothing."""

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
        if self.restart_backoff_max_millis < self.restart_backoff_min_millis:
            raise ConfigurationError(
                f"restart_backoff_max_millis={self.restart_backoff_max_millis} must not be below "
                f"restart_backoff_min_millis={self.restart_backoff_min_millis}"
            )


@frozen(kw_only=True)
class StreamConfig:
    """What to read, and where progress is kept."""

    client: Any = field()
    """A ``tablestore.OTSClient``, used for the data table, its stream and the status table."""
    data_table_name: str = field(validator=_text)
    status_table_name: str = field(validator=_text)
    """One per consuming application: the rows carry no group name. Streams of different tables may share one."""
    max_records: int = field(default=1_000, validator=_positive)
    """Limit of records per read."""
    initial_position: InitialPosition = field(factory=InitialPosition.oldest)
    """Where shards without a stored checkpoint start."""
    name: str = field(validator=_text)
    """Tells the streams of one worker apart, in statuses and logs; the name of the data table unless given."""
    record_processor_factory: RecordProcessorFactory | None = None
    """Makes the processors of this stream, instead of the worker's factory."""
    lease_manager: ILeaseManager | None = None
    """Keeps the leases of this stream, instead of the status table."""

    @name.default
    def _name_of_the_table(self) -> str:
        return self.data_table_name

    @name.validator
    def _has_no_slash(self, attribute: Attribute[Any], value: str) -> None:
        if "/" in value:
            raise ConfigurationError(f"name must have no '/', which stands between it and a shard id, not {value!r}")

    @client.validator
    def _has_client(self, attribute: Attribute[Any], value: Any) -> None:
        if value is None:
            raise ConfigurationError("client must be a tablestore.OTSClient, not None")
