"""Loaded with the package: what is logged, here and by the SDK, before any handler has it.

The SDK, imported later, does not print that it has no native codec. It warns of that twice on every import, on every
Python for which it ships none; without any configuration of logging Python prints it. Nothing else that the SDK logs is
touched.

An entry of this package is one line, whatever names and texts of others stand in it: else a message of a service or a
user could begin an entry of its own, or steer the terminal that shows the log.
"""

from __future__ import annotations

import logging
from contextlib import suppress

from streamclient.outages import make_printable


def _is_worth_saying(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith("Native C++")


class _OneLine(logging.NullHandler):
    """Stands before all handlers above the package's loggers, and makes the entry ``printable`` for them.

    An entry that is so already reaches them as it was made, with its template.
    """

    def handle(self, record: logging.LogRecord) -> bool:
        """Never raises: what cannot be formatted is for the handlers to complain about."""
        with suppress(Exception):  # arguments may be of any class
            make_printable(record)
        last = logging.lastResort
        if last is not None and record.levelno >= last.level and not _is_handled(logging.getLogger(record.name)):
            last.handle(record)  # as Python does where there is no handler; this one does not count
        return True


def _is_handled(logger: logging.Logger | None) -> bool:
    while logger is not None:
        if any(not isinstance(each, _OneLine) for each in logger.handlers):
            return True
        logger = logger.parent if logger.propagate else None
    return False


for _name in ("tablestore.encoder", "tablestore.decoder"):
    logging.getLogger(_name).addFilter(_is_worth_saying)
logging.getLogger("streamclient").addHandler(_OneLine())
