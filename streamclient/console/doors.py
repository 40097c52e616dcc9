"""Which requests reach the console, and what every answer forbids the browser.

Any page in a browser on this machine can send requests to the console's port, and can let its own name point there.
Nothing is sent on a browser's own authority: there are no cookies. Each rule stops one attack and can be switched off,
so that a test shows the attack getting through without it.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Protocol
from urllib.parse import urlsplit

from attrs import field, frozen

from streamclient.server.auth import Doors

KEY_BYTES = 16
"""The random bytes of a key: 128 bits cannot be guessed."""

_SHOWN_CHARACTERS = 100
"""The largest number of characters of a request that an error repeats."""

API = "/api/v1/"

_FORM = re.compile(r"application/json(?:\s*;.*)?", re.IGNORECASE)


class DoorRule(Enum):
    """The rules, each against one attack."""

    HOST = "one Host that is an address, localhost or an allowed name"
    TARGET = "a target that begins with a slash"
    SITE = "no request of another site's page"
    ORIGIN = "no change by a page of another origin"
    JSON = "changes are JSON, which a form cannot send"
    KEY = "the key, if the console has one"
    HEADERS = "headers that forbid frames, foreign scripts and readers"
    BODY = "a body of at most 1 MB"
    FEEDS = "at most 32 feeds"


class ConsoleError(Exception):
    """A refusal: a status, a code, a text, and an advice."""

    def __init__(self, status: int, code: str, text: str, advice: str = "") -> None:
        super().__init__(text)
        self.status = status
        self.code = code
        self.text = text
        self.advice = advice

    def document(self) -> dict[str, Any]:
        """Return the JSON form of the refusal."""
        return {"error": {"code": self.code, "text": self.text, "advice": self.advice}}


class Headers(Protocol):
    """The headers of a request, each as often as it was sent."""

    def getall(self, key: str, default: Any, /) -> Sequence[str]:
        """Return all values of a header, or ``default``."""


HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Server": "streamclient",
}
"""The headers of every answer. The page sets text only, so scripts in names and values stay text; the policy stops the
browser if the page ever makes a mistake there."""


def new_key() -> str:
    """Return a new random key."""
    return secrets.token_urlsafe(KEY_BYTES)


@frozen
class ConsoleDoors:
    """The checks of one console, made before a request is routed."""

    hosts: Doors
    key: str | None = field(default=None, repr=False)
    """The key that requests for data carry; ``None`` lets every client of this machine in."""
    rules: frozenset[DoorRule] = frozenset(DoorRule)

    def headers(self) -> Mapping[str, str]:
        """Return the headers of every answer."""
        return HEADERS if DoorRule.HEADERS in self.rules else {}

    def check(self, method: str, target: str, headers: Headers) -> None:
        """Accept a request by its head.

        Raises:
            ConsoleError: a rule refuses the request.
        """
        host = self._checked_host(headers)
        if DoorRule.TARGET in self.rules and not target.startswith("/"):
            raise ConsoleError(400, "target", f"the target {_shown(target)} does not begin with a slash")
        path, _ = split_target(target)
        is_page = path == "/" and method == "GET"
        site = _single(headers, "Sec-Fetch-Site")
        # A link of another site may open the page itself; what the page then loads comes from its own site.
        if DoorRule.SITE in self.rules and not is_page and site not in ("", "same-origin", "none"):
            raise ConsoleError(403, "site", f"a page of another site sent this request ({_shown(site)})")
        if method not in ("GET", "HEAD"):
            self._check_change(host, headers)
        if self.key is not None and DoorRule.KEY in self.rules and path.startswith(API):
            given = _single(headers, "Authorization").encode("utf-8", "surrogateescape")
            if not hmac.compare_digest(given, f"Bearer {self.key}".encode()):
                advice = "Open the address that the command printed, with its part after #; programs send it as "
                raise ConsoleError(401, "key", "the key is missing or wrong", f"{advice}'Authorization: Bearer KEY'.")

    def _checked_host(self, headers: Headers) -> str:
        given = headers.getall("Host", [])
        if DoorRule.HOST in self.rules:
            if len(given) != 1:
                raise ConsoleError(400, "host", f"a request has one Host header, this one has {len(given)}")
            if not self.hosts.knows(given[0]):
                advice = "Use 127.0.0.1 or localhost, or start the server with --allowed-host NAME."
                raise ConsoleError(403, "host", f"the console is not {_shown(given[0])}", advice)
        return given[0] if given else ""

    def _check_change(self, host: str, headers: Headers) -> None:
        origins = headers.getall("Origin", [])
        if DoorRule.ORIGIN in self.rules and any(origin != f"http://{host}" for origin in origins):
            raise ConsoleError(403, "origin", f"a page of {_shown(origins[0])} cannot change anything here")
        kind = _single(headers, "Content-Type")
        if DoorRule.JSON in self.rules and not _FORM.fullmatch(kind):
            raise ConsoleError(415, "json", f"a change is sent as application/json, not as {_shown(kind) or 'nothing'}")


def split_target(target: str) -> tuple[str, str]:
    """Return the path of a target, and its query."""
    if target.startswith("/"):
        path, _, query = target.partition("?")
        return path, query
    parts = urlsplit(target)
    return parts.path, parts.query


def _single(headers: Headers, name: str) -> str:
    """Return a header; two of them are joined, and so are neither of the two."""
    return ", ".join(headers.getall(name, []))


def _shown(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
