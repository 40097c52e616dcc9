"""``streamclient server``: run a local Tablestore in its own process."""

from __future__ import annotations

import argparse
import gc
import signal
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING

from streamclient.base import checks
from streamclient.cli.options import connection_of, connection_parent
from streamclient.cli.terminal.commands import CommandFailed, runs
from streamclient.errors import NoThreadError

if TYPE_CHECKING:
    from streamclient.server.local import LocalTablestore

DEFAULT_PORT = 8180
"""The default port. It is usually free, and near the usual ports of local services. It is fixed, so that examples can
name it."""

DEFAULT_CONSOLE_PORT = 8181
"""The default port of the console: the number after ``DEFAULT_PORT``."""

WAKE_SECONDS = 0.2
"""The longest time, in seconds, until the main thread notices a signal that another thread got. The signal handler sets
no event: if the signal interrupted the wait for that event, the handler could wait for ever for the event's lock."""

DESCRIPTION = (
    "Run a local Tablestore until SIGINT or SIGTERM. The first line on standard output is "
    "'listening on http://HOST:PORT', the second line the address of its console, a page for a browser on this machine."
)


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand ``server``."""
    keys = connection_parent(only=("instance", "access-key-id", "access-key-secret"), json="", title="for clients")
    add_arguments(commands.add_parser("server", help="run a local Tablestore", description=DESCRIPTION, parents=[keys]))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the subcommand ``server``, and the function that runs the subcommand."""
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument(
        "--port", type=int, default=DEFAULT_PORT, help="port to listen on; 0 takes any free one (default: %(default)s)"
    )
    parser.add_argument(
        "--allowed-host",
        action="append",
        default=[],
        metavar="NAME",
        help="a name, other than localhost, under which clients address this server; may be repeated",
    )
    parser.add_argument(
        "--allow-public-secret",
        action="store_true",
        help="listen beyond this machine although the default secret is public",
    )
    parser.add_argument("--data", metavar="DIR", help="directory for the data, made if missing; default: in memory")
    parser.add_argument(
        "--console-port",
        type=int,
        default=DEFAULT_CONSOLE_PORT,
        metavar="PORT",
        help="port of the console; 0 takes any free one (default: %(default)s)",
    )
    parser.add_argument("--no-console", action="store_true", help="run without the console")
    runs(parser, run)


def run(arguments: argparse.Namespace) -> int:
    """Run the server until a signal comes; return the exit code."""
    # Imported only here, because an HTTP server would slow down other subcommands and --help. Imports make many objects
    # but hardly any garbage. Without garbage collection the time until the first line of output is a tenth shorter.
    gc.disable()
    from streamclient.server.local import LocalTablestore  # noqa: PLC0415
    from streamclient.server.server_errors import DataDirectoryError  # noqa: PLC0415

    gc.enable()
    connection = connection_of(arguments)
    checks.port.require("--console-port", arguments.console_port)
    stopped = stopped_by_signals()
    try:
        local = LocalTablestore(
            host=arguments.host,
            port=arguments.port,
            instance=connection.instance,
            access_key_id=connection.access_key_id,
            access_key_secret=connection.access_key_secret,
            data_dir=arguments.data,
            allowed_hosts=arguments.allowed_host,
            allow_public_secret=arguments.allow_public_secret,
        )
        local.start()
    except (OSError, ValueError, DataDirectoryError) as error:
        text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise CommandFailed(text) from error
    with ExitStack() as stops:
        stops.callback(_stop, local)
        print(f"listening on {local.endpoint}", flush=True)
        if not arguments.no_console:
            _start_console(local, arguments, stops)
        wait_until(stopped)
    return 0


def stopped_by_signals() -> list[int]:
    """Return a list to which each SIGINT and SIGTERM adds its number. The signals have no other effect from now on."""
    stopped: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: stopped.append(number))
    return stopped


def wait_until(stopped: list[int]) -> None:
    """Wait until ``stopped`` has the number of a signal."""
    pause = threading.Event()
    while not stopped:
        pause.wait(WAKE_SECONDS)


def _start_console(local: LocalTablestore, arguments: argparse.Namespace, stops: ExitStack) -> None:
    """Start the console, and print its address. If the console cannot start, print the reason and go on."""
    from streamclient.console.listening import ConsoleServer  # noqa: PLC0415 -- after the first line

    console = ConsoleServer(
        local, server_host=arguments.host, port=arguments.console_port, allowed_hosts=arguments.allowed_host
    )
    try:
        console.start()
    except (OSError, NoThreadError) as error:
        print(f"no console: {getattr(error, 'strerror', None) or error}", flush=True)
        return
    stops.callback(console.stop)
    print(f"console at {console.address}", flush=True)


def _stop(local: LocalTablestore) -> None:
    """Stop the server.

    Raises:
        CommandFailed: a request still keeps the server's thread busy. The end of the process ends that thread.
    """
    try:
        local.stop()
    except RuntimeError as error:
        raise CommandFailed(str(error)) from error
