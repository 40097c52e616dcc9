"""Bounds of the network's input: the size of one answer, the duration of one attempt, and the rest of a connection."""

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
"""The longest body of an answer. Pages, ranges and batches end at 4 MB. Only a single row, which is never divided, may
be longer: the bound leaves room for a hundred columns of 2 MB, the largest size of a value."""

HEADS_BYTES_MAX = 65_536
"""The largest number of bytes in all heads of one answer: the heads of interim answers, the answer's own, and the
trailer. The service's heads have 400 bytes."""

CHUNK_HEADS_BYTES_MAX = MEBIBYTE
"""The largest number of bytes in one body's chunk framing: the lengths and line ends around the data. It also limits
the number of chunks. The longest body, in chunks of 4 KB (the smallest that gateways make), needs half of it."""

INTERIM_ANSWERS_MAX = 10
"""The largest number of interim answers before the real answer. A gateway sends one or two."""

ATTEMPT_WAITS = 2
"""The number of waits in one attempt, each as long as one time-out: one to connect and one for the answer. So an honest
answer that arrives slowly has at least one whole time-out."""

FORGOTTEN_SECONDS = 240.0
"""The shortest time after which a device on the way is known to forget an idle connection silently: Azure's load
balancer and its outbound NAT, by default (learn.microsoft.com, "Load Balancer TCP Reset and Idle Timeout"). The devices
of AWS wait 350 s. The devices of Alibaba Cloud wait up to 900 s and send a reset."""

REST_SECONDS = FORGOTTEN_SECONDS / 3
"""The rest after which a connection is not used again: a third of ``FORGOTTEN_SECONDS``, because devices may be
configured to forget sooner."""

_ATTRIBUTE = "_streamclient_limits"
"""The attribute of the client that holds its limits; every copy made for leases, tables or counting keeps the
attribute."""


@checks.explains_names
@frozen(kw_only=True)
class ConnectionLimits:
    """The longest rest of a client's connections, and the longest attempt on them."""

    rest_seconds: float = field(default=REST_SECONDS, validator=checks.seconds)
    """The rest after which a connection is closed instead of used. A good choice is a third of the shortest idle time
    that a NAT gateway, firewall or load balancer on the way allows."""
    attempt_seconds: float | None = field(default=None, validator=checks.optional(checks.seconds))
    """The longest duration of one attempt: to connect, to send and to receive all of the answer. By default it is twice
    the client's ``socket_timeout``, which bounds each single wait. The look-up of the host's name takes as long as the
    system allows."""


def with_limits(
    client: OTSClient, *, rest_seconds: float | None = None, attempt_seconds: float | None = None
) -> OTSClient:
    """Return a copy of ``client``, for workers, tunnels and streams, with these limits of its connections.

    A limit that is left out stays unchanged, and so does the given client. The limits apply to connections that this
    package makes. If a client has a connection of your own, or a ``socket_timeout`` that is not a number, its own
    limits apply.

    Raises:
        ConfigurationError: a limit is not a number of seconds above 0, or ``client`` is not a ``tablestore.OTSClient``.
    """
    own = copy(checked_client(client))
    given = {"rest_seconds": rest_seconds, "attempt_seconds": attempt_seconds}
    chosen = {name: value for name, value in given.items() if value is not None}
    setattr(own, _ATTRIBUTE, evolve(limits_of(client), **chosen))
    return own


def limits_of(client: Any) -> ConnectionLimits:
    """Return the limits that were chosen for a client, or the defaults."""
    chosen: ConnectionLimits = getattr(client, _ATTRIBUTE, None) or ConnectionLimits()
    return chosen
