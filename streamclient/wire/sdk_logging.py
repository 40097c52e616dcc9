"""A silent logger for the package's own copies of an SDK client.

The SDK logs every refused call as an error. For this package such a refusal is often an ordinary answer: a table does
not exist yet, or another worker was faster to write a lease. The package itself raises or reports the failures that
matter. At the initial level of its logger, the SDK also turns every request and answer into text, even if no handler
uses the text.
"""

from __future__ import annotations

import logging
from copy import copy
from typing import Any

SILENT = logging.Logger("streamclient.sdk", level=logging.CRITICAL + 1)
"""A logger that is not registered with the logging module, so that the user's logging configuration stays untouched."""


def silence(client_copy: Any) -> None:
    """Give a copy of a client a protocol of its own that logs nothing. The original client keeps its protocol."""
    client_copy.protocol = copy(client_copy.protocol)
    client_copy.protocol.logger = SILENT
