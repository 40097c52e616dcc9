"""Signed calls of the service with the endpoint, credentials, signer and time-out of a user's ``OTSClient``.

The client is never changed. Headers and signatures follow the rules of the Python SDK 6.4 (``protocol.py``,
``auth.py``). This module also makes the SDK's checks of a response, in the SDK's order.
"""

from __future__ import annotations

import ssl
import time
from calendar import timegm
from collections.abc import Callable, Mapping
from copy import copy
from functools import lru_cache
from http.client import HTTPException, responses
from typing import Any, TypeVar

import certifi
from tablestore.auth import RequestContext, SignV2, SignV4
from tablestore.connection import ConnectionPool
from tablestore.error import OTSClientError, OTSServiceError
from urllib3.util.ssl_ import create_urllib3_context

from streamclient.base.reasons import counted
from streamclient.errors import CodecError, ConfigurationError, DisorderError, printable
from streamclient.tablestore.connection_limits import limits_of
from streamclient.tablestore.credentials import RetriableProvider, credentials_of
from streamclient.tablestore.integrity import Integrity, checked_client, integrity_of
from streamclient.tablestore.kept_connections import HttpAnswer, KeptConnections, tell_of_forks
from streamclient.wire import schema
from streamclient.wire.service_errors import DIFFERS, answer_error, is_services, telling_protocol, unreadable
from streamclient.wire.signature import (
    SIGN_DATE_HEADER,
    SIGN_REGION_HEADER,
    SIGNATURE_V2_HEADER,
    SIGNATURE_V4_HEADER,
    authorization,
    content_md5,
    derive_v4_key,
    request_string,
    sign_response,
    sign_v2,
    sign_v4,
    signatures_equal,
)

API_VERSION = "2015-12-31"

MOST_SKEW_SECONDS = 15 * 60
"""The largest accepted difference between the date of a response and this machine's clock, as in the SDK."""

CACHED_DATES = 8
"""The number of response dates whose parsed values are cached. Responses within one second have the same date."""

CACHED_ENVELOPES = 16
"""The number of request headers that are cached: about as many as the operations of two clients need in a second."""

NEEDED_HEADERS = ("x-ots-contentmd5", "x-ots-requestid", "x-ots-date", "x-ots-contenttype")
"""The headers that a successful response to a table or stream operation must have."""

SUCCESS = 200
"""The HTTP status of every success of the service. Any other status below 300 comes from a gateway."""

_ALL_NEEDED = frozenset(NEEDED_HEADERS)
_DIGEST_HEADER = "x-ots-contentmd5"
_DIGEST = "\x00"
"""The placeholder for the digest of a body in the signed text. No header can contain this character."""

_SECONDS = len("2026-01-31T23:59:59")

_SET_PER_CALL = ("x-ots-contentmd5", SIGNATURE_V2_HEADER, SIGNATURE_V4_HEADER)

Exchange = Callable[[str, str, bytes, bool], HttpAnswer]
"""A function that sends one request and returns the response. It takes the path, the header lines, the body, and
whether the request may be sent twice."""

SHOWN_BYTES = 100
"""The number of bytes that an error message quotes of an unreadable refusal: enough to recognise a gateway's page."""

AnswerT = TypeVar("AnswerT")
PageT = TypeVar("PageT")


