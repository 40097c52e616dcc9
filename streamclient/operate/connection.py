"""Which fleet a command is about: options, environment, and the clients made from them."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attrs import frozen

from streamclient.errors import ConfigurationError

if TYPE_CHECKING:
    from streamclient.operate.site import Site

LOCAL_ENDPOINT = "http://127.0.0.1:8180"
"""Where ``streamclient server`` listens by default; this and the next three are that server's own defaults."""
LOCAL_INSTANCE = "local"
LOCAL_ACCESS_KEY_ID = "local-access-key-id"
LOCAL_ACCESS_KEY_SECRET = "local-access-key-secret"

DEFAULT_LEASE_SECONDS = 20.0
"""The workers' own default; workers with a session row publish theirs, which is used instead."""


@frozen
class _Option:
    name: str
    variable: str
    default: str | None
    text: str


_OPTIONS = (
    _Option("endpoint", "TABLESTORE_ENDPOINT", LOCAL_ENDPOINT, "endpoint of the instance"),
    _Option("instance", "TABLESTORE_INSTANCE", LOCAL_INSTANCE, "instance name"),
    _Option("access-key-id", "TABLESTORE_ACCESS_KEY_ID", LOCAL_ACCESS_KEY_ID, "key id"),
    _Option("access-key-secret", "TABLESTORE_ACCESS_KEY_SECRET", LOCAL_ACCESS_KEY_SECRET, "key secret"),
    _Option("sts-token", "TABLESTORE_STS_TOKEN", "", "security token of temporary keys"),
    _Option("data-table", "TABLESTORE_DATA_TABLE", None, "table whose stream is consumed"),
    _Option("status-table", "TABLESTORE_STATUS_TABLE", None, "table of the leases"),
)


def connection_options() -> argparse.ArgumentParser:
    """A parent parser with the options that every command takes, and ``--json``."""
    parser = argparse.ArgumentParser(add_help=False)
    group = parser.add_argument_group("connection")
    for option in _OPTIONS:
        shown = "" if not option.default or "secret" in option.name else f"; default {option.default}"
        group.add_argument(
            f"--{option.name}", metavar="TEXT", help=f"{option.text} (environment: {option.variable}{shown})"
        )
    group.add_argument(
        "--lease-duration",
        type=float,
        metavar="SECONDS",
        help="lease duration of the fleet; by default what its workers publish, else 20",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
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
    values = {option.name: _value(option, arguments, environment) for option in _OPTIONS}
    seconds = arguments.lease_duration
    if seconds is not None and not seconds > 0:
        raise ConfigurationError(f"--lease-duration must be a number of seconds above 0, not {seconds}")
    # Imported here: the SDK takes a third of a second, which --help should not cost.
    from streamclient.operate.site import Site, make_client  # noqa: PLC0415

    client = make_client(
        values["endpoint"],
        values["access-key-id"],
        values["access-key-secret"],
        values["instance"],
        values["sts-token"],
    )
    return Site(client, values["data-table"], values["status-table"], lease_seconds=seconds)


def _value(option: _Option, arguments: argparse.Namespace, environment: Mapping[str, str]) -> str:
    given: Any = getattr(arguments, option.name.replace("-", "_"))
    value = given if given is not None else environment.get(option.variable, option.default)
    if value is None or (not value and option.default != ""):
        raise ConfigurationError(f"name the {option.text}: --{option.name}, or {option.variable} in the environment")
    return str(value)
