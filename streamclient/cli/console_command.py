"""``streamclient console``: show fleets in a browser."""

from __future__ import annotations

import argparse
import os
import re
import stat
import sys
import webbrowser
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from streamclient.base import checks
from streamclient.base.extras import require_extra
from streamclient.cli.options import (
    CALL_TIMEOUT_SECONDS,
    connection_of,
    connection_parent,
    operator_name,
    parking_options,
    parking_store,
)
from streamclient.cli.server_command import stopped_by_signals, wait_until
from streamclient.cli.terminal.commands import EXIT_DONE, CommandFailed, runs
from streamclient.errors import ConfigurationError, is_local
from streamclient.tablestore.instance import LOCAL_ACCESS_KEY_SECRET, LOCAL_ENDPOINT, LOCAL_INSTANCE, Connection

if TYPE_CHECKING:
    from tablestore import OTSClient

    from streamclient.console.doors import ConsoleDoors
    from streamclient.console.fleets import FleetPages
    from streamclient.operate.site import Site

DEFAULT_PORT = 8182
"""The default port. It follows the ports of ``streamclient server`` and of its console, so that all three can run
together."""

LEAST_KEY_CHARACTERS = 22
"""The smallest number of characters of a key in a key file: 22 characters of base64 are 128 bits."""

_KEY = re.compile(r"[!-~]+")
"""The pattern of a key: printable ASCII without spaces, because a key is sent in a header."""

