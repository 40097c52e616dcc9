"""The exceptions of the package.

The three public exceptions of the Java client are siblings under one base, so ported ``except`` clauses keep their
meaning in any order. An error says how to treat it: callers ask ``error.kind``, and keep no lists of codes.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from urllib.parse import urlsplit

MOST_ERROR_CHARACTERS = 4_096
"""The largest number of characters that are logged or stored of a text from outside this package. Some errors of
services contain whole documents."""

_LEFT_OUT = "...({} characters left out)..."
_NOTE_CHARACTERS = 48
"""The room for the note about characters left out, whose number may have any length that fits into memory."""


def printable(text: str, most: int | None = MOST_ERROR_CHARACTERS) -> str:
    """Return a text from outside this package on one line, cut to ``most`` characters, safe for a terminal or a log.

    Control characters, line ends, direction marks and lone surrogates are escaped as ``repr`` does it. A longer text
    keeps its beginning and its end, because many messages end with advice. ``None`` cuts nothing. A text that this
    function returned stays unchanged when it is passed again.
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
"""Names by which programs on this machine reach a local server."""

_HTTP_PORT = 80


def is_local(endpoint: object) -> bool:
    """Return whether an endpoint belongs to a local server, because it uses no TLS and its host is this machine."""
    try:
        parts = urlsplit(str(endpoint))
    except ValueError:  # the brackets contain something else than an address
        return False
    return parts.scheme == "http" and parts.hostname in _THIS_MACHINE


def start_one(endpoint: str) -> str:
    """Return the advice to start a local server at ``endpoint``, where none listens; empty for another machine."""
    if not is_local(endpoint):
        return ""
    return f"; start a local Tablestore with `streamclient server --port {urlsplit(endpoint).port or _HTTP_PORT}`"


def install_extra(extra: str) -> str:
    """Return the advice to install an extra. It names no index, because this package is on none."""
    return (
        f'install the extra {extra} from where streamclient was installed, in a checkout with  pip install ".[{extra}]"'
    )


class ErrorKind(Enum):
    """The conclusion that a caller may draw from a failed call."""

    THROTTLED = "throttled"
    """The service refused because of its load; nothing was applied; retry after a longer pause."""

    TRANSIENT = "transient"
    """The service refused for another passing reason; nothing was applied; retry."""

    AMBIGUOUS = "ambiguous"
    """No trustworthy answer came back. A write may or may not have been applied: read the row before you conclude."""

    PERMANENT = "permanent"
    """The same request will fail again, so retrying is useless."""


class StreamClientError(Exception):
    """Base of every exception of this package.

    Each argument is a line of the message. It is made ``printable``, because nearly every message quotes names and
    texts of services, users and tables.
    """

    def __init__(self, *lines: object) -> None:
        super().__init__(*(printable(line) if isinstance(line, str) else line for line in lines))

    def __str__(self) -> str:
        return "\n".join(map(str, self.args))


class ConfigurationError(StreamClientError, ValueError):
    """A setting or argument is invalid.

    It is raised before anything has an effect. The message names the given and the expected value.
    """


class StreamClientException(StreamClientError):
    """The client itself failed, or was used against its rules (Java: ``StreamClientException``)."""


class NoThreadError(StreamClientException, RuntimeError):
    """The system refused a thread: this process, its user or its container has reached its limit.

    The call had no effect. It may succeed later, when other threads have ended.
    """

    @classmethod
    def of(cls, name: str, error: BaseException) -> NoThreadError:
        """Make the error for the thread or pool ``name``, which the system refused with ``error``."""
        refused = cls(
            f"no thread could be started for {name}: {error}; raise the limit of threads (ulimit -u, the pids limit of "
            "the container, kernel.threads-max), or run fewer of them here"
        )
        refused.__cause__ = error
        return refused


_REFUSED_THREAD = "can't start new thread"
"""Python's message, in a plain ``RuntimeError``, when the system refuses a thread."""


def is_refused_thread(error: BaseException) -> bool:
    """Return whether an error says that the system refused a thread, so that the same call may succeed later."""
    return isinstance(error, NoThreadError) or (isinstance(error, RuntimeError) and _REFUSED_THREAD in str(error))


class ForkedError(StreamClientException):
    """A forked child used an object that was started before the fork. The child has none of the object's threads.

    Make the object in the child, after the fork. The parent's object goes on undisturbed.
    """


class WorkerFailedError(StreamClientError):
    """A worker ended by itself, because of an error in one or several streams.

    The message has one sentence per failed stream, as the log has.
    """

    def __init__(self, message: str, errors: Mapping[str, BaseException]) -> None:
        super().__init__(message)
        self.errors: Mapping[str, BaseException] = MappingProxyType(dict(errors))
        """The error of each failed stream. The key is the stream's name; for a ``TunnelWorker``, the tunnel's id."""

    @classmethod
    def of(cls, sentences: Mapping[str, str], errors: Mapping[str, BaseException]) -> WorkerFailedError:
        """Make the error for ``errors``. Its cause is the first of them that is a fault of this package, if any.

        Other errors need no traceback.
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
    """An answer arrived intact and cannot be read: the service, or a system on the way to it, is at fault.

    No part of the answer was used. The request may be repeated, as it may after a network error.
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
    raise it, and a sink of your own that compares ``ShardInfo.epoch`` should raise it too.
    """


class TrimmedDataException(StreamClientException):
    """Records after the requested position are past the stream's retention and gone (``OTSTrimmedDataAccess``)."""


class CodecError(StreamClientException, ValueError):
    """Bytes do not form a valid frame: they are truncated, corrupt, or of an unknown kind. They produced no row."""


class DisorderError(CodecError):
    """The records of a page are out of order: the service, or a system on the way to it, is at fault."""


class ApplicationException(StreamClientException):
    """User code raised. The cause is the user's exception (Java: ``ApplicationException``)."""


class UnfitValueError(StreamClientException, ValueError):
    """A value or a column does not have the type that its destination, or the field of a class, requires.

    Nothing was written.
    """
