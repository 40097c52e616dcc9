"""Settings of a tunnel worker. Names and defaults are the same as in the Java client's ``TunnelWorkerConfig``."""

from __future__ import annotations

import platform
from concurrent.futures import Executor

from attrs import field, frozen

from streamclient.base import checks
from streamclient.config import ClientConfig
from streamclient.errors import ConfigurationError

UNLIMITED = -1

_limit = checks.Check(
    f"a whole number above 0, or {UNLIMITED} for no limit",
    lambda value: checks.positive.fits(value) or (checks.is_whole(value) and value == UNLIMITED),
)


def _host_name() -> str:
    return platform.node() or "unknown-host"


@checks.explains_names
@frozen(kw_only=True)
class TunnelWorkerConfig:
    """Settings of a tunnel worker, checked when made. Several workers may share one object, because it owns no threads.

    ``client_config`` holds the settings that lease workers and tunnel workers share: failure policy, pauses after
    failures, bytes read ahead, limits of user code.
    """

    heartbeat_timeout_seconds: int = field(default=300, validator=checks.positive)
    """Seconds without a heartbeat after which the service gives the channels to other clients."""
    heartbeat_interval_seconds: int = field(default=30, validator=checks.positive)
    """The time between heartbeats. The service's documentation requires at least 5. The worker reports a change of
    channels at once, with any interval. It notices channels that others release after at most this time."""
    client_tag: str = field(factory=_host_name, validator=checks.identifier)
    """Prefix of the client's id, for people."""
    checkpoint_interval_millis: int = field(default=5_000, validator=checks.positive)
    """The interval at which progress of callbacks and channel processors is stored. A record processor stores its
    own."""
    max_retry_interval_millis: int = field(default=2_000, validator=checks.positive)
    """The longest pause before an idle channel is read again."""
    max_channel_parallel: int = field(default=UNLIMITED, validator=_limit)
    """The largest number of channels that are read and processed at once; -1 for no limit. Channels take turns of one
    call of the processor, first come first served. With a limit nothing is read ahead. A channel that pauses, because
    it is idle or its processor failed, has no turn; only a batch that the failure policy delivers again stays in memory
    meanwhile."""
    read_max_times_per_round: int = field(default=1, validator=checks.positive)
    """The largest number of pages that are joined into one call of the processor."""
    read_max_bytes_per_round: int = field(default=4 * 1024 * 1024, validator=checks.positive)
    """The number of bytes beyond which no further page is joined."""
    enable_closing_channel_detect: bool = field(default=True, validator=checks.flag)
    """Whether a channel whose processor does not return is given up after three heartbeats."""
    read_records_executor: Executor | None = field(default=None, validator=checks.optional(checks.executor))
    process_records_executor: Executor | None = field(default=None, validator=checks.optional(checks.executor))
    """Threads of the user; by default the worker makes threads as needed. A given executor is not shut down."""
    client_config: ClientConfig = field(factory=ClientConfig, validator=checks.instance(ClientConfig))

    def __attrs_post_init__(self) -> None:
        if self.heartbeat_timeout_seconds <= self.heartbeat_interval_seconds:
            raise ConfigurationError(
                f"heartbeat_timeout_seconds={self.heartbeat_timeout_seconds} must be above "
                f"heartbeat_interval_seconds={self.heartbeat_interval_seconds}: every session would run out"
            )
