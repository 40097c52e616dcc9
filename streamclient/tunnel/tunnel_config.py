"""How a tunnel worker behaves. Names and defaults are those of the Java client's ``TunnelWorkerConfig``."""

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
    """Settings of a tunnel worker; checked when made. Several workers may share one: it owns no threads.

    What lease workers and tunnel workers have in common (failure policy, pauses after failures, bytes read ahead,
    limits of user code) stands in ``client_config``.
    """

    heartbeat_timeout_seconds: int = field(default=300, validator=checks.positive)
    """After so long without a heartbeat the service gives the channels to others."""
    heartbeat_interval_seconds: int = field(default=30, validator=checks.positive)
    """The service's documentation asks for at least 5. A change of channels is reported at once, whatever this is;
    channels that others let go are noticed after at most this."""
    client_tag: str = field(factory=_host_name, validator=checks.identifier)
    """Begins the client's id; for people."""
    checkpoint_interval_millis: int = field(default=5_000, validator=checks.positive)
    """How often the progress of callbacks and channel processors is stored; a record processor stores its own."""
    max_retry_interval_millis: int = field(default=2_000, validator=checks.positive)
    """Longest pause before an idle channel is read again."""
    max_channel_parallel: int = field(default=UNLIMITED, validator=_limit)
    """How many channels are read and processed at once, in turns of one call of the processor, first come first served;
    -1 for no limit. With a limit nothing is read ahead. A channel that pauses, because it is idle or because its
    processor failed, has no turn; only a batch that the failure policy delivers again stays in memory meanwhile."""
    read_max_times_per_round: int = field(default=1, validator=checks.positive)
    """How many pages are joined into one call of the processor."""
    read_max_bytes_per_round: int = field(default=4 * 1024 * 1024, validator=checks.positive)
    """Joining ends beyond so many bytes."""
    enable_closing_channel_detect: bool = field(default=True, validator=checks.flag)
    """Whether a channel whose processor does not return is given up after three heartbeats."""
    read_records_executor: Executor | None = field(default=None, validator=checks.optional(checks.executor))
    process_records_executor: Executor | None = field(default=None, validator=checks.optional(checks.executor))
    """Threads of the user's own; by default the worker makes some as needed. What is given is not shut down."""
    client_config: ClientConfig = field(factory=ClientConfig, validator=checks.instance(ClientConfig))

    def __attrs_post_init__(self) -> None:
        if self.heartbeat_timeout_seconds <= self.heartbeat_interval_seconds:
            raise ConfigurationError(
                f"heartbeat_timeout_seconds={self.heartbeat_timeout_seconds} must be above "
                f"heartbeat_interval_seconds={self.heartbeat_interval_seconds}: every session would run out"
            )
