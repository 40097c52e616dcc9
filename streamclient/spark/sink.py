"""The ready-made sink: a directory tree in a format that Spark writes itself.

``<path>/_shard=<shard id>/_start=<key>/_edition=<…>/`` holds the changes of one shard from one stored checkpoint on,
and a manifest. The laws, argued in docs/decisions/spark-output.md:

* The key depends on shard and start only, and of the editions under a key one counts. After a crash the next batch
  starts at the same checkpoint, so it supersedes exactly what was written and not checkpointed, wherever it ends.
* An edition appears complete or not at all: it is written under ``_staging`` and then renamed to a name of its own.
* The epoch of the lease's owner is in that name, and the greatest counts: a writer that lost its lease while it was
  frozen changes nothing, at whichever step it wakes up.
* A start that was continued, as its end is the start of another, is final. Superseding it by an edition with another
  end is refused: that is a reader that was set back.
* Records that were written, not checkpointed, and have left the stream meanwhile are kept.
"""

from __future__ import annotations

import json
import logging
import os
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING

from streamclient import checks
from streamclient.errors import StreamClientError, StreamClientException
from streamclient.spark.catalog import old_layout
from streamclient.spark.context import BatchContext, ShardRange, sequence_text
from streamclient.spark.extra import spark_functions
from streamclient.spark.files import LakeFiles, check_renames
from streamclient.spark.formats import Storage, encode, quoted
from streamclient.spark.lake import read_directories
from streamclient.spark.layout import FENCES, STAGING
from streamclient.spark.manifest import Manifest
from streamclient.spark.publishing import Place, Previous, Publisher

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_log = logging.getLogger(__name__)

_STAGING_AGE_MILLIS = 24 * 3_600_000
"""Staging older than a day was left by a process that died: no job runs that long."""


_options = checks.Check(
    "a mapping of strings to strings",
    lambda value: isinstance(value, Mapping) and all(isinstance(each, str) for pair in value.items() for each in pair),
)


@checks.explains_names
class FileSink:
    """Writes batches as files, so that a repeat after a crash supersedes its own output and adds nothing.

    Read them back with ``read_changes`` and ``current_rows``. One sink may serve several factories, and processes may
    share a path. The file system must rename directories in one step: local, HDFS, ABFS with a hierarchical namespace,
    OSS-HDFS.

    Args:
        path: the lake's directory. Stores that cannot rename a directory in one step (S3, OSS, Google's, and
            whatever is not known to do it) are refused.
        format: ``parquet``, ``orc``, ``json`` or ``csv``.
        options: Spark's options for that format, such as ``{"compression": "zstd"}``.
        application: names the fleet, which is all workers that share a status table. A lake belongs to one: epochs of
            different status tables cannot be compared, so a sink of another application is refused.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        format: str = "parquet",  # noqa: A002 - Spark's own word for it
        *,
        options: Mapping[str, str] | None = None,
        application: str = "default",
    ) -> None:
        checks.text.require("application", application)
        checks.optional(_options).require("options", options)
        self._path = os.fspath(checks.path.require("path", path)).rstrip("/")
        check_renames(self._path)
        self._storage = Storage.make(format, options)
        self._application = application
        self._is_prepared = False

    def __call__(self, frame: DataFrame, context: BatchContext) -> None:
        """Write a batch; returns once each shard's part is in place, or refused.

        A shard is refused, with ``context.refuse``, if a later owner has been here, or if the lake already holds its
        records and went on from them; the others are not concerned.

        Raises:
            StreamClientException: nothing can be written to this lake.
            ConfigurationError: the path is on Spark's default file system, and that cannot rename in one step.
        """
        files = LakeFiles.of(frame.sparkSession, self._path)
        self._prepare(files)
        publisher = Publisher(files, self._path, context.prefix, self._application)
        admitted = [one for one in context.ranges if self._is_admitted(publisher, context, one)]
        if not admitted:
            return
        staging = f"{self._path}/{STAGING}/{context.batch_id}-{uuid.uuid4().hex}"
        try:
            self._write(frame, context, staging)
            for index, one in enumerate(context.ranges):
                if one in admitted and one.shard_id not in context.lost_shards():
                    self._publish(publisher, frame, context, one, f"{staging}/{_part(context, index)}")
        finally:
            files.delete(staging)

    def _is_admitted(self, publisher: Publisher, context: BatchContext, one: ShardRange) -> bool:
        """Fence the shard, before the job and not after it: the job takes long."""
        try:
            publisher.fence(one)
        except StreamClientError as error:
            context.refuse(one.shard_id, error)
            return False
        return True

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

    def _publish(
        self, publisher: Publisher, frame: DataFrame, context: BatchContext, one: ShardRange, staged: str
    ) -> None:
        try:
            place = publisher.place(one)
            if place.previous is not None and place.previous.begins_before(one):
                self._keep(publisher, frame, one, place, place.previous)
            manifest = Manifest.of(one, context, self._storage, frame.schema.json(), self._application)
            publisher.publish(one, place, staged, manifest)
        except StreamClientError as error:
            context.refuse(one.shard_id, error)

    def _keep(self, publisher: Publisher, frame: DataFrame, one: ShardRange, place: Place, previous: Previous) -> None:
        """Save rows that were written before, and have left the stream since, from being superseded."""
        functions = spark_functions()
        first = sequence_text(one.first_sequence)
        column = functions.col(quoted(previous.manifest.prefix + "sequence"))
        names = [quoted(one["name"]) for one in json.loads(previous.manifest.schema)["fields"]]
        changes = read_directories(frame.sparkSession, [(previous.path, previous.manifest)])
        kept = changes.where(column < first).select(names)  # as its manifest describes it
        staged = publisher.staging()
        self._save(encode(kept, previous.manifest.format), staged)
        path = publisher.keep(one, place, staged, previous)
        _log.warning("records before %s have left the stream and are kept in %s", first, path)

    def _prepare(self, files: LakeFiles) -> None:
        """Once per sink: look at the lake, and remove what crashed jobs left behind."""
        if self._is_prepared:
            return
        check_renames(files.address(self._path))
        if not files.names(f"{self._path}/{FENCES}") and old_layout(files, self._path):
            raise StreamClientException(
                f"the lake {self._path} was written without epochs, by an earlier version: it can be read, but not "
                "written safely. Write to another path"
            )
        for path in files.older_than(f"{self._path}/{STAGING}", _STAGING_AGE_MILLIS):
            files.delete(path)
            _log.info("removed the staging directory %s of a job that did not end", path)
        self._is_prepared = True


def _part(context: BatchContext, index: int) -> str:
    return f"{context.prefix}part={index}"
