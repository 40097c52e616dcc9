"""A silent logger for the package's own copies of an SDK client.

The SDK logs every refused call as an error, also those whose refusal is an ordinary answer here (a table that does not
exist yet, a lost race for a lease); failures that matter are raised and reported by this package. And at the level
that its own logger starts with, it renders every request and answer as text, whether or not anything listens.
"""

from __future__ import annotations

import logging
from copy import copy
from typing import Any

SILENT = logging.Logger("streamclient.sdk", level=logging.CRITICAL + 1)
"""Not registered with the logging module, so that nothing of the user's logging configuration is touched."""


def silence(client_copy: Any) -> None:
    """Give a copy of a client a protocol of its own that logs nothing; the original keeps its own."""
    client_copy.protocol = copy(client_copy.protocol)
    client_copy.protocol.logger = SILENT
