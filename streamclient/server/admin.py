"""The admin surface: the methods of ``Control`` as JSON over HTTP, on the server's port, below ``/_admin/``.

Every call must carry ``Authorization: Bearer <access key secret>``. Otherwise, a web page in a browser on the same
machine could control the server, because the page can reach the port.
"""

from __future__ import annotations

import base64
import hmac
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import attrs
from attrs import frozen

from streamclient.base import checks, logs
from streamclient.base.kept_formats import parse_json
from streamclient.server.control import Control, KeyPart
from streamclient.server.fault_json import rule_from_json
from streamclient.server.server_documents import faults_document
from streamclient.server.server_errors import ServiceError

_log = logs.logger(__name__)

ADMIN_PREFIX = "/_admin/"

Arguments = Mapping[str, Any]


@frozen
class AdminReply:
    """The HTTP status and the JSON body with which the admin surface answers a request."""

    status: int
    body: bytes


class Admin:
    """The handler of admin requests for one server. A failed request gets an error status and ``{"error": text}``."""

    def __init__(self, control: Control, secret: str) -> None:
        self._control = control
        self._expected = f"Bearer {secret}".encode()
        self._routes: Mapping[tuple[str, str], Callable[[Arguments], Any]] = {
            ("GET", "shards"): self._shards,
            ("POST", "split"): self._split,
            ("POST", "merge"): self._merge,
            ("POST", "trim"): self._trim,
            ("POST", "expire-iterators"): self._expire_iterators,
            ("POST", "advance-clock"): self._advance_clock,
            ("GET", "faults"): self._list_faults,
            ("POST", "faults"): self._add_fault,
            ("DELETE", "faults"): self._remove_faults,
            ("GET", "requests"): self._requests,
            ("DELETE", "requests"): self._reset_requests,
        }

    def handle(
        self, method: str, path: str, query: Mapping[str, str], headers: Mapping[str, str], body: bytes
    ) -> AdminReply:
        """Execute one admin request and return the reply. A failure becomes an error reply, never an exception.

        The arguments of the operation are the JSON object in ``body``. If ``body`` is empty, the
        arguments are in ``query``.
        """
        given = headers.get("authorization", "").encode("utf-8", "surrogateescape")
        if not hmac.compare_digest(given, self._expected):
            return _reply(401, {"error": "send the header 'Authorization: Bearer <access key secret>'"})
        name = path.removeprefix(ADMIN_PREFIX)
        if (method, name) not in self._routes:
            return self._no_route(method, name)
        try:
            return _reply(200, self.call(method, name, _arguments(query, body)))
        except ServiceError as error:
            return self.refuse(error)
        except (ValueError, TypeError, RecursionError) as error:
            return _reply(400, {"error": str(error)})
        except Exception:
            _log.exception("admin request %s %s failed inside the server", method, path)
            return _reply(500, {"error": "the server failed; see its log"})

    def call(self, method: str, name: str, arguments: Arguments) -> Any:
        """Execute the admin operation ``name`` without authentication; return its result, a value for JSON.

        ``method`` is the HTTP method of the operation. The console calls this function instead of ``handle``, because
        the console authenticates its callers itself.

        Raises:
            KeyError: the operation does not exist.
            ServiceError: the server refuses the operation, for example because the table does not exist.
            ValueError, TypeError: an argument is invalid.
        """
        return self._routes[method, name](arguments)

    def refuse(self, error: ServiceError) -> AdminReply:
        """Return the reply to a request that the server refused with ``error``."""
        return _reply(error.http_status, {"error": f"{error.code}: {error.message}"})

    def _no_route(self, method: str, name: str) -> AdminReply:
        methods = sorted(known for known, route in self._routes if route == name)
        if methods:
            return _reply(405, {"error": f"{name} takes {' or '.join(methods)}, not {method}"})
        names = ", ".join(sorted({route for _, route in self._routes}))
        return _reply(404, {"error": f"there is no admin operation {name!r}; there are {names}"})

    def _shards(self, arguments: Arguments) -> Any:
        return {"shards": [attrs.asdict(shard) for shard in self._control.shards(_text(arguments, "table"))]}

    def _split(self, arguments: Arguments) -> Any:
        at = arguments.get("at")
        children = self._control.split(
            _text(arguments, "table"), _optional_text(arguments, "shard_id"), None if at is None else key_from_json(at)
        )
        return {"shard_ids": list(children)}

    def _merge(self, arguments: Arguments) -> Any:
        names = (_text(arguments, name) for name in ("table", "shard_a", "shard_b"))
        return {"shard_id": self._control.merge(*names)}

    def _trim(self, arguments: Arguments) -> Any:
        count = self._control.trim(
            _text(arguments, "table"),
            shard_id=_optional_text(arguments, "shard_id"),
            before_micros=_optional_whole(arguments, "before_micros"),
            keep_last=_optional_whole(arguments, "keep_last"),
        )
        return {"trimmed": count}

    def _expire_iterators(self, arguments: Arguments) -> Any:
        self._control.expire_iterators(_text(arguments, "table"))
        return {}

    def _advance_clock(self, arguments: Arguments) -> Any:
        seconds = arguments.get("seconds")
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
            raise ValueError(f"seconds must be a number, not {seconds!r}")
        self._control.advance_clock(seconds)
        return {}

    def _list_faults(self, arguments: Arguments) -> Any:
        return faults_document(self._control)

    def _add_fault(self, arguments: Arguments) -> Any:
        return {"id": self._control.add_fault(rule_from_json(arguments))}

    def _remove_faults(self, arguments: Arguments) -> Any:
        if "id" not in arguments:
            return {"removed": self._control.clear_faults()}
        return {"removed": int(self._control.remove_fault(_whole(arguments, "id")))}

    def _requests(self, arguments: Arguments) -> Any:
        return {"requests": [attrs.asdict(count) for count in self._control.requests()]}

    def _reset_requests(self, arguments: Arguments) -> Any:
        self._control.reset_requests()
        return {}


