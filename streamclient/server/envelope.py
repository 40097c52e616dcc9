"""The HTTP envelope of requests and answers: the checks of a request's headers, and the headers of an answer.

This module does not touch the network: headers are mappings with lower-case names. The order of the checks, and the
texts of refusals, follow the error list of the product documentation. Where that list gives no order, the decision page
``server-envelope`` defines the order.
"""

from __future__ import annotations

import json
import random
import re
import zlib
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from functools import lru_cache

from attrs import frozen

from streamclient.server import refusals
from streamclient.server.auth import Credentials, Signer, authenticate
from streamclient.server.server_errors import ServiceError
from streamclient.wire import schema
from streamclient.wire.signature import SIGN_DATE_HEADER, SIGN_REGION_HEADER, SIGNATURE_V4_HEADER, content_md5

MAX_BODY_BYTES = 5 * 1024 * 1024
"""The largest size of a request body, both compressed and decompressed (product documentation: 5 MB)."""

MAX_DATE_SKEW = timedelta(minutes=15)
"""The largest difference between ``x-ots-date`` and real time (product documentation)."""

API_VERSION = "2015-12-31"

TUNNEL_API_VERSIONS = (API_VERSION, "2018-04-01")
"""The API versions of the Tunnel Service: the Java SDK sends the first, the Go SDK the second."""

REQUIRED_HEADERS = (
    "x-ots-date",
    "x-ots-apiversion",
    "x-ots-accesskeyid",
    "x-ots-instancename",
    "x-ots-contentmd5",
)
"""The headers that every official SDK sends with every request. The server checks them in this order."""

_DATE = re.compile(r"(\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2})(?:\.\d+)?Z", re.ASCII)
"""The form of a date. The server ignores digits after the seconds, because in the Go SDK's dates these digits are not
a fraction."""

_REGION = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
"""The form of a region's name in a V4 signature."""

_OPERATION = re.compile(r"[A-Za-z][A-Za-z0-9]*(?:/[A-Za-z][A-Za-z0-9]*)*")
"""The form of an operation's name. This module accepts every name of this form. The engine refuses the name if the
operation does not exist."""


_SINGLE = ("authorization", "content-encoding", "content-length", "content-type", "host", "origin", "transfer-encoding")
"""Headers that must not occur twice, because it would be unclear which value counts. An ``x-ots-`` header must not
occur twice either."""

_ERROR_TEXT_CHARACTERS = 2_000
"""The largest number of characters of a refusal's text. Without this limit, a refusal that repeats a value of the
request could be as long as the request."""

_DICE = random.Random()
"""The generator of request ids, seeded by the system."""


@frozen
class OpenedRequest:
    """A request whose envelope was accepted: authentic, meant for this instance, and decompressed."""

    operation: str
    body: bytes
    signer: Signer


def open_request(
    path: str, headers: Mapping[str, str], body: bytes, credentials: Credentials, now: datetime
) -> OpenedRequest:
    """Check the envelope of a request and decompress its body.

    ``now`` is the real time, with a time zone. The time of the server's own clock would be wrong here, because clients
    sign with the real time.

    Raises:
        ServiceError: the refusal by the first failed check. The caller must send it unsigned, because the client is not
            authenticated.
    """
    if len(body) > MAX_BODY_BYTES:
        raise refusals.BODY_TOO_LARGE()
    _check_headers_present(headers)
    operation = path.removeprefix("/")
    is_of_tunnels = operation.startswith("tunnel/")
    # Check the version before the date, because SDKs for other versions write the date in other forms.
    _check_version(headers["x-ots-apiversion"], TUNNEL_API_VERSIONS if is_of_tunnels else (API_VERSION,))
    date = _check_date(headers["x-ots-date"], now)
    if SIGNATURE_V4_HEADER in headers:
        _check_scope(headers, date)
    if not _OPERATION.fullmatch(operation):
        raise refusals.OPERATION(operation=operation)
    if headers["x-ots-contentmd5"].strip() != content_md5(body):
        raise refusals.DIGEST()
    signer = authenticate(path, headers, credentials)
    if headers["x-ots-instancename"].strip() != credentials.instance:
        raise refusals.TUNNEL_INSTANCE() if is_of_tunnels else refusals.INSTANCE()
    return OpenedRequest(operation, _inflate(headers, body), signer)


