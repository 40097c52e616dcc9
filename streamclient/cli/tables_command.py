"""``streamclient tables``: list, create, describe and drop tables, and switch their streams."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from streamclient.base.reasons import counted
from streamclient.cli.missing_tables import named_if_missing
from streamclient.cli.options import command_client, connection_parent
from streamclient.cli.terminal.commands import EXIT_DONE, CommandFailed, runs
from streamclient.cli.terminal.layout import Column
from streamclient.cli.terminal.output import id_shortener, print_json, print_table, print_text

if TYPE_CHECKING:
    from streamclient.model import Shard
    from streamclient.tablestore.stream_operations import TablestoreStreamApi
    from streamclient.tablestore.stream_tables import TableDescription

DEFAULT_HOURS = 24
"""The default retention of a new stream, in hours. The service accepts 1 to 168."""

KEY_TYPES = ("STRING", "INTEGER", "BINARY")
COLUMN_TYPES = ("STRING", "INTEGER", "DOUBLE", "BOOLEAN", "BINARY")
FOREVER = -1

TABLE_COLUMNS = (Column("TABLE"), Column("STREAM", least=12), Column("SINCE", drop=1))
SHARD_COLUMNS = (Column("SHARD"), Column("PARENTS", least=8))

Actions = Any  # groups of subcommands, for which argparse has only a private class


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand ``tables`` with its actions."""
    text = "list, create, describe and drop tables"
    parser = commands.add_parser(
        "tables", help=text, description=f"{text.capitalize()}.", parents=[connection_parent(is_group=True)]
    )
    actions = parser.add_subparsers(title="actions", required=True, metavar="ACTION")
    _add(actions, "list", _list, "the instance's tables, with their streams")
    _add_create(actions)
    _add(actions, "describe", _describe, "key, columns, options, stream and shards of a table").add_argument("table")
    stream = _add(actions, "stream", _stream, "switch the stream of a table on or off")
    stream.add_argument("table")
    stream.add_argument("--hours", type=int, metavar="N", help=f"retention, 1 to 168 (default: {DEFAULT_HOURS})")
    stream.add_argument("--off", action="store_true", help="switch the stream off; its records are lost immediately")
    stream.add_argument("--yes", action="store_true", help="accept the loss")
    drop = _add(actions, "drop", _drop, "delete a table with its rows and its stream")
    drop.add_argument("table")
    drop.add_argument("--yes", action="store_true", help="accept the loss")


