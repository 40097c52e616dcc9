"""``streamclient tail``: show the changes of a table as they come."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from streamclient.cli.missing_tables import named_if_missing
from streamclient.cli.options import command_client, connection_parent
from streamclient.cli.terminal.commands import EXIT_DONE, CommandFailed, runs, shown_until_ended
from streamclient.cli.terminal.output import complain, id_shortener, print_json_line, print_text

if TYPE_CHECKING:
    from streamclient.records import RecordColumn, StreamRecord
    from streamclient.tablestore.following import Followed, StreamFollower


OUTAGE_SECONDS = 60.0
"""The time, in seconds, between two lines about the same outage."""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand ``tail``."""
    text = "show the changes of a table as they come"
    parser = commands.add_parser(
        "tail",
        help=text,
        description=f"{text.capitalize()}, until Ctrl-C. Takes no leases and stores nothing: workers do not notice.",
        parents=[connection_parent(json="print one JSON document per line, one line per change")],
    )
    parser.add_argument("table", help="table whose stream is read")
    parser.add_argument(
        "--from",
        dest="beginning",
        default="latest",
        metavar="WHERE",
        help="latest (default), oldest, a time such as 2026-01-31T12:00:00Z, or 2h-ago",
    )
    parser.add_argument("--shard", metavar="ID", help="only the shard whose id begins with ID")
    parser.add_argument("--limit", type=int, metavar="N", help="end after N changes")
    runs(parser, run)


def run(arguments: argparse.Namespace) -> int:
    """Show changes until interrupted; return the exit code."""
    from streamclient.base.times import parse_moment  # noqa: PLC0415
    from streamclient.operate.site import READ_RETRY  # noqa: PLC0415
    from streamclient.tablestore.stream_operations import TablestoreStreamApi  # noqa: PLC0415

    if arguments.limit is not None and arguments.limit < 1:
        raise CommandFailed(f"--limit must be at least 1, not {arguments.limit}")
    client, now_micros = _watched(command_client(arguments))
    streams = TablestoreStreamApi(client, retry=READ_RETRY)
    with named_if_missing(arguments.table):
        listed = streams.list_stream(arguments.table)
        if not listed:
            streams.describe_table(arguments.table)  # raises if the table itself is missing, and not only its stream
    if not listed:
        raise CommandFailed(f"table {arguments.table!r} has no stream; `streamclient tables stream` enables it")
    since = None
    if arguments.beginning != "oldest":
        now = now_micros()
        since = now if arguments.beginning == "latest" else parse_moment(arguments.beginning, now)
    with shown_until_ended():
        _follow(streams, listed[0].stream_id, since, arguments)
    return EXIT_DONE


def _watched(client: Any) -> tuple[Any, Callable[[], int]]:
    """Return a copy of ``client`` that notes the time in each answer, and a function that returns the service's time.

    The command needs this time for the positions "latest" and "2h-ago", which are times of the service's clock.
    """
    from streamclient.operate.service_clock import ServiceClock  # noqa: PLC0415

    clock = ServiceClock()
    return clock.watching(client), clock.now_micros


def _follow(streams: Any, stream_id: str, since: int | None, arguments: argparse.Namespace) -> None:
    from streamclient.cli.terminal.layout import matching_id  # noqa: PLC0415
    from streamclient.tablestore.following import StreamFollower  # noqa: PLC0415

    known = [shard.shard_id for shard in streams.describe_stream(stream_id).shards]
    only = None
    if arguments.shard is not None:
        only = matching_id(arguments.shard, known, "shard")
        if only not in known:
            raise CommandFailed(f"the stream of table {arguments.table!r} has no shard {arguments.shard!r}")
    follower = StreamFollower(streams, stream_id, since_micros=since, shard_ids=None if only is None else [only])
    screen, changes = _Screen(follower, as_json=arguments.json, name=arguments.command), 0
    for followed in follower.changes():
        changes += screen.show(followed)
        if changes == arguments.limit:
            return


class _Screen:
    """The output of ``tail``: changes, losses, and once a minute an outage that lasts."""

    def __init__(self, follower: StreamFollower, *, as_json: bool, name: str) -> None:
        self._follower = follower
        self._known: frozenset[str] = frozenset()
        self._short = id_shortener(())
        self._as_json = as_json
        self._name = name
        self._complained_at = float("-inf")

    def show(self, followed: Followed) -> int:
        """Print a change, a loss or an outage; return the number of changes that were printed, 0 or 1."""
        from streamclient.operate.next_records import change_document  # noqa: PLC0415
        from streamclient.tablestore.following import Interruption, LostRecords  # noqa: PLC0415

        if isinstance(followed, Interruption):
            if time.monotonic() - self._complained_at >= OUTAGE_SECONDS:
                self._complained_at = time.monotonic()
                complain(f"{self._name}: trying again: {followed.error}")
            return 0
        if followed.shard_id not in self._known:
            self._known = frozenset((followed.shard_id, *self._follower.known))
            self._short = id_shortener(self._known)
        if isinstance(followed, LostRecords):
            self._show_loss(followed.shard_id)
            return 0
        if self._as_json:
            print_json_line(change_document(followed.shard_id, followed.record))
        else:
            print_text(_line(self._short(followed.shard_id), followed.record), flush=True)
        return 1

    def _show_loss(self, shard_id: str) -> None:
        if self._as_json:
            print_json_line({"shard": shard_id, "lost": True})
        else:
            print_text(
                f"shard {self._short(shard_id)}: its next records are past the stream's retention and lost", flush=True
            )


def _line(shard: str, record: StreamRecord) -> str:
    from streamclient.base.times import utc_text  # noqa: PLC0415
    from streamclient.cli.terminal.layout import one_line  # noqa: PLC0415

    key = ", ".join(f"{name}={value!r}" for name, value in record.primary_key)
    cells = ", ".join(_cell(column) for column in record.columns)
    when = utc_text(record.sequence_info.timestamp_micros)
    return one_line(f"{when} {shard} {record.record_type.value} {{{key}}} {cells}".rstrip())


def _cell(column: RecordColumn) -> str:
    """Return a column as text, without its version. Only ``--json`` prints versions."""
    if column.value is not None:
        return f"{column.name}={column.value!r}"
    return f"{column.name} {column.operation.value}"