class SignedCalls:
    """Signed calls with one client's settings. A call is repeated only after a dead connection. Thread-safe."""

    def __init__(self, client: Any) -> None:
        """Prepare calls with the settings of ``client``, without connecting.

        Raises:
            ConfigurationError: ``client`` is not a ``tablestore.OTSClient``.
        """
        self.client: Any = checked_client(client)
        """The ``OTSClient`` whose settings the calls use."""
        self.checks_pages: bool = integrity_of(client) is Integrity.MD5
        """Whether pages are compared with their digest before decoding. All other responses are always compared."""
        self._exchange = _exchange_of(client)
        self._keys: dict[tuple[str, str, str], str] = {}

    def call(self, operation: str, body: bytes, *, is_repeatable: bool) -> bytes:
        """Send a table or stream operation, check the response's headers and signature, and return its body.

        Raises:
            OTSServiceError: the service refused the operation; the error has its code.
            OTSClientError: the response cannot be trusted.
            OSError, HTTPException, urllib3.exceptions.HTTPError: no response came.
        """
        return self._answer(operation, body, is_repeatable=is_repeatable, checks_digest=True).body

    def read(self, operation: str, body: bytes, decode: Callable[[bytes], AnswerT], *, is_repeatable: bool) -> AnswerT:
        """Send a table or stream operation, and return the response's body as ``decode`` decodes it.

        Raises:
            AnswerError: ``decode`` raised ``CodecError``, although the response arrived undamaged.
            OTSServiceError, OTSClientError, OSError and others: as in ``call``.
        """
        answer = self._answer(operation, body, is_repeatable=is_repeatable, checks_digest=True)
        try:
            return decode(answer.body)
        except CodecError as error:
            raise unreadable(operation, error, answer.status) from error

    def page(
        self, operation: str, body: bytes, decode: Callable[[bytes], PageT], *, is_last: Callable[[PageT], bool]
    ) -> PageT:
        """Request a page of records, check its bytes by the client's ``Integrity``, and return it decoded.

        Two kinds of pages are compared with their digest, whatever ``Integrity`` was chosen. The first is a page that
        ``decode`` cannot read, because the call may be repeated only if the page was damaged on its way. The second is
        a page for which ``is_last`` is true. Such a page ends its shard for good, but a page that was cut between two
        records looks the same. So the response must also have announced the end of its body, by a length or by chunks.

        Raises:
            DisorderError: the records are out of order, although the page arrived undamaged.
            AnswerError: ``decode`` raised another ``CodecError``, or a last page may have been cut.
            OTSServiceError, OTSClientError, OSError and others: as in ``call``.
        """
        answer = self._answer(operation, body, is_repeatable=True, checks_digest=self.checks_pages)
        try:
            page = decode(answer.body)
        except CodecError as error:
            if is_damaged(answer):
                differs = OTSClientError(f"{DIFFERS} HTTP status: {answer.status}.")
                raise answer_error(differs, operation, answer.status, answer.headers) from error
            if isinstance(error, DisorderError):
                raise
            raise unreadable(operation, error, answer.status) from error
        if is_last(page) and not self.checks_pages:
            try:
                _require_whole(answer)
            except OTSClientError as error:
                raise answer_error(error, operation, answer.status, answer.headers) from error
        return page

    def _answer(self, operation: str, body: bytes, *, is_repeatable: bool, checks_digest: bool) -> HttpAnswer:
        path = f"/{operation}"
        credentials = credentials_of(self.client.credentials_provider)
        lines, key = self._signed(path, body, credentials)
        answer = self._exchange(path, lines, body, is_repeatable)
        try:
            _check(path, answer, credentials.get_access_key_id(), key, checks_digest=checks_digest)
            if answer.status != SUCCESS:
                raise _refusal(answer)
        except OTSClientError as error:
            error.message += f" HTTP status: {answer.status}."
            raise answer_error(error, operation, answer.status, answer.headers) from error
        return answer

    def ask(
        self,
        operation: str,
        request: Any,
        decode: Callable[[Any], Any] = lambda message: message,
        *,
        is_repeatable: bool,
    ) -> Any:
        """Send a message of this package's schema; return the response message as ``decode`` converts it.

        Errors are as in ``read``.
        """

        def read(body: bytes) -> Any:
            return decode(schema.parse(schema.OPERATIONS[operation].response, body))

        return self.read(operation, request.SerializeToString(), read, is_repeatable=is_repeatable)

    def send(self, path: str, body: bytes, *, is_repeatable: bool) -> HttpAnswer:
        """Sign ``body`` and send it to ``path``; return the response without the checks of ``call``.

        The tunnel endpoints need this method, because their responses have other headers.
        """
        lines, _ = self._signed(path, body, credentials_of(self.client.credentials_provider))
        return self._exchange(path, lines, body, is_repeatable)

    def _signed(self, path: str, body: bytes, credentials: Any) -> tuple[str, str]:
        """Return the header lines of a request, and the key with which the service signs the response."""
        client = self.client
        signer = client._signer
        kind = type(signer)
        if kind is not SignV2 and kind is not SignV4:  # a signer of the user's own, which may follow other rules
            context = RequestContext(credentials)
            made = client.protocol._make_request_headers(body, path, signer, context)
            return _lines_of(made), _text(signer.get_signing_key(context))
        key = credentials.get_access_key_secret()
        now = int(time.time())
        sender = (credentials.get_access_key_id(), client.protocol.instance_name, credentials.get_security_token())
        extra = client.protocol.extra_headers
        more = tuple(extra.items()) if extra else ()
        digest = content_md5(body)
        if kind is SignV2:
            lines, before, after = _envelope(path, now, sender, more, client.protocol.user_agent)
            signature = sign_v2(key, f"{before}{digest}{after}")
            return f"{lines}x-ots-contentmd5: {digest}\r\n{SIGNATURE_V2_HEADER}: {signature}\r\n", key
        date = time.strftime("%Y%m%d", time.gmtime(now)) if signer.auto_update_v4_sign else signer.sign_date
        more += ((SIGN_DATE_HEADER, date), (SIGN_REGION_HEADER, signer.sign_region))
        key = self._v4_key(key, date, signer.sign_region)
        lines, before, after = _envelope(path, now, sender, more, client.protocol.user_agent)
        signature = sign_v4(key, f"{before}{digest}{after}")
        return f"{lines}x-ots-contentmd5: {digest}\r\n{SIGNATURE_V4_HEADER}: {signature}\r\n", key

    def _v4_key(self, secret: str, date: str, region: str) -> str:
        key = self._keys.get((secret, date, region))
        if key is None:
            key = derive_v4_key(secret, date, region)
            self._keys = {(secret, date, region): key}  # only one date and one secret are in use at a time
        return key


