"""A lake without Spark and disk: its files in a dictionary, its writers as threads that take one step at a time.

The code under test is the real one, ``Publisher`` and ``committed``. Only the job that writes the rows is made up: a
batch is a file with the numbers of its records.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

from attrs import define, field

from streamclient.errors import StreamClientException
from streamclient.model import ColumnType
from streamclient.records import SequenceInfo
from streamclient.spark.catalog import committed
from streamclient.spark.context import BatchContext, FrameColumn, ShardRange
from streamclient.spark.formats import Storage
from streamclient.spark.manifest import Manifest
from streamclient.spark.publishing import Files, Publisher
from tests.patience import PATIENCE_SECONDS

ROOT = "lake"
SHARD = "shard 1"
ROWS = "rows.json"


class MemoryFiles:
    """Files by path; directories are what paths have in common. Each method is one step, as on a real file system."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}

    def names(self, path: str) -> list[str]:
        inside = [name[len(path) + 1 :] for name in self.texts if name.startswith(path + "/")]
        return sorted({name.partition("/")[0] for name in inside})

    def find(self, path: str, pattern: str) -> list[str]:
        return find_by_levels(self.names, path, pattern)

    def read_text(self, path: str) -> str | None:
        return self.texts.get(path)

    def write_text(self, path: str, text: str) -> None:
        self.texts[path] = text

    def rename(self, source: str, target: str) -> None:
        assert not self.names(target), f"{target} exists"
        assert target not in self.texts, f"{target} exists"
        moved = [name for name in self.texts if name.startswith(source + "/")]
        assert moved, f"{source} is not there"
        for name in moved:
            self.texts[target + name[len(source) :]] = self.texts.pop(name)

    def delete(self, path: str) -> None:
        for name in [name for name in self.texts if name == path or name.startswith(path + "/")]:
            del self.texts[name]


def find_by_levels(names: Callable[[str], list[str]], path: str, pattern: str) -> list[str]:
    """As a glob goes about it: all directories of one level are listed before those of the next."""
    found = [""]
    for part in pattern.split("/"):
        found = [f"{parent}/{name}" for parent in found for name in names(path + parent) if fnmatchcase(name, part)]
    return sorted(name[1:] for name in found)


class SteppedFiles:
    """Calls ``pause`` before each step; a ``find`` is as many steps as it lists directories."""

    def __init__(self, files: Files, pause: Callable[[], None]) -> None:
        self._files = files
        self._pause = pause

    def find(self, path: str, pattern: str) -> list[str]:
        return find_by_levels(self.names, path, pattern)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._files, name)

        def call(*arguments: str) -> Any:
            self._pause()
            return method(*arguments)

        return call


class Crashed(Exception):
    """Ends an actor that crashes."""


class Actor:
    """A thread that stands still before each step until it is told to go on."""

    def __init__(self, work: Callable[[Actor], None]) -> None:
        self.is_done = False
        self.error: BaseException | None = None
        self._work = work
        self._is_crashed = False
        self._may_go = threading.Semaphore(0)
        self._stands = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._stands.acquire(timeout=PATIENCE_SECONDS)

    def pause(self) -> None:
        """Stand still. The actor's own thread."""
        self._stands.release()
        assert self._may_go.acquire(timeout=PATIENCE_SECONDS), "nobody let it go on"
        if self._is_crashed:
            raise Crashed

    def crash(self) -> None:
        """It does nothing more, wherever it stands."""
        self._is_crashed = True
        self.finish()

    def step(self) -> None:
        """Let it do one step, and wait for that. The test's thread."""
        if not self.is_done:
            self._may_go.release()
            assert self._stands.acquire(timeout=PATIENCE_SECONDS), "its step did not end"

    def finish(self) -> None:
        """Let it go on to its end."""
        for _ in range(10_000):
            if self.is_done:
                self._thread.join(PATIENCE_SECONDS)
                return
            self.step()
        raise AssertionError("it does not end")

    def _run(self) -> None:
        try:
            self.pause()
            self._work(self)
        except BaseException as error:
            self.error = error
        self.is_done = True
        self._stands.release()