DESCRIPTION = (
    "Show fleets in a browser, until Ctrl-C. The printed address has a key after #. Without a viewer, nothing is read. "
    "Changes need --allow-actions."
)


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand ``console``."""
    parser = commands.add_parser(
        "console", help="show fleets in a browser", description=DESCRIPTION, parents=[connection_parent(json="")]
    )
    parser.add_argument(
        "fleets",
        nargs="*",
        metavar="TABLE[:STATUS]",
        help="data table of a fleet, and its status table if the data table has several; default: all fleets",
    )
    parser.add_argument(
        "--lease-duration",
        type=float,
        metavar="SECONDS",
        help="lease duration of the fleets; by default the one that their workers publish, else 20",
    )
    parking_options(parser)
    parser.add_argument(
        "--processor", metavar="MODULE:NAME", help="factory of the processors for replays, as for Worker"
    )
    rights = parser.add_argument_group("what the page may do")
    rights.add_argument("--allow-actions", action="store_true", help="pause, move and release shards, park and replay")
    rights.add_argument("--show-values", action="store_true", help="show values of columns, not keys alone")
    place = parser.add_argument_group("address")
    place.add_argument("--open", action="store_true", help="open the page in the browser")
    place.add_argument(
        "--port", type=int, default=DEFAULT_PORT, help="port to listen on; 0 takes any free one (default: %(default)s)"
    )
    place.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    place.add_argument(
        "--key-file", metavar="FILE", help="file with the key, readable by its owner alone; needed for --host"
    )
    place.add_argument(
        "--allowed-host", action="append", default=[], metavar="NAME", help="another host name of the page; repeatable"
    )
    place.add_argument(
        "--behind-proxy",
        action="store_true",
        help="requests come through a proxy with TLS, under an --allowed-host",
    )
    place.add_argument("--who-header", default="", metavar="NAME", help="the proxy's header that names the user")
    runs(parser, run)


def run(arguments: argparse.Namespace) -> int:
    """Serve the console until a signal comes; return the exit code."""
    from streamclient.console.listening import PageServer  # noqa: PLC0415 -- brings more than --help needs

    checks.port.require("--port", arguments.port)
    if arguments.lease_duration is not None:
        checks.seconds.require("--lease-duration", arguments.lease_duration)
    require_extra("server", "the console", ["aiohttp"])
    connection = connection_of(arguments)
    doors = console_doors(arguments, connection)
    pages = fleet_pages(arguments, connection)
    server = PageServer(lambda: pages, doors, host=arguments.host, port=arguments.port)
    try:
        server.start()
    except (OSError, ValueError) as error:
        raise CommandFailed(getattr(error, "strerror", None) or str(error)) from error
    try:
        # A key from a file is not printed, so that it stays out of terminals and logs.
        address = server.address.partition("#")[0] if arguments.key_file else server.address
        stopped = stopped_by_signals()
        print(f"console at {address}", flush=True)
        if arguments.open:
            webbrowser.open(server.address)
        wait_until(stopped)
    finally:
        server.stop()
        pages.close()
    return EXIT_DONE


# --- access --------------------------------------------------------------------------------------------------------


def console_doors(arguments: argparse.Namespace, connection: Connection) -> ConsoleDoors:
    """Return the access rules of the console that the options describe.

    Raises:
        ConfigurationError: the options would let other machines in without a key, trust a header without a proxy, or
            name an invalid host or key file.
    """
    from streamclient.console.doors import ConsoleDoors, new_key  # noqa: PLC0415
    from streamclient.server.auth import Doors, host_names, is_loopback  # noqa: PLC0415

    host_names.require("--allowed-host", arguments.allowed_host)
    if arguments.key_file is None and not is_loopback(arguments.host):
        raise ConfigurationError(
            f"--host {arguments.host} lets other machines in: give a key of your own with --key-file FILE"
        )
    if arguments.who_header and not arguments.behind_proxy:
        raise ConfigurationError("--who-header needs --behind-proxy: without a proxy, any program can send that header")
    # A local server with the public secret lets in every program on this machine, so a key would protect nothing.
    is_public = is_local(connection.endpoint) and connection.access_key_secret == LOCAL_ACCESS_KEY_SECRET
    key: str | None = None if is_public and not arguments.behind_proxy else new_key()
    return ConsoleDoors(
        Doors(arguments.allowed_host),
        key if arguments.key_file is None else key_in(arguments.key_file),
        allows_changes=arguments.allow_actions,
        is_behind_proxy=arguments.behind_proxy,
        who_header=arguments.who_header,
    )


def key_in(path: str) -> str:
    """Return the key in a file that only its owner may read.

    Raises:
        ConfigurationError: the file cannot be read, other users may read it, or its key is too short or invalid.
    """
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            key = file.read(4_096).strip()
    except OSError as error:
        raise ConfigurationError(f"cannot read the key from {path}: {error.strerror}") from error
    if mode & 0o177:
        raise ConfigurationError(f"{path} has mode {mode:04o}, so others may read the key: run chmod 600 {path}")
    if len(key) < LEAST_KEY_CHARACTERS or not _KEY.fullmatch(key):
        raise ConfigurationError(
            f"{path} needs one line of at least {LEAST_KEY_CHARACTERS} letters and digits, as "
            "`python -c 'import secrets; print(secrets.token_urlsafe())'` prints"
        )
    return key


# --- the fleets ----------------------------------------------------------------------------------------------------


def fleet_pages(arguments: argparse.Namespace, connection: Connection) -> FleetPages:
    """Return the pages of the fleets that the options name, after looking their tables up at the service.

    Raises:
        ConfigurationError: a named fleet or processor does not exist, or the options contradict each other.
        StreamClientError: a call to the service failed.
    """
    from streamclient.console.fleets import FleetPages, FleetSettings  # noqa: PLC0415
    from streamclient.operate.asked_changes import PageRights  # noqa: PLC0415
    from streamclient.operate.site import Site  # noqa: PLC0415
    from streamclient.worker.parking.parking_replay import processor_named  # noqa: PLC0415

    client = connection.quiet_client(socket_timeout=CALL_TIMEOUT_SECONDS)
    processor = None
    if arguments.processor is not None:
        if arguments.parking_table is None and arguments.parking_directory is None:
            raise ConfigurationError("--processor replays parked records: name --parking-table or --parking-directory")
        if "" not in sys.path:
            sys.path.insert(0, "")  # find modules in the present directory, as `python -m` does
        processor = processor_named(arguments.processor, import_module)
    store = parking_store(client, arguments)
    pairs = named_fleets(arguments.fleets, client)
    sites = [Site(client, *pair, lease_seconds=arguments.lease_duration) for pair in pairs]
    directory = arguments.parking_directory
    rights = PageRights(
        who=operator_name(),
        command_options=_command_options(connection),
        store=store,
        parking_table=arguments.parking_table,
        parking_directory=None if directory is None else os.path.abspath(directory),
        processor=processor,
        processor_name=arguments.processor or "MODULE:NAME",
    )
    settings = FleetSettings(
        endpoint=connection.endpoint,
        instance=connection.instance,
        rights=rights,
        allows_actions=arguments.allow_actions,
        shows_values=arguments.show_values,
    )
    return FleetPages(_by_name(sites), settings)


def named_fleets(given: Sequence[str], client: OTSClient) -> list[tuple[str, str]]:
    """Return the data table and the status table of each fleet in ``given``; without names, of all fleets.

    Raises:
        ConfigurationError: a data table has no status table or several, or the instance has no fleet at all.
    """
    from streamclient.operate.fleet_search import find_fleets  # noqa: PLC0415

    pairs = [name.partition(":")[::2] for name in given]
    if pairs and all(table and status for table, status in pairs):
        return list(dict.fromkeys(pairs))
    known = find_fleets(client)
    if not known:
        raise ConfigurationError("the instance has no status table: name TABLE:STATUS once a worker has run")
    found: list[tuple[str, str]] = [] if given else known
    for table, status in pairs:
        fitting = [(table, status)] if status else [pair for pair in known if pair[0] == table]
        if len(fitting) != 1:
            which = ", ".join(f"{table}:{status}" for table, status in fitting or known)
            what = "several status tables" if fitting else "no status table"
            raise ConfigurationError(f"table {table!r} has {what}; name one of {which}")
        found += fitting
    return list(dict.fromkeys(found))


def _by_name(sites: Iterable[Site]) -> Mapping[str, Site]:
    """Return the fleets by name: the data table, with the status table if several fleets share the data table."""
    listed = list(sites)
    counts = Counter(site.data_table for site in listed)
    return {
        site.data_table if counts[site.data_table] == 1 else f"{site.data_table}:{site.status_table}": site
        for site in listed
    }


def _command_options(connection: Connection) -> list[str]:
    """Return the options that name the instance of ``connection`` in the commands that the page shows.

    A user copies such a command from the page into a shell. The options do not contain the access keys.
    """
    options = [] if connection.endpoint == LOCAL_ENDPOINT else ["--endpoint", connection.endpoint]
    return [*options, *([] if connection.instance == LOCAL_INSTANCE else ["--instance", connection.instance])]
