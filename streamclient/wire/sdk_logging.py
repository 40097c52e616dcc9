"""A silent logger for this package's own copies of an SDK client.

The SDK logs every refused call as an error. For this package, a refusal is often an ordinary response: a table does not
exist yet, or another worker was faster to write a lease. The package itself raises or reports the failures that matter.
With its initial log level, the SDK also formats every request and response as text, even if no handler uses the text.
"""

from __future__ import annotations

import logging
from copy import copy
from typing import Any

SILENT = logging.Logger("streamclient.sdk", level=logging.CRITICAL + 1)
"""A logger that logs nothing. It is not registered with the logging module, so no configuration of the user affects
it."""


def silence(client_copy: Any) -> None:
    """Give ``client_copy`` its own copy of its protocol object, and let this copy log nothing.

    The client from which ``client_copy`` was made still logs.
    """
    client_copy.protocol = copy(client_copy.protocol)
    client_copy.protocol.logger = SILENT
