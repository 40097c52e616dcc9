"""Loggers of the package: an entry is one line, and a handler, filter or formatter that raises costs that line alone.

Python passes on what a filter raises, and what a handler raises that does not catch it, to the caller that logs. Here
that is an owner of leases, a reader, a server: none of them may end because a log cannot be written. Names and texts
of others are escaped: a message of a service or a user could otherwise begin an entry of its own, or steer the terminal
that shows the log.
"""

from __future__ import annotations

import logging
import sys
import threading
from contextlib import suppress
from functools import cache
from typing import Any

from streamclient.errors import printable

MOST_LOGGED_CHARACTERS = 16_384
"""Of an entry: several errors, or a stack, each of which has a bound of its own."""

_CONTINUES = "\n  "
"""Begins a further line of an entry, as of a stack: a line so far from the margin passes for no entry of its own."""


class SteadyLogger(logging.Logger):
    """What a logger of the package does besides: it raises nothing that its handlers raise."""

    def handle(self, record: logging.LogRecord) -> None:
        """Hand a record over; a failure is told on standard error, once for the process.

        An exception that may be a signal's, as the main thread gets it, is passed on.
        """
        with suppress(Exception):  # arguments may be of any class; the handlers complain of what cannot be formatted
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
        """A record by the program's factory, or by Python's own if that fails."""
        try:
            return super().makeRecord(name, level, *arguments, **named)
        except Exception as error:
            _tell_once(error)
            path, line, text, values, trace = arguments[:5]
            return logging.LogRecord(name, level, path, line, text, values, trace)


def make_printable(record: logging.LogRecord) -> None:
    """Put an entry on one line, whatever names and texts of others stand in it, and bound its length.

    Lines that are indented, as those of a stack, stay below it. An entry that is so already stays as it was made, with
    its template. Raises what formatting it raises.
    """
    message = record.getMessage()
    shown = _CONTINUES.join(printable(each, None) for each in message.rstrip("\n").split(_CONTINUES))
    if len(shown) > MOST_LOGGED_CHARACTERS:
        shown = printable(message, MOST_LOGGED_CHARACTERS)
    if shown != message.rstrip("\n"):
        record.msg, record.args = shown, None
    if record.exc_info and record.exc_info[1] is not None and not record.exc_text:
        from streamclient.base.reasons import plain_traceback  # noqa: PLC0415  # rarely needed, and not quick to import

        record.exc_text = plain_traceback(record.exc_info[1])


@cache
def _steady(kind: type[logging.Logger]) -> type[logging.Logger]:
    return type(f"Steady{kind.__name__}", (SteadyLogger, kind), {})


def logger(name: str) -> logging.Logger:
    """The logger of that name, as ``logging.getLogger`` gives it, and steady from now on."""
    found = logging.getLogger(name)
    if not isinstance(found, SteadyLogger):
        found.__class__ = _steady(type(found))  # type: ignore[arg-type]  # a class is hashable; the program may have its own kind of loggers
    return found


_told = threading.Lock()
"""Held for good from the first failure on."""


def _tell_once(error: BaseException) -> None:
    if not logging.raiseExceptions or not _told.acquire(blocking=False):
        return
    try:
        sys.stderr.write(
            f"streamclient: a handler, filter or formatter of the log raised {type(error).__name__}: {error}; lines "
            "are missing from the log, nothing else is disturbed, and further failures are not reported\n"
        )
    except BaseException:  # there may be no standard error, and the text of an error is the program's, too
        if threading.current_thread() is threading.main_thread() and not isinstance(sys.exc_info()[1], Exception):
            raise
