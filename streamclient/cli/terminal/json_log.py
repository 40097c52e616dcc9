"""The log in JSON on standard error. Each line is a document with a log entry or with a text of the command itself."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from streamclient.base import logs
from streamclient.base.reasons import described, traceback_of
from streamclient.base.times import MICROS_PER_SECOND, now_micros, utc_text
from streamclient.cli.terminal.output import json_text, without_last_words

SPEAKER = "streamclient"
"""The logger's name in log documents for lines that the command prints without a logger."""

_PRINTING = threading.Lock()


def line_of(micros: int, level: str, logger: str, message: str, **more: object) -> str:
    """Return a log document as one line of JSON. Fields of ``more`` that are empty or ``None`` are left out."""
    document: dict[str, Any] = {"time": utc_text(micros), "level": level, "logger": logger, "message": message}
    document.update({name: str(value) for name, value in more.items() if value not in (None, "")})
    return json_text(document, sys.stderr)


class JsonLogHandler(logging.Handler):
    """A log handler that prints each entry as a JSON document.

    The fields are ``time`` in UTC, ``level``, ``logger``, ``message``, ``worker``, ``shard`` if the entry is about a
    shard, and ``error_type``, ``error`` and ``stack`` if the entry is about an error. Empty fields are left out.
    """

    def __init__(self, worker: str = "") -> None:
        super().__init__()
        self._worker = worker

    def emit(self, record: logging.LogRecord) -> None:
        """Print one log entry."""
        try:
            micros = round(record.created * MICROS_PER_SECOND)
            more = {"worker": self._worker, "shard": getattr(record, logs.SHARD, None), **_error_of(record)}
            _print(line_of(micros, record.levelname.lower(), record.name, _message_of(record), **more))
        except Exception:
            self.handleError(record)

    def tell(self, *lines: str, level: str = "info") -> None:
        """Print ``lines``, which the command tells without a logger, as one JSON document."""
        _print(line_of(now_micros(), level, SPEAKER, "\n".join(lines), worker=self._worker))


def _print(line: str) -> None:
    with _PRINTING:
        print(line, file=sys.stderr, flush=True)


def _message_of(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception as error:  # the arguments of the entry do not fit its template
        return f"{record.msg!s}, whose arguments do not fit: {described(error)}"


def _error_of(record: logging.LogRecord) -> Mapping[str, object]:
    """Return the fields for the error of a log entry. An entry with a stack but no error has only ``stack``."""
    error = record.exc_info[1] if record.exc_info else None
    if error is None:
        return {"stack": record.stack_info}
    text = "text that cannot be told"
    with suppress(Exception):
        text = str(error)
    return {"error_type": type(error).__name__, "error": text, "stack": record.exc_text or traceback_of(error)}


def log_as_json(level: str | int, worker: str = "") -> JsonLogHandler:
    """Print log entries of ``level`` or above, and Python's warnings, as JSON from now on; return the handler."""
    handler = JsonLogHandler(worker)
    logging.basicConfig(level=level, handlers=[without_last_words(handler)])
    logging.captureWarnings(capture=True)
    return handler
