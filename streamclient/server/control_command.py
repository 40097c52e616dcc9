"""``streamclient control``: the admin surface of a running server, from the command line."""

from __future__ import annotations

import argparse
import http.client
import json
import sys
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlencode, urlsplit

from streamclient.server.command import DEFAULT_PORT, add_secret_arguments, secret_of

TIMEOUT_SECONDS = 30.0
"""For one admin call; those never wait for anything but the engine's lock."""

EXIT_REFUSED = 1
"""The server answered with an error."""

EXIT_UNREACHABLE = 2
"""No server answered."""


class ControlError(Exception):
    """An admin call failed; the text is for the user."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand with its own subcommands."""
    parser = commands.add_parser(
        "control",
        help="split, merge, trim, advance the clock of, or inject faults into a running local Tablestore",
        description="Control a running local Tablestore.",
    )
    parser.add_argument("--endpoint", default=f"http://127.0.0.1:{DEFAULT_PORT}", help="server (default: %(default)s)")
    add_secret_arguments(parser, "the server's secret")
    parser.add_argument("--json", action="store_true", help="print the server's answer as JSON")
    actions = parser.add_subparsers(title="actions", required=True, metavar="ACTION")
    _add_shard_actions(actions)
    _add_data_actions(actions)
    _add_fault_actions(actions.add_parser("fault", help="fault rules").add_subparsers(required=True, metavar="ACTION"))


Actions = Any  # argparse's own type is generic over a private class


