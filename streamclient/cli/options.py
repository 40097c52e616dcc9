"""Options that several commands share: the instance and its keys, the tables of a fleet, its parked records."""

from __future__ import annotations

import argparse
import getpass
import os
import socket
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from streamclient.base.settings import Setting
from streamclient.errors import ConfigurationError
from streamclient.tablestore.instance import CONNECTION_SETTINGS, Connection, chosen

if TYPE_CHECKING:
    from tablestore import OTSClient

    from streamclient.interfaces import IParkingStore
    from streamclient.operate.site import Site

CALL_TIMEOUT_SECONDS = 20.0
"""The time limit of one attempt of a call, in seconds. The SDK's own default of 50 s is longer than a person waits at a
screen."""


_TABLES = (
    Setting("data_table", "table whose stream is consumed", variable="TABLESTORE_DATA_TABLE"),
    Setting("status_table", "table of the leases", variable="TABLESTORE_STATUS_TABLE"),
)
_OPTIONS = {setting.name.replace("_", "-"): setting for setting in (*CONNECTION_SETTINGS, *_TABLES)}

TABLES = ("data-table", "status-table")
"""The tables that every command about a fleet needs."""


def connection_parent(
    *,
    tables: Collection[str] = (),
    only: Collection[str] | None = None,
    json: str = "print one JSON document",
    is_group: bool = False,
    title: str = "connection",
) -> argparse.ArgumentParser:
    """Return a parent parser with the options of the connection, and ``--json``. They stand after a command's name.

    Args:
        tables: the tables that the command needs, out of ``data-table`` and ``status-table``.
        only: names of the options that make sense for the command; all by default.
        json: help text of ``--json``; empty for a command without it.
        is_group: true for a command with actions: it takes the same options, and leaves their description to the
            actions.
        title: heading in ``--help``.
    """
    parser = argparse.ArgumentParser(add_help=False)
    group = parser.add_argument_group(title)
    for name, option in _OPTIONS.items():
        if name in tables or (option in CONNECTION_SETTINGS and (only is None or name in only)):
            shown = "" if not option.default or "secret" in name else f"; default {option.default}"
            text = f"{option.text} (environment: {option.variable}{shown})"
            # An option is stored only if it is given, so it may stand before or after an action.
            help_text = argparse.SUPPRESS if is_group else text
            group.add_argument(f"--{name}", metavar="TEXT", default=argparse.SUPPRESS, help=help_text)
            if name == "access-key-secret":
                help_text = argparse.SUPPRESS if is_group else "file with the key secret, hidden from other users"
                group.add_argument(f"--{name}-file", metavar="FILE", default=argparse.SUPPRESS, help=help_text)
    if json:
        help_text = argparse.SUPPRESS if is_group else json
        parser.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help=help_text)
    return parser


def option_value(name: str, arguments: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> str:
    """Return the given value of an option. Without one, return the environment's value, or else the default.

    Raises:
        ConfigurationError: there is no value and no default; the text names the option and the variable.
    """
    option = _OPTIONS[name]
    given = getattr(arguments, option.name, None)
    if given is None and name == "access-key-secret":
        path = getattr(arguments, "access_key_secret_file", None)
        given = None if path is None else secret_in_file(path)
    return chosen(option, given, environment)


def secret_in_file(path: str) -> str:
    """Return the text of a file without its line end. A command line would show the secret to other users.

    Raises:
        ConfigurationError: the file cannot be read.
    """
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"cannot read the access key secret from {path}: {error}") from error


def connection_of(arguments: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> Connection:
    """Return the connection that the options, or else the environment, describe.

    Raises:
        ConfigurationError: a value is empty.
    """
    return Connection(
        **{
            setting.name: option_value(setting.name.replace("_", "-"), arguments, environment)
            for setting in CONNECTION_SETTINGS
        }
    )


def command_client(arguments: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> OTSClient:
    """Return the client of a command. It logs nothing, because commands report errors themselves.

    Raises:
        ConfigurationError: a value is empty, or the SDK cannot work with it.
    """
    return connection_of(arguments, environment).quiet_client(socket_timeout=CALL_TIMEOUT_SECONDS)


def fleet_options() -> argparse.ArgumentParser:
    """Return a parent parser with the options of every command about a fleet, and ``--json``."""
    parser = connection_parent(tables=TABLES)
    parser.add_argument(
        "--lease-duration",
        type=float,
        metavar="SECONDS",
        help="lease duration of the fleet; by default the one that its workers publish, else 20",
    )
    return parser


def parking_options(parser: argparse.ArgumentParser, *, is_required: bool = False) -> None:
    """Add the options that name the store of parked records."""
    group = parser.add_argument_group("parked records").add_mutually_exclusive_group(required=is_required)
    group.add_argument("--parking-table", metavar="NAME", help="a TableParkingStore")
    group.add_argument("--parking-directory", metavar="DIR", help="a FileParkingStore")


def parking_store(client: OTSClient, arguments: argparse.Namespace) -> IParkingStore | None:
    """Return the store of parked records that the options name; ``None`` if they name none. Nothing is called yet."""
    if arguments.parking_table:
        from streamclient.worker.parking.parking_table import TableParkingStore  # noqa: PLC0415

        return TableParkingStore(client, arguments.parking_table)
    if arguments.parking_directory:
        from streamclient.worker.parking.parking_files import FileParkingStore  # noqa: PLC0415

        return FileParkingStore(arguments.parking_directory)
    return None


def open_site(arguments: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> Site:
    """Return the fleet's site that the options, or else the environment, name. Nothing is called yet.

    Raises:
        ConfigurationError: a table is not named, or a value is invalid.
    """
    client = command_client(arguments, environment)
    tables = [option_value(name, arguments, environment) for name in TABLES]
    seconds = arguments.lease_duration
    if seconds is not None and not seconds > 0:
        raise ConfigurationError(f"--lease-duration must be a number of seconds above 0, not {seconds}")
    from streamclient.operate.site import Site  # noqa: PLC0415

    return Site(client, *tables, lease_seconds=seconds)


def operator_name() -> str:
    """Return ``user@host`` of the user who runs the command."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):  # a container without an entry for its user; Windows without USERNAME
        user = f"uid-{os.getuid()}" if hasattr(os, "getuid") else "unknown"
    return f"{user}@{socket.gethostname()}"
