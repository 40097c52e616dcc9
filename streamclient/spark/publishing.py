"""How what was written gets its place in a lake, safe from writers that have lost their shard. No Spark here.

A writer that was frozen and wakes up goes on where it was, in the middle of any of these steps. What makes that
harmless, argued in docs/decisions/spark-output.md:

* nothing is ever written over: each edition has a name of its own, and takes its place by one rename;
* the name holds the writer's epoch, and to readers the highest epoch counts (``layout``);
* only what is superseded by an edition that is already in place is removed.

A fence is a courtesy beside that: a file named by the epoch, made when an owner first comes with a batch. A writer that
finds a later fence stops, instead of publishing what nobody will read.
"""

from __future__ import annotations

import uuid
from typing import Protocol

from attrs import frozen

from streamclient.errors import FencedException, StreamClientException
from streamclient.spark.context import ShardRange, output_key, sequence_text
from streamclient.spark.layout import (
    FENCES,
    STAGING,
    Edition,
    Fence,
    escaped,
    newest,
    next_edition,
    superseded,
)
from streamclient.spark.manifest import MANIFEST_NAME, Manifest


class Files(Protocol):
    """What publishing needs of a file system. Paths are text with slashes."""

    def names(self, path: str) -> list[str]:
        """Names in a directory, sorted; none if there is no such directory."""

    def find(self, path: str, pattern: str) -> list[str]:
        """What matches a pattern with ``*`` below a directory, relative to it and sorted.

        A level is listed before the ones below it.
        """

    def read_text(self, path: str) -> str | None:
        """A whole file as UTF-8; ``None`` if there is none."""

    def write_text(self, path: str, text: str) -> None:
        """Write a whole file as UTF-8; makes the directories above."""

    def rename(self, source: str, target: str) -> None:
        """Move a directory in one step to a name that is free; makes the directories above."""

    def delete(self, path: str) -> None:
        """Remove a file, or a directory with all in it; nothing happens if there is none."""


@frozen
class Previous:
    """What a batch is about to supersede: the edition that counts so far, and its manifest."""

    path: str
    manifest: Manifest

    def begins_before(self, one: ShardRange) -> bool:
        """Whether it has records that the stream had no longer when the batch was read."""
        return self.manifest.first_sequence < sequence_text(one.first_sequence)


@frozen
class Place:
    """Where a shard's part of a batch goes."""

    start: str
    """Directory of all editions from this start on."""
    edition: Edition
    previous: Previous | None


