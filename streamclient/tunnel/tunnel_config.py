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
    """The settings of a tunnel worker, checked when the object is made. Several workers may share one object.

    ``client_config`` has the settings that lease workers and tunnel workers share: failure policy, pauses after
    failures, bytes read ahead, limits of user code.
    """

    heartbeat_timeout_seconds: int = field(default=300, validator=checks.positive)
    """The seconds without a heartbeat after which the service gives the worker's channels to other clients."""
    heartbeat_interval_seconds: int = field(default=30, validator=checks.positive)
    """The seconds between heartbeats. The service's documentation requires at least 5. The worker reports a change of
    its channels immediately, whatever the interval is. Within one interval the worker notices channels that other
    clients have released."""
    client_tag: str = field(factory=_host_name, validator=checks.identifier)
    """The prefix of the client's id, by which people recognise the client."""
    checkpoint_interval_millis: int = field(default=5_000, validator=checks.positive)
    """The interval at which the worker stores the progress of callbacks and channel processors. A record processor
    stores its own progress."""
    max_retry_interval_millis: int = field(default=2_000, validator=checks.positive)
    """The longest pause before an idle channel is read again."""
    max_channel_parallel: int = field(default=UNLIMITED, validator=_limit)
    """The largest number of channels that are read and processed at the same time; -1 for no limit. With a limit, each
    channel waits for a turn to read and process one page, first come first served, and no page is read ahead. A channel
    that pauses, because it is idle or its processor failed, has no turn. During a pause after a failure, the batch to
    be delivered again stays in memory."""
    read_max_times_per_round: int = field(default=1, validator=checks.positive)
    """The largest number of pages that are joined into one call of the processor."""
    read_max_bytes_per_round: int = field(default=4 * 1024 * 1024, validator=checks.positive)
    """The size of joined pages, in bytes, at which no further page is joined into the same call of the processor."""
    enable_closing_channel_detect: bool = field(default=True, validator=checks.flag)
    """Whether the worker gives up a channel that the service wants back, if the channel's processor has not returned
    after three heartbeats."""
    read_records_executor: Executor | None = field(default=None, validator=checks.optional(checks.executor))
    process_records_executor: Executor | None = field(default=None, validator=checks.optional(checks.executor))
    """The user's threads for calls of the processor; ``read_records_executor`` has the user's threads for reads. By
    default the worker makes threads as needed. The worker never shuts a given executor down."""
    client_config: ClientConfig = field(factory=ClientConfig, validator=checks.instance(ClientConfig))

    def __attrs_post_init__(self) -> None:
        if self.heartbeat_timeout_seconds <= self.heartbeat_interval_seconds:
            raise ConfigurationError(
                f"heartbeat_timeout_seconds={self.heartbeat_timeout_seconds} must be above "
                f"heartbeat_interval_seconds={self.heartbeat_interval_seconds}: every session would run out"
            )
