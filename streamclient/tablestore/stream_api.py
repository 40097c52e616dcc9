"""The interface to the service's stream operations, and the values that they return."""

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
    """A stream in the list that ListStream returns."""

    stream_id: str
    table_name: str
    creation_time_micros: int


class StreamStatus(Enum):
    """The state of a stream. After a stream is enabled, wait until its state is ACTIVE."""

    ENABLING = "ENABLING"
    ACTIVE = "ACTIVE"


@frozen
class StreamDescription:
    """A stream with its state and all its shards, joined from all pages of DescribeStream."""

    stream_id: str
    table_name: str
    expiration_time_hours: int
    creation_time_micros: int
    status: StreamStatus
    shards: tuple[Shard, ...]


@frozen
class RecordPage:
    """A page of records of one shard, as one GetStreamRecord returns it."""

    records: Sequence[StreamRecord]
    """The records, oldest first. A codec may delay making a record object until the object is first used. ``place_of``
    reads a record's position without making the object."""
    next_position: Position
    """The iterator of the next page, or ``Position.SHARD_END`` if the shard is closed and read to its end."""
    may_more_record: bool | None = None
    """The service's hint whether the shard has more records now; ``None`` if the service gave no hint."""
    body_bytes: int = 0
    """The size of the response body, in bytes."""
    read_units: int = 0
    """The capacity units that the service charged for the page; 0 if the response does not report them."""


LONGEST_EXPIRATION_HOURS = 168
"""The longest retention, in hours, that the service accepts: seven days."""

_column_names = checks.Check(
    "a tuple of column names",
    lambda value: isinstance(value, tuple | list) and all(isinstance(name, str) for name in value),
)


@checks.explains_names
@frozen
class StreamSpecification:
    """The stream setting in a request of CreateTable or UpdateTable: the stream on or off, and its options."""

    enable_stream: bool = field(validator=checks.flag)
    expiration_time_hours: int | None = field(
        default=None, validator=checks.optional(checks.whole(1, LONGEST_EXPIRATION_HOURS))
    )
    """The retention in hours, 1 to 168. It is required to enable a stream, and must be ``None`` to disable it."""
    columns_to_get: tuple[str, ...] = field(default=(), validator=_column_names)
    """The attribute columns whose previous values the service adds to each record ("origin columns")."""

    def __attrs_post_init__(self) -> None:
        if self.enable_stream:
            checks.whole(1, LONGEST_EXPIRATION_HOURS).require("expiration_time_hours", self.expiration_time_hours)
        elif self.expiration_time_hours is not None or self.columns_to_get:
            raise ConfigurationError(f"disabling a stream takes neither retention nor columns, but {self} has them")


@frozen
class StreamDetails:
    """The stream of a table, as DescribeTable describes it. If the stream is off, only ``enable_stream`` is set."""

    enable_stream: bool
    stream_id: str | None = None
    expiration_time_hours: int | None = None
    last_enable_time_micros: int | None = None
    columns_to_get: tuple[str, ...] = ()


class StreamApi(Protocol):
    """The interface to the stream operations, which are all reads. Implementations must be thread-safe.

    Every method retries throttling, transient errors, network errors and responses that cannot be decoded
    (``UnreadableAnswerError``), for a bounded time. A call that still fails raises ``DependencyException``. A page
    whose records are out of order raises ``DisorderError``.
    """

    def list_stream(self, table_name: str | None = None) -> Sequence[StreamSummary]:
        """Return the stream of ``table_name`` (at most one), or by default all streams of the instance."""

    def describe_stream(self, stream_id: str) -> StreamDescription:
        """Return the stream with all its shards, joined from all pages of DescribeStream."""

    def get_shard_iterator(self, stream_id: str, shard_id: str, timestamp_micros: int | None = None) -> str:
        """Return the iterator of the shard's oldest record, or of records written at or after ``timestamp_micros``.

        If the service returns a continuation token instead of an iterator, the method repeats the request with the
        token.
        """

    def get_stream_record(self, shard_iterator: str, limit: int | None = None) -> RecordPage:
        """Return one page of at most ``limit`` records from ``shard_iterator`` on, oldest first.

        Raises:
            TrimmedDataException: the records at ``shard_iterator`` are older than the retention.
        """