def _add_action(actions: Actions, name: str, call: Callable[..., Any], text: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(name, help=text, description=text)
    parser.set_defaults(run=run, call=call)
    return parser


def _add_shard_actions(actions: Actions) -> None:
    shards = _add_action(actions, "shards", _shards, "list the shards of a table's stream")
    shards.add_argument("table")
    split = _add_action(actions, "split", _split, "split an open shard in two")
    split.add_argument("table")
    split.add_argument("shard", nargs="?", help="shard id; default: the open shard with most rows")
    split.add_argument("--at", metavar="KEY", help='first key of the second child: text, a number, or JSON ["a", 1]')
    merge = _add_action(actions, "merge", _merge, "merge two adjacent open shards")
    merge.add_argument("table")
    merge.add_argument("shard_a")
    merge.add_argument("shard_b")


def _add_data_actions(actions: Actions) -> None:
    trim = _add_action(actions, "trim", _trim, "forget stream records as if their retention were over")
    trim.add_argument("table")
    trim.add_argument("shard", nargs="?", help="shard id; default: all shards")
    trim.add_argument("--before-micros", type=int, metavar="MICROSECONDS", help="forget records written earlier")
    trim.add_argument("--keep-last", type=int, metavar="N", help="forget all but the N newest records of each shard")
    expire = _add_action(actions, "expire-iterators", _expire_iterators, "make all iterators handed out so far fail")
    expire.add_argument("table")
    advance = _add_action(actions, "advance-clock", _advance_clock, "move the server's clock forward")
    advance.add_argument("seconds", type=float)
    requests = _add_action(actions, "requests", _requests, "show request counters by operation and table")
    requests.add_argument("--reset", action="store_true", help="set the counters to zero afterwards")


def _add_fault_actions(actions: Actions) -> None:
    add = _add_action(actions, "add", _add_fault, "add a fault rule")
    add.add_argument("rule", help='JSON: {"operation": "PutRow", "times": 1, "action": {"kind": "cut"}}')
    _add_action(actions, "list", _list_faults, "list the fault rules with their counters")
    clear = _add_action(actions, "clear", _clear_faults, "forget one fault rule, or all")
    clear.add_argument("id", nargs="?", type=int, help="default: all")


def run(arguments: argparse.Namespace) -> int:
    """Do the action and print what came of it; the exit code."""
    try:
        answer, text = arguments.call(_Session(arguments.endpoint, secret_of(arguments)), arguments)
    except ControlError as error:
        print(f"streamclient control: {error}", file=sys.stderr)
        return error.exit_code
    except ValueError as error:
        print(f"streamclient control: {error}", file=sys.stderr)
        return EXIT_UNREACHABLE
    print(json.dumps(answer) if arguments.json else text)
    return 0


class _Session:
    """Calls to one server."""

    def __init__(self, endpoint: str, secret: str) -> None:
        self._endpoint = endpoint
        self._secret = secret

    def call(self, method: str, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        given = {key: value for key, value in arguments.items() if value is not None}
        if method == "POST":
            status, content = self._send(method, name, json.dumps(given).encode())
        else:
            status, content = self._send(method, f"{name}?{urlencode(given)}", None)
        try:
            answer: dict[str, Any] = json.loads(content)
        except ValueError as error:
            raise ControlError(f"{self._endpoint} is not a local Tablestore: status {status}", EXIT_REFUSED) from error
        if status != 200:
            raise ControlError(str(answer.get("error", answer)), EXIT_REFUSED)
        return answer

    def _send(self, method: str, target: str, body: bytes | None) -> tuple[int, bytes]:
        parts = urlsplit(self._endpoint)
        if parts.scheme != "http" or not parts.hostname:
            raise ControlError(f"--endpoint must be http://HOST:PORT, not {self._endpoint!r}", EXIT_UNREACHABLE)
        headers = {"Authorization": f"Bearer {self._secret}"}
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=TIMEOUT_SECONDS)
        try:
            connection.request(method, f"/_admin/{target}", body=body, headers=headers)
            response = connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            raise ControlError(f"no answer from {self._endpoint}: {error}", EXIT_UNREACHABLE) from error
        finally:
            connection.close()


Outcome = tuple[dict[str, Any], str]
"""The server's answer, and the same for people."""


def _shards(session: _Session, arguments: argparse.Namespace) -> Outcome:
    answer = session.call("GET", "shards", {"table": arguments.table})
    return answer, "\n".join(_shard_line(shard) for shard in answer["shards"]) or "no shards"


def _shard_line(shard: Mapping[str, Any]) -> str:
    return "  ".join(f"{name}={value}" for name, value in shard.items())


def _split(session: _Session, arguments: argparse.Namespace) -> Outcome:
    at = None if arguments.at is None else _key(arguments.at)
    answer = session.call("POST", "split", {"table": arguments.table, "shard_id": arguments.shard, "at": at})
    return answer, "\n".join(answer["shard_ids"])


def _key(text: str) -> Any:
    """JSON where it is a number, a string, a list or an object; any other text stands for itself."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return text if value is None or isinstance(value, (bool, float)) else value


def _merge(session: _Session, arguments: argparse.Namespace) -> Outcome:
    names = {"table": arguments.table, "shard_a": arguments.shard_a, "shard_b": arguments.shard_b}
    answer = session.call("POST", "merge", names)
    return answer, answer["shard_id"]


def _trim(session: _Session, arguments: argparse.Namespace) -> Outcome:
    limits = {"before_micros": arguments.before_micros, "keep_last": arguments.keep_last}
    answer = session.call("POST", "trim", {"table": arguments.table, "shard_id": arguments.shard, **limits})
    return answer, f"records forgotten: {answer['trimmed']}"


def _expire_iterators(session: _Session, arguments: argparse.Namespace) -> Outcome:
    return session.call("POST", "expire-iterators", {"table": arguments.table}), "iterators expired"


def _advance_clock(session: _Session, arguments: argparse.Namespace) -> Outcome:
    answer = session.call("POST", "advance-clock", {"seconds": arguments.seconds})
    return answer, f"clock advanced by {arguments.seconds:g} s"


def _requests(session: _Session, arguments: argparse.Namespace) -> Outcome:
    answer = session.call("GET", "requests", {})
    if arguments.reset:
        session.call("DELETE", "requests", {})
    return answer, "\n".join(_shard_line(count) for count in answer["requests"]) or "no requests"


def _add_fault(session: _Session, arguments: argparse.Namespace) -> Outcome:
    try:
        rule = json.loads(arguments.rule)
    except ValueError as error:
        raise ControlError(f"the rule must be a JSON object: {error}", EXIT_REFUSED) from error
    if not isinstance(rule, dict):
        raise ControlError(f"the rule must be a JSON object, not {rule!r}", EXIT_REFUSED)
    answer = session.call("POST", "faults", rule)
    return answer, f"fault {answer['id']} added"


def _list_faults(session: _Session, arguments: argparse.Namespace) -> Outcome:
    answer = session.call("GET", "faults", {})
    return answer, "\n".join(_fault_line(fault) for fault in answer["faults"]) or "no faults"


def _fault_line(fault: Mapping[str, Any]) -> str:
    return f"{fault['id']}: struck {fault['struck']} of {fault['seen']}: {json.dumps(fault['rule'])}"


def _clear_faults(session: _Session, arguments: argparse.Namespace) -> Outcome:
    answer = session.call("DELETE", "faults", {"id": arguments.id})
    return answer, f"faults removed: {answer['removed']}"