def key_from_json(value: Any) -> tuple[KeyPart, ...]:
    """Convert a JSON value to the first values of a primary key.

    The JSON value is one key value or a list of key values. A key value is a whole number, a string, or
    ``{"base64": text}`` for bytes.
    """
    parts = value if isinstance(value, list) else [value]
    if not parts:
        raise ValueError("a key needs at least one value")
    return tuple(_key_part(part) for part in parts)


def _key_part(value: Any) -> KeyPart:
    if isinstance(value, dict) and list(value) == ["base64"] and isinstance(value["base64"], str):
        return base64.b64decode(value["base64"], validate=True)
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise ValueError(f'a key value must be a whole number, a string or {{"base64": text}}, not {value!r}')
    return value


def _arguments(query: Mapping[str, str], body: bytes) -> Arguments:
    if not body:
        return query
    try:
        arguments = parse_json(body)
    except ValueError as error:
        raise ValueError(f"the body must be a JSON object: {error}") from error
    if not isinstance(arguments, dict):
        raise ValueError(f"the body must be a JSON object, not {arguments!r}")
    return arguments


def _text(arguments: Arguments, name: str) -> str:
    value = arguments.get(name)
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name} must be a non-empty string, not {value!r}")
    return value


def _optional_text(arguments: Arguments, name: str) -> str | None:
    return None if arguments.get(name) is None else _text(arguments, name)


def _whole(arguments: Arguments, name: str) -> int:
    """Return a whole number, which is a text if the arguments come from a query."""
    value = arguments[name]
    if isinstance(value, str):
        with suppress(ValueError):
            value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name} must be a whole number, not {checks.shown(value)}")
    return value


def _optional_whole(arguments: Arguments, name: str) -> int | None:
    value = arguments.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise ValueError(f"{name} must be a whole number, not {value!r}")
    return value


def _reply(status: int, content: Any) -> AdminReply:
    return AdminReply(status, json.dumps(content, default=str).encode("utf-8", "backslashreplace"))
