"""Every exception that the package raises on purpose.

The three public exceptions of the Java client stay siblings under one base, so that ported ``except`` clauses keep
their meaning in any order. Errors carry their policy: callers ask ``error.kind`` instead of keeping lists of codes.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType

MOST_ERROR_CHARACTERS = 4_096
"""Of a text of others that is told or stored; some carry whole documents."""

_LEFT_OUT = "...({} characters left out)..."
_NOTE_CHARACTERS = 48
"""Room for that note, with a number of any length that fits into memory."""


def printable(text: str, most: int | None = MOST_ERROR_CHARACTERS) -> str:
    """A text of others on one line, with escapes for all that a terminal or a log would obey, and cut.

    Escaped are control characters, line ends, marks of direction, and halves of characters, as ``repr`` does it. Of a
    text that is longer than ``most``, beginning and end stay: many messages end with what to do. ``None`` cuts nothing.
    What was escaped and cut before comes back as it is.
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
    if text.isprintable():  # nearly all are, and this is quick
        return text
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


class ErrorKind(Enum):
    """What a caller may conclude from a failed call."""

    THROTTLED = "throttled"
    """The service refused for load; nothing was applied; retry with a longer pause."""

    TRANSIENT = "transient"
    """The service refused for another passing reason; nothing was applied; retry."""

    AMBIGUOUS = "ambiguous"
    """No trustworthy answer came back; a write may or may not have been applied; read before concluding."""

    PERMANENT = "permanent"
    """The same request will fail again; retrying is useless."""


class StreamClientError(Exception):
    """Base of every exception of this package.

    Each argument is a line of its message, made ``printable``: what services, users and tables are called, and what
    they say, stands in nearly every one.
    """

    def __init__(self, *lines: object) -> None:
        super().__init__(*(printable(line) if isinstance(line, str) else line for line in lines))

    def __str__(self) -> str:
        return "\n".join(map(str, self.args))


class ConfigurationError(StreamClientError, ValueError):
    """A setting or argument cannot work. Raised before any effect; the message names what was given and expected."""


class StreamClientException(StreamClientError):
    """The client itself failed, or was used against its rules (Java: ``StreamClientException``)."""


class NoThreadError(StreamClientException, RuntimeError):
    """The system refused a thread: this process, its user or its container has as many as it may.

    Nothing has begun. The same may succeed later, when other threads have ended.
    """

    @classmethod
    def of(cls, name: str, error: BaseException) -> NoThreadError:
        """For the thread or pool with that name, which was refused with that error."""
        refused = cls(
            f"no thread could be started for {name}: {error}; raise the limit of threads (ulimit -u, the pids limit of "
            "the container, kernel.threads-max), or run fewer of them here"
        )
        refused.__cause__ = error
        return refused


_REFUSED_THREAD = "can't start new thread"
"""What Python says, in a ``RuntimeError`` of no kind of its own, when the system refuses a thread."""


def is_refused_thread(error: BaseException) -> bool:
    """Whether an error says that the system refused a thread, so that the same may succeed later."""
    return isinstance(error, NoThreadError) or (isinstance(error, RuntimeError) and _REFUSED_THREAD in str(error))


class ForkedError(StreamClientException):
    """Something that was started before a fork was used in the child, which has none of its threads.

    Make it in the child, after the fork. The one in the parent goes on undisturbed.
    """


class WorkerFailedError(StreamClientError):
    """A worker ended by itself, of one error or of one in each of several streams.

    The message is what the log said when it happened; of several streams, one sentence each.
    """

    def __init__(self, message: str, errors: Mapping[str, BaseException]) -> None:
        super().__init__(message)
        self.errors: Mapping[str, BaseException] = MappingProxyType(dict(errors))
        """What each stream failed of, by its name; by the tunnel's id for a ``TunnelWorker``."""

    @classmethod
    def of(cls, sentences: Mapping[str, str], errors: Mapping[str, BaseException]) -> WorkerFailedError:
        """For these errors. A fault of this package keeps its traceback; an error that was foreseen says all itself."""
        failed = cls("; ".join(sentences[name] for name in errors), errors)
        faults = [error for error in errors.values() if not is_foreseen(error)]
        failed.__cause__ = faults[0] if faults else None
        failed.__suppress_context__ = True
        return failed


class DependencyException(StreamClientError):
    """A call to the service failed (Java: ``DependencyException``).

    ``kind`` says what may be concluded; ``code``, ``http_status`` and ``request_id`` are what the service answered, or
    ``None`` if no answer came.
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
        self.code = code if code is None else printable(code)
        self.http_status = http_status
        self.request_id = request_id if request_id is None else printable(request_id)

    @property
    def retriable(self) -> bool:
        """Whether sending the same request again can succeed."""
        return self.kind is not ErrorKind.PERMANENT


class UnreadableAnswerError(DependencyException):
    """An answer came as it was sent, and cannot be read: the service, or what lies between, is at fault.

    Nothing of it was used, and the request may be repeated as after a network error.
    """


def is_foreseen(error: BaseException) -> bool:
    """Whether it comes from a setting or the service, so that its text says all and a traceback nothing."""
    return isinstance(error, ConfigurationError | DependencyException)


class ShutdownException(StreamClientError):
    """The checkpoint was refused: this worker no longer holds the lease (Java: ``ShutdownException``).

    Nothing was stored. Stop working on the shard; its new owner continues from the last stored checkpoint.
    """


class FencedException(ShutdownException):
    """A destination refused a write because a later owner of the shard, one with a greater epoch, has written there.

    The lease is lost, whatever the worker believes by now; nothing of the refused write was stored. Destinations raise
    it, and so should a sink of your own that compares ``ShardInfo.epoch``.
    """


class TrimmedDataException(StreamClientException):
    """Records behind the requested position are past the stream's retention and gone (``OTSTrimmedDataAccess``)."""


class CodecError(StreamClientException, ValueError):
    """Bytes do not form a valid frame: truncated, corrupt, or of an unknown kind. No row was produced from them."""


class DisorderError(CodecError):
    """The records of a page do not rise, as those of a shard do: the service, or what lies between, is at fault."""


class ApplicationException(StreamClientException):
    """User code raised; the cause is the user's exception (Java: ``ApplicationException``)."""


class UnfitValueError(StreamClientException, ValueError):
    """A column of the rows has another type than that of the destination; nothing was written."""
