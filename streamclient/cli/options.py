"""Options that several commands share, for the connection to an instance, the tables of a fleet and parked records."""

from __future__ import annotations

import argparse
import getpass
import os
import socket
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from streamclient.base import checks
from streamclient.base.settings import Setting
from streamclient.errors import ConfigurationError
from streamclient.tablestore.instance import CONNECTION_SETTINGS, Connection, chosen

if TYPE_CHECKING:
    from tablestore import OTSClient

    from streamclient.interfaces import IParkingStore
    from streamclient.operate.site import Site

CALL_TIMEOUT_SECONDS = 20.0
"""The time limit of one attempt of a call, in seconds. A person at a terminal would not wait for the SDK's
default, 50 s."""


_TABLES = (
    Setting("data_table", "table whose stream is consumed", variable="TABLESTORE_DATA_TABLE"),
    Setting("status_table", "table of the leases", variable="TABLESTORE_STATUS_TABLE"),
)
_OPTIONS = {setting.name.replace("_", "-"): setting for setting in (*CONNECTION_SETTINGS, *_TABLES)}

TABLES = ("data-table", "status-table")
"""The options that name the tables of a fleet. Every command about a fleet needs both tables."""


def connection_parent(
    *,
    tables: Collection[str] = (),
    only: Collection[str] | None = None,
    json: str = "print one JSON document",
    is_group: bool = False,
    title: str = "connection",
) -> argparse.ArgumentParser:
    """Return a parent parser with the options of the connection, and ``--json``.

    Args:
        tables: the tables that the command needs, out of ``data-table`` and ``status-table``.
        only: the names of the connection options that make sense for the command; all by default.
        json: the help text of ``--json``; empty for a command without ``--json``.
        is_group: true for a command with actions. It takes the same options as its actions, but only the help of the
            actions describes them.
        title: the heading of these options in ``--help``.
    """
    parser = argparse.ArgumentParser(add_help=False)
    group = parser.add_argument_group(title)
    for name, option in _OPTIONS.items():
        if name in tables or (option in CONNECTION_SETTINGS and (only is None or name in only)):
            shown = "" if not option.default or "secret" in name else f"; default {option.default}"
            text = f"{option.text} (environment: {option.variable}{shown})"
            # Only a given option is stored, so the option may stand before or after the action's name.
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
    """Return the value of an option from the arguments; otherwise from the environment; otherwise the default.

    Raises:
        ConfigurationError: the option has no value and no default; the text names the option and the variable.
    """
    option = _OPTIONS[name]
    given = getattr(arguments, option.name, None)
    if given is None and name == "access-key-secret":
        path = getattr(arguments, "access_key_secret_file", None)
        given = None if path is None else secret_in_file(path)
    return chosen(option, given, environment)


def secret_in_file(path: str) -> str:
    """Return the secret in a file, without the line end. Unlike a command line, a file can be hidden from other users.

    Raises:
        ConfigurationError: the file cannot be read, or has several lines.
    """
    try:
        secret = Path(path).read_text(encoding="utf-8-sig").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"cannot read the access key secret from {path}: {error}") from error
    lines = secret.count("\n") + 1
    if lines > 1:
        raise ConfigurationError(f"{path} must have the access key secret alone, in one line, not {lines} lines")
    return secret


def connection_of(arguments: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> Connection:
    """Return the connection that the options describe. The environment gives values for absent options.

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
    """Return a parent parser with the options that every command about a fleet takes, and ``--json``."""
    parser = connection_parent(tables=TABLES)
    parser.add_argument(
        "--lease-duration",
        type=float,
        metavar="SECONDS",
        help="lease duration of the fleet; by default the one that its workers publish, else 20",
    )
    return parser


def parking_options(parser: argparse.ArgumentParser, *, is_required: bool = False) -> None:
    """Add the options that name the parking store; with ``is_required``, one of them must be given."""
    group = parser.add_argument_group("parked records").add_mutually_exclusive_group(required=is_required)
    group.add_argument("--parking-table", metavar="NAME", help="a TableParkingStore")
    group.add_argument("--parking-directory", metavar="DIR", help="a FileParkingStore")


def parking_store(client: OTSClient, arguments: argparse.Namespace) -> IParkingStore | None:
    """Return the parking store that the options name, without a call to it; ``None`` if the options name no store.

    Raises:
        ConfigurationError: the directory does not exist. The table may be made later.
    """
    if arguments.parking_table is not None:
        from streamclient.worker.parking.parking_table import TableParkingStore  # noqa: PLC0415

        return TableParkingStore(client, arguments.parking_table)
    if arguments.parking_directory is not None:
        return _store_in_directory(arguments.parking_directory)
    return None


def _store_in_directory(directory: str) -> IParkingStore:
    if not os.path.isdir(directory):
        raise ConfigurationError(f"{directory} is not a directory of parked records")
    from streamclient.worker.parking.parking_files import FileParkingStore  # noqa: PLC0415

    return FileParkingStore(directory)


def existing_store(client: Callable[[], OTSClient], table: str, directory: str | None) -> IParkingStore:
    """Return the parking store in ``directory`` or, without a directory, in ``table``.

    ``client`` returns the client that reaches the table.

    A command that only reads calls this function, because a store makes a table or a directory that does not exist.

    Raises:
        ConfigurationError: the directory or the table does not exist, or cannot hold parked records.
    """
    if directory is not None:
        return _store_in_directory(directory)
    # Imported only here: the SDK takes a third of a second to import, and a store in files does not need it.
    from streamclient.worker.parking.parking_table import TableParkingStore  # noqa: PLC0415

    store = TableParkingStore(client(), table)
    if not store.exists():
        raise ConfigurationError(
            f"the table {table!r} of parked records does not exist: a worker makes it when it parks its first record; "
            "check the name and the instance"
        )
    return store


def open_site(arguments: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> Site:
    """Return the ``Site`` of the fleet that the options or the environment name, without a call to the service.

    Raises:
        ConfigurationError: a table is not named, or a value is invalid.
    """
    client = command_client(arguments, environment)
    tables = [option_value(name, arguments, environment) for name in TABLES]
    seconds = arguments.lease_duration
    if seconds is not None:
        checks.seconds.require("--lease-duration", seconds)
    from streamclient.operate.site import Site  # noqa: PLC0415

    return Site(client, *tables, lease_seconds=seconds)


def operator_name() -> str:
    """Return the name of the user who runs the command, as ``user@host``."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):  # the user of a container may have no name, and Windows no USERNAME
        user = f"uid-{os.getuid()}" if hasattr(os, "getuid") else "unknown"
    return f"{user}@{socket.gethostname()}"