class OwnConnection:
    """A replacement of the SDK's connection pool, for calls that the SDK sends itself. Thread-safe.

    With the SDK's pool, urllib3 tries a refused connection four times and logs each attempt, so an outage fills the
    log. As with the pool, a failed connection raises errors of urllib3.
    """

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def send_receive(
        self, url: str, request_headers: Mapping[str, str], request_body: bytes
    ) -> tuple[int, str, dict[str, str], bytes]:
        """Send a request, and return the response as the SDK's ``ConnectionPool`` does.

        The request is sent only once, because it may be a write.

        Raises:
            AnswerError: the response is not from the service, or may have been cut. The SDK would not notice this.
        """
        answer = self._exchange(url, _lines_of(request_headers), request_body, False)
        try:
            if 200 <= answer.status < 300:
                _require_success(answer)
                _require_end(answer)
            else:
                _require_refusal(answer)
        except OTSClientError as error:
            raise answer_error(error, url.strip("/"), answer.status, answer.headers) from error
        return answer.status, responses.get(answer.status, ""), dict(answer.headers), answer.body


_REPLACEABLE = (ConnectionPool, OwnConnection)
"""The classes of connections that this package replaces in a client. A connection of any other class is kept."""


def with_own_connection(client: Any) -> Any:
    """Return a copy of ``client`` with connections of this package, and with the same time-out and pool size.

    The copy's errors distinguish a response that cannot be used from a request that cannot be made. If the client has a
    connection of the user's own, the copy keeps that connection.
    """
    own = copy(client)
    own.credentials_provider = RetriableProvider(client.credentials_provider)
    own.protocol = telling_protocol(client.protocol)
    if type(client.connection) in _REPLACEABLE:
        own.connection = OwnConnection(_exchange_of(client))
    return own


def _exchange_of(client: Any) -> Exchange:
    """Return a function that sends requests over this package's connections, or over the user's own connection."""
    timeout = client.socket_timeout
    is_number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
    if type(client.connection) not in _REPLACEABLE or not (is_number or timeout is None):
        return _OthersConnection(client)
    limits = limits_of(client)
    connections = KeptConnections(
        client.host,
        timeout_seconds=timeout if timeout else None,
        most_idle=client.max_connection,
        tls=_tls(client.ssl_version) if client.host.startswith("https://") else None,
        rest_seconds=limits.rest_seconds,
        attempt_seconds=limits.attempt_seconds,
    )

    def exchange(path: str, lines: str, body: bytes, is_repeatable: bool) -> HttpAnswer:
        return connections.post(client.path + path, lines, body, is_repeatable=is_repeatable)

    return exchange


