"""``streamclient server``: a local Tablestore as a process of its own."""

from __future__ import annotations

import argparse
import gc
import os
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from streamclient.server.auth import DEFAULT_ACCESS_KEY_ID, DEFAULT_ACCESS_KEY_SECRET, DEFAULT_INSTANCE

DEFAULT_PORT = 8180
"""An unassigned-in-practice port near the usual ones for local services; fixed, so that examples can name it."""

EXIT_UNUSABLE = 2
"""The server could not start: wrong arguments, address in use, data directory not usable."""


KEY_ID_VARIABLE = "TABLESTORE_ACCESS_KEY_ID"
SECRET_VARIABLE = "TABLESTORE_ACCESS_KEY_SECRET"
"""The variables that the other commands take the keys from, so that one setting does for server and clients."""

DESCRIPTION = (
    "Run a local Tablestore until SIGINT or SIGTERM. The first line on standard output is "
    "'listening on http://HOST:PORT'."
)


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand."""
    add_arguments(commands.add_parser("server", help="run a local Tablestore", description=DESCRIPTION))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the subcommand, and what it runs."""
    parser.formatter_class = argparse.ArgumentDefaultsHelpFormatter
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=DEFAULT_PORT, help="port to listen on; 0 takes any free one")
    parser.add_argument("--instance", default=DEFAULT_INSTANCE, help="instance name that clients must give")
    parser.add_argument(
        "--access-key-id",
        default=os.environ.get(KEY_ID_VARIABLE, DEFAULT_ACCESS_KEY_ID),
        help=f"key id that clients must give (environment: {KEY_ID_VARIABLE})",
    )
    add_secret_arguments(parser, "secret that clients sign with")
    parser.add_argument(
        "--allowed-host",
        action="append",
        default=[],
        metavar="NAME",
        help="a name with a dot under which clients address this server; may be repeated",
    )
    parser.add_argument(
        "--allow-public-secret",
        action="store_true",
        help="listen beyond this machine although everybody can read the default secret",
    )
    parser.add_argument("--data", metavar="DIR", help="keep data in this directory, made if missing, not in memory")
    parser.set_defaults(run=run)


def add_secret_arguments(parser: argparse.ArgumentParser, text: str) -> None:
    """The ways to give a secret. Its default is not shown: it may come from the environment."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--access-key-secret",
        metavar="TEXT",
        default=argparse.SUPPRESS,
        help=f"{text}; other users of the machine can see it: better a file, or the environment ({SECRET_VARIABLE})",
    )
    group.add_argument(
        "--access-key-secret-file", metavar="FILE", default=argparse.SUPPRESS, help="file that holds the secret"
    )


def secret_of(arguments: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> str:
    """The secret that the arguments, or else the environment, give; otherwise the public one.

    Raises:
        ValueError: the file cannot be read.
    """
    if "access_key_secret" in arguments:
        return str(arguments.access_key_secret)
    if "access_key_secret_file" not in arguments:
        return environment.get(SECRET_VARIABLE, DEFAULT_ACCESS_KEY_SECRET)
    path = Path(arguments.access_key_secret_file)
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read the access key secret from {path}: {error}") from error


def run(arguments: argparse.Namespace) -> int:
    """Serve until a signal; the exit code."""
    # Imported here: other subcommands, and --help, should not pay for an HTTP server. Imports make many objects and
    # hardly any garbage; collecting meanwhile takes a tenth of the time to the first line.
    gc.disable()
    from streamclient.server.errors import DataDirectoryError  # noqa: PLC0415
    from streamclient.server.local import LocalTablestore  # noqa: PLC0415

    gc.enable()
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    try:
        local = LocalTablestore(
            host=arguments.host,
            port=arguments.port,
            instance=arguments.instance,
            access_key_id=arguments.access_key_id,
            access_key_secret=secret_of(arguments),
            data_dir=arguments.data,
            allowed_hosts=arguments.allowed_host,
            allow_public_secret=arguments.allow_public_secret,
        )
        local.start()
    except (OSError, ValueError, DataDirectoryError) as error:
        text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        print(f"streamclient server: {text}", file=sys.stderr)
        return EXIT_UNUSABLE
    try:
        print(f"listening on {local.endpoint}", flush=True)
        stopped.wait()
    finally:
        local.stop()
    return 0
