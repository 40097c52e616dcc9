"""Which fleet a command is about: options, environment, and the site made from them."""

from __future__ import annotations

import argparse
import getpass
import os
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING

from streamclient.errors import ConfigurationError
from streamclient.tablestore.connect import command_client, connection_parent, option_value

if TYPE_CHECKING:
    from streamclient.operate.site import Site

DEFAULT_LEASE_SECONDS = 20.0
"""The workers' own default; workers with a session row publish theirs, which is used instead."""


TABLES = ("data-table", "status-table")


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
    tables = [option_value(name, arguments, environment) for name in ("data-table", "status-table")]
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
