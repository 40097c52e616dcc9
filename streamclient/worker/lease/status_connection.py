"""The lease manager's own connection to the service, made from the user's client without changing that client.

The SDK's default policy repeats a refused write up to twenty times, and sleeps for up to a minute inside the call. For
leases both are wrong. A heartbeat that is a minute late is worthless. If a conditional write is repeated after it was
applied, the service refuses it, because its own first attempt has changed the row.
"""

from __future__ import annotations

from typing import Any

from tablestore import NoRetryPolicy, OTSClient

from streamclient.base import checks
from streamclient.config import ClientConfig
from streamclient.tablestore.connection_limits import limits_of, with_limits
from streamclient.tablestore.signed_calls import with_own_connection
from streamclient.wire.sdk_logging import silence
from streamclient.worker.lease.lease_batches import with_own_batches

SHORTEST_TIMEOUT_SECONDS = 1.0
"""The smallest time-out of a call, which is otherwise a third of the lease duration. With a smaller time-out, a slow
network would often count as an outage. Lease durations of less than three seconds occur only in tests."""


def write_timeout_seconds(client_config: ClientConfig) -> float:
    """Return the longest duration of one call, from the connection to the answer: a third of the lease duration.

    A heartbeat is due about every third of the duration. So when a slow heartbeat times out, the next one is already
    under way, and two heartbeats may fail before the lease is in danger.
    """
    return max(SHORTEST_TIMEOUT_SECONDS, client_config.lease_duration_millis / 3_000)


def check_client(client: Any) -> OTSClient:
    """Return ``client``; raise ``ConfigurationError`` if the lease manager cannot use it."""
    checked: OTSClient = checks.client.require("client", client)
    return checked


def without_retries(client: OTSClient) -> OTSClient:
    """Return a copy of ``client`` that has its own connections, sends each call once, and logs no failures."""
    own = with_own_connection(client)
    own.retry_policy = NoRetryPolicy()
    silence(own)
    return own


def for_lease_calls(client: OTSClient, client_config: ClientConfig) -> OTSClient:
    """Return a copy of ``client`` without retries, on connections with a time-out that suits heartbeats."""
    longest = write_timeout_seconds(client_config)
    hurried = with_limits(client, attempt_seconds=min(longest, limits_of(client).attempt_seconds or longest))
    hurried.socket_timeout = _shorter(client.socket_timeout, longest)
    # There are as many connections for reads as for heartbeats, so that reads do not delay heartbeats.
    hurried.max_connection = 2 * client_config.renew_thread_pool_size
    return with_own_batches(without_retries(hurried))


def _shorter(given: Any, ours: float) -> float:
    """Return the time-out ``given`` if it is a number below ``ours``, otherwise ``ours``.

    The SDK also accepts time-outs that are not numbers.
    """
    if isinstance(given, int | float) and not isinstance(given, bool) and 0 < given < ours:
        return float(given)
    return ours
