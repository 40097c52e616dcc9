"""A silent logger for the package's own copies of an SDK client.

The SDK logs every refused call as an error, even if the refusal is an ordinary answer here (a table that does not exist
yet, a lost race for a lease); this package raises and reports the failures that matter. At its logger's initial level,
the SDK also renders every request and answer as text, even if no handler uses it.
"""

from __future__ import annotations

import logging
from copy import copy
from typing import Any

SILENT = logging.Logger("streamclient.sdk", level=logging.CRITICAL + 1)
"""A logger that is not registered with the logging module, so that the user's logging configuration stays untouched."""


def silence(client_copy: Any) -> None:
    """Give a copy of a client its own protocol that logs nothing; the original keeps its protocol."""
    client_copy.protocol = copy(client_copy.protocol)
    client_copy.protocol.logger = SILENT
