"""Loggers of the package. An error of a handler, filter or formatter loses only the entry that is being logged.

The message of an entry takes one line. If it has further lines, such as the lines of a stack, these are indented.

Python raises errors of filters, and of handlers that do not catch them, in the code that logs. In this package that
code owns leases, reads a stream or serves requests, and must not end because a log cannot be written. Names and texts
from outside are escaped. Otherwise a message of a service or a user could fake an entry, or control the terminal that
shows the log.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import Any

from streamclient.errors import printable

MOST_LOGGED_CHARACTERS = 16_384
"""The largest number of characters of an entry. An entry may contain several errors and a stack, each of which is
limited, too."""

SHARD = "shard"
"""The attribute of a log record that names the shard of the entry."""

ENDS = "ends"
"""The attribute of a log record that is true if the entry says why a worker, or one of its streams, ends."""

_CONTINUES = "\n  "
"""The beginning of an entry's further lines, for example those of a stack. Readers of the log cannot mistake
an indented line for an entry."""


class SteadyLogger(logging.Logger):
    """A logger that never raises the errors of its handlers."""

    def handle(self, record: logging.LogRecord) -> None:
        """Handle a record. Report the first failure of a handler in this process on standard error.

        Raises:
            BaseException: in the main thread, a handler raised an error that is not an ``Exception``, such as the
                ``KeyboardInterrupt`` of a signal.
        """
        with suppress(Exception):  # Arguments of any class may fail to format. The handlers report this error.
            make_printable(record)
        try:
            super().handle(record)
        except Exception as error:
            _tell_once(error)
        except BaseException as error:
            if threading.current_thread() is threading.main_thread():
                raise
            _tell_once(error)

    def makeRecord(self, name: str, level: int, *arguments: Any, **named: Any) -> logging.LogRecord:  # noqa: N802
        """Make a record by the program's factory or, if that fails, by Python's own factory."""
        try:
            return super().makeRecord(name, level, *arguments, **named)
        except Exception as error:
            _tell_once(error)
            path, line, text, values, trace = arguments[:5]
            return logging.LogRecord(name, level, path, line, text, values, trace)


def make_printable(record: logging.LogRecord) -> None:
    """Escape the line ends and control characters in the message of an entry, and bound the message's length.

    Names and texts from outside may contain such characters. Lines of the message that begin with two spaces, such as
    the lines of a stack, stay lines of their own, because readers cannot mistake them for another entry. A message that
    needs no change stays unformatted: its template and arguments stay separate. Errors of formatting are raised.
    """
    message = record.getMessage()
    shown = _CONTINUES.join(printable(line, None) for line in message.rstrip("\n").split(_CONTINUES))
    if len(shown) > MOST_LOGGED_CHARACTERS:
        shown = printable(message, MOST_LOGGED_CHARACTERS)
    if shown != message.rstrip("\n"):
        record.msg, record.args = shown, None
    if record.exc_info and record.exc_info[1] is not None and not record.exc_text:
        from streamclient.base.reasons import plain_traceback  # noqa: PLC0415  # rarely needed, and not quick to import

        record.exc_text = plain_traceback(record.exc_info[1])


def of_shard(shard_id: str) -> Mapping[str, str]:
    """Return the ``extra`` argument for an entry about one shard. A log in JSON has the shard as a field."""
    return {SHARD: shard_id}


def is_said_at_end(record: logging.LogRecord) -> bool:
    """Return whether an entry says why a worker ends, and has no traceback.

    A command may leave such an entry out, because it prints the error that the worker raises, which says the same.
    """
    return getattr(record, ENDS, False) and not record.exc_info


@cache
def _steady(kind: type[logging.Logger]) -> type[logging.Logger]:
    return type(f"Steady{kind.__name__}", (SteadyLogger, kind), {})


def logger(name: str) -> logging.Logger:
    """Return the logger ``name``, as ``logging.getLogger`` does, and make it a ``SteadyLogger``."""
    steady = logging.getLogger(name)
    if not isinstance(steady, SteadyLogger):
        steady.__class__ = _steady(type(steady))  # type: ignore[arg-type]  # a class is hashable; the program may have its own kind of loggers
    return steady


_told = threading.Lock()
"""A lock that is taken, and never released, by the report about the first error of a handler, filter or formatter of
the log. So no further error of this kind is reported."""


def _tell_once(error: BaseException) -> None:
    if not logging.raiseExceptions or not _told.acquire(blocking=False):
        return
    try:
        sys.stderr.write(
            f"streamclient: a handler, filter or formatter of the log raised {type(error).__name__}: {error}; lines "
            "are missing from the log, nothing else is disturbed, and further failures are not reported\n"
        )
    except BaseException:  # Standard error may be missing, and an error's ``__str__`` may be user code.
        if threading.current_thread() is threading.main_thread() and not isinstance(sys.exc_info()[1], Exception):
            raise
