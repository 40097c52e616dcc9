"""The actions of ``streamclient tunnels``, which list, create, describe and delete tunnels."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from streamclient.base import checks
from streamclient.base.reasons import counted
from streamclient.base.times import duration, parse_moment, utc_text
from streamclient.cli.missing_tables import named_if_missing
from streamclient.cli.options import command_client
from streamclient.cli.terminal.commands import EXIT_DONE, CommandFailed
from streamclient.cli.terminal.layout import Column, matching_id
from streamclient.cli.terminal.output import id_shortener, print_json, print_table, print_text
from streamclient.errors import StreamClientError
from streamclient.operate.service_clock import ServiceClock
from streamclient.operate.site import READ_RETRY
from streamclient.tunnel.tunnel_client import TunnelClient
from streamclient.tunnel.tunnel_errors import TunnelExistsError, TunnelParameterInvalidError
from streamclient.tunnel.tunnel_model import StreamTunnelConfig, TunnelDescription, TunnelInfo, TunnelType
from streamclient.tunnel.tunnel_progress import (
    KINDS,
    STARTS,
    Document,
    are_changes_finished,
    channel_document,
    description_document,
    holders,
    tunnel_document,
    tunnel_lag_seconds,
)

TUNNEL_COLUMNS = (
    Column("TUNNEL"),
    Column("TABLE", least=8),
    Column("KIND"),
    Column("STAGE"),
    Column("CREATED", drop=1),
    Column("ID", drop=2),
)
CHANNEL_COLUMNS = (
    Column("CHANNEL"),
    Column("KIND"),
    Column("STATUS"),
    Column("CLIENT", least=12),
    Column("READ UP TO", drop=1),
    Column("RECORDS"),
    Column("LAG"),
)

LOST_FACTS = ("tunnel", "id", "channels", "read", "lag", "clients")
"""The names of the facts that are lost when a tunnel is deleted."""


class _Service:
    """The client of the Tunnel Service, and a clock that the service's answers set. Lags are measured by this clock."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.clock = ServiceClock()
        self.tunnels = TunnelClient(self.clock.watching(command_client(arguments)), retry=READ_RETRY)

    def listed(self, table: str | None) -> Sequence[TunnelInfo]:
        """Return the tunnels of a table, or of all tables.

        Raises:
            CommandFailed: the table does not exist.
            ConfigurationError: ``table`` is not a valid name of a table.
        """
        if table is None:
            return self.tunnels.list_tunnel()
        checks.identifier.require("table", table)
        try:
            with named_if_missing(table):
                return self.tunnels.list_tunnel(table)
        except TunnelParameterInvalidError as error:
            raise CommandFailed(f"{error}; `streamclient tables list` names all tables") from error

    def named(self, table: str, given: str) -> TunnelInfo:
        """Return the tunnel of ``table`` whose name is ``given``, or whose id begins with ``given``.

        Raises:
            CommandFailed: the table has no tunnel with that name or id.
            ConfigurationError: several ids begin with ``given``.
        """
        listed = self.listed(table)
        by_name = {info.tunnel_name: info for info in listed}
        by_id = {info.tunnel_id: info for info in listed}
        found = by_name.get(given) or by_id.get(matching_id(given, by_id, "tunnel"))
        if found is None:
            known = f"its tunnels are: {', '.join(sorted(by_name))}" if by_name else "it has none"
            raise CommandFailed(f"table {table!r} has no tunnel {given!r}; {known}")
        return found


def _list(arguments: argparse.Namespace) -> int:
    listed = sorted(_Service(arguments).listed(arguments.table), key=lambda info: (info.table_name, info.tunnel_name))
    documents = [tunnel_document(info) for info in listed]
    if arguments.json:
        print_json({"tunnels": documents})
        return EXIT_DONE
    short = id_shortener(info.tunnel_id for info in listed)
    rows = [
        (each["tunnel"], each["table"], each["kind"], _stage(each), _time(each["created_micros"]), short(each["id"]))
        for each in documents
    ]
    print_table(TUNNEL_COLUMNS, rows, "no tunnels")
    return EXIT_DONE


