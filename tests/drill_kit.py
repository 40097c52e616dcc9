"""What the drills of real processes share: a table that is written and resharded, worker processes, a command line."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tablestore import OTSClient, PutRowItem, Row

from streamclient.server import LocalTablestore
from tests.stage import IGNORE

# --- a table and its shards -------------------------------------------------------------------------------------------


def put(number: int | str, *cells: tuple[str, object]) -> PutRowItem:
    """Put a row whose key is `id`."""
    return PutRowItem(Row([("id", number)], list(cells)), IGNORE)


def open_shards(local: LocalTablestore, table: str) -> list[str]:
    """The ids of the shards that are written."""
    return [shard.shard_id for shard in local.shards(table) if shard.is_open]


def split(local: LocalTablestore, table: str, choice: float) -> None:
    """Split the open shard at `choice`, from 0 for the first to below 1 for the last."""
    shards = open_shards(local, table)
    local.split(table, shards[int(choice * len(shards))])


def merge(local: LocalTablestore, table: str, choice: float) -> None:
    """Merge the open shard at `choice` with the next one."""
    shards = open_shards(local, table)
    left = int(choice * (len(shards) - 1))
    local.merge(table, shards[left], shards[left + 1])


# --- worker processes -------------------------------------------------------------------------------------------------


def command(module: str, local: LocalTablestore, **given: object) -> list[str]:
    """The words for `Fleet.start` that run `module` as a process, which asks `told` for what is given."""
    given["client"] = [local.endpoint, local.access_key_id, local.access_key_secret, local.instance]
    return ["-m", module, json.dumps(given)]


def told() -> dict[str, Any]:
    """What this process was given by `command`."""
    given: dict[str, Any] = json.loads(sys.argv[1])
    return given


def client_of(given: dict[str, Any], **more: object) -> OTSClient:
    """A client for the server of whoever gave the command."""
    return OTSClient(*given["client"], logger_name="streamclient-drill", **more)


# --- the command line of a drill --------------------------------------------------------------------------------------


def options(**defaults: Any) -> argparse.Namespace:
    """An option for each default, of its type; a tuple lists choices, the default first, and `False` is a flag."""
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    for name, default in defaults.items():
        if default is False:
            parser.add_argument(f"--{name}", action="store_true")
        elif isinstance(default, tuple):
            parser.add_argument(f"--{name}", choices=default, default=default[0])
        else:
            parser.add_argument(f"--{name}", type=type(default), default=default)
    return parser.parse_args()


@contextmanager
def directory_of(name: str) -> Iterator[Path]:
    """A directory for the files of a drill. One that is not clean ends with exit code 1, and its files stay."""
    directory = Path(tempfile.mkdtemp(prefix=f"streamclient-{name}-"))
    try:
        yield directory
    except AssertionError as error:
        raise SystemExit(f"not clean; files in {directory}: {error}") from error
    shutil.rmtree(directory)