@define
class Row:
    """What the status table knows of the shard."""

    epoch: int = 0
    """Of the present owner."""
    checkpoint: int = 0
    """Number of the next record to read."""


@define
class World:
    """One shard, its lease row, its lake, and everybody who ever owned it."""

    records: int = 100
    files: MemoryFiles = field(factory=MemoryFiles)
    row: Row = field(factory=Row)
    trimmed_to: int = 0
    acknowledged: set[int] = field(factory=set)
    """Records of batches whose checkpoint was stored."""

    def take(self, sizes: list[int]) -> Actor:
        """Another worker takes the lease, and commits batches of these sizes one after the other."""
        self.row = Row(self.row.epoch + 1, self.row.checkpoint)
        epoch, start = self.row.epoch, self.row.checkpoint
        return Actor(lambda actor: self._work(actor, epoch, start, sizes))

    def restart(self, sizes: list[int]) -> Actor:
        """The owner's processor failed, and a new one starts in the same tenancy."""
        epoch, start = self.row.epoch, self.row.checkpoint
        return Actor(lambda actor: self._work(actor, epoch, start, sizes))

    def trim(self, count: int) -> None:
        """The stream forgets its oldest records."""
        self.trimmed_to = min(self.records - 1, self.trimmed_to + count)

    def _work(self, actor: Actor, epoch: int, start: int, sizes: list[int]) -> None:
        for size in sizes:
            first, end = max(start, self.trimmed_to), max(start, self.trimmed_to) + size
            numbers = list(range(first, min(end, self.records)))
            if not numbers:
                return
            end = numbers[-1] + 1
            commit(SteppedFiles(self.files, actor.pause), a_range(epoch, start, end, first), numbers)
            actor.pause()
            if self.row.epoch != epoch:
                return
            self.row.checkpoint = end
            self.acknowledged.update(numbers)
            start = end

    def view(self) -> list[int]:
        """What a reader finds now."""
        return read_view(self.files)


def a_range(epoch: int, start: int, end: int, first: int | None = None) -> ShardRange:
    """The records from one position to another."""
    return ShardRange(
        shard_id=SHARD,
        stream_id="stream",
        lease_identifier=f"tenancy of {epoch}",
        start_position=f"before {start}",
        end_position=f"before {end}",
        record_count=end - start,
        first_sequence=SequenceInfo(0, start if first is None else first, 0),
        last_sequence=SequenceInfo(0, end - 1, 0),
        epoch=epoch,
    )


def publisher_of(files: Any, application: str = "shop") -> Publisher:
    return Publisher(files, ROOT, "_", application)


def manifest_of(one: ShardRange, application: str = "shop") -> Manifest:
    context = BatchContext((one,), (FrameColumn("pk", ColumnType.INTEGER, is_key=True),))
    return Manifest.of(one, context, Storage.make("json"), "{}", application)


def commit(files: Any, one: ShardRange, numbers: list[int]) -> None:
    """What ``FileSink`` does with one shard of a batch, with a made-up job."""
    publisher = publisher_of(files)
    publisher.fence(one)
    staged = publisher.staging()
    files.write_text(f"{staged}/{ROWS}", json.dumps(numbers))
    place = publisher.place(one)
    if place.previous is not None and place.previous.begins_before(one):
        old = json.loads(files.read_text(f"{place.previous.path}/{ROWS}") or "[]")
        kept = publisher.staging()
        first = one.first_sequence.timestamp_micros
        files.write_text(f"{kept}/{ROWS}", json.dumps([number for number in old if number < first]))
        publisher.keep(one, place, kept, place.previous)
    publisher.publish(one, place, staged, manifest_of(one))


def read_view(files: Any) -> list[int]:
    """The records in the lake, sorted. Reads again if files went away meanwhile, as users are told to."""
    for _ in range(100):
        try:
            texts = [files.read_text(f"{path}/{ROWS}") for path, _ in committed(files, ROOT)]
        except StreamClientException as error:
            if "no committed batch" not in str(error):
                raise
            return []
        if None not in texts:
            return sorted(number for text in texts for number in json.loads(text))
    raise AssertionError("never read to the end")