def _add(actions: Actions, name: str, run: Any, text: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(
        name, help=text, description=f"{text[0].upper()}{text[1:]}.", parents=[connection_parent()]
    )
    runs(parser, run)
    return parser


def _add_create(actions: Actions) -> None:
    create = _add(actions, "create", _create, "create a table, with a stream unless told otherwise")
    create.add_argument("table")
    create.add_argument(
        "--key",
        action="append",
        metavar="NAME[:TYPE]",
        help=f"a key column, in order: {', '.join(KEY_TYPES)}; up to four (default: id:STRING)",
    )
    create.add_argument(
        "--column",
        action="append",
        default=[],
        metavar="NAME:TYPE",
        help=f"a declared column: {', '.join(COLUMN_TYPES)}; rows may hold others, too",
    )
    create.add_argument("--hours", type=int, metavar="N", help=f"retention of the stream (default: {DEFAULT_HOURS})")
    create.add_argument(
        "--origin", action="append", default=[], metavar="NAME", help="records carry the previous values of this column"
    )
    create.add_argument("--no-stream", action="store_true", help="create the table without a stream")
    create.add_argument("--versions", type=int, default=1, metavar="N", help="versions per cell (default: %(default)s)")
    create.add_argument(
        "--ttl", type=int, default=FOREVER, metavar="SECONDS", help="time to live; -1 (default) keeps rows for ever"
    )


def _api(arguments: argparse.Namespace) -> tuple[Any, TablestoreStreamApi]:
    from streamclient.operate.site import READ_RETRY  # noqa: PLC0415
    from streamclient.tablestore.stream_operations import TablestoreStreamApi  # noqa: PLC0415

    client = command_client(arguments)
    return client, TablestoreStreamApi(client, retry=READ_RETRY)


def _list(arguments: argparse.Namespace) -> int:
    from streamclient.base.times import utc_text  # noqa: PLC0415
    from streamclient.wire.service_errors import classify  # noqa: PLC0415

    client, api = _api(arguments)
    try:
        names = sorted(client.list_table())
    except Exception as error:
        raise classify(error, write=False, client=client) from error
    streams = {stream.table_name: stream for stream in api.list_stream()}
    if arguments.json:
        absent = {"stream": None, "since_micros": None}
        documents = {
            name: {"stream": stream.stream_id, "since_micros": stream.creation_time_micros}
            for name, stream in streams.items()
        }
        print_json({"tables": [{"table": name, **documents.get(name, absent)} for name in names]})
        return EXIT_DONE
    rows = [
        (name, streams[name].stream_id, utc_text(streams[name].creation_time_micros))
        if name in streams
        else (name, "-", "-")
        for name in names
    ]
    print_table(TABLE_COLUMNS, rows, "no tables")
    return EXIT_DONE


def _create(arguments: argparse.Namespace) -> int:
    from tablestore import CapacityUnit, ReservedThroughput, TableMeta, TableOptions  # noqa: PLC0415

    from streamclient.tablestore.stream_api import StreamSpecification  # noqa: PLC0415

    key = [_typed(text, KEY_TYPES, "--key", "STRING") for text in arguments.key or ["id:STRING"]]
    columns = [_typed(text, COLUMN_TYPES, "--column") for text in arguments.column]
    stream = None
    if arguments.no_stream:
        _require_absent("--no-stream", "--hours", arguments.hours)
        _require_absent("--no-stream", "--origin", arguments.origin or None)
    else:
        stream = StreamSpecification(
            enable_stream=True, expiration_time_hours=_hours(arguments), columns_to_get=tuple(arguments.origin)
        )
    _, api = _api(arguments)
    api.create_table(
        TableMeta(arguments.table, key, columns),
        TableOptions(time_to_live=arguments.ttl, max_version=arguments.versions),
        ReservedThroughput(CapacityUnit(0, 0)),
        stream=stream,
    )
    how = (
        "without a stream"
        if stream is None
        else f"with a stream that keeps changes for {counted(_hours(arguments), 'hour')}"
    )
    _say(arguments, {"table": arguments.table, "created": True}, f"created table {arguments.table} {how}")
    return EXIT_DONE


def _typed(text: str, types: Sequence[str], option: str, default: str = "") -> tuple[str, str]:
    name, _, kind = text.partition(":")
    kind = kind.upper() or default
    if not name or kind not in types:
        raise CommandFailed(f"{option} must be NAME:TYPE with a type of {', '.join(types)}, not {text!r}")
    return name, kind


def _describe(arguments: argparse.Namespace) -> int:
    _, api = _api(arguments)
    with named_if_missing(arguments.table):
        table = api.describe_table(arguments.table)
    shards: Sequence[Shard] = ()
    if table.stream.stream_id is not None:
        shards = api.describe_stream(table.stream.stream_id).shards
    if arguments.json:
        print_json(_document(table, shards))
        return EXIT_DONE
    for name, value in _facts(table):
        print_text(f"{name:<9} {value}")
    if table.stream.stream_id is not None:
        print()
        short = id_shortener({name for shard in shards for name in (shard.shard_id, *shard.parent_shard_ids)})
        rows = [(short(shard.shard_id), short(",".join(sorted(shard.parent_shard_ids))) or "-") for shard in shards]
        print_table(SHARD_COLUMNS, rows, "no shards")
    return EXIT_DONE


def _facts(table: TableDescription) -> list[tuple[str, str]]:
    definition, options, stream = table.definition, table.options, table.stream
    seconds = options.time_to_live_seconds
    lasting = "for ever" if seconds in (None, FOREVER) else f"for {seconds} s"
    keeps = f"rows {lasting}, {counted(options.max_versions or 1, 'version')} per cell"
    stream_text = "off"
    if stream.stream_id is not None:
        stream_text = f"{stream.stream_id}, keeps changes for {counted(stream.expiration_time_hours or 0, 'hour')}"
        if stream.columns_to_get:
            stream_text += f", with previous values of {', '.join(stream.columns_to_get)}"
    key = ", ".join(f"{name} {kind.value}" for name, kind in definition.primary_key)
    facts = [("table", definition.table_name), ("key", key)]
    if definition.defined_columns:
        columns = ", ".join(f"{name} {kind.value}" for name, kind in definition.defined_columns.items())
        facts.append(("columns", columns))
    if table.index_names:
        facts.append(("indexes", ", ".join(table.index_names)))
    return [*facts, ("keeps", keeps), ("stream", stream_text)]


def _document(table: TableDescription, shards: Sequence[Shard]) -> dict[str, Any]:
    definition, options, stream = table.definition, table.options, table.stream
    return {
        "table": definition.table_name,
        "key": [{"name": name, "type": kind.value} for name, kind in definition.primary_key],
        "columns": [{"name": name, "type": kind.value} for name, kind in definition.defined_columns.items()],
        "indexes": list(table.index_names),
        "time_to_live_seconds": options.time_to_live_seconds,
        "max_versions": options.max_versions,
        "stream": stream.stream_id,
        "expiration_hours": stream.expiration_time_hours,
        "origin_columns": list(stream.columns_to_get),
        "shards": [{"shard": shard.shard_id, "parents": sorted(shard.parent_shard_ids)} for shard in shards],
    }


def _stream(arguments: argparse.Namespace) -> int:
    from streamclient.tablestore.stream_api import StreamSpecification  # noqa: PLC0415

    _, api = _api(arguments)
    if arguments.off:
        _require_absent("--off", "--hours", arguments.hours)
        _require_consent(arguments, f"switching off the stream of table {arguments.table!r} drops its records")
        spec = StreamSpecification(enable_stream=False)
    else:
        spec = StreamSpecification(enable_stream=True, expiration_time_hours=_hours(arguments))
    with named_if_missing(arguments.table):
        details = api.update_table(arguments.table, stream=spec)
    text = f"the stream of table {arguments.table} is {'on' if details.enable_stream else 'off'}"
    _say(arguments, {"table": arguments.table, "stream": details.stream_id}, text)
    return EXIT_DONE


def _drop(arguments: argparse.Namespace) -> int:
    from streamclient.wire.service_errors import classify  # noqa: PLC0415

    _require_consent(arguments, f"dropping table {arguments.table!r} deletes its rows and its stream")
    client, _ = _api(arguments)
    with named_if_missing(arguments.table):
        try:
            client.delete_table(arguments.table)
        except Exception as error:
            raise classify(error, write=True, client=client) from error
    _say(arguments, {"table": arguments.table, "dropped": True}, f"dropped table {arguments.table}")
    return EXIT_DONE


def _hours(arguments: argparse.Namespace) -> int:
    return DEFAULT_HOURS if arguments.hours is None else int(arguments.hours)


def _require_absent(switch: str, option: str, value: object) -> None:
    if value is not None:
        raise CommandFailed(f"{option} is for a stream, and {switch} leaves the table without one: give one of the two")


def _require_consent(arguments: argparse.Namespace, loss: str) -> None:
    if not arguments.yes:
        raise CommandFailed(f"{loss}; add --yes to accept that")


def _say(arguments: argparse.Namespace, document: dict[str, Any], text: str) -> None:
    if arguments.json:
        print_json(document)
    else:
        print_text(text)
