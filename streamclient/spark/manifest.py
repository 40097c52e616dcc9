"""What stands beside the files of each committed directory."""

from __future__ import annotations

import json
from typing import Any

from attrs import frozen

from streamclient.errors import StreamClientException
from streamclient.model import ColumnType
from streamclient.spark.context import BatchContext, FrameColumn, ShardRange, sequence_text
from streamclient.spark.formats import Storage

MANIFEST_NAME = "_commit.json"
"""The underscore hides it from Spark's readers."""

_VERSION = 2

_WITHOUT_EPOCHS = 1
"""Version of manifests that know neither application nor epoch."""


@frozen
class Manifest:
    """A committed directory: which changes it holds, and how."""

    application: str
    """The fleet that wrote it; empty in lakes of the first layout."""
    stream_id: str
    shard_id: str
    epoch: int
    """Of the owner that wrote it; 0 in lakes of the first layout."""
    start_position: str
    end_position: str
    record_count: int
    first_sequence: str
    last_sequence: str
    batch_id: str
    format: str
    prefix: str
    options: dict[str, str]
    """What the reader must be told to understand the files."""
    columns: tuple[FrameColumn, ...]
    schema: str
    """The frame's Spark schema as JSON."""

    @classmethod
    def of(cls, one: ShardRange, context: BatchContext, storage: Storage, schema: str, application: str) -> Manifest:
        """The manifest of one shard's part of a batch."""
        return cls(
            application=application,
            stream_id=one.stream_id,
            shard_id=one.shard_id,
            epoch=one.epoch,
            start_position=one.start_position,
            end_position=one.end_position,
            record_count=one.record_count,
            first_sequence=sequence_text(one.first_sequence),
            last_sequence=sequence_text(one.last_sequence),
            batch_id=context.batch_id,
            format=storage.name,
            prefix=context.prefix,
            options=storage.options,
            columns=context.columns,
            schema=schema,
        )

    @property
    def primary_key(self) -> tuple[str, ...]:
        """Names of the key columns."""
        return tuple(column.name for column in self.columns if column.is_key)

    def to_json(self) -> str:
        """As stored."""
        plain = {name: getattr(self, name) for name in _PLAIN_NAMES}
        columns = [[one.name, one.type.value, one.is_key, one.has_wide_integers] for one in self.columns]
        return json.dumps({"version": _VERSION, **plain, "columns": columns}, ensure_ascii=False, indent=1)

    @classmethod
    def from_json(cls, text: str, path: str) -> Manifest:
        """Read what ``to_json`` wrote.

        Raises:
            StreamClientException: the text is not a manifest that this version knows.
        """
        try:
            stored: dict[str, Any] = json.loads(text)
            version = stored.pop("version")
            if version == _WITHOUT_EPOCHS:
                stored.update(application="", epoch=0)
            elif version != _VERSION:
                raise StreamClientException(f"{path} was written by a newer version of this package")
            columns = tuple(FrameColumn(name, ColumnType(kind), *flags) for name, kind, *flags in stored.pop("columns"))
            return cls(**stored, columns=columns)
        except (ValueError, TypeError, KeyError) as error:
            raise StreamClientException(f"{path} is not a manifest of this package: {error!r}") from error


_PLAIN_NAMES = (
    "application",
    "stream_id",
    "shard_id",
    "epoch",
    "start_position",
    "end_position",
    "record_count",
    "first_sequence",
    "last_sequence",
    "batch_id",
    "format",
    "prefix",
    "options",
    "schema",
)
