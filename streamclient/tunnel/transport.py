"""Sends tunnel requests over a user's own ``OTSClient``: its endpoint, credentials, signer and connections.

The SDK's protocol layer is passed by: it knows only the table operations, and insists on signed answers, which the
tunnel endpoints do not give.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tablestore.auth import RequestContext
from tablestore.error import OTSServiceError

from streamclient import checks
from streamclient.errors import CodecError, DependencyException, ErrorKind
from streamclient.tunnel.errors import typed
from streamclient.wire import schema
from streamclient.wire.service_errors import classify
from streamclient.wire.signature import content_md5

UNAVAILABLE = "OTSTunnelServerUnavailable"
"""What an answer of status 500 and above without a readable error counts as, as in the Go client."""

_TEXT_LIMIT = 200


class TunnelTransport:
    """One attempt per call, no retries. Thread-safe as far as the client is, which the SDK's is."""

    def __init__(self, client: Any) -> None:
        """The client is used as it is and never changed.

        Raises:
            ConfigurationError: it is not a ``tablestore.OTSClient``.
        """
        self._client = checks.client.require("client", client)

    def send(self, verb: str, request: Any, *, write: bool) -> bytes:
        """The body of the answer to ``/tunnel/<verb>``.

        Raises:
            DependencyException: refused, or no usable answer; a ``TunnelError`` where the service gave its code.
        """
        path = f"/tunnel/{verb}"
        try:
            status, headers, body = self._exchange(path, request.SerializeToString())
            if not 200 <= status < 300:
                raise _refusal(status, headers, body)
        except Exception as error:
            raise typed(classify(error, write=write)) from error
        return body

    def _exchange(self, path: str, body: bytes) -> tuple[int, Mapping[str, str], bytes]:
        client = self._client
        context = RequestContext(client.credentials_provider.get_credentials())
        headers = client.protocol._make_request_headers(body, path, client._signer, context)
        status, _, answered, answer = client.connection.send_receive(path, headers, body)
        names = {name.lower(): value for name, value in answered.items()}
        md5 = names.get("x-ots-contentmd5")
        if md5 is not None and md5 != content_md5(answer):
            raise DependencyException("the answer was damaged on its way: its MD5 differs", kind=ErrorKind.AMBIGUOUS)
        return status, names, answer


def _refusal(status: int, headers: Mapping[str, str], body: bytes) -> Exception:
    request_id = headers.get("x-ots-requestid", "")
    named = _error_message(body)
    text = body[:_TEXT_LIMIT].decode("utf-8", "replace")
    if named is None and status >= 500:
        named = (UNAVAILABLE, f"HTTP status {status}: {text}")
    if named is None:
        return DependencyException(
            f"HTTP status {status} without a readable error: {text}", kind=ErrorKind.PERMANENT, http_status=status
        )
    refusal: Exception = OTSServiceError(status, *named, request_id)
    return refusal


def _error_message(body: bytes) -> tuple[str, str] | None:
    """Code and text; also in JSON, as gateways answer."""
    try:
        message = schema.parse(schema.TunnelError, body)
    except CodecError:
        try:
            document = json.loads(body)
        except ValueError:
            return None
        return (str(document["code"]), str(document.get("message", ""))) if _names_code(document) else None
    return message.code, message.message


def _names_code(document: object) -> bool:
    return isinstance(document, dict) and "code" in document
