"""A worker of the rounds, in a process of its own: takes shards, stores their records in a destination, checkpoints.

usage: python rounds_worker.py KIND PLACE STATUS SEED SHARD...

It prints a line at each step, at which its parent may kill or freeze it. Leases are rows of an SQLite file.
"""

from __future__ import annotations

import random
import sqlite3
import sys
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from streamclient.destinations import Commit, DeltaDestination, FencedCommit, change_rows, records_digest
from streamclient.destinations.commit import Destination
from streamclient.records import StreamRecord
from streamclient.testing.destination_contracts import change

RECORDS = 400
BATCH_MAX = 25
SHARDS = ("shard-0", "shard-1", "shard-2")


def records_of_shard(shard: str, start: int, end: int) -> list[StreamRecord]:
    base = 10_000 * SHARDS.index(shard)
    return [change(base + n, text=f"value {n}", **({"late": n} if n > RECORDS // 2 else {})) for n in range(start, end)]


def opened(kind: str, place: str) -> Destination:
    if kind == "delta":
        return DeltaDestination(place, answer_seconds=60.0)
    if kind == "postgres":
        from streamclient.destinations.postgres import PostgresDestination

        return PostgresDestination(place, "orders", answer_seconds=5.0)
    from pyiceberg.catalog.sql import SqlCatalog

    from streamclient.destinations.iceberg import IcebergDestination

    catalog = SqlCatalog("rounds", uri=f"sqlite:///{place}/catalog.db?timeout=60", warehouse=f"file://{place}/data")
    return IcebergDestination(catalog, "lake.orders", answer_seconds=60.0)


class Status:
    """The status table: epoch, checkpoint and prepared commit of each shard, written if the epoch is still ours."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None, timeout=60)
        self._connection.execute(
            "CREATE TABLE IF NOT EXISTS leases "
            "(shard TEXT PRIMARY KEY, epoch INTEGER, checkpoint INTEGER, pending TEXT)"
        )

    def take(self, shard: str) -> int:
        self._connection.execute("INSERT OR IGNORE INTO leases VALUES (?, 0, 0, '')", (shard,))
        row = self._connection.execute("UPDATE leases SET epoch = epoch + 1 WHERE shard = ? RETURNING epoch", (shard,))
        return int(row.fetchall()[0][0])

    def row(self, shard: str) -> tuple[int, int, str]:
        query = "SELECT epoch, checkpoint, pending FROM leases WHERE shard = ?"
        found: tuple[int, int, str] = self._connection.execute(query, (shard,)).fetchone()
        return found

    def write(self, shard: str, epoch: int, checkpoint: int, pending: str) -> None:
        query = "UPDATE leases SET checkpoint = ?, pending = ? WHERE shard = ? AND epoch = ?"
        if self._connection.execute(query, (checkpoint, pending, shard, epoch)).rowcount != 1:
            raise LostError(shard)

    def checkpoints(self) -> dict[str, str]:
        return {
            shard: position(count) for shard, count in self._connection.execute("SELECT shard, checkpoint FROM leases")
        }

    def close(self) -> None:
        self._connection.close()


class LostError(Exception):
    """The lease is lost, and the worker knows."""


def position(count: int) -> str:
    return f"iterator-{count}" if count else "TRIM_HORIZON"


def count_of(text: str) -> int:
    return int(text.removeprefix("iterator-")) if text != "TRIM_HORIZON" else 0


class RoundsWorker:
    def __init__(self, destination: Destination, status: Status, shards: Sequence[str], dice: random.Random) -> None:
        self.destination, self.status, self.dice = destination, status, dice
        self.epochs = {shard: status.take(shard) for shard in shards}

    def run(self) -> None:
        while commits := [one for shard in self.epochs if (one := self.prepared(shard)) is not None]:
            say("prepared")
            columns = self.destination.columns()
            parts = [
                change_rows(
                    records_of_shard(one.shard, count_of(one.start), count_of(one.end)),
                    shard=one.shard,
                    number=one.number,
                    columns=columns,
                )
                for one in commits
            ]
            self.destination.commit(pa.concat_tables(parts, promote_options="default"), commits)
            say("committed")
            for one in commits:
                self.status.write(one.shard, self.epochs[one.shard], count_of(one.end), "")
            say("checkpointed")

    def prepared(self, shard: str) -> Commit | None:
        last = self.destination.last_commits([shard])[shard]
        epoch, checkpoint, text = self.status.row(shard)
        if epoch != self.epochs[shard]:
            raise LostError(shard)
        pending = Commit.from_json(text) if text else None
        if pending is not None and last is not None and last.digest == pending.digest:
            checkpoint, pending = count_of(pending.end), None
            self.status.write(shard, self.epochs[shard], checkpoint, "")
        if checkpoint == RECORDS:
            return None
        end = count_of(pending.end) if pending else min(RECORDS, checkpoint + self.dice.randint(1, BATCH_MAX))
        records = records_of_shard(shard, checkpoint, end)
        commit = Commit.after(
            last,
            application="default",
            shard=shard,
            epoch=self.epochs[shard],
            start=position(checkpoint),
            end=position(end),
            count=len(records),
            content=records_digest(records),
        )
        self.status.write(shard, self.epochs[shard], checkpoint, commit.to_json())
        return commit


def say(step: str) -> None:
    print(step, flush=True)


def main(kind: str, place: str, status: str, seed: str, *shards: str) -> None:
    worker = RoundsWorker(opened(kind, place), Status(Path(status)), shards, random.Random(seed))
    say("taken")
    try:
        worker.run()
    except FencedCommit:
        say("fenced")
    except LostError:
        say("lost")
    else:
        say("finished")


if __name__ == "__main__":
    main(*sys.argv[1:])
