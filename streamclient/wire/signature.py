"""Signatures, digests and headers of HTTP requests and answers, as pure functions.

The rules are the same as in the Tablestore Java SDK 5.17 and Python SDK 6.4, which agree byte for byte. Names of
headers are compared in lower case.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from binascii import b2a_base64
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from streamclient.records import NATIVE

SIGNATURE_V2_HEADER = "x-ots-signature"
SIGNATURE_V4_HEADER = "x-ots-signaturev4"
SIGN_DATE_HEADER = "x-ots-signdate"
SIGN_REGION_HEADER = "x-ots-signregion"

_INNER_PAD = bytes(byte ^ 0x36 for byte in range(256))
_OUTER_PAD = bytes(byte ^ 0x5C for byte in range(256))
_PREFIX = "x-ots-"
_SERVICE = "ots"
_NO_MD5 = hashlib.md5(usedforsecurity=False)
"""The MD5 state of no bytes. Copying this state costs half as much as making a new one."""
_UNSIGNED_HEADERS = frozenset({SIGNATURE_V2_HEADER, SIGNATURE_V4_HEADER})


def _left_to_python(data: bytes) -> tuple[int, dict[str, str], int] | None:
    return None


read_head = _left_to_python if NATIVE is None else NATIVE.read_head
"""Reads the head of an answer: its status, its headers by name in lower case, and the offset of its body.

It returns ``None`` if the head is incomplete or has an unusual form. Then the caller reads the head line by line."""


def content_md5(body: bytes) -> str:
    """Return the value of ``x-ots-contentmd5``: the base64 text of the MD5 digest of the body as transmitted."""
    digest = _NO_MD5.copy()
    digest.update(body)
    return b2a_base64(digest.digest(), newline=False).decode("ascii")


def request_string(path: str, headers: Mapping[str, str]) -> str:
    """Return the text that a V2 request signature covers.

    ``path`` is ``/Operation``. For V4, ``ots`` is appended to the text.
    """
    return f"{path}\nPOST\n\n{_canonical(headers)}"


def sign_request_v2(secret: str, path: str, headers: Mapping[str, str]) -> str:
    """Return the value of ``x-ots-signature``."""
    return sign_v2(secret, request_string(path, headers))


def sign_request_v4(signing_key: str, path: str, headers: Mapping[str, str]) -> str:
    """Return the value of ``x-ots-signaturev4``.

    The key is from ``derive_v4_key``; the headers include date and region.
    """
    return sign_v4(signing_key, request_string(path, headers))


def sign_v2(secret: str, request: str) -> str:
    """Return the value of ``x-ots-signature`` for the result of ``request_string``."""
    return _mac("sha1", secret, request)


def sign_v4(signing_key: str, request: str) -> str:
    """Return the value of ``x-ots-signaturev4`` for the result of ``request_string``."""
    return _mac("sha256", signing_key, request + _SERVICE)


def derive_v4_key(secret: str, sign_date: str, region: str) -> str:
    """Return the V4 signing key for a UTC day (``YYYYMMDD``) and a region. The key is the base64 text itself."""
    key = f"aliyun_v4{secret}".encode()
    for message in (sign_date, region, _SERVICE, "aliyun_v4_request"):
        key = hmac.new(key, message.encode(), hashlib.sha256).digest()
    return base64.b64encode(key).decode("ascii")


def response_string(path: str, headers: Mapping[str, str]) -> str:
    """Return the text that a response signature covers: every ``x-ots-`` header of the response, then the path."""
    return _canonical(headers) + path


def sign_response(key: str, path: str, headers: Mapping[str, str]) -> str:
    """Return the signature of a response, which is always SHA-1.

    The key is the secret; after a V4 request it is the signing key that was derived for the request.
    """
    return _mac("sha1", key, response_string(path, headers))


def authorization(access_key_id: str, signature: str) -> str:
    """Return the value of the response header ``Authorization``."""
    return f"OTS {access_key_id}:{signature}"


def signatures_equal(given: str, expected: str) -> bool:
    """Compare two signatures in constant time, so that the duration does not help to guess one."""
    if given.isascii() and expected.isascii():
        return hmac.compare_digest(given, expected)
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), expected.encode("utf-8", "surrogateescape"))


def _canonical(headers: Mapping[str, str]) -> str:
    return "".join([f"{name}:{headers[given].strip()}\n" for name, given in _covered(tuple(headers))])


@lru_cache(maxsize=64)  # each sender has few sets of headers, which are always the same
def _covered(given: tuple[str, ...]) -> list[tuple[str, str]]:
    """Return the names of the headers that a signature covers, in its order: each in its form there, and as given."""
    names = sorted((name.lower(), name) for name in given)
    return [(name, given) for name, given in names if name.startswith(_PREFIX) and name not in _UNSIGNED_HEADERS]


def _mac(digest: str, key: str, text: str) -> str:
    inner, outer = _keyed(digest, key)
    inner, outer = inner.copy(), outer.copy()
    inner.update(text.encode("utf-8", "surrogateescape"))
    outer.update(inner.digest())
    return b2a_base64(outer.digest(), newline=False).decode("ascii")


@lru_cache(maxsize=8)  # At one time, one pair of keys is in use, and its signing key for one day.
def _keyed(digest: str, key: str) -> tuple[Any, Any]:
    """Return both hashes of HMAC (RFC 2104) after the key.

    To continue them takes a third of the time of a whole HMAC.
    """
    block = getattr(hashlib, digest)
    raw = key.encode("utf-8")
    size = block().block_size
    padded = (block(raw).digest() if len(raw) > size else raw).ljust(size, b"\x00")
    return block(padded.translate(_INNER_PAD)), block(padded.translate(_OUTER_PAD))
