"""``streamclient parked``: list, show, replay or discard parked records, and group them by cause."""

from __future__ import annotations

import argparse
from typing import Any

from streamclient.cli.options import connection_parent
from streamclient.cli.terminal.commands import runs


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand ``parked`` with its actions."""
    text = "list, show, replay or discard records that were set aside because they could not be processed"
    parser = commands.add_parser(
        "parked", help=text, description=text.capitalize() + ".", parents=[connection_parent(is_group=True)]
    )
    actions = parser.add_subparsers(title="actions", required=True, metavar="ACTION")
    _with_parts(_add(actions, "list", "one line for each parked record"))
    _with_parts(_add(actions, "show", "everything about parked records, with tracebacks"))
    _add(
        actions, "causes", "one line for each cause: parked records whose errors differ only in numbers, ids and quotes"
    )
    replay = _add(actions, "replay", "give parked records to a processor, in order per key")
    replay.add_argument(
        "--processor", required=True, metavar="MODULE:FACTORY", help="factory of the processors, as for Worker"
    )
    _with_cause(replay, "all records of each key that has a record with this cause, as `parked causes` names it")
    discard = _with_parts(_add(actions, "discard", "forget parked records without processing them"))
    discard.add_argument("--all", action="store_true", help="every record; needed unless other options select records")


def _add(actions: Any, name: str, text: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(
        name,
        help=text,
        description=text.capitalize() + ".",
        parents=[connection_parent(title="connection, for --table")],
    )
    store = parser.add_argument_group("store").add_mutually_exclusive_group(required=True)
    store.add_argument("--directory", metavar="DIR", help="a FileParkingStore")
    store.add_argument("--table", metavar="NAME", help="a TableParkingStore")
    selection = parser.add_argument_group("which records; default: all")
    selection.add_argument("--stream", metavar="ID", help="records of this stream")
    selection.add_argument(
        "--key", action="append", metavar="JSON", help='records of this key, as [["id", "k3"]]; repeatable'
    )
    selection.add_argument("--fleet", metavar="STATUS-TABLE", help="records that the fleet of this status table parked")
    parser.set_defaults(action=name)
    runs(parser, run)
    return parser


def _with_parts(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add the options that may select only some of the parked records of a key; return ``parser``.

    The action ``replay`` does not have these options, because it always replays all parked records of a key, in order
    and from all shards.
    """
    selection = _with_cause(parser, "records with this cause, as `parked causes` names it")
    selection.add_argument("--shard", metavar="ID", help="records of the shard whose id begins with ID")
    selection.add_argument(
        "--record",
        action="append",
        metavar="ID",
        help="records whose id, or its last part, begins with ID; repeatable",
    )
    return parser


def _with_cause(parser: argparse.ArgumentParser, text: str) -> Any:
    selection = parser.add_argument_group("which of these")
    selection.add_argument("--cause", metavar="ID", help=text)
    return selection


def run(arguments: argparse.Namespace) -> int:
    """Carry out the chosen action and print its result; return the exit code."""
    # Imported only here, because the import would slow down the other subcommands and --help.
    from streamclient.cli.parked_actions import run_action  # noqa: PLC0415

    return run_action(arguments)
