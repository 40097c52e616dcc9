"""The check of the bytes of each page of records, chosen for a client."""

from __future__ import annotations

from copy import copy
from enum import Enum
from typing import TYPE_CHECKING, Any

from streamclient.base import checks
from streamclient.errors import ConfigurationError

if TYPE_CHECKING:
    from tablestore import OTSClient

_ATTRIBUTE = "_streamclient_integrity"
"""The name of the client's attribute that holds the chosen check. Every copy that this package makes of the client
keeps the attribute."""


class Integrity(Enum):
    """The check of a page's bytes, in addition to the checksums of the page's rows, which are always verified.

    The checksums cover key, columns and operation. They do not cover a record's sequence, nor the bytes around the
    records, for example the next iterator. A page without a next iterator ends its shard, but a page that was cut on
    its way may lack the iterator, too. So each page without a next iterator is compared with its digest, whatever check
    was chosen.
    """

    MD5 = "md5"
    """The MD5 digest that the service sends with a page: it must fit all bytes of the page. This is the default."""

    TLS = "tls"
    """TLS alone, which refuses bytes that were changed on their way. A digest is computed only for a page that cannot
    be read or has no next iterator. The endpoint must begin with ``https://``. If a proxy ends the TLS connection,
    changes by the proxy are not noticed."""

    CHECKSUMS = "checksums"
    """The rows' checksums alone, without TLS. A digest is computed for the same pages as with ``TLS``. This is the Java
    SDK's default over plain HTTP. Choose it only for a network that you trust as much as your machine's memory."""


def with_integrity(client: OTSClient, integrity: Integrity | str) -> OTSClient:
    """Return a copy of ``client`` for workers and tunnels, with ``integrity`` as the check of its pages of records.

    ``integrity`` may also be a string, for example ``tls``. The copy shares the connections of ``client``, which is not
    changed. Digests of requests, and of all responses other than pages of records, are always computed. Such responses
    are small and have no other checksum, and the response to a write of the status table decides which worker owns a
    lease.

    Raises:
        ConfigurationError: ``TLS`` was chosen for an endpoint without TLS, or ``client`` is not a
            ``tablestore.OTSClient``.
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
    """Return the check that ``with_integrity`` has set for ``client``; by default ``MD5``."""
    chosen: Integrity = getattr(client, _ATTRIBUTE, Integrity.MD5)
    return chosen


def checked_client(client: Any) -> OTSClient:
    """Return ``client`` if it is a ``tablestore.OTSClient`` whose endpoint is a valid URL.

    Raises:
        ConfigurationError: ``client`` is not a ``tablestore.OTSClient``, or its endpoint is not a valid URL.
    """
    # The import is here because the SDK takes a third of a second to load, and imports of this module should not wait.
    from tablestore import AsyncOTSClient, OTSClient  # noqa: PLC0415

    if isinstance(client, AsyncOTSClient):
        raise ConfigurationError("client must be a tablestore.OTSClient, not AsyncOTSClient: its calls are coroutines")
    if not isinstance(client, OTSClient):
        raise ConfigurationError(f"client must be a tablestore.OTSClient, not {client!r}")
    checks.host_and_port(client.host)
    return client
