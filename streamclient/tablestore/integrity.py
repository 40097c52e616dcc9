"""What vouches for the bytes of a page of records: a setting of the client that asks for it."""

from __future__ import annotations

from copy import copy
from enum import Enum
from typing import TYPE_CHECKING, Any

from streamclient.base import checks
from streamclient.errors import ConfigurationError

if TYPE_CHECKING:
    from tablestore import OTSClient

_ATTRIBUTE = "_streamclient_integrity"
"""On the client itself, so that every copy that is made of it for leases, tables or counting has it, too."""


class Integrity(Enum):
    """What vouches for the bytes of a page of records, beside the checksums of its rows, which are always verified.

    Those cover key, columns and operation. They do not cover a record's sequence, nor what is around the records: the
    next iterator, for example. A page without next iterator ends its shard, and a page that was cut has none, so such a
    page is compared with its digest whatever was chosen.
    """

    MD5 = "md5"
    """The digest that the service sends with the page: all of its bytes. The default."""

    TLS = "tls"
    """The connection: TLS refuses what was changed on its way. No digest is computed, unless the page cannot be read.
    Only for an endpoint with ``https://``; what a proxy changes where the connection ends is not seen."""

    CHECKSUMS = "checksums"
    """Nothing: neither digest nor TLS. The Java SDK's default over plain HTTP; for networks that are trusted like
    memory."""


def with_integrity(client: OTSClient, integrity: Integrity | str) -> OTSClient:
    """A client like the given one, on the same connections, for whatever reads pages of records: workers, tunnels.

    The choice may be given by its name, too. The given client is not changed. All other answers are small, and have no
    checksum beside their digest: that of a write to the status table decides who owns a lease. So theirs is always
    computed, as is every digest of a request.

    Raises:
        ConfigurationError: ``TLS`` for an endpoint without it, or no ``tablestore.OTSClient``.
    """
    given = checked_client(client)
    integrity = checks.choice("integrity", Integrity, integrity)
    if integrity is Integrity.TLS and not given.host.startswith("https://"):
        raise ConfigurationError(
            f"integrity cannot be {Integrity.TLS}: {given.host} is reached without TLS; use an endpoint with "
            f"https://, leave {Integrity.MD5}, or choose {Integrity.CHECKSUMS} to do without either"
        )
    own = copy(given)
    setattr(own, _ATTRIBUTE, integrity)
    return own


def integrity_of(client: Any) -> Integrity:
    """What was chosen for a client."""
    chosen: Integrity = getattr(client, _ATTRIBUTE, Integrity.MD5)
    return chosen


def checked_client(client: Any) -> OTSClient:
    """The client; ``ConfigurationError`` unless it is a ``tablestore.OTSClient`` with an endpoint that can be one."""
    # Imported here: the SDK takes a third of a second, which importing this module should not cost.
    from tablestore import AsyncOTSClient, OTSClient  # noqa: PLC0415

    if isinstance(client, AsyncOTSClient):
        raise ConfigurationError("client must be a tablestore.OTSClient, not AsyncOTSClient: its calls are coroutines")
    if not isinstance(client, OTSClient):
        raise ConfigurationError(f"client must be a tablestore.OTSClient, not {client!r}")
    checks.host_and_port(client.host)
    return client
