"""Bounds on what comes from the network: how much one answer holds, and how long an attempt and a rest may last."""

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
"""Longest body of an answer. Pages, ranges and batches end at 4 MB; only a single row, which is never divided, may be
longer: this is room for a hundred columns of the 2 MB that a value may have."""

HEADS_BYTES_MAX = 65_536
"""All heads of one answer together: those of interim answers, its own and its trailer. The service's have 400 bytes."""

CHUNK_HEADS_BYTES_MAX = MEBIBYTE
"""What stands between the chunks of a body, which also bounds their number: the longest body in chunks of 4 KB, the
smallest that gateways make, has half as much."""

INTERIM_ANSWERS_MAX = 10
"""Interim answers before the one that counts; a gateway sends one or two of them."""

ATTEMPT_WAITS = 2
"""One attempt lasts as many times the time-out of one wait: one to connect and one for the answer, as ever. An honest
answer that comes slowly has at least one whole time-out for itself."""

FORGOTTEN_SECONDS = 240.0
"""The shortest time after which a middle box is known to forget an idle connection without a word: Azure's load
balancer and its outbound NAT, by default (learn.microsoft.com, "Load Balancer TCP Reset and Idle Timeout"). Those of
AWS wait 350 s, those of Alibaba Cloud up to 900 s and say so by a reset."""

REST_SECONDS = FORGOTTEN_SECONDS / 3
"""A connection that rested longer is not used again. A third, as boxes may be configured to forget sooner."""

_ATTRIBUTE = "_streamclient_limits"
"""On the client itself, so that every copy that is made of it for leases, tables or counting has it, too."""


@checks.explains_names
@frozen(kw_only=True)
class ConnectionLimits:
    """How long the connections of a client may rest, and how long one attempt on them may last."""

    rest_seconds: float = field(default=REST_SECONDS, validator=checks.seconds)
    """A connection that was unused for longer is closed instead of used. Choose a third of what the shortest-lived
    NAT gateway, firewall or load balancer on the way allows."""
    attempt_seconds: float | None = field(default=None, validator=checks.optional(checks.seconds))
    """Longest time for one attempt: to connect, to send and to receive all of the answer. By default twice the client's
    ``socket_timeout``, which bounds each single wait. To look up the host's name takes what the system allows."""


def with_limits(
    client: OTSClient, *, rest_seconds: float | None = None, attempt_seconds: float | None = None
) -> OTSClient:
    """A client like the given one for workers, tunnels and streams, with these limits of its connections.

    What is left out stays as it is for the given client, which is not changed. They are limits of the connections that
    this package makes: a connection of your own in the client, or a ``socket_timeout`` that is not a number, keeps its
    own.

    Raises:
        ConfigurationError: a limit is not a number of seconds above 0, or it is not a ``tablestore.OTSClient``.
    """
    own = copy(checked_client(client))
    given = {"rest_seconds": rest_seconds, "attempt_seconds": attempt_seconds}
    chosen = {name: value for name, value in given.items() if value is not None}
    setattr(own, _ATTRIBUTE, evolve(limits_of(client), **chosen))
    return own


def limits_of(client: Any) -> ConnectionLimits:
    """The limits that were chosen for a client, or the defaults."""
    chosen: ConnectionLimits = getattr(client, _ATTRIBUTE, None) or ConnectionLimits()
    return chosen
