"""Authentication: one key pair for one instance, and the proof that a request was signed with it."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable, Mapping
from functools import lru_cache

from attrs import field, frozen

from streamclient.base import checks
from streamclient.server import refusals
from streamclient.wire import signature

DEFAULT_INSTANCE = "local"
DEFAULT_ACCESS_KEY_ID = "local-access-key-id"
DEFAULT_ACCESS_KEY_SECRET = "local-access-key-secret"
"""The default secret is fixed, so that a newcomer can copy a client configuration from the documentation. The default
secret protects nothing. With it, the server listens on the loopback interface only, unless the user allows more."""

_HOST = re.compile(r"(\[[0-9A-Za-z:.%]+\]|[0-9A-Za-z_.-]+)(?::[0-9]{1,5})?", re.ASCII)
"""The form of a ``Host`` header: a name or an address, with or without a port. Other parts of a URL are refused."""

_NAME = re.compile(r"[0-9A-Za-z_.-]{1,255}", re.ASCII)
"""A host name, by characters and length (RFC 1123; containers also use underscores)."""

_SHOWN_CHARACTERS = 100
"""The largest number of characters of a header that a refusal repeats."""

host_names = checks.Check(
    "a sequence of host names, without scheme and port",
    lambda value: checks.names.fits(value) and all(map(_NAME.fullmatch, value)),
)

_HOSTS_REMEMBERED = 64
"""The largest number of hosts for which the result of the check is cached. Clients use one or two hosts; other callers
may send any number."""

_DERIVED_KEYS_CACHED = 64
"""The largest number of derived keys that are cached, one for each pair of sign date and region. Deriving a key costs
four MACs."""

_derive_v4_key = lru_cache(maxsize=_DERIVED_KEYS_CACHED)(signature.derive_v4_key)


_header_text = checks.Check(
    # Clients send these values in headers, and every SDK refuses empty values.
    "non-empty printable text without outer spaces",
    lambda value: isinstance(value, str) and bool(value) and value == value.strip() and value.isprintable(),
)
_hidden_text = checks.Check(_header_text.expected, _header_text.fits, hides=True)


@checks.explains_names
@frozen
class Credentials:
    """The instance that a server plays, and the key pair it accepts.

    If a client sends an STS token, the signature covers the token. The server does not use the token in any other way.
    """

    instance: str = field(default=DEFAULT_INSTANCE, validator=_header_text)
    access_key_id: str = field(default=DEFAULT_ACCESS_KEY_ID, validator=_header_text)
    access_key_secret: str = field(default=DEFAULT_ACCESS_KEY_SECRET, validator=_hidden_text, repr=False)


def require_own_secret(host: str, port: int, credentials: Credentials) -> None:
    """Raise unless every client that can reach the server needs a secret.

    Raises:
        ValueError: the server would listen beyond this machine with the published default secret.
    """
    if credentials.access_key_secret == DEFAULT_ACCESS_KEY_SECRET and not is_loopback(host):
        raise ValueError(
            f"cannot listen on {host}:{port} with the public access key secret: any client that reaches this machine "
            "could read and change everything; choose a secret, or insist with --allow-public-secret "
            "(allow_public_secret=True)"
        )


def is_loopback(host: str) -> bool:
    """Return whether all addresses of a host are reachable from this machine only."""
    if not host:
        return False
    try:
        addresses = {str(entry[4][0]) for entry in socket.getaddrinfo(host, None)}
    except OSError:
        return False
    return all(ipaddress.ip_address(address.partition("%")[0]).is_loopback for address in addresses)


def _lower_case(names: Iterable[str]) -> frozenset[str]:
    return frozenset(name.lower() for name in names)


@frozen
class Doors:
    """The host names and origins that requests may have.

    Pages in a browser on this machine can reach the port. The owner of a page can let the page's host name point to
    this machine; then the page's requests carry that name as ``Host``. The requests of all other pages carry
    ``Origin``, which no SDK sends. An address cannot be made to point elsewhere, and names below ``localhost`` always
    mean this machine. The network decides where any other name points, even a name without dots, so the user must list
    such a name.
    """

    names: frozenset[str] = field(converter=_lower_case)
    _judged: dict[str, bool] = field(factory=dict, init=False, eq=False, repr=False)
    """The hosts that were judged, each with the result: whether requests may have it."""

    def check(self, headers: Mapping[str, str]) -> None:
        """Accept a request, or raise a ``ServiceError``. A request without ``Host`` came from no browser."""
        host = headers.get("host", "")
        if host and not self.knows(host):
            match = _HOST.fullmatch(host)
            name = "NAME" if match is None or len(host) > _SHOWN_CHARACTERS else match[1]
            raise refusals.HOST(host=_shown(host), name=name)
        origin = headers.get("origin")
        if origin is not None:  # Even the host's own origin is refused: the page may have been served under that name.
            raise refusals.WEB_PAGE(origin=_shown(origin))

    def knows(self, host: str) -> bool:
        """Return whether requests may have this ``Host``."""
        known = self._judged.get(host)
        if known is None:
            if len(self._judged) >= _HOSTS_REMEMBERED:
                self._judged.clear()
            known = self._judged[host] = self._judge(host)
        return known

    def _judge(self, host: str) -> bool:
        """Return whether a host is an address, ``localhost`` or a name below it, or a listed name."""
        match = _HOST.fullmatch(host)
        if match is None:
            return False
        name = match[1].lower()
        if name in self.names or name == "localhost" or name.endswith(".localhost"):
            return True
        try:
            ipaddress.ip_address(name.strip("[]"))
        except ValueError:
            return False
        return True


def _shown(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


@frozen
class Signer:
    """Signs the answers to one caller, with the key that the caller used."""

    access_key_id: str
    key: str = field(repr=False)
    """The secret, or after a V4 request the derived signing key."""

    def authorization(self, path: str, headers: Mapping[str, str]) -> str:
        """Return the ``Authorization`` header over all given headers."""
        return signature.authorization(self.access_key_id, signature.sign_response(self.key, path, headers))


def authenticate(path: str, headers: Mapping[str, str], credentials: Credentials) -> Signer:
    """Verify the signature of a request: its V4 signature if it has one, otherwise its V2 signature.

    ``headers`` have lower-case names and include all headers that the envelope requires.

    Raises:
        ServiceError: unknown key id, or a signature made with another secret or over other headers.
    """
    if headers["x-ots-accesskeyid"].strip() != credentials.access_key_id:
        raise refusals.ACCESS_KEY()
    secret = credentials.access_key_secret
    if signature.SIGNATURE_V4_HEADER in headers:
        sign_date = headers[signature.SIGN_DATE_HEADER].strip()
        key = _derive_v4_key(secret, sign_date, headers[signature.SIGN_REGION_HEADER].strip())
        given, expected = headers[signature.SIGNATURE_V4_HEADER], signature.sign_request_v4(key, path, headers)
    else:
        key = secret
        given, expected = headers[signature.SIGNATURE_V2_HEADER], signature.sign_request_v2(key, path, headers)
    if not signature.signatures_equal(given.strip(), expected):
        raise refusals.SIGNATURE()
    return Signer(credentials.access_key_id, key)