@frozen
class Publisher:
    """Puts editions of one application's shards in place."""

    files: Files
    root: str
    prefix: str
    application: str

    def staging(self) -> str:
        """A new name under which something may be written until it gets its place."""
        return f"{self.root}/{STAGING}/{uuid.uuid4().hex}"

    def fence(self, one: ShardRange) -> None:
        """See to it that the shard is fenced with the epoch of this range.

        Raises:
            FencedException: a later owner of the shard has been here.
            StreamClientException: the shard belongs to another application.
        """
        own = Fence(one.epoch, self.application)
        if own in self._fences(one):
            return
        directory = self._fence_directory(one.shard_id)
        self.files.write_text(f"{directory}/{own.name}", one.lease_identifier)
        for fence in self._fences(one):
            if fence.epoch < own.epoch:
                self.files.delete(f"{directory}/{fence.name}")

    def place(self, one: ShardRange) -> Place:
        """Where the range goes, and what it supersedes there.

        Raises:
            FencedException: a later owner of the shard has been here.
            StreamClientException: what stands there was continued and is final: the shard is being read again.
        """
        start = self._start(one.shard_id, one.output_key)
        editions = self._editions(start)
        present = newest(editions)
        if present is None:
            return Place(start, next_edition(editions, one.epoch), None)
        if present.epoch > one.epoch:
            raise self._fenced(one, present.epoch)
        path = self._path(start, present)
        text = self.files.read_text(f"{path}/{MANIFEST_NAME}")
        if text is None:
            # A later owner may have superseded and removed it just now; nobody else removes anything.
            self._fences(one)
            raise StreamClientException(f"{path} has no {MANIFEST_NAME}: something else removes files of this lake")
        previous = Previous(path, Manifest.from_json(text, path))
        self._refuse_if_final(one, previous)
        return Place(start, next_edition(editions, one.epoch), previous)

    def publish(self, one: ShardRange, place: Place, staged: str, manifest: Manifest) -> str:
        """Give a staged directory its place, and remove what it supersedes; returns its path.

        Raises:
            FencedException: a later owner of the shard has been here; nothing was published.
        """
        path = self._put(one, place.start, place.edition, staged, manifest)
        # Both sides do this: a writer that was frozen before its rename removes its own edition here, once its
        # successor has published.
        editions = self._editions(place.start)
        for edition in superseded(editions):
            self.files.delete(self._path(place.start, edition))
        return path

    def keep(self, one: ShardRange, place: Place, staged: str, previous: Previous) -> str:
        """Give rows of the previous edition a place beside the one that is to come; returns it.

        Nobody reads them before ``publish``, so that they are never there twice.
        """
        first = escaped(previous.manifest.first_sequence)
        kept = Edition(place.edition.epoch, place.edition.attempt, kept_from=first)
        return self._put(one, place.start, kept, staged, previous.manifest)

    def _put(self, one: ShardRange, start: str, edition: Edition, staged: str, manifest: Manifest) -> str:
        self.files.write_text(f"{staged}/{MANIFEST_NAME}", manifest.to_json())
        self._fences(one)
        path = self._path(start, edition)
        self.files.rename(staged, path)
        return path

    def _refuse_if_final(self, one: ShardRange, previous: Previous) -> None:
        """What stands there was not checkpointed, or is repeated as it is; else the shard is being read again."""
        end = previous.manifest.end_position
        if end == one.end_position:
            return
        if self._editions(self._start(one.shard_id, output_key(one.stream_id, one.shard_id, end))):
            raise StreamClientException(
                f"{previous.path} was continued and is final, but shard {one.shard_id} is being read again from its "
                f"start {one.start_position!r}: writing would repeat changes. If the checkpoints were reset on "
                "purpose, write to another path, or remove the shard's directory first"
            )

    def _start(self, shard_id: str, key: str) -> str:
        return f"{self.root}/{self.prefix}shard={escaped(shard_id)}/{self.prefix}start={key}"

    def _path(self, start: str, edition: Edition) -> str:
        return f"{start}/{self.prefix}edition={edition.name}"

    def _editions(self, start: str) -> list[Edition]:
        mark = f"{self.prefix}edition="
        names = [name.removeprefix(mark) for name in self.files.names(start) if name.startswith(mark)]
        return [edition for edition in map(Edition.parse, names) if edition is not None]

    def _fence_directory(self, shard_id: str) -> str:
        return f"{self.root}/{FENCES}/{escaped(shard_id)}"

    def _fences(self, one: ShardRange) -> list[Fence]:
        """The fences of the shard; raises if one of them keeps this writer out."""
        names = self.files.names(self._fence_directory(one.shard_id))
        fences = [fence for fence in map(Fence.parse, names) if fence is not None]
        strangers = sorted({fence.application for fence in fences} - {self.application})
        if strangers:
            raise StreamClientException(
                f"shard {one.shard_id} in the lake {self.root} belongs to application {strangers[0]!r}, and this sink "
                f"writes for {self.application!r}: epochs of two applications cannot be compared; use another path"
            )
        latest = max((fence.epoch for fence in fences), default=one.epoch)
        if latest > one.epoch:
            raise self._fenced(one, latest)
        return fences

    def _fenced(self, one: ShardRange, epoch: int) -> FencedException:
        return FencedException(
            f"shard {one.shard_id} in the lake {self.root} was taken over by an owner with epoch {epoch}; this writer "
            f"has epoch {one.epoch} and publishes nothing more. If the status table was made anew, so that its epochs "
            "began again, write to another path"
        )
