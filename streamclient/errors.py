"""The exceptions of the package.

The three public exceptions of the Java client are siblings under one base, so ported ``except`` clauses keep their
meaning in any order. Callers decide by ``error.kind`` how to treat a failed call, so they need no lists of error codes.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from urllib.parse import urlsplit

MOST_ERROR_CHARACTERS = 4_096
"""The number of characters to which a text from outside this package is cut before it is logged or stored. Some errors
of services contain whole documents."""

_LEFT_OUT = "...({} characters left out)..."
_NOTE_CHARACTERS = 48
"""The number of characters that a shortened text reserves for the note ``_LEFT_OUT``. The note is always shorter."""


def printable(text: str, most: int | None = MOST_ERROR_CHARACTERS) -> str:
    """Return a text from outside this package on one line, cut to ``most`` characters, safe for a terminal or a log.

    Control characters, line ends, direction marks and lone surrogates are escaped as ``repr`` does it. A longer text
    keeps its beginning and its end, because many messages end with advice. With ``most=None`` nothing is cut. A text
    that this function returned stays unchanged when it is passed again.
    """
    if most is None or len(text) <= most:
        shown = _escaped(text)
        if most is None or len(shown) <= most:
            return shown
        text = shown
    head, tail = (most - _NOTE_CHARACTERS) * 3 // 4, (most - _NOTE_CHARACTERS) // 4
    note = _LEFT_OUT.format(len(text) - head - tail)
    return _escaped(text[:head])[:head] + note + _escaped(text[-tail:])[-tail:]


def _escaped(text: str) -> str:
    if text.isprintable():  # the usual case, which is quick
        return text
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


_THIS_MACHINE = ("127.0.0.1", "localhost", "::1")
"""The host names by which programs reach a server on this machine."""

_HTTP_PORT = 80


def is_local(endpoint: object) -> bool:
    """Return whether ``endpoint`` is a local server's address: it uses ``http``, and its host is this machine."""
    try:
        parts = urlsplit(str(endpoint))
    except ValueError:  # the brackets contain something other than an IP address
        return False
    return parts.scheme == "http" and parts.hostname in _THIS_MACHINE


def advice_to_start(endpoint: str) -> str:
    """Return the advice to start a local server at ``endpoint``; if ``endpoint`` is not local, return an empty text."""
    if not is_local(endpoint):
        return ""
    return f"; start a local Tablestore with `streamclient server --port {urlsplit(endpoint).port or _HTTP_PORT}`"


def install_extra(extra: str) -> str:
    """Return the advice to install an extra from source, because no package index offers this package."""
    return (
        f'install the extra {extra} from the same source as streamclient, in a checkout with  pip install ".[{extra}]"'
    )


class ErrorKind(Enum):
    """The conclusion that a caller may draw from a failed call."""

    THROTTLED = "throttled"
    """The service refused because of its load; nothing was applied; retry after a longer pause."""

    TRANSIENT = "transient"
    """The service refused for another passing reason; nothing was applied; retry."""

    AMBIGUOUS = "ambiguous"
    """No trustworthy answer came back. A write may or may not have been applied: read the row to find out."""

    PERMANENT = "permanent"
    """The same request will fail again, so retrying is useless."""


class StreamClientError(Exception):
    """The base class of all exceptions of this package.

    Each argument is a line of the message. Texts are made ``printable``, because nearly every message quotes names and
    texts of services, users and tables.
    """

    def __init__(self, *lines: object) -> None:
        super().__init__(*(printable(line) if isinstance(line, str) else line for line in lines))

    def __str__(self) -> str:
        return "\n".join(map(str, self.args))


class ConfigurationError(StreamClientError, ValueError):
    """A setting or argument is invalid.

    The error is raised before the call has any effect. The message names the given value and the expected value.
    """


class StreamClientException(StreamClientError):
    """The client itself failed, or was used against its rules (Java: ``StreamClientException``)."""


class NoThreadError(StreamClientException, RuntimeError):
    """The system refused to start a thread: this process, its user or its container has reached its limit.

    The call had no effect. It may succeed later, when other threads have ended.
    """

    @classmethod
    def of(cls, name: str, error: BaseException) -> NoThreadError:
        """Make the error for a thread that the system refused with ``error``; ``name`` is the thread or its pool."""
        refused = cls(
            f"no thread could be started for {name}: {error}; raise the limit of threads (ulimit -u, the pids limit of "
            "the container, kernel.threads-max), or run fewer of them here"
        )
        refused.__cause__ = error
        return refused


