"""``streamclient tunnels``: list, create, describe and delete tunnels of the Tunnel Service."""

from __future__ import annotations

import argparse
from typing import Any

from streamclient.cli.options import connection_parent
from streamclient.cli.terminal.commands import runs

KIND_WORDS = ("full", "incremental", "both")
"""The values of ``--kind``. They equal ``KINDS`` in ``tunnel_progress``, which is not imported here because it imports
the SDK."""

Actions = Any  # groups of subcommands, for which argparse has only a private class


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand ``tunnels`` with its actions."""
    text = "list, create, describe and delete tunnels"
    parser = commands.add_parser(
        "tunnels", help=text, description=f"{text.capitalize()}.", parents=[connection_parent(is_group=True)]
    )
    actions = parser.add_subparsers(title="actions", required=True, metavar="ACTION")
    listing = _add(actions, "list", "the tunnels of a table, or of all tables")
    listing.add_argument("table", nargs="?", help="only the tunnels of this table")
    _add_create(actions)
    _add_named(actions, "describe", "a tunnel with its channels, and how far they were read")
    delete = _add_named(actions, "delete", "delete a tunnel with its positions; without --yes, say what would be lost")
    delete.add_argument("--yes", action="store_true", help="accept the loss")


def _add_create(actions: Actions) -> None:
    create = _add(
        actions,
        "create",
        "create a tunnel",
        more=" A tunnel with changes switches the stream of the table on if it is off.",
    )
    create.add_argument("table")
    create.add_argument("tunnel", metavar="name", help="name of the tunnel, unique among the table's tunnels")
    create.add_argument(
        "--kind",
        required=True,
        choices=KIND_WORDS,
        help="full: the rows; incremental: the changes; both: the rows, then the changes",
    )
    create.add_argument(
        "--from",
        dest="beginning",
        metavar="WHERE",
        help="begin the changes at: latest, the creation of the tunnel (default); oldest; a time such as "
        "2026-01-31T12:00:00Z; or 2h-ago",
    )
    create.add_argument("--until", metavar="TIME", help="end the changes at this time; by default they never end")


def _add_named(actions: Actions, name: str, text: str) -> argparse.ArgumentParser:
    parser = _add(actions, name, text)
    parser.add_argument("table")
    parser.add_argument("tunnel", help="name of the tunnel, or the beginning of its id")
    return parser


def _add(actions: Actions, name: str, text: str, more: str = "") -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(
        name, help=text, description=f"{text[0].upper()}{text[1:]}.{more}", parents=[connection_parent()]
    )
    parser.set_defaults(action=name)
    runs(parser, _run)
    return parser


def _run(arguments: argparse.Namespace) -> int:
    from streamclient.cli.tunnel_admin import ACTIONS  # noqa: PLC0415 -- brings the SDK; --help does not wait for it

    return ACTIONS[arguments.action](arguments)
