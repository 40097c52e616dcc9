"""The health check of the image: exit code 0 if its program is well, else 1.

It asks a worker at port 9100 for ``/live``, and a local Tablestore at port 8180
for anything. The variable ``HEALTH_URLS`` names other addresses, with blanks
between them. At least one address has to answer. An address that answers with a
status of 500 or more, or listens and does not answer, is unwell.
"""

from __future__ import annotations

import os
import sys
from contextlib import closing
from http.client import HTTPConnection, HTTPException
from urllib.parse import urlsplit

URLS = "http://127.0.0.1:9100/live http://127.0.0.1:8180/"

ANSWER_SECONDS = 2.0
"""The longest wait for an answer. The image gives the check five seconds."""

WELL, UNWELL = 0, 1
"""The exit codes of a health check; an engine reserves all others."""


def status_of(url: str) -> int:
    """Return the status of the answer to a GET.

    Raises:
        OSError: nothing listens, or the answer takes too long.
        HTTPException: the answer is not HTTP.
    """
    parts = urlsplit(url)
    with closing(
        HTTPConnection(parts.netloc, timeout=ANSWER_SECONDS)
    ) as connection:
        connection.request("GET", parts.path or "/")
        return connection.getresponse().status


def main(urls: list[str]) -> int:
    """Ask each address, print the first trouble, and return the exit code."""
    has_answer = False
    for url in urls:
        try:
            status = status_of(url)
        except ConnectionRefusedError:
            continue
        except (OSError, HTTPException) as error:
            print(f"{url}: {error or type(error).__name__}")
            return UNWELL
        # A local Tablestore refuses every GET with 405, so it takes requests.
        if status >= 500:
            print(f"{url}: status {status}")
            return UNWELL
        has_answer = True
    if not has_answer:
        print(f"nothing listens at {' or '.join(urls)}")
    return WELL if has_answer else UNWELL


if __name__ == "__main__":
    sys.exit(main(os.environ.get("HEALTH_URLS", URLS).split()))
