"""``streamclient control``: control a running local Tablestore through its admin calls."""

from __future__ import annotations

import argparse
import http.client
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode

from streamclient.base.checks import host_and_port
from streamclient.base.kept_formats import parse_json
from streamclient.cli.options import connection_of, connection_parent
from streamclient.cli.terminal.commands import EXIT_DONE, CommandFailed, runs
from streamclient.cli.terminal.layout import Column, matching_id
from streamclient.cli.terminal.output import id_shortener, print_json, print_table, print_text
from streamclient.errors import advice_to_start

TIMEOUT_SECONDS = 30.0
"""The time limit of one admin call, in seconds. This is more than a call needs: it waits only for the lock of the
server's engine."""

SHARD_COLUMNS = (
    Column("SHARD"),
    Column("STATE"),
    Column("RECORDS"),
    Column("PARENTS", drop=1, least=8),
    Column("KEYS", drop=2, least=12),
    Column("OLDEST", drop=4),
    Column("NEWEST", drop=3),
)
REQUEST_COLUMNS = (
    Column("OPERATION"),
    Column("TABLE", least=8),
    Column("REQUESTS"),
    Column("ERRORS"),
    Column("ROWS READ", drop=1),
    Column("ROWS WRITTEN", drop=2),
    Column("READ UNITS", drop=3),
    Column("WRITE UNITS", drop=4),
)
FAULT_COLUMNS = (Column("FAULT"), Column("STRUCK"), Column("SEEN"), Column("RULE", least=20))


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand ``control`` with its actions."""
    parser = commands.add_parser(
        "control",
        help="split, merge, trim, advance the clock of, or inject faults into a running local Tablestore",
        description="Control a running local Tablestore.",
        parents=[_server_options(is_group=True)],
    )
    actions = parser.add_subparsers(title="actions", required=True, metavar="ACTION")
    _add_shard_actions(actions)
    _add_data_actions(actions)
    fault = actions.add_parser(
        "fault", help="fault rules", description="Fault rules.", parents=[_server_options(is_group=True)]
    )
    _add_fault_actions(fault.add_subparsers(title="actions", required=True, metavar="ACTION"))


def _server_options(*, is_group: bool = False) -> argparse.ArgumentParser:
    return connection_parent(
        only=("endpoint", "access-key-secret"), json="print the server's answer as JSON", is_group=is_group
    )


Actions = Any  # groups of subcommands, for which argparse has only a private class


def _add_action(actions: Actions, name: str, call: Callable[..., Any], text: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(
        name, help=text, description=f"{text[0].upper()}{text[1:]}.", parents=[_server_options()]
    )
    parser.set_defaults(call=call)
    runs(parser, run)
    return parser


def _add_shard_actions(actions: Actions) -> None:
    shards = _add_action(actions, "shards", _shards, "list the shards of a table's stream")
    shards.add_argument("table")
    split = _add_action(actions, "split", _split, "split an open shard in two")
    split.add_argument("table")
    split.add_argument(
        "shard", nargs="?", help="shard id, or its first characters; default: the open shard with most rows"
    )
    split.add_argument("--at", metavar="KEY", help='first key of the second child: text, a number, or JSON ["a", 1]')
    merge = _add_action(actions, "merge", _merge, "merge two adjacent open shards")
    merge.add_argument("table")
    merge.add_argument("shard_a")
    merge.add_argument("shard_b")


def _add_data_actions(actions: Actions) -> None:
    trim = _add_action(actions, "trim", _trim, "forget stream records as if their retention were over")
    trim.add_argument("table")
    trim.add_argument("shard", nargs="?", help="shard id, or its first characters; default: all shards")
    trim.add_argument(
        "--before-micros",
        type=int,
        metavar="MICROSECONDS",
        help="forget records written before this time, in microseconds since 1970",
    )
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
    """Carry out the chosen action and print its result; return the exit code."""
    connection = connection_of(arguments)
    answer, show = arguments.call(_Session(connection.endpoint, connection.access_key_secret), arguments)
    if arguments.json:
        print_json(answer)
    elif isinstance(show, str):
        print_text(show)
    else:
        show()
    return EXIT_DONE


class _Session:
    """A client for the admin calls of one local Tablestore."""

    def __init__(self, endpoint: str, secret: str) -> None:
        self._endpoint = endpoint
        self._secret = secret

    def call(self, method: str, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        given = {key: value for key, value in arguments.items() if value is not None}
        if method == "POST":
            status, content = self._send(method, name, json.dumps(given).encode())
        else:
            status, content = self._send(method, f"{name}?{urlencode(given, errors='surrogateescape')}", None)
        return self._answer(status, content)

    def _answer(self, status: int, content: bytes) -> dict[str, Any]:
        """Return the JSON object of a successful answer.

        Raises:
            CommandFailed: the server has refused the call, or is another kind of server.
        """
        with suppress(ValueError):
            answer = parse_json(content)
            error = answer.get("error") if isinstance(answer, dict) else None
            if status == HTTPStatus.UNAUTHORIZED and isinstance(error, str):
                raise CommandFailed(f"the server at {self._endpoint} refuses the secret: check --access-key-secret")
            if status != HTTPStatus.OK and isinstance(error, str):
                raise CommandFailed(error)
            if status == HTTPStatus.OK and isinstance(answer, dict):
                return answer
        raise CommandFailed(f"{self._endpoint} is not a local Tablestore: status {status}")

    def _send(self, method: str, target: str, body: bytes | None) -> tuple[int, bytes]:
        host, port = host_and_port(self._endpoint)
        if not self._endpoint.startswith("http:"):
            raise CommandFailed(f"--endpoint must be http://HOST:PORT, not {self._endpoint!r}")
        # As bytes, because http.client could not send every text: it encodes texts as Latin-1.
        headers = {"Authorization": f"Bearer {self._secret}".encode("utf-8", "surrogateescape")}
        connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_SECONDS)
        try:
            connection.request(method, f"/_admin/{target}", body=body, headers=headers)
            response = connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            advice = advice_to_start(self._endpoint) if isinstance(error, ConnectionRefusedError) else ""
            raise CommandFailed(f"no answer from {self._endpoint}: {error}{advice}") from error
        finally:
            connection.close()


Outcome = tuple[dict[str, Any], str | Callable[[], None]]
"""The result of an action in two forms: the server's JSON answer, and for people a text or a function that prints a
table."""


def _shards(session: _Session, arguments: argparse.Namespace) -> Outcome:
    answer = session.call("GET", "shards", {"table": arguments.table})
    return answer, partial(_print_shards, answer["shards"])


def _shortener(shards: Sequence[Mapping[str, Any]]) -> Callable[[str], str]:
    return id_shortener(name for shard in shards for name in (shard["shard_id"], *shard["parent_ids"]))


def _print_ids(session: _Session, table: str, shard_ids: Sequence[str]) -> None:
    print_text(*map(_shortener(session.call("GET", "shards", {"table": table})["shards"]), shard_ids))


def _print_shards(shards: Sequence[Mapping[str, Any]]) -> None:
    short = _shortener(shards)
    rows = [
        (
            short(shard["shard_id"]),
            "open" if shard["is_open"] else "closed",
            str(shard["record_count"]),
            short(",".join(shard["parent_ids"])) or "-",
            shard["key_range"],
            shard["oldest_sequence"] or "-",
            shard["newest_sequence"] or "-",
        )
        for shard in shards
    ]
    print_table(SHARD_COLUMNS, rows, "no shards")


def _full_id(session: _Session, table: str, given: str | None) -> str | None:
    """Return the full id of the shard whose id begins with ``given``; ``None`` if ``given`` is ``None``."""
    if given is None:
        return None
    listed = session.call("GET", "shards", {"table": table})["shards"]
    return matching_id(given, [shard["shard_id"] for shard in listed], "shard")


def _split(session: _Session, arguments: argparse.Namespace) -> Outcome:
    at = None if arguments.at is None else _key(arguments.at)
    shard_id = _full_id(session, arguments.table, arguments.shard)
    answer = session.call("POST", "split", {"table": arguments.table, "shard_id": shard_id, "at": at})
    return answer, partial(_print_ids, session, arguments.table, answer["shard_ids"])


def _key(text: str) -> Any:
    """Return the value of a JSON integer, string, list or object; return any other text unchanged."""
    try:
        value = parse_json(text)
    except ValueError:
        return text
    return text if value is None or isinstance(value, (bool, float)) else value


def _merge(session: _Session, arguments: argparse.Namespace) -> Outcome:
    shards = (_full_id(session, arguments.table, given) for given in (arguments.shard_a, arguments.shard_b))
    names = dict(zip(("table", "shard_a", "shard_b"), (arguments.table, *shards), strict=True))
    answer = session.call("POST", "merge", names)
    return answer, partial(_print_ids, session, arguments.table, [answer["shard_id"]])


def _trim(session: _Session, arguments: argparse.Namespace) -> Outcome:
    limits = {"before_micros": arguments.before_micros, "keep_last": arguments.keep_last}
    shard_id = _full_id(session, arguments.table, arguments.shard)
    answer = session.call("POST", "trim", {"table": arguments.table, "shard_id": shard_id, **limits})
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
    names = ("operation", "table", "requests", "errors", "rows_read", "rows_written", "read_units", "write_units")
    rows = [[str(count[name]) or "-" for name in names] for count in answer["requests"]]
    return answer, partial(print_table, REQUEST_COLUMNS, rows, "no requests")


def _add_fault(session: _Session, arguments: argparse.Namespace) -> Outcome:
    try:
        rule = parse_json(arguments.rule)
    except ValueError as error:
        raise CommandFailed(f"the rule must be a JSON object: {error}") from error
    if not isinstance(rule, dict):
        raise CommandFailed(f"the rule must be a JSON object, not {rule!r}")
    answer = session.call("POST", "faults", rule)
    return answer, f"fault {answer['id']} added"


def _list_faults(session: _Session, arguments: argparse.Namespace) -> Outcome:
    answer = session.call("GET", "faults", {})
    rows = [
        [str(fault["id"]), str(fault["struck"]), str(fault["seen"]), json.dumps(fault["rule"])]
        for fault in answer["faults"]
    ]
    return answer, partial(print_table, FAULT_COLUMNS, rows, "no faults")


def _clear_faults(session: _Session, arguments: argparse.Namespace) -> Outcome:
    answer = session.call("DELETE", "faults", {"id": arguments.id})
    return answer, f"faults removed: {answer['removed']}"
