"""Authentication: the key pair of the server's instance, the check of signatures, and the allowed host names."""

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
"""The default secret of a server. It is fixed, so that a newcomer can copy a client configuration from the
documentation. It protects nothing. So a server with this secret listens on the loopback interface only; the user can
explicitly allow other interfaces."""

_HOST = re.compile(r"(\[[0-9A-Za-z:.%]+\]|[0-9A-Za-z_.-]+)(?::[0-9]{1,5})?", re.ASCII)
"""The form of a ``Host`` header: a name or an address, with or without a port, without any other part of a URL."""

_NAME = re.compile(r"[0-9A-Za-z_.-]{1,255}", re.ASCII)
"""The form of a host name: its characters and its length (RFC 1123; containers also use underscores)."""

_SHOWN_CHARACTERS = 100
"""A refusal that repeats the value of a header repeats at most this number of characters."""

host_names = checks.Check(
    "a sequence of host names, without scheme and port",
    lambda value: checks.names.fits(value) and all(map(_NAME.fullmatch, value)),
)

_HOSTS_REMEMBERED = 64
"""The largest number of values of the header ``Host`` for which ``Doors`` caches whether the server accepts them.
Clients use one or two hosts, but a hostile caller may send any number of hosts."""

_DERIVED_KEYS_CACHED = 64
"""The largest number of derived V4 signing keys that the server caches. Each pair of sign date and region has its own
key. Deriving a key costs four HMACs."""

_derive_v4_key = lru_cache(maxsize=_DERIVED_KEYS_CACHED)(signature.derive_v4_key)


_header_text = checks.Check(
    # Clients send the instance and the key id in headers, and sign with the secret. Every SDK refuses empty values.
    "non-empty printable text without outer spaces",
    lambda value: isinstance(value, str) and bool(value) and value == value.strip() and value.isprintable(),
)
_hidden_text = checks.Check(_header_text.expected, _header_text.fits, hides=True)


@checks.explains_names
@frozen
class Credentials:
    """The name of the instance that a server simulates, and the key pair that the server accepts.

    If a client sends an STS token, the client's signature must cover the token. The server does not check the token.
    """

    instance: str = field(default=DEFAULT_INSTANCE, validator=_header_text)
    access_key_id: str = field(default=DEFAULT_ACCESS_KEY_ID, validator=_header_text)
    access_key_secret: str = field(default=DEFAULT_ACCESS_KEY_SECRET, validator=_hidden_text, repr=False)


def require_own_secret(host: str, port: int, credentials: Credentials) -> None:
    """Refuse the published default secret for a server that other machines can reach.

    Raises:
        ValueError: the host is reachable from other machines, and the secret is the default.
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
    """The check that a request does not come from a web page. It uses the headers ``Host`` and ``Origin``.

    Web pages in a browser on this machine can reach the port. The owner of a page can let the page's host name point
    to this machine. The requests of such a page have that name as ``Host``. The requests of all other pages have the
    header ``Origin``, which no SDK sends.

    Addresses and names below ``localhost`` are safe, because a page's owner cannot make them point elsewhere. Every
    other name may point anywhere, even a name without dots, so the user must list it in ``names``.
    """

    names: frozenset[str] = field(converter=_lower_case)
    _judged: dict[str, bool] = field(factory=dict, init=False, eq=False, repr=False)
    """The cached results of the method ``knows``, by ``Host`` header."""

    def check(self, headers: Mapping[str, str]) -> None:
        """Check the headers ``Host`` and ``Origin`` of a request. A request without ``Host`` is not from a browser.

        Raises:
            ServiceError: the request may come from a web page.
        """
        host = headers.get("host", "")
        if host and not self.knows(host):
            match = _HOST.fullmatch(host)
            name = "NAME" if match is None or len(host) > _SHOWN_CHARACTERS else match[1]
            raise refusals.HOST(host=_shown(host), name=name)
        origin = headers.get("origin")
        if origin is not None:  # even if the origin has an allowed host name
            raise refusals.WEB_PAGE(origin=_shown(origin))

    def knows(self, host: str) -> bool:
        """Return whether the server accepts requests with this ``Host`` header."""
        known = self._judged.get(host)
        if known is None:
            if len(self._judged) >= _HOSTS_REMEMBERED:
                self._judged.clear()
            known = self._judged[host] = self._judge(host)
        return known

    def _judge(self, host: str) -> bool:
        """Return whether a host is an address, ``localhost``, a name below ``localhost``, or in ``names``."""
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
    """The signer of the answer to one request. It uses the key with which the client signed the request."""

    access_key_id: str
    key: str = field(repr=False)
    """For a V2 signature, the access key secret; for a V4 signature, the signing key derived from the secret."""

    def authorization(self, path: str, headers: Mapping[str, str]) -> str:
        """Return the ``Authorization`` header that signs the answer's ``headers`` and the request's ``path``."""
        return signature.authorization(self.access_key_id, signature.sign_response(self.key, path, headers))


def authenticate(path: str, headers: Mapping[str, str], credentials: Credentials) -> Signer:
    """Verify the signature of a request; return the signer for its answer.

    Verify the V4 signature if the request has one, otherwise the V2 signature. ``headers`` have lower-case names and
    include ``REQUIRED_HEADERS`` of ``envelope`` and a signature.

    Raises:
        ServiceError: the key id is unknown, or the signature was made with another secret or over other headers.
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
