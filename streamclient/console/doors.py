"""The rules by which the console accepts requests, and the headers that restrict a browser with a console's page.

A page of any website, in a browser on this machine, can send requests to the console's port. The website can also let
its host name resolve to this machine. The console has no cookies, so a browser adds no authority to such a request.
Each rule stops one attack. For each rule, a test shows that its attack succeeds if this rule is switched off.
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
"""The number of random bytes in a console's key. An attacker cannot guess their 128 bits."""

_SHOWN_CHARACTERS = 100
"""The largest number of characters of a request's text that an error message repeats."""

_MOST_DIGITS = 18
"""The largest number of digits in a query's number. Each such number fits into 64 bits. Python refuses thousands of
digits with an error of its own."""

API = "/api/v1/"

_FORM = re.compile(r"application/json(?:\s*;.*)?", re.IGNORECASE)


class DoorRule(Enum):
    """The rules for requests, each against one attack. Each value says what the rule requires."""

    HOST = "one Host header, with an address, localhost or an allowed name, but not the name of another site"
    TARGET = "a target that begins with a slash"
    SITE = "no request that the browser marks as another site's (Sec-Fetch-Site)"
    ORIGIN = "no change by a page of another origin"
    JSON = "changes are JSON, which a form cannot send"
    KEY = "the key, if the console has one"
    HEADERS = "headers that forbid frames, foreign scripts and reading by other sites"
    BODY = "a body of at most 1 MB"
    FEEDS = "at most 32 feeds"
    READ_ONLY = "changes only if the console allows them"
    PROXY = "the user that a header names counts only if the console is behind a proxy"


REQUESTED_BY: ContextVar[str] = ContextVar("REQUESTED_BY", default="")
"""The name of the user who sent the present request, as a proxy states it; empty if no proxy states a name."""


class ConsoleError(Exception):
    """A refusal of a request: an HTTP status, a code for programs, a text, and an advice."""

    def __init__(self, status: int, code: str, text: str, advice: str = "") -> None:
        super().__init__(text)
        self.status = status
        self.code = code
        self.text = text
        self.advice = advice

    def document(self) -> dict[str, Any]:
        """Return the refusal as a document for the answer. Its texts have no control characters."""
        return {"error": {"code": self.code, "text": printable(self.text), "advice": printable(self.advice)}}


