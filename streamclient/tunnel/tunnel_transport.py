"""The transport of tunnel requests with the endpoint, credentials, signer and connections of a user's ``OTSClient``.

The SDK's protocol layer is not used, because it knows only the table operations and requires signed answers. The tunnel
endpoints do not sign their answers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from tablestore.error import OTSServiceError

from streamclient.base.kept_formats import parse_json
from streamclient.errors import CodecError, DependencyException, ErrorKind, printable
from streamclient.tablestore.kept_connections import HttpAnswer
from streamclient.tablestore.signed_calls import SignedCalls, is_damaged
from streamclient.tunnel.tunnel_errors import FIRST_SERVER_ERROR, UNAVAILABLE, TunnelAnswerError, typed, unwrapped
from streamclient.wire import schema
from streamclient.wire.service_errors import AnswerError, classify, unreadable

SUCCESS = 200
"""The only HTTP status of a success. The Java client reads a body from every success, so the service uses no other
status for a success."""

_DIGEST = "x-ots-contentmd5"

_TEXT_LIMIT = 200

PageT = TypeVar("PageT")


class TunnelTransport:
    """Sends requests to the Tunnel Service. Thread-safe, as the SDK's ``OTSClient`` is.

    A write is sent only once. A read is sent a second time if a connection that was kept open turns out to be dead.
    """

    def __init__(self, client: Any) -> None:
        """Prepare calls with ``client``, which is never changed.

        Raises:
            ConfigurationError: the client is not a ``tablestore.OTSClient``.
        """
        self._calls = SignedCalls(client)

    def send(self, verb: str, request: Any, *, write: bool) -> bytes:
        """Return the body of the answer to ``/tunnel/<verb>``.

        Raises:
            DependencyException: the call was refused, or no usable answer came. The error is a ``TunnelError`` if the
                service sent a known code, and a ``TunnelAnswerError`` if the answer is incomplete.
        """
        return self._answer(verb, request, write=write, checks_digest=True).body

    def ask(self, verb: str, request: Any, response_class: Any, *, write: bool) -> Any:
        """Send a request, and return the answer as a message of ``response_class``.

        Raises:
            TunnelAnswerError: the answer is unreadable. All errors of ``send`` are possible, too.
        """
        body = self.send(verb, request, write=write)
        try:
            return schema.parse(response_class, body)
        except CodecError as error:
            raise _unreadable(verb, error) from error

    def page(self, verb: str, request: Any, decode: Callable[[bytes], PageT]) -> PageT:
        """Send a request, and return the page of records that ``decode`` makes of the answer's body.

        Raises:
            TunnelAnswerError: ``decode`` raised ``CodecError``. All errors of ``send`` are possible, too.
        """
        answer = self._answer(verb, request, write=False, checks_digest=self._calls.checks_pages)
        try:
            return decode(answer.body)
        except CodecError as error:
            raise (_damaged() if is_damaged(answer) else _unreadable(verb, error)) from error

    def _answer(self, verb: str, request: Any, *, write: bool, checks_digest: bool) -> HttpAnswer:
        try:
            answer = self._calls.send(f"/tunnel/{verb}", request.SerializeToString(), is_repeatable=not write)
            is_success = 200 <= answer.status < 300
            if (checks_digest or not (is_success and answer.has_end)) and is_damaged(answer):
                raise _damaged()
            if not is_success:
                raise _refusal(verb, answer)
            _require_whole(answer)
        except Exception as error:
            raise typed(classify(error, write=write, client=self._calls.client), error) from error
        return answer


def _unreadable(verb: str, error: CodecError) -> DependencyException:
    failure = classify(unreadable(verb, error, SUCCESS), write=True, client=None)
    return TunnelAnswerError(str(failure), kind=ErrorKind.AMBIGUOUS)


def _damaged() -> DependencyException:
    return TunnelAnswerError("the answer was damaged on its way: its MD5 differs", kind=ErrorKind.AMBIGUOUS)


def _require_whole(answer: HttpAnswer) -> None:
    """Require an answer that is certainly complete. An incomplete list may be well formed, and so look complete.

    Raises:
        TunnelAnswerError: the answer may be incomplete, or may not come from the service.
    """
    if answer.status != SUCCESS:
        what = f"it has HTTP status {answer.status}, and the service answers with {SUCCESS}"
    elif not answer.has_end and _DIGEST not in answer.headers:
        what = "it ends where its connection ends; a length, chunks or a digest would show that nothing is missing"
    else:
        return
    raise TunnelAnswerError(f"the answer cannot be believed: {what}", kind=ErrorKind.AMBIGUOUS)


def _refusal(verb: str, answer: HttpAnswer) -> Exception:
    status, named = answer.status, _error_message(answer.body)
    text = answer.body[:_TEXT_LIMIT].decode("utf-8", "replace")
    if named is None and status >= FIRST_SERVER_ERROR:
        named = (UNAVAILABLE, f"HTTP status {status}: {text}")
    if named is None:
        return AnswerError(f"the body begins with '{printable(text)}'.", status, verb, is_services=not answer.has_end)
    request_id = answer.headers.get("x-ots-requestid", "")
    refusal: Exception = OTSServiceError(status, *unwrapped(status, *named), request_id)
    return refusal


def _error_message(body: bytes) -> tuple[str, str] | None:
    """Return the code and the text of the error in ``body``; ``None`` if ``body`` has no code.

    ``body`` is a message of the service, or JSON from a gateway.
    """
    try:
        message = schema.parse(schema.TunnelError, body)
    except CodecError:
        try:
            document = parse_json(body)
        except ValueError:
            return None
        return (str(document["code"]), str(document.get("message", ""))) if _names_code(document) else None
    return message.code, message.message


def _names_code(document: object) -> bool:
    return isinstance(document, dict) and "code" in document