def single_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers with their names in lower case, because Go sends names with capitals.

    Raises:
        ServiceError: a header that the server uses occurs twice.
    """
    single: dict[str, str] = {}
    for name, value in headers.items():
        name = name.lower()  # noqa: PLW2901 - the case means nothing from here on
        if name in single and (name.startswith("x-ots-") or name in _SINGLE):
            raise refusals.HEADER_TWICE(name=name)
        single[name] = value
    return single


def seal(path: str, body: bytes, now: datetime, signer: Signer | None) -> dict[str, str]:
    """Return the headers of an answer; sign them if ``signer`` is given.

    The result includes all ``x-ots-`` headers of the answer. An ``x-ots-`` header that is added later would break the
    signature.
    """
    headers = {
        "x-ots-contentmd5": content_md5(body),
        "x-ots-contenttype": "protocol buffer",
        "x-ots-date": _format_date(now),
        "x-ots-requestid": _request_id(),
    }
    if signer is not None:
        headers["Authorization"] = signer.authorization(path, headers)
    return headers


def _request_id() -> str:
    """Return a random UUID like ``uuid.uuid4``.

    The id need not be secret, so the function does not call the system's generator each time.
    """
    digits = f"{_DICE.getrandbits(128):032x}"
    variant = "89ab"[int(digits[16], 16) & 3]
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}"


def error_body(error: ServiceError) -> bytes:
    """Return the serialized Error message of a refusal."""
    message: bytes = schema.Error(code=error.code, message=_text(error)).SerializeToString()
    return message


def error_body_json(error: ServiceError) -> bytes:
    """Return a refusal as JSON, for a caller that reads errors as JSON."""
    return json.dumps({"code": error.code, "message": _text(error)}).encode()


def _text(error: ServiceError) -> str:
    """Return the text of a refusal, shortened if necessary.

    Bytes that are not text become escapes. A refusal contains such bytes if it repeats a value of the request.
    """
    text = error.message.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= _ERROR_TEXT_CHARACTERS else f"{text[:_ERROR_TEXT_CHARACTERS]}..."


def speaks_json(headers: Mapping[str, str]) -> bool:
    """Return whether a request has a JSON body. The SDKs read the errors of such requests as JSON."""
    return headers.get("content-type", "").partition(";")[0].strip().lower() == "application/json"


def _format_date(now: datetime) -> str:
    """Format a date with a fraction of a second.

    The Python SDK requires the fraction, but ``isoformat`` alone omits it at a whole second.
    """
    return now.astimezone(timezone.utc).isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"


def _check_headers_present(headers: Mapping[str, str]) -> None:
    for name in REQUIRED_HEADERS:
        if name not in headers:
            raise refusals.HEADER_MISSING(name=name)
    if "x-ots-signaturev4" in headers:
        for name in ("x-ots-signdate", "x-ots-signregion"):
            if name not in headers:
                raise refusals.HEADER_MISSING(name=name)
    elif "x-ots-signature" not in headers:
        raise refusals.HEADER_MISSING(name="x-ots-signature")


@lru_cache(maxsize=64)
def _date_of(text: str) -> datetime | None:
    """Return the time in a date header; ``None`` if the text is not a date. Equal texts share one cached result."""
    match = _DATE.fullmatch(text.strip())
    try:
        return datetime.fromisoformat(match[1] + "+00:00") if match else None
    except ValueError:
        return None


def _check_date(text: str, now: datetime) -> datetime:
    date = _date_of(text)
    if date is None:
        raise refusals.DATE(date=text)
    if abs(now - date) > MAX_DATE_SKEW:
        raise refusals.CLOCK(date=text)
    return date


def _check_scope(headers: Mapping[str, str], date: datetime) -> None:
    """Check two headers of a request: the day and the region for which its V4 signing key was made.

    The day must be the day of ``date``, the time in the request's date header. Near midnight, the adjoining day is
    accepted, too.

    Raises:
        ServiceError: the day is wrong, or the region does not have the form of a region's name.
    """
    sign_date, region = headers[SIGN_DATE_HEADER].strip(), headers[SIGN_REGION_HEADER].strip()
    days = {(date + skew).strftime("%Y%m%d") for skew in (-MAX_DATE_SKEW, timedelta(0), MAX_DATE_SKEW)}
    if sign_date not in days:
        raise refusals.KEY_DAY(date=sign_date)
    if not _REGION.fullmatch(region):
        raise refusals.REGION(region=region)


def _check_version(version: str, known: tuple[str, ...]) -> None:
    if version.strip() not in known:
        raise refusals.API_VERSION(version=version, expected=" or ".join(known))


def _inflate(headers: Mapping[str, str], body: bytes) -> bytes:
    """Return the decompressed body. Refuse more than ``MAX_BODY_BYTES``, so that a small body cannot become huge."""
    kind = headers.get("x-ots-request-compress-type")
    if kind is None:
        return body
    if kind.strip().lower() != "deflate":
        raise refusals.COMPRESSION(kind=kind)
    inflater = zlib.decompressobj()
    try:
        raw = inflater.decompress(body, MAX_BODY_BYTES + 1)
    except zlib.error:
        raise refusals.COMPRESSED_BODY() from None
    if len(raw) > MAX_BODY_BYTES:
        raise refusals.BODY_TOO_LARGE()
    if not inflater.eof or headers.get("x-ots-request-compress-size", str(len(raw))).strip() != str(len(raw)):
        raise refusals.COMPRESSED_SIZE()
    return raw