class _OthersConnection:
    """An ``Exchange`` over the client's own connection, with the limits of that connection.

    A connection that was used before a fork may share sockets with the parent, so the child refuses to use it. If the
    connection is the SDK's pool, the child makes a new pool. The child uses an unused connection as it is.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._connection = client.connection
        self._was_used = self._is_parents = False
        tell_of_forks(self)

    def __call__(self, path: str, lines: str, body: bytes, is_repeatable: bool) -> HttpAnswer:
        if self._is_parents:
            raise ConfigurationError(
                f"the connection of this client, a {type(self._connection).__name__}, was used before this process was "
                "forked, so that answers to one process could reach the other: make a client in each process"
            )
        self._was_used = True
        try:
            status, _, answered, answer = self._connection.send_receive(path, headers_of(lines), body)
        except (MemoryError, OverflowError) as error:
            raise HTTPException(f"there is no memory for an answer: {error}") from error
        headers = {name.lower(): value for name, value in answered.items()}
        has_end = headers.get("content-length") == str(len(answer)) or "chunked" in headers.get("transfer-encoding", "")
        return HttpAnswer(status, headers, answer, has_end)

    def leave_to_parent(self) -> None:
        """Make a new pool in a child process, or refuse the user's connection if the parent has used it."""
        client = self._client
        if type(self._connection) is ConnectionPool:
            self._connection = ConnectionPool(
                client.host, client.path, client.socket_timeout, client.max_connection, client.ssl_version
            )
        else:
            self._is_parents = self._was_used


def _tls(version: Any) -> ssl.SSLContext:
    """Make the same TLS context as the SDK's pool, for the TLS ``version``."""
    context = create_urllib3_context(ssl_version=version, cert_reqs=ssl.CERT_REQUIRED)
    context.check_hostname = True
    context.load_verify_locations(certifi.where())
    return context


@lru_cache(maxsize=CACHED_ENVELOPES)
def _envelope(
    path: str, now: int, sender: tuple[str, str, str | None], more: tuple[tuple[str, str], ...], user_agent: str
) -> tuple[str, str, str]:
    """Return the texts that all requests to ``path`` share within the second ``now``.

    These are the header lines, and the signed text before and after the body's digest. ``sender`` is access key id,
    instance and security token.
    """
    key_id, instance, token = sender
    headers = {
        "x-ots-date": time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(now)),
        "x-ots-apiversion": API_VERSION,
        "x-ots-accesskeyid": key_id,
        "x-ots-instancename": instance,
        "x-ots-contentmd5": _DIGEST,
        **({} if token is None else {"x-ots-ststoken": token}),
        **dict(more),
    }
    before, _, after = request_string(path, headers).partition(_DIGEST)
    others = {name: value for name, value in headers.items() if name not in _SET_PER_CALL}
    return _lines_of({**others, "User-Agent": user_agent}), before, after


def _lines_of(headers: Mapping[str, str]) -> str:
    return "".join([f"{name}: {value}\r\n" for name, value in headers.items()])


def headers_of(lines: str) -> dict[str, str]:
    """Parse the header lines of a request or a response; return the values by header name."""
    parts = (line.partition(": ") for line in lines.split("\r\n")[:-1])
    return {name: value for name, _, value in parts}


def is_damaged(answer: HttpAnswer) -> bool:
    """Return whether the body differs from the digest in the response's headers; ``False`` without such a header."""
    digest = answer.headers.get(_DIGEST_HEADER)
    return digest is not None and digest != content_md5(answer.body)


def _require_success(answer: HttpAnswer) -> None:
    if answer.status != SUCCESS:
        raise OTSClientError(
            f"The answer with HTTP status {answer.status} is not from the service, whose successes have {SUCCESS}: it "
            "was made on the way, probably by a gateway.",
            answer.status,
        )


def _require_end(answer: HttpAnswer) -> None:
    if not answer.has_end:
        raise OTSClientError(
            f"The answer may have been cut: {_beginning_of(answer)} came without a length or chunks, and then its "
            "connection ended. The service tells the length; a gateway on the way has removed it.",
            answer.status,
        )


