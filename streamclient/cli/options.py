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

    from streamclient.operate.site import Site

CALL_TIMEOUT_SECONDS = 20.0
"""For one attempt of a command; the SDK's own default of 50 s is longer than anybody waits in front of a screen."""


_TABLES = (
    Setting("data_table", "table whose stream is consumed", variable="TABLESTORE_DATA_TABLE"),
    Setting("status_table", "table of the leases", variable="TABLESTORE_STATUS_TABLE"),
)
_OPTIONS = {each.name.replace("_", "-"): each for each in (*CONNECTION_SETTINGS, *_TABLES)}

TABLES = ("data-table", "status-table")
"""What every command about a fleet needs."""


def connection_parent(
    *,
    tables: Collection[str] = (),
    only: Collection[str] | None = None,
    json: str = "print one JSON document",
    is_group: bool = False,
    title: str = "connection",
) -> argparse.ArgumentParser:
    """A parent parser with the options that say where, and ``--json``: all commands have them behind their own name.

    Args:
        tables: of ``data-table`` and ``status-table``, those that the command needs.
        only: names of the options that make sense for the command; all by default.
        json: what ``--json`` does; empty for a command without it.
        is_group: whether this is for a command with actions: it takes the same options, and leaves their description
            to the actions.
        title: heading in ``--help``.
    """
    parser = argparse.ArgumentParser(add_help=False)
    group = parser.add_argument_group(title)
    for name, option in _OPTIONS.items():
        if name in tables or (option in CONNECTION_SETTINGS and (only is None or name in only)):
            shown = "" if not option.default or "secret" in name else f"; default {option.default}"
            text = f"{option.text} (environment: {option.variable}{shown})"
            # Not stored unless given: so an option may stand on either side of an action.
            help_text = argparse.SUPPRESS if is_group else text
            group.add_argument(f"--{name}", metavar="TEXT", default=argparse.SUPPRESS, help=help_text)
            if name == "access-key-secret":
                help_text = argparse.SUPPRESS if is_group else "file that holds the key secret, for nobody else to see"
                group.add_argument(f"--{name}-file", metavar="FILE", default=argparse.SUPPRESS, help=help_text)
    if json:
        help_text = argparse.SUPPRESS if is_group else json
        parser.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help=help_text)
    return parser


def option_value(name: str, arguments: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> str:
    """Return what was given for an option, else what stands in the environment, else its default.

    Raises:
        ConfigurationError: nothing was, and there is no default; it names the option and the variable.
    """
    option = _OPTIONS[name]
    given = getattr(arguments, option.name, None)
    if given is None and name == "access-key-secret":
        given = _secret_in_file(getattr(arguments, "access_key_secret_file", None))
    return chosen(option, given, environment)


def _secret_in_file(path: str | None) -> str | None:
    """What the file holds, without the line's end; other users of a machine can see what a command line holds."""
    if path is None:
        return None
    try:
        return Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"cannot read the access key secret from {path}: {error}") from error


def connection_of(arguments: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> Connection:
    """Where the options, or else the environment, say.

    Raises:
        ConfigurationError: a value is empty.
    """
    return Connection(
        **{each.name: option_value(each.name.replace("_", "-"), arguments, environment) for each in CONNECTION_SETTINGS}
    )


def command_client(arguments: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> OTSClient:
    """The client of a command: one that logs nothing, as commands say themselves what went wrong.

    Raises:
        ConfigurationError: a value is empty, or the SDK cannot work with it.
    """
    return connection_of(arguments, environment).quiet_client(socket_timeout=CALL_TIMEOUT_SECONDS)


def fleet_options() -> argparse.ArgumentParser:
    """A parent parser with the options of every command about a fleet, and ``--json``."""
    parser = connection_parent(tables=TABLES)
    parser.add_argument(
        "--lease-duration",
        type=float,
        metavar="SECONDS",
        help="lease duration of the fleet; by default what its workers publish, else 20",
    )
    return parser


def parking_options(parser: argparse.ArgumentParser) -> None:
    """Where parked records lie, for commands that name how many there are."""
    group = parser.add_argument_group("parked records").add_mutually_exclusive_group()
    group.add_argument("--parking-table", metavar="NAME", help="a TableParkingStore")
    group.add_argument("--parking-directory", metavar="DIR", help="a FileParkingStore")


def open_site(arguments: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> Site:
    """Connect to what the options, or else the environment, name. Calls nobody yet.

    Raises:
        ConfigurationError: a table is not named, or a value cannot work.
    """
    client = command_client(arguments, environment)
    tables = [option_value(name, arguments, environment) for name in TABLES]
    seconds = arguments.lease_duration
    if seconds is not None and not seconds > 0:
        raise ConfigurationError(f"--lease-duration must be a number of seconds above 0, not {seconds}")
    from streamclient.operate.site import Site  # noqa: PLC0415

    return Site(client, *tables, lease_seconds=seconds)


def operator_name() -> str:
    """``user@host`` of whoever runs this."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container without an entry for its user
        user = f"uid-{os.getuid()}"
    return f"{user}@{socket.gethostname()}"
