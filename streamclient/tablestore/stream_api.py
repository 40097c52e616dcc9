"""The stream operations that the rest of the package needs, and the values that they return."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Protocol

from attrs import field, frozen

from streamclient.base import checks
from streamclient.base.position import Position
from streamclient.errors import ConfigurationError
from streamclient.model import Shard
from streamclient.records import StreamRecord


@frozen
class StreamSummary:
    """A stream in the answer of ListStream."""

    stream_id: str
    table_name: str
    creation_time_micros: int


class StreamStatus(Enum):
    """The state of a stream; wait for ACTIVE after enabling it."""

    ENABLING = "ENABLING"
    ACTIVE = "ACTIVE"


@frozen
class StreamDescription:
    """A complete answer of DescribeStream, joined from all of its pages."""

    stream_id: str
    table_name: str
    expiration_time_hours: int
    creation_time_micros: int
    status: StreamStatus
    shards: tuple[Shard, ...]


@frozen
class RecordPage:
    """One answer of GetStreamRecord."""

    records: Sequence[StreamRecord]
    """The records, oldest first. A codec may make a record only when the record is first read; ``place_of`` makes no
    record."""
    next_position: Position
    """``Position.SHARD_END`` once the shard is closed and read to its end; otherwise the next iterator."""
    may_more_record: bool | None = None
    """The service's hint that more records wait; ``None`` if it gives no hint."""
    body_bytes: int = 0
    """The size of the response body."""
    read_units: int = 0
    """The capacity units that the page has cost, as the service reports them; 0 if it does not."""


LONGEST_EXPIRATION_HOURS = 168
"""The longest retention, in hours, that the service accepts: seven days."""

_column_names = checks.Check(
    "a tuple of column names",
    lambda value: isinstance(value, tuple | list) and all(isinstance(name, str) for name in value),
)


@checks.explains_names
@frozen
class StreamSpecification:
    """The stream setting of CreateTable and UpdateTable."""

    enable_stream: bool = field(validator=checks.flag)
    expiration_time_hours: int | None = field(
        default=None, validator=checks.optional(checks.whole(1, LONGEST_EXPIRATION_HOURS))
    )
    """The retention in hours, 1 to 168; required to enable a stream, forbidden to disable it."""
    columns_to_get: tuple[str, ...] = field(default=(), validator=_column_names)
    """The origin columns: attributes whose previous values accompany each record."""

    def __attrs_post_init__(self) -> None:
        if self.enable_stream:
            checks.whole(1, LONGEST_EXPIRATION_HOURS).require("expiration_time_hours", self.expiration_time_hours)
        elif self.expiration_time_hours is not None or self.columns_to_get:
            raise ConfigurationError(f"disabling a stream takes neither retention nor columns, but {self} has them")


@frozen
class StreamDetails:
    """The stream part of DescribeTable. Only ``enable_stream`` is set for a table whose stream is off."""

    enable_stream: bool
    stream_id: str | None = None
    expiration_time_hours: int | None = None
    last_enable_time_micros: int | None = None
    columns_to_get: tuple[str, ...] = ()


class StreamApi(Protocol):
    """The stream operations. All are reads and safe to repeat; implementations are thread-safe.

    Every method first retries throttling, transient errors, network errors and answers that cannot be read
    (``UnreadableAnswerError``); the retries are bounded. A call that still fails raises ``DependencyException``. A page
    whose records are out of order raises ``DisorderError``.
    """

    def list_stream(self, table_name: str | None = None) -> Sequence[StreamSummary]:
        """Return the streams of one table (at most one stream), or of the whole instance."""

    def describe_stream(self, stream_id: str) -> StreamDescription:
        """Return the stream with all its shards, from all pages."""

    def get_shard_iterator(self, stream_id: str, shard_id: str, timestamp_micros: int | None = None) -> str:
        """Return the iterator of the oldest record, or of records written at or after a time.

        The method follows continuation tokens.
        """

    def get_stream_record(self, shard_iterator: str, limit: int | None = None) -> RecordPage:
        """Return one page of records from the iterator on, oldest first.

        Raises:
            TrimmedDataException: the records at the iterator are past retention.
        """
