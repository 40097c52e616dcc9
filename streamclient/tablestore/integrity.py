"""The check of the bytes of a page of records: a setting of the client that requests the page."""

from __future__ import annotations

from copy import copy
from enum import Enum
from typing import TYPE_CHECKING, Any

from streamclient.base import checks
from streamclient.errors import ConfigurationError

if TYPE_CHECKING:
    from tablestore import OTSClient

_ATTRIBUTE = "_streamclient_integrity"
"""The attribute of a client that holds the choice. Every copy that is made for leases, tables or counting keeps it."""


class Integrity(Enum):
    """The check of a page's bytes, in addition to the checksums of the page's rows, which are always verified.

    The checksums cover key, columns and operation. They do not cover a record's sequence, nor the bytes around the
    records, for example the next iterator. A page without a next iterator ends its shard. A page that was cut lacks
    that iterator, too. So a page without a next iterator is always compared with its digest, whatever was chosen.
    """

    MD5 = "md5"
    """The digest of all bytes of the page, which the service sends with the page. This is the default."""

    TLS = "tls"
    """The TLS connection, which refuses bytes that were changed on the way. No digest is computed, unless the page
    cannot be read. The endpoint must begin with ``https://``. If a proxy ends the connection, changes by the proxy are
    not noticed."""

    CHECKSUMS = "checksums"
    """The rows' checksums alone, without digest or TLS. This is the Java SDK's default over plain HTTP. Choose it only
    for networks that you trust as you trust memory."""


def with_integrity(client: OTSClient, integrity: Integrity | str) -> OTSClient:
    """Return a copy of ``client``, on the same connections, for readers of record pages: workers and tunnels.

    ``integrity`` may also be given by its name. The given client is not changed. The digests of requests and of all
    other answers are always computed. Such answers are small and have no other checksum, and the answer to a write of
    the status table decides which worker owns a lease.

    Raises:
        ConfigurationError: ``TLS`` for an endpoint without it, or ``client`` is not a ``tablestore.OTSClient``.
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
    """Return the choice of a client; by default ``MD5``."""
    chosen: Integrity = getattr(client, _ATTRIBUTE, Integrity.MD5)
    return chosen


def checked_client(client: Any) -> OTSClient:
    """Return ``client`` if it is a ``tablestore.OTSClient`` with a possible endpoint.

    Raises:
        ConfigurationError: ``client`` is not such a client.
    """
    # The import is here because the SDK takes a third of a second to load, which importing this module should not cost.
    from tablestore import AsyncOTSClient, OTSClient  # noqa: PLC0415

    if isinstance(client, AsyncOTSClient):
        raise ConfigurationError("client must be a tablestore.OTSClient, not AsyncOTSClient: its calls are coroutines")
    if not isinstance(client, OTSClient):
        raise ConfigurationError(f"client must be a tablestore.OTSClient, not {client!r}")
    checks.host_and_port(client.host)
    return client
