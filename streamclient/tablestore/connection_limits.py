"""Bounds of network input: the size of a response, the duration of an attempt, the idle time of a connection."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any

from attrs import evolve, field, frozen

from streamclient.base import checks
from streamclient.tablestore.integrity import checked_client

if TYPE_CHECKING:
    from tablestore import OTSClient

MEBIBYTE = 1_024 * 1_024

BODY_BYTES_MAX = 256 * MEBIBYTE
"""The largest number of bytes in a response body. The service ends pages, ranges and batches at 4 MB, but it never
divides a row. The bound leaves room for a row of a hundred columns with 2 MB each, the largest size of a value."""

HEADS_BYTES_MAX = 65_536
"""The largest number of bytes of headers in one exchange: the headers of interim responses and of the final response,
and the trailer. The service's headers have about 400 bytes."""

CHUNK_HEADS_BYTES_MAX = MEBIBYTE
"""The largest number of bytes around the data of a chunked body: the lengths of the chunks, and the line ends. So the
number of chunks is limited, too. Gateways make chunks of at least 4 KB. In such chunks, even the longest body needs
only half of this limit."""

INTERIM_ANSWERS_MAX = 10
"""The largest number of interim responses (status 100 to 199) before the final response. A gateway sends one or two."""

ATTEMPT_WAITS = 2
"""The default of the longest duration of an attempt, as a multiple of the client's time-out: one time-out to connect,
and one for the response. So even if connecting is slow, a whole time-out remains for the response."""

FORGOTTEN_SECONDS = 240.0
"""The shortest idle time after which a network device is known to drop a connection silently. It is the default of
Azure's load balancer and outbound NAT (learn.microsoft.com, "Load Balancer TCP Reset and Idle Timeout"). AWS's devices
wait 350 s. Alibaba Cloud's devices wait up to 900 s, and they send a reset."""

REST_SECONDS = FORGOTTEN_SECONDS / 3
"""The default idle time after which a connection is not reused. It is a third of ``FORGOTTEN_SECONDS``, because network
devices may be configured to drop connections sooner."""

_ATTRIBUTE = "_streamclient_limits"
"""The name of the client's attribute that holds its limits. Every copy that this package makes of the client keeps the
attribute."""


@checks.explains_names
@frozen(kw_only=True)
class ConnectionLimits:
    """The longest idle time of a client's connections, and the longest duration of one attempt to call the service."""

    rest_seconds: float = field(default=REST_SECONDS, validator=checks.seconds)
    """The idle time, in seconds, after which a connection is closed instead of reused. A good choice is a third of the
    shortest idle time that the NAT gateways, firewalls and load balancers before the service allow."""
    attempt_seconds: float | None = field(default=None, validator=checks.optional(checks.seconds))
    """The longest time, in seconds, to connect, to send one request and to receive all of the response. ``None`` means
    twice the client's ``socket_timeout``, which bounds each single wait. This limit does not interrupt the look-up of
    the host's name."""


def with_limits(
    client: OTSClient, *, rest_seconds: float | None = None, attempt_seconds: float | None = None
) -> OTSClient:
    """Return a copy of ``client`` with these limits of its connections, for workers, tunnels and streams.

    Each limit has the meaning of the field of the same name in ``ConnectionLimits``. A limit that is left out keeps its
    value. ``client`` itself is not changed. The limits apply only to connections that this package makes: they do not
    apply if the client has a connection of your own, or a ``socket_timeout`` that is not a number.

    Raises:
        ConfigurationError: a limit is not a number of seconds above 0, or ``client`` is not a ``tablestore.OTSClient``.
    """
    own = copy(checked_client(client))
    given = {"rest_seconds": rest_seconds, "attempt_seconds": attempt_seconds}
    chosen = {name: value for name, value in given.items() if value is not None}
    setattr(own, _ATTRIBUTE, evolve(limits_of(client), **chosen))
    return own


def limits_of(client: Any) -> ConnectionLimits:
    """Return the limits that ``with_limits`` has set for ``client``, or the defaults."""
    chosen: ConnectionLimits = getattr(client, _ATTRIBUTE, None) or ConnectionLimits()
    return chosen
