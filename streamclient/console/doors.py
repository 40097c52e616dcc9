"""The rules for requests that reach the console, and the answers' prohibitions for the browser.

Any page in a browser on this machine can send requests to the console's port, and can let its own name point there.
Nothing is sent on a browser's own authority: there are no cookies. Each rule stops one attack and can be switched off,
so that a test shows the attack getting through without it.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from enum import Enum
from typing import Any, Protocol
from urllib.parse import urlsplit

from attrs import field, frozen

from streamclient.errors import printable
from streamclient.server.auth import Doors

KEY_BYTES = 16
"""The random bytes of a key: 128 bits cannot be guessed."""

_SHOWN_CHARACTERS = 100
"""The largest number of characters of a request that an error repeats."""

API = "/api/v1/"

_FORM = re.compile(r"application/json(?:\s*;.*)?", re.IGNORECASE)


class DoorRule(Enum):
    """The rules, each against one attack."""

    HOST = "one Host that is an address, localhost or an allowed name: no site's name that leads here"
    TARGET = "a target that begins with a slash"
    SITE = "no request that the browser marks as another site's (Sec-Fetch-Site)"
    ORIGIN = "no change by a page of another origin"
    JSON = "changes are JSON, which a form cannot send"
    KEY = "the key, if the console has one"
    HEADERS = "headers that forbid frames, foreign scripts and readers"
    BODY = "a body of at most 1 MB"
    FEEDS = "at most 32 feeds"
    READ_ONLY = "no change, unless the console allows changes"
    PROXY = "what a proxy tells counts only behind a proxy"


REQUESTED_BY: ContextVar[str] = ContextVar("REQUESTED_BY", default="")
"""The name of the user who sent the present request, as a proxy told it; empty if no proxy did."""


class ConsoleError(Exception):
    """A refusal: a status, a code, a text, and an advice."""

    def __init__(self, status: int, code: str, text: str, advice: str = "") -> None:
        super().__init__(text)
        self.status = status
        self.code = code
        self.text = text
        self.advice = advice

    def document(self) -> dict[str, Any]:
        """Return the JSON form of the refusal, whose texts are printable, as in the log."""
        return {"error": {"code": self.code, "text": printable(self.text), "advice": printable(self.advice)}}


def found(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a document, or raise the refusal that the document is.

    Raises:
        ConsoleError: the document is a refusal.
    """
    error = document.get("error")
    if error is not None:
        status = 503 if error["code"] in ("not-read-yet", "unreadable") else 404
        raise ConsoleError(status, error["code"], error["text"], error["advice"])
    return document


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
    allows_changes: bool = True
    is_behind_proxy: bool = False
    """Whether pages may come by another scheme and name: those of a proxy, which is one of the names of ``hosts``."""
    who_header: str = ""
    """The header in which the proxy tells who asks; empty for none."""

    def who(self, headers: Headers) -> str:
        """Return the name of the user who asks, as the proxy tells it; empty without a proxy."""
        is_told = self.is_behind_proxy or DoorRule.PROXY not in self.rules
        return printable(_shown(_single(headers, self.who_header))) if is_told and self.who_header else ""

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
        if self.key is not None and DoorRule.KEY in self.rules and path.startswith(API):
            given = _single(headers, "Authorization").encode("utf-8", "surrogateescape")
            if not hmac.compare_digest(given, f"Bearer {self.key}".encode()):
                advice = "Open the address that the command printed, with its part after #; programs send it as "
                raise ConsoleError(401, "key", "the key is missing or wrong", f"{advice}'Authorization: Bearer KEY'.")
        if method not in ("GET", "HEAD"):
            self._check_change(host, headers)

    def _checked_host(self, headers: Headers) -> str:
        given = headers.getall("Host", [])
        if DoorRule.HOST in self.rules:
            if len(given) != 1:
                raise ConsoleError(400, "host", f"a request has one Host header, this one has {len(given)}")
            if not self.hosts.knows(given[0]):
                advice = "Use 127.0.0.1 or localhost, or start it with --allowed-host NAME."
                raise ConsoleError(403, "host", f"the console is not {_shown(given[0])}", advice)
        return given[0] if given else ""

    def _check_change(self, host: str, headers: Headers) -> None:
        if DoorRule.READ_ONLY in self.rules and not self.allows_changes:
            advice = "Start it with --allow-actions to allow changes."
            raise ConsoleError(403, "read-only", "this console only shows", advice)
        origins = headers.getall("Origin", [])
        if DoorRule.ORIGIN in self.rules and not all(self._is_own(origin, host) for origin in origins):
            raise ConsoleError(403, "origin", f"a page of {_shown(origins[0])} cannot change anything here")
        kind = _single(headers, "Content-Type")
        if DoorRule.JSON in self.rules and not _FORM.fullmatch(kind):
            raise ConsoleError(415, "json", f"a change is sent as application/json, not as {_shown(kind) or 'nothing'}")

    def _is_own(self, origin: str, host: str) -> bool:
        """Return whether an origin is the console's own. A proxy has another scheme, and may put another ``Host``."""
        if origin == f"http://{host}":
            return True
        scheme, _, place = origin.partition("://")
        name = place.partition(":")[0].lower()
        return self.is_behind_proxy and scheme in ("http", "https") and (place == host or name in self.hosts.names)


def split_target(target: str) -> tuple[str, str]:
    """Return the path of a target, and its query."""
    if target.startswith("/"):
        path, _, query = target.partition("?")
        return path, query
    parts = urlsplit(target)
    return parts.path, parts.query


def _single(headers: Headers, name: str) -> str:
    """Return a header. If it was sent more than once, the values are joined, so that no rule accepts them."""
    return ", ".join(headers.getall(name, []))


def _shown(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
