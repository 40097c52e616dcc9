"""Who may call: one key pair for one instance, and the proof that a request was signed with it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from attrs import field, frozen

from streamclient import checks
from streamclient.server.errors import ServiceError
from streamclient.wire import signature

DEFAULT_INSTANCE = "local"
DEFAULT_ACCESS_KEY_ID = "local-access-key-id"
DEFAULT_ACCESS_KEY_SECRET = "local-access-key-secret"
"""Fixed, so that a newcomer can copy a client configuration from the documentation. They protect nothing: the server
listens on the loopback interface unless told otherwise."""

_DERIVED_KEYS_CACHED = 64
"""One per sign date and region in use; deriving costs four MACs per request otherwise."""

_derive_v4_key = lru_cache(maxsize=_DERIVED_KEYS_CACHED)(signature.derive_v4_key)


_header_text = checks.Check(
    # Clients send these in headers, and every SDK refuses empty ones.
    "non-empty printable text without outer spaces",
    lambda value: isinstance(value, str) and bool(value) and value == value.strip() and value.isprintable(),
)
_hidden_text = checks.Check(_header_text.expected, _header_text.fits, hides=True)


@checks.explains_names
@frozen
class Credentials:
    """The instance that a server plays, and the key pair it accepts.

    An STS token that a client sends along is covered by the signature and otherwise ignored.
    """

    instance: str = field(default=DEFAULT_INSTANCE, validator=_header_text)
    access_key_id: str = field(default=DEFAULT_ACCESS_KEY_ID, validator=_header_text)
    access_key_secret: str = field(default=DEFAULT_ACCESS_KEY_SECRET, validator=_hidden_text, repr=False)


@frozen
class Signer:
    """Signs the answers to one caller, with the key that the caller used."""

    access_key_id: str
    key: str = field(repr=False)
    """The secret, or after a V4 request the derived signing key."""

    def authorization(self, path: str, headers: Mapping[str, str]) -> str:
        """Value of the ``Authorization`` header over all given headers."""
        return signature.authorization(self.access_key_id, signature.sign_response(self.key, path, headers))


def authenticate(path: str, headers: Mapping[str, str], credentials: Credentials) -> Signer:
    """Verify the signature of a request, V4 if it carries one, else V2.

    ``headers`` have lower-case names and hold all that the envelope requires.

    Raises:
        ServiceError: unknown key id, or a signature made with another secret or over other headers.
    """
    if headers["x-ots-accesskeyid"].strip() != credentials.access_key_id:
        raise auth_failed("The AccessKeyID does not exist.")
    secret = credentials.access_key_secret
    if signature.SIGNATURE_V4_HEADER in headers:
        sign_date = headers[signature.SIGN_DATE_HEADER].strip()
        key = _derive_v4_key(secret, sign_date, headers[signature.SIGN_REGION_HEADER].strip())
        given, expected = headers[signature.SIGNATURE_V4_HEADER], signature.sign_request_v4(key, path, headers)
    else:
        key = secret
        given, expected = headers[signature.SIGNATURE_V2_HEADER], signature.sign_request_v2(key, path, headers)
    if not signature.signatures_equal(given.strip(), expected):
        raise auth_failed("Signature mismatch.")
    return Signer(credentials.access_key_id, key)


def auth_failed(message: str) -> ServiceError:
    """The error of every failed proof of identity."""
    return ServiceError(403, "OTSAuthFailed", message)