def _create(arguments: argparse.Namespace) -> int:
    table, name, kind = arguments.table, arguments.tunnel, KINDS[arguments.kind]
    service = _Service(arguments)
    config = _config(arguments, kind, service.clock.now_micros())
    try:
        with named_if_missing(table):
            tunnel_id = service.tunnels.create_tunnel(table, name, kind, config)
    except TunnelExistsError as error:
        shown = f"`streamclient tunnels describe {table} {name}` shows it"
        raise CommandFailed(f"table {table!r} has a tunnel {name!r} already; {shown}") from error
    if arguments.json:
        print_json({"tunnel": name, "id": tunnel_id, "table": table, "kind": arguments.kind, "created": True})
    else:
        print_text(f"created tunnel {name} of table {table}: {tunnel_id}")
    return EXIT_DONE


def _config(arguments: argparse.Namespace, kind: TunnelType, now_micros: int) -> StreamTunnelConfig | None:
    """Return the time range of changes that the tunnel will deliver; ``None`` without ``--from`` and ``--until``.

    Raises:
        CommandFailed: the options contradict each other, or the tunnel could never deliver a change.
        ConfigurationError: a time is invalid, or the end is before the start.
    """
    beginning, until = arguments.beginning, arguments.until
    if beginning is None and until is None:
        return None
    if kind is TunnelType.BASE_DATA:
        option = "--until" if beginning is None else "--from"
        raise CommandFailed(f"leave {option} out: it is about changes, and a tunnel of --kind full delivers none")
    end_micros = None if until is None else parse_moment(until, now_micros)
    if beginning is not None and beginning not in STARTS:
        return StreamTunnelConfig(start_micros=parse_moment(beginning, now_micros), end_micros=end_micros)
    if beginning != "oldest" and end_micros is not None and end_micros <= now_micros:
        raise CommandFailed(
            f"--until {until} is not after the creation of the tunnel, where its changes begin: give a later time, or "
            "--from"
        )
    return StreamTunnelConfig(STARTS[beginning or "latest"], end_micros=end_micros)


def _describe(arguments: argparse.Namespace) -> int:
    described, now_micros, retention_micros = _described(arguments)
    if arguments.json:
        print_json(description_document(described, now_micros, retention_micros))
        return EXIT_DONE
    _print_facts(_facts(described, now_micros, retention_micros))
    if described.channels:
        print()
        short = id_shortener(channel.channel_id for channel in described.channels)
        rows = [_channel_row(channel_document(channel, now_micros), short) for channel in described.channels]
        print_table(CHANNEL_COLUMNS, rows, "")
    return EXIT_DONE


def _delete(arguments: argparse.Namespace) -> int:
    if not arguments.yes:
        described, now_micros, retention_micros = _described(arguments)
        with suppress(BrokenPipeError):  # the refusal stands, whether or not the facts are read
            if arguments.json:
                print_json({**description_document(described, now_micros, retention_micros), "deleted": False})
            else:
                facts = _facts(described, now_micros, retention_micros)
                _print_facts({name: facts[name] for name in LOST_FACTS})
        name = described.info.tunnel_name
        loss = f"deleting tunnel {name!r} loses its positions and ends its clients"
        raise CommandFailed(f"{loss}; add --yes to accept that")
    service = _Service(arguments)
    info = service.named(arguments.table, arguments.tunnel)
    service.tunnels.delete_tunnel(info.table_name, info.tunnel_name)
    if arguments.json:
        print_json({"tunnel": info.tunnel_name, "id": info.tunnel_id, "table": info.table_name, "deleted": True})
    else:
        print_text(f"deleted tunnel {info.tunnel_name} of table {info.table_name}")
    return EXIT_DONE


ACTIONS: Mapping[str, Callable[[argparse.Namespace], int]] = {
    "list": _list,
    "create": _create,
    "describe": _describe,
    "delete": _delete,
}