_REFUSED_THREAD = "can't start new thread"
"""The message of the plain ``RuntimeError`` that Python raises if the system refuses to start a thread."""


def is_refused_thread(error: BaseException) -> bool:
    """Return whether ``error`` means that the system refused to start a thread. The same call may succeed later."""
    return isinstance(error, NoThreadError) or (isinstance(error, RuntimeError) and _REFUSED_THREAD in str(error))


class ForkedError(StreamClientException):
    """A forked child used an object that was started before the fork. The child has none of the object's threads.

    Make the object in the child, after the fork. The object in the parent goes on undisturbed.
    """


class WorkerFailedError(StreamClientError):
    """A worker ended because of errors in one or several streams, and not because its program stopped it.

    The message has one sentence for each failed stream; the log has the same sentences.
    """

    def __init__(self, message: str, errors: Mapping[str, BaseException]) -> None:
        super().__init__(message)
        self.errors: Mapping[str, BaseException] = MappingProxyType(dict(errors))
        """The error of each failed stream. The key is the stream's name; for a ``TunnelWorker``, the tunnel's id."""

    @classmethod
    def of(cls, sentences: Mapping[str, str], errors: Mapping[str, BaseException]) -> WorkerFailedError:
        """Make the exception for the streams in ``errors``, with their ``sentences`` as its message.

        The cause of the exception is the first error that ``is_foreseen`` does not accept: it may be a fault of this
        package, so its traceback is needed. Foreseen errors need no traceback.
        """
        failed = cls("; ".join(sentences[name] for name in errors), errors)
        faults = [error for error in errors.values() if not is_foreseen(error)]
        failed.__cause__ = faults[0] if faults else None
        failed.__suppress_context__ = True
        return failed


class DependencyException(StreamClientError):
    """A call to the service failed (Java: ``DependencyException``).

    ``kind`` states the conclusion that the caller may draw. ``code``, ``http_status`` and ``request_id`` come from the
    service's answer; they are ``None`` if no answer came.
    """

    def __init__(
        self,
        message: str,
        *,
        kind: ErrorKind = ErrorKind.TRANSIENT,
        code: str | None = None,
        http_status: int | None = None,
        request_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.code: str | None = code if code is None else printable(code)
        self.http_status = http_status
        self.request_id: str | None = request_id if request_id is None else printable(request_id)

    @property
    def retriable(self) -> bool:
        """Whether sending the same request again can succeed."""
        return self.kind is not ErrorKind.PERMANENT


class UnreadableAnswerError(DependencyException):
    """An answer arrived undamaged, but cannot be decoded. The service, or a system on the way, is at fault.

    No part of the answer was used. The request may be repeated, as after a network error.
    """


def is_foreseen(error: BaseException) -> bool:
    """Return whether an error comes from a setting or the service, so that its text suffices without a traceback."""
    return isinstance(error, ConfigurationError | DependencyException)


class ShutdownException(StreamClientError):
    """The checkpoint was refused: this worker no longer holds the lease (Java: ``ShutdownException``).

    Nothing was stored. Stop working on the shard; its new owner continues from the last stored checkpoint.
    """


class FencedException(ShutdownException):
    """A destination refused a write because a later owner of the shard, with a greater epoch, has written there.

    The lease is lost, even if the worker does not know it yet; no part of the refused write was stored. Destinations
    raise this error, and a sink of your own that compares ``ShardInfo.epoch`` should raise it, too.
    """


class TrimmedDataException(StreamClientException):
    """The service has trimmed records after the requested position (its code ``OTSTrimmedDataAccess``)."""


class CodecError(StreamClientException, ValueError):
    """Bytes do not form a valid frame, so no row was decoded: they are truncated, corrupt, or of unknown kind."""


class DisorderError(CodecError):
    """The records of a page are out of order. The service, or a system on the way, is at fault."""


class ApplicationException(StreamClientException):
    """User code raised an exception, which is the cause of this one (Java: ``ApplicationException``)."""


class UnfitValueError(StreamClientException, ValueError):
    """A value does not have the type that its column in a destination, or its field of a class, requires.

    Nothing was written.
    """
