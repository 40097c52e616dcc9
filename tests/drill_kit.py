"""What the drills of real processes share: a table that is written and resharded, worker processes, a command line."""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from tablestore import OTSClient, PutRowItem, Row

from streamclient.model import ShardInfo
from streamclient.records import StreamRecord
from streamclient.server import LocalTablestore
from streamclient.testing.deliveries import Delivery, recorded, write_delivery
from streamclient.worker.handlers.batches import BatchBase
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


def chosen_ways(text: str, known: Sequence[str]) -> tuple[str, ...]:
    """The ways in which processes shall work: the names in an option, with commas between them."""
    ways = tuple(text.split(","))
    unknown = sorted({*ways} - {*known})
    if unknown:
        raise SystemExit(f"--ways: {unknown[0]!r} is unknown; there are {', '.join(known)}")
    return ways


def deal(dice: random.Random, ways: Sequence[str]) -> Iterator[str]:
    """The ways of processes, in the order of their starts. Each comes once before any comes again."""
    while True:
        yield from dice.sample(ways, len(ways))


def told_ways(ways: Mapping[str, int]) -> str:
    """How many processes of each way there were."""
    return " ".join(f"{way}={number}" for way, number in sorted(ways.items()))


LOOP_THREADS: dict[str, Any] = {"read_threads": 8, "renew_thread_pool_size": 2}
"""Those of a loop's worker, as `changes` chooses them where it is given no settings."""


class BatchRecorder:
    """Writes down the batches of a loop, as `DeliveryRecorder` does for a processor, which a loop does not have.

    A shard's life ends where a processor's would: with the acquisition, and with a batch that failed.
    """

    def __init__(self, worker: str, lines: IO[str]) -> None:
        self._worker, self._lines = worker, lines
        self._lives: dict[str, tuple[ShardInfo, str]] = {}

    def write(self, batch: BatchBase) -> None:
        """Write the line of a batch, unless it has no records."""
        if len(batch):
            self.record(batch.shard, self._life(batch.shard), batch)

    def record(self, shard: ShardInfo, life: str, records: Sequence[StreamRecord]) -> None:
        """Write the line of these records of one life."""
        at, given = time.monotonic_ns(), recorded(records)
        write_delivery(self._lines, Delivery(self._worker, shard.shard_id, life, at, given, shard.epoch))

    def fail(self, batch: BatchBase, error: Exception) -> None:
        """Let a batch fail: its shard begins again at what is stored."""
        batch.fail(error)
        self._lives.pop(batch.shard.shard_id, None)

    def _life(self, shard: ShardInfo) -> str:
        present, life = self._lives.get(shard.shard_id, (None, ""))
        if present is not shard:
            life = new_life(shard)
            self._lives[shard.shard_id] = shard, life
        return life


def new_life(shard: ShardInfo) -> str:
    """A name for a processor of a shard, or for what is one in a loop."""
    return f"{shard.lease_identifier}/{uuid.uuid4().hex[:8]}"


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
