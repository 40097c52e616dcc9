"""Sends tunnel requests over a user's own ``OTSClient``: its endpoint, credentials, signer and connections.

The SDK's protocol layer is passed by: it knows only the table operations, and insists on signed answers, which the
tunnel endpoints do not give.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tablestore.error import OTSServiceError

from streamclient.errors import CodecError, DependencyException, ErrorKind
from streamclient.tablestore.call import SignedCalls
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
        self._calls = SignedCalls(client)

    def send(self, verb: str, request: Any, *, write: bool) -> bytes:
        """The body of the answer to ``/tunnel/<verb>``.

        Raises:
            DependencyException: refused, or no usable answer; a ``TunnelError`` where the service gave its code.
        """
        path = f"/tunnel/{verb}"
        try:
            status, headers, body = self._exchange(path, request.SerializeToString(), is_repeatable=not write)
            if not 200 <= status < 300:
                raise _refusal(status, headers, body)
        except Exception as error:
            raise typed(classify(error, write=write, client=self._calls.client)) from error
        return body

    def _exchange(self, path: str, body: bytes, *, is_repeatable: bool) -> tuple[int, Mapping[str, str], bytes]:
        answer = self._calls.send(path, body, is_repeatable=is_repeatable)
        md5 = answer.headers.get("x-ots-contentmd5")
        if md5 is not None and md5 != content_md5(answer.body):
            raise DependencyException("the answer was damaged on its way: its MD5 differs", kind=ErrorKind.AMBIGUOUS)
        return answer.status, answer.headers, answer.body


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