def _require_refusal(answer: HttpAnswer) -> None:
    """Raise ``OTSClientError`` if the service sent the refusal ``answer``, and its body may have been cut."""
    if not answer.has_end and _DIGEST_HEADER not in answer.headers and is_services(answer.headers):
        _require_end(answer)


def _require_whole(answer: HttpAnswer) -> None:
    """Raise ``OTSClientError`` if the response, a shard's last page, may have been cut."""
    _require_end(answer)
    if is_damaged(answer):
        raise OTSClientError(
            f"The page has no next iterator, and would end its shard; but it was probably cut: {_beginning_of(answer)} "
            "came, and its MD5 differs from the MD5 that the service has sent. A gateway on the way is the likely "
            "cause.",
            answer.status,
        )


def _beginning_of(answer: HttpAnswer) -> str:
    return f"a body of {counted(len(answer.body), 'byte')} with HTTP status {answer.status}"


def _check(path: str, answer: HttpAnswer, key_id: str, key: str, *, checks_digest: bool) -> None:
    headers, is_success = answer.headers, answer.status == SUCCESS
    if not is_success and answer.status < 300:
        _require_success(answer)
    if is_success and not headers.keys() >= _ALL_NEEDED:
        missing = next(name for name in NEEDED_HEADERS if name not in headers)
        raise OTSClientError(f'"{missing}" is missing in response header.')
    if checks_digest or not is_success:
        if is_success:
            _require_end(answer)
        else:
            _require_refusal(answer)
        if is_damaged(answer):
            raise OTSClientError(DIFFERS)
    date = headers.get("x-ots-date")
    if date is not None and abs(_seconds_of(date[:_SECONDS], date[-1:]) - time.time()) > MOST_SKEW_SECONDS:
        raise OTSClientError("The difference between date in response and system time is more than 15 minutes.")
    given = headers.get("authorization")
    if given is None:
        if is_success:
            raise OTSClientError('"Authorization" is missing in response header.')
    elif answer.status != 403 or _code_of(answer) != "OTSAuthFailed":
        _check_signature(path, headers, given, key_id, key)


def _check_signature(path: str, headers: Mapping[str, str], given: str, key_id: str, key: str) -> None:
    if not given.startswith("OTS "):
        raise OTSClientError("Invalid Authorization in response.")
    if given[4:].partition(":")[0] != key_id:
        raise OTSClientError("Invalid access key id in response.")
    if not signatures_equal(given, authorization(key_id, sign_response(key, path, headers))):
        raise OTSClientError("Invalid signature in response.")


@lru_cache(maxsize=CACHED_DATES)
def _seconds_of(date: str, end: str) -> float:
    """Convert ``date``, such as ``2026-01-31T23:59:59``, to seconds since 1970; ``end``, the time zone, must be ``Z``.

    The function does not use ``strptime``, which takes as much CPU time as the rest of a call.
    """
    try:
        year, month, day = int(date[:4]), int(date[5:7]), int(date[8:10])
        hour, minute, second = int(date[11:13]), int(date[14:16]), int(date[17:19])
        seconds = timegm((year, month, day, hour, minute, second))  # raises for a month or a year that does not exist
        is_shaped = date[4] + date[7] + date[10] + date[13] + date[16] == "--T::" and end == "Z"
    except (ValueError, IndexError):
        is_shaped = False
    if not is_shaped:
        raise OTSClientError("Invalid date format in response.")
    return seconds


def _refusal(answer: HttpAnswer) -> Exception:
    try:
        message = schema.parse(schema.Error, answer.body)
    except CodecError:
        begins = printable(answer.body[:SHOWN_BYTES].decode("utf-8", "replace"))
        strange: Exception = OTSClientError(f"{_beginning_of(answer)} begins with '{begins}'.")
        return strange
    request_id = answer.headers.get("x-ots-requestid", "")
    refusal: Exception = OTSServiceError(answer.status, message.code, message.message, request_id)
    return refusal


def _code_of(answer: HttpAnswer) -> str:
    try:
        return str(schema.parse(schema.Error, answer.body).code)
    except CodecError:
        return ""


def _text(key: str | bytes) -> str:
    return key if isinstance(key, str) else key.decode()