# --- the text of a tunnel ------------------------------------------------------------------------------------------


def _described(arguments: argparse.Namespace) -> tuple[TunnelDescription, int, int | None]:
    """Return the description of the tunnel that the arguments name, the service's time, and the stream's retention.

    The time and the retention are in microseconds. The retention is ``None`` if it cannot be read, for example without
    permission.
    """
    service = _Service(arguments)
    info = service.named(arguments.table, arguments.tunnel)
    described = service.tunnels.describe_tunnel(info.table_name, info.tunnel_name)
    try:
        retention_micros = service.tunnels.retention_micros(info.table_name)
    except StreamClientError:
        retention_micros = None
    return described, service.clock.now_micros(), retention_micros


def _facts(described: TunnelDescription, now_micros: int, retention_micros: int | None) -> dict[str, str]:
    """Return the facts about a tunnel as texts, by name, in the order in which they are shown."""
    document = description_document(described, now_micros, retention_micros)
    facts = {name: str(document[name]) for name in ("tunnel", "id", "table", "kind")}
    facts["stage"] = _stage(document)
    if document["expired"]:
        facts["stage"] += ": the changes that it needs are past retention; only another tunnel helps"
    facts["created"] = _time(document["created_micros"])
    if described.info.tunnel_type is not TunnelType.BASE_DATA:
        facts["changes"] = _extent(document)
    facts["channels"] = _channels(document)
    facts["read"] = counted(document["records"], "record")
    if document["consumed_micros"] is not None:
        facts["read"] += f", changes up to {utc_text(document['consumed_micros'])}"
    facts["lag"] = _lag(described, now_micros)
    left_seconds = document["time_to_loss_seconds"]
    if left_seconds is not None and left_seconds < 0 and not document["expired"]:
        facts["lag"] += ": beyond the retention of the table; changes may be lost without an error"
    facts["backlog"] = "unknown: the service counts the records that were read, not those that are left"
    held = [f"{client} ({counted(count, 'channel')})" for client, count in holders(described).items()]
    facts["clients"] = ", ".join(held) or "none holds a channel"
    return facts


def _print_facts(facts: Mapping[str, str]) -> None:
    for name, value in facts.items():
        print_text(f"{name:<9} {value}")


def _stage(document: Document) -> str:
    return "expired" if document["expired"] else str(document["stage"])


def _extent(document: Document) -> str:
    """Return the time range of the changes that the tunnel delivers, in words for a person."""
    start = document["from_micros"]
    begin = {"oldest": "from the oldest that were kept at its creation"}.get(document["from"], "from its creation")
    if start is not None:
        begin = f"from {utc_text(start)}"
    end = document["until_micros"]
    return begin if end is None else f"{begin} until {utc_text(end)}"


def _channels(document: Document) -> str:
    """Return a text that counts the tunnel's channels of each kind, and its finished channels."""
    channels = document["channels"]
    full = sum(each["kind"] == "full" for each in channels)
    finished = sum(each["status"] == "TERMINATED" for each in channels)
    return f"{len(channels)}: {full} of full data, {len(channels) - full} of changes; {finished} finished"


def _lag(described: TunnelDescription, now_micros: int) -> str:
    seconds = tunnel_lag_seconds(described, now_micros)
    if seconds is not None:
        return duration(seconds)
    if described.info.tunnel_type is TunnelType.BASE_DATA:
        return "none: it delivers no changes"
    if are_changes_finished(described):
        return "none: each channel of changes is finished"
    return "unknown until each channel of changes has a checkpoint"


def _channel_row(document: Document, short: Callable[[str], str]) -> tuple[str, ...]:
    lag = document["lag_seconds"]
    return (
        short(document["channel"]),
        document["kind"],
        document["status"],
        document["client"] or "-",
        _time(document["consumed_micros"]),
        str(document["records"]),
        "-" if lag is None else duration(lag),
    )


def _time(micros: int | None) -> str:
    return "-" if micros is None else utc_text(micros)