def found(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return ``document`` unless it is a refusal.

    Raises:
        ConsoleError: the document is a refusal. The error has the same code and texts.
    """
    error = document.get("error")
    if error is not None:
        status = 503 if error["code"] in ("not-read-yet", "unreadable") else 404
        raise ConsoleError(status, error["code"], error["text"], error["advice"])
    return document


class Headers(Protocol):
    """The headers of a request. A header that was sent several times has several values."""

    def getall(self, key: str, default: Any, /) -> Sequence[str]:
        """Return all values of the header ``key``, or ``default`` if it was not sent."""


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
"""The headers of every answer. The page inserts names and values only as text, so a script in a name or value does not
run. The security policy keeps the script from running even if the page makes a mistake."""


def new_key() -> str:
    """Return a new random key for a console."""
    return secrets.token_urlsafe(KEY_BYTES)


@frozen
class ConsoleDoors:
    """The checks that one console makes of each request before it is routed."""

    hosts: Doors
    key: str | None = field(default=None, repr=False)
    """The key that requests for documents must carry; ``None`` if every client of this machine may read them."""
    rules: frozenset[DoorRule] = frozenset(DoorRule)
    allows_changes: bool = True
    is_behind_proxy: bool = False
    """Whether browsers reach the console through a proxy. The address in the browser then has the scheme and the host
    name of the proxy. This host name is in ``hosts``."""
    who_header: str = ""
    """The header in which the proxy states the user who sent a request; empty if the proxy states no user."""

    def who(self, headers: Headers) -> str:
        """Return the name of the user who sent the request, as the proxy states it; empty without a proxy."""
        is_told = self.is_behind_proxy or DoorRule.PROXY not in self.rules
        return printable(_shown(_single(headers, self.who_header))) if is_told and self.who_header else ""

    def headers(self) -> Mapping[str, str]:
        """Return the headers of every answer."""
        return HEADERS if DoorRule.HEADERS in self.rules else {}

    def check(self, method: str, target: str, headers: Headers) -> None:
        """Check the method, the target and the headers of a request.

        Raises:
            ConsoleError: a rule refuses the request.
        """
        host = self._checked_host(headers)
        if DoorRule.TARGET in self.rules and not target.startswith("/"):
            raise ConsoleError(400, "target", f"the target {_shown(target)} does not begin with a slash")
        path, _ = split_target(target)
        is_page = path == "/" and method == "GET"
        site = _single(headers, "Sec-Fetch-Site")
        # A link on another site may open the console's page. Further requests then come from the console's own page.
        if DoorRule.SITE in self.rules and not is_page and site not in ("", "same-origin", "none"):
            raise ConsoleError(403, "site", f"a page of another site sent this request ({_shown(site)})")
        if self.key is not None and DoorRule.KEY in self.rules and path.startswith(API):
            given = _single(headers, "Authorization").encode("utf-8", "surrogateescape")
            if not hmac.compare_digest(given, f"Bearer {self.key}".encode()):
                advice = "Open the address that the command printed, with the key after #; programs send the key as "
                raise ConsoleError(401, "key", "the key is missing or wrong", f"{advice}'Authorization: Bearer KEY'.")
        if method not in ("GET", "HEAD"):
            self._check_change(host, headers)

    def _checked_host(self, headers: Headers) -> str:
        given = headers.getall("Host", [])
        if DoorRule.HOST in self.rules:
            if len(given) != 1:
                raise ConsoleError(400, "host", f"a request needs exactly one Host header, not {len(given)}")
            if not self.hosts.knows(given[0]):
                advice = "Use 127.0.0.1 or localhost, or start the console with --allowed-host NAME."
                raise ConsoleError(403, "host", f"the console does not have the name {_shown(given[0])}", advice)
        return given[0] if given else ""

    def _check_change(self, host: str, headers: Headers) -> None:
        if DoorRule.READ_ONLY in self.rules and not self.allows_changes:
            advice = "Start the console with --allow-actions to allow changes."
            raise ConsoleError(403, "read-only", "this console does not allow changes", advice)
        origins = headers.getall("Origin", [])
        if DoorRule.ORIGIN in self.rules and not all(self._is_own(origin, host) for origin in origins):
            raise ConsoleError(403, "origin", f"a page of {_shown(origins[0])} cannot change anything here")
        kind = _single(headers, "Content-Type")
        if DoorRule.JSON in self.rules and not _FORM.fullmatch(kind):
            raise ConsoleError(415, "json", f"send a change as application/json, not as {_shown(kind) or 'nothing'}")

    def _is_own(self, origin: str, host: str) -> bool:
        """Return whether ``origin`` belongs to the console or to the proxy before it.

        ``host`` is the value of the header ``Host``. The origin of a page that came through a proxy may have another
        scheme and another host, because the proxy has its own scheme, and may change the header.
        """
        if origin == f"http://{host}":
            return True
        scheme, _, place = origin.partition("://")
        name = place.partition(":")[0].lower()
        return self.is_behind_proxy and scheme in ("http", "https") and (place == host or name in self.hosts.names)


def number_in(text: str) -> int | None:
    """Return the number in a query's parameter; ``None`` if ``text`` is not a number of at most 18 digits."""
    return int(text) if text.isdecimal() and len(text) <= _MOST_DIGITS else None


def split_target(target: str) -> tuple[str, str]:
    """Return the path and the query of a request's target."""
    if target.startswith("/"):
        path, _, query = target.partition("?")
        return path, query
    parts = urlsplit(target)
    return parts.path, parts.query


def _single(headers: Headers, name: str) -> str:
    """Return a header's value. Several values are joined to one text, which no rule accepts."""
    return ", ".join(headers.getall(name, []))


def _shown(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
