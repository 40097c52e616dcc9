"""``streamclient leases``: look at the leases of a fleet, and change them safely."""

from __future__ import annotations

import argparse
from typing import Any

from streamclient.cli.options import TABLES, connection_parent, fleet_options, open_site, parking_options
from streamclient.cli.terminal.commands import runs

Actions = Any  # groups of subcommands, for which argparse has only a private class


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand ``leases`` with its actions."""
    parser = commands.add_parser(
        "leases",
        help="look at the leases of a fleet, and change them safely",
        description="Look at the leases of a fleet, and change them safely. Every change has --dry-run.",
        parents=[connection_parent(tables=TABLES, is_group=True)],
    )
    actions = parser.add_subparsers(title="actions", required=True, metavar="ACTION")
    _add_views(actions)
    _add_positions(actions)
    _add_owners(actions)
    _add_pauses(actions)


def _run(arguments: argparse.Namespace) -> int:
    from streamclient.cli import lease_changes, lease_views  # noqa: PLC0415 -- brings the SDK; --help does not wait

    run = {
        "list": lease_views.list_leases,
        "show": lease_views.show_lease,
        "audit": lease_views.list_audit,
        "moves": lease_views.list_moves,
        "snapshot": lease_views.save_snapshot,
        "report": lease_views.report,
        "diff": lease_views.compare,
        "rewind": lease_changes.rewind,
        "skip": lease_changes.skip,
        "park": lease_changes.park,
        "withdraw": lease_changes.withdraw,
        "reset": lease_changes.reset,
        "accept-end": lease_changes.accept_end,
        "release": lease_changes.release,
        "move": lease_changes.move,
        "pause": lease_changes.pause,
        "resume": lease_changes.resume,
    }[arguments.action]
    return run(open_site(arguments), arguments)


def _add(actions: Actions, name: str, text: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(
        name, help=text, description=f"{text[0].upper()}{text[1:]}.", parents=[fleet_options()]
    )
    parser.set_defaults(action=name)
    runs(parser, _run)
    return parser


def _add_views(actions: Actions) -> None:
    listing = _add(actions, "list", "all leases: owner, state, lag, time to loss")
    listing.add_argument("--no-lag", action="store_true", help="do not read the next record of each unfinished shard")
    show = _add(actions, "show", "everything about one lease, with its history")
    show.add_argument("shard")
    parking_options(show)
    audit = _add(actions, "audit", "changes by operators, newest first")
    audit.add_argument("--shard", help="only changes of this shard")
    audit.add_argument("--limit", type=int, default=50, metavar="N", help="how many rows (default: %(default)s)")
    moves = _add(actions, "moves", "who holds which shard since when, and changes by operators, newest first")
    moves.add_argument("--shard", help="only moves of this shard")
    moves.add_argument("--limit", type=int, default=50, metavar="N", help="how many rows (default: %(default)s)")
    snapshot = _add(actions, "snapshot", "save the whole state as JSON")
    snapshot.add_argument("file", help="file to write; - is standard output")
    report = _add(actions, "report", "lag and time to loss by groups of shards, saved with a snapshot if wanted")
    report.add_argument("--directory", metavar="DIR", help="save report and snapshot here; default: nowhere")
    report.add_argument("--keep", type=int, metavar="N", help="keep the N newest of these reports (default: 100)")
    diff = _add(actions, "diff", "differences between two snapshots, or between one and now")
    diff.add_argument("before", help="a snapshot file")
    diff.add_argument("after", nargs="?", help="another snapshot file; default: the present state")


def _add_change(actions: Actions, name: str, text: str, *, pauses: bool = False) -> argparse.ArgumentParser:
    parser = _add(actions, name, text)
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="say what would be written, and whether that is allowed; write nothing",
    )
    parser.add_argument("--reason", default="", metavar="TEXT", help="why, for the audit")
    if pauses:
        parser.add_argument(
            "--pause",
            nargs="?",
            const="2m",
            metavar="LIMIT",
            help="pause running owners first, wait that long for them (default: 2m), and resume afterwards",
        )
    return parser


def _add_positions(actions: Actions) -> None:
    rewind = _add_change(actions, "rewind", "read a shard again from an earlier position", pauses=True)
    rewind.add_argument("shard")
    rewind.add_argument("--to", required=True, metavar="WHERE", help="oldest, a time, 2h-ago, or iterator:TEXT")
    rewind.add_argument(
        "--with-descendants", action="store_true", help="also rewind all descendants of the shard to their beginning"
    )
    skip = _add_change(
        actions, "skip", "go on at a later position, or without single records, which are lost", pauses=True
    )
    skip.add_argument("shard")
    what = skip.add_mutually_exclusive_group(required=True)
    what.add_argument("--to", metavar="WHERE", help="latest, a time, end, or iterator:TEXT")
    what.add_argument("--record", metavar="ID", help="drop this record, and move no checkpoint")
    what.add_argument(
        "--records", type=int, metavar="N", help="drop the next N records, and move no checkpoint; at most 200"
    )
    skip.add_argument("--yes", action="store_true", help="accept the loss")
    park = _add_change(actions, "park", "park a record that fails, for a later replay, and go on without it")
    park.add_argument("shard")
    park.add_argument("--record", metavar="ID", help="the record; default: the one at which the shard stopped")
    park.add_argument("--yes", action="store_true", help="give the order; without it, this is a dry run")
    parking_options(park, is_required=True)
    withdraw = _add_change(actions, "withdraw", "take back an order to park or skip records")
    withdraw.add_argument("shard")
    withdraw.add_argument("--order", metavar="ID", help="the change id of the order; default: the only one")
    withdraw.add_argument("--yes", action="store_true", help="withdraw the order; without it, this is a dry run")
    end = _add_change(actions, "accept-end", "let a shard end although the list of shards does not show its end")
    end.add_argument("shard")
    end.add_argument("--yes", action="store_true", help="you vouch that the shard is closed")
    reset = _add_change(actions, "reset", "read all shards again from a position", pauses=True)
    reset.add_argument("--to", default="oldest", metavar="WHERE", help="oldest (default), latest, or a time")
    reset.add_argument("--yes", action="store_true", help="accept the loss if a shard would go forward")


def _add_owners(actions: Actions) -> None:
    release = _add_change(actions, "release", "take a lease from its owner", pauses=True)
    release.add_argument("shard")
    release.add_argument(
        "--force",
        action="store_true",
        help="you vouch that the owner's process is gone: do not watch the lease for a lease duration",
    )
    move = _add_change(actions, "move", "have a lease handed to a worker")
    move.add_argument("shard")
    move.add_argument("--to", required=True, metavar="WORKER")


def _add_pauses(actions: Actions) -> None:
    pause = _add_change(actions, "pause", "hold shards without reading them")
    pause.add_argument("--for", dest="lasting", metavar="DURATION", help="resume by itself after 90s, 15m, 2h or 1d")
    pause.add_argument(
        "--wait", default="1m", metavar="DURATION", help="how long to wait for the owners (default: %(default)s)"
    )
    pause.add_argument("--no-wait", action="store_true", help="do not wait for the owners")
    resume = _add_change(actions, "resume", "end pauses")
    for parser in (pause, resume):
        parser.add_argument("shards", nargs="*", metavar="SHARD")
        parser.add_argument("--worker", metavar="WORKER", help="all shards of this worker")
        parser.add_argument("--all", action="store_true", help="all shards")
