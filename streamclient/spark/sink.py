"""The ready-made sink: a directory tree in a format that Spark writes itself.

``<path>/_shard=<shard id>/_start=<key>/`` holds the changes of one shard from one stored checkpoint on, and a manifest.
The laws, argued in docs/decisions/spark-output.md:

* The key depends on shard and start only, and a batch replaces what has its key. After a crash the next batch starts
  at the same checkpoint, so it replaces exactly what was written and not checkpointed, wherever it ends.
* A directory appears complete or not at all: it is written under ``_staging`` and then renamed.
* A directory that was continued, as its end is the start of another, is final. Replacing it by one with another end
  is refused: that is a reader that was set back, or a writer that lost its lease long ago.
* Records that were written, not checkpointed, and have left the stream meanwhile are kept.
"""

from __future__ import annotations

import json
import logging
import os
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING

from streamclient.errors import StreamClientException
from streamclient.spark.context import BatchContext, ShardRange, output_key, sequence_text
from streamclient.spark.extra import spark_functions
from streamclient.spark.files import LakeFiles, escaped
from streamclient.spark.formats import Storage, encode, quoted
from streamclient.spark.lake import read_directories
from streamclient.spark.manifest import MANIFEST_NAME, Manifest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_log = logging.getLogger(__name__)

_STAGING = "_staging"
"""Where jobs write before they publish; the underscore hides it from Spark's readers."""

_STAGING_AGE_MILLIS = 24 * 3_600_000
"""Staging older than a day was left by a process that died: no job runs that long."""


class FileSink:
    """Writes batches as files, so that a repeat after a crash overwrites its own output and adds nothing.

    Read them back with ``read_changes`` and ``current_rows``. One sink may serve several factories and processes may
    share a path, as long as each shard has one worker at a time, which leases see to. The file system must rename
    directories in one step (local, HDFS, ABFS; not plain S3).

    Args:
        path: the lake's directory; any file system that Spark knows.
        format: ``parquet``, ``orc``, ``json`` or ``csv``.
        options: Spark's options for that format, such as ``{"compression": "zstd"}``.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        format: str = "parquet",  # noqa: A002 - Spark's own word for it
        *,
        options: Mapping[str, str] | None = None,
    ) -> None:
        self._path = os.fspath(path).rstrip("/")
        self._storage = Storage.make(format, options)
        self._is_swept = False

    def __call__(self, frame: DataFrame, context: BatchContext) -> None:
        """Write a batch; returns once each shard's part is in place.

        Raises:
            StreamClientException: the lake already holds these records and went on from them.
        """
        files = LakeFiles.of(frame.sparkSession, self._path)
        self._sweep(files)
        staging = f"{self._path}/{_STAGING}/{context.batch_id}-{uuid.uuid4().hex}"
        try:
            self._write(frame, context, staging)
            for index, one in enumerate(context.ranges):
                if one.shard_id not in context.lost_shards():
                    self._publish(files, frame, context, one, f"{staging}/{_part(context, index)}")
        finally:
            files.delete(staging)

    def _write(self, frame: DataFrame, context: BatchContext, staging: str) -> None:
        """Write all shards in one job, each into a directory of its own."""
        functions = spark_functions()
        encoded = encode(frame, self._storage.name)
        if len(context.ranges) == 1:
            self._save(encoded, f"{staging}/{_part(context, 0)}")
            return
        indexes = json.dumps({one.shard_id: index for index, one in enumerate(context.ranges)})
        lookup = functions.from_json(functions.lit(indexes), "map<string,int>")
        index = functions.element_at(lookup, functions.col(quoted(context.prefix + "shard_id")))
        name = context.prefix + "part"
        self._save(encoded.withColumn(name, index), staging, name)

    def _save(self, frame: DataFrame, path: str, *partition_columns: str) -> None:
        writer = frame.write.format(self._storage.name).options(**self._storage.options).mode("overwrite")
        (writer.partitionBy(*partition_columns) if partition_columns else writer).save(path)

    def _publish(self, files: LakeFiles, frame: DataFrame, context: BatchContext, one: ShardRange, staged: str) -> None:
        final = self._directory(context, one.shard_id, one.output_key)
        previous = files.read_text(f"{final}/{MANIFEST_NAME}")
        if previous is not None:
            self._check_previous(files, frame, context, one, Manifest.from_json(previous, final))
        manifest = Manifest.of(one, context, self._storage, frame.schema.json())
        files.write_text(f"{staged}/{MANIFEST_NAME}", manifest.to_json())
        files.replace(staged, final)

    def _check_previous(
        self, files: LakeFiles, frame: DataFrame, context: BatchContext, one: ShardRange, previous: Manifest
    ) -> None:
        """What stands there was not checkpointed, or is repeated as it is; else this writer is wrong."""
        final = self._directory(context, one.shard_id, one.output_key)
        if previous.end_position != one.end_position:
            next_key = output_key(one.stream_id, one.shard_id, previous.end_position)
            if files.exists(self._directory(context, one.shard_id, next_key)):
                raise StreamClientException(
                    f"{final} was continued and is final, but shard {one.shard_id} is being read again from its start "
                    f"{one.start_position!r}: writing would repeat changes. If the checkpoints were reset on purpose, "
                    "write to another path, or remove the shard's directory first"
                )
        first = sequence_text(one.first_sequence)
        if previous.first_sequence < first:
            self._keep(files, frame, previous, final, first)

    def _keep(self, files: LakeFiles, frame: DataFrame, previous: Manifest, final: str, first: str) -> None:
        """Save rows that were written before, and have left the stream since, from being replaced."""
        functions = spark_functions()
        staged = f"{self._path}/{_STAGING}/{uuid.uuid4().hex}"
        column = functions.col(quoted(previous.prefix + "sequence"))
        kept = read_directories(frame.sparkSession, [(final, previous)]).where(column < first)
        self._save(encode(kept, previous.format), staged)
        files.write_text(f"{staged}/{MANIFEST_NAME}", previous.to_json())
        # Named by their first record: a repeat of this very step replaces them, later ones stand beside.
        target = f"{final}-kept-{escaped(previous.first_sequence)}"
        files.replace(staged, target)
        _log.warning("records before %s have left the stream and are kept in %s", first, target)

    def _directory(self, context: BatchContext, shard_id: str, key: str) -> str:
        return f"{self._path}/{context.prefix}shard={escaped(shard_id)}/{context.prefix}start={key}"

    def _sweep(self, files: LakeFiles) -> None:
        """Once per sink: remove what crashed jobs left behind."""
        if self._is_swept:
            return
        for path in files.older_than(f"{self._path}/{_STAGING}/*", _STAGING_AGE_MILLIS):
            files.delete(path)
            _log.info("removed the staging directory %s of a job that did not end", path)
        self._is_swept = True


def _part(context: BatchContext, index: int) -> str:
    return f"{context.prefix}part={index}"
