"""Settings, frozen and checked when made. Names and defaults are those of the Java client, with units in the name."""

from __future__ import annotations

import logging
from typing import Any

from attrs import Attribute, field, frozen

from streamclient.errors import ConfigurationError
from streamclient.interfaces import IRetryStrategy
from streamclient.model import InitialPosition, TrimmedDataPolicy

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
    """Upper bound of threads for the worker's own calls to the service; renewals go out in batches."""
    task_retry_strategy: IRetryStrategy | None = None
    lease_manager_retry_strategy: IRetryStrategy | None = None

    # From here on: settings that the Java client does not have.
    max_idle_poll_interval_millis: int = field(default=1_000, validator=_positive)
    """Longest pause before reading an idle shard again; the pause doubles from ``worker_idle_time_millis``."""
    deliver_empty_batches: bool = False
    """Whether ``process_records`` is called when a read returned nothing, as the Java client always does."""
    restart_backoff_min_millis: int = field(default=1_000, validator=_positive)
    """First pause before a failed processor is started again; doubles with each failure in a row."""
    restart_backoff_max_millis: int = field(default=60_000, validator=_positive)
    trimmed_data_policy: TrimmedDataPolicy = TrimmedDataPolicy.STOP_SHARD
    slow_processor_warning_millis: int = field(default=30_000, validator=_positive)
    """How long one call into user code may run before it is logged and named in the shard's status."""
    shutdown_timeout_millis: int = field(default=30_000, validator=_positive)
    """Bound of a whole shutdown: running calls, ``shutdown`` callbacks and hand-overs together."""
    checkpoint_timeout_millis: int = field(default=30_000, validator=_positive)
    """How long ``checkpoint()`` waits for the status table before it raises."""

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
    """One per consuming application: the rows carry no group name."""
    max_records: int = field(default=1_000, validator=_positive)
    """Limit of records per read."""
    initial_position: InitialPosition = field(factory=InitialPosition.oldest)
    """Where shards without a stored checkpoint start."""

    @client.validator
    def _has_client(self, attribute: Attribute[Any], value: Any) -> None:
        if value is None:
            raise ConfigurationError("client must be a tablestore.OTSClient, not None")
