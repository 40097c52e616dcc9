"""The result that a codec returns for one answer of the service: the records, and the next position."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, overload

from attrs import field, frozen

from streamclient.errors import DisorderError
from streamclient.records import ColumnType, SequenceInfo, StreamRecord
from streamclient.wire.plainbuffer import RowWrite


class PageContent(Protocol):
    """The content of a page, completely verified, in the codec's own form.

    Records are named by their indices in the page; ``rows`` are indices, as a range or a tuple.
    """

    @property
    def record_count(self) -> int:
        """The number of records in the page."""

    @property
    def disorder(self) -> int:
        """Return the index of the first record that is not after the previous record; 0 if all records are."""

    def record(self, row: int, /) -> StreamRecord:
        """Return one record: the existing object if it is still in use, otherwise a new one."""

    def records(self, rows: Rows, /) -> Iterator[StreamRecord]:
        """Return the records ``rows``, each as ``record`` returns it."""

    def sequence(self, row: int, /) -> SequenceInfo:
        """Return the position of a record."""

    def size(self, rows: Rows, /) -> int:
        """Return the number of bytes of the records ``rows`` on the wire."""

    def writes(self, rows: Rows, /) -> list[RowWrite]:
        """Return the records as writes: each write repeats the effect of its record."""

    def arrow(self, schema: Mapping[str, ColumnType] | None, rows: Rows) -> Any:
        """Return the cells of the records ``rows`` by column."""

    def values(self, schema: Mapping[str, ColumnType], rows: Rows) -> Any | None:
        """Return only the values of the columns of ``schema``; ``None`` if they would be incomplete."""


Rows = range | tuple[int, ...]


class PageRecords(Sequence[StreamRecord]):
    """Records of one page, oldest first: a tuple whose items are made on access.

    A slice is also of this class, and makes no records. The methods that a tuple lacks make no records, either.
    Equality, hash, ``repr`` and sums are the same as for the tuple of the records. A copy or a pickle is that tuple.

    Each part of a page keeps the whole page in memory, as bytes. With the compiled codec it keeps no records: a record
    that is no longer in use is made again at its next access. So make a list if you read a page more than once. A
    record does not keep the page in memory. Once no part of the page is left, the record keeps only its own cells.
    """

    __slots__ = ("_content", "_count", "_rows")

    def __init__(self, content: PageContent, rows: Rows | None = None) -> None:
        self._content = content
        self._rows = range(content.record_count) if rows is None else rows
        self._count = len(self._rows)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int, /) -> StreamRecord: ...

    @overload
    def __getitem__(self, index: slice, /) -> PageRecords: ...

    def __getitem__(self, index: int | slice, /) -> StreamRecord | PageRecords:
        chosen = self._rows[index]
        return self._content.record(chosen) if isinstance(chosen, int) else PageRecords(self._content, chosen)

    def __iter__(self) -> Iterator[StreamRecord]:
        return self._content.records(self._rows)

    def select(self, indices: Iterable[int]) -> PageRecords:
        """Return the records at ``indices``, in the order of ``indices``. Raise ``IndexError`` for an invalid index."""
        return PageRecords(self._content, tuple([self._rows[index] for index in indices]))

    def sequence_info(self, index: int) -> SequenceInfo:
        """Return the position of the record at ``index``, which may be negative.

        Raise ``IndexError`` for an invalid index.
        """
        return self._content.sequence(self._rows[index])

    @property
    def size_bytes(self) -> int:
        """The number of bytes of the records on the wire: their rows and the rows of their previous cells."""
        return self._content.size(self._rows)

    def require_order(self) -> None:
        """Check that the positions of the records rise over the whole page, as they do in a shard.

        Raises:
            DisorderError: a record is not after the previous record.
        """
        row = self._content.disorder
        if row:
            place, before = self._content.sequence(row), self._content.sequence(row - 1)
            raise DisorderError(
                f"record {row} of a page of {self._content.record_count} is at {place}, and the record before it at "
                f"{before}: positions in a shard rise, so the service's answer cannot be true"
            )

    def writes(self) -> list[RowWrite]:
        """Return the records as writes: each write repeats the effect of its record."""
        return self._content.writes(self._rows)

    def arrow(self, schema: Mapping[str, ColumnType] | None = None) -> Any:
        """Return the records by column, as ``DecodedPage.arrow`` does: an object with ``__arrow_c_array__``."""
        return self._content.arrow(schema, self._rows)

    def values(self, schema: Mapping[str, ColumnType]) -> Any | None:
        """Return only the values of the columns of ``schema``, as ``DecodedPage.values`` does."""
        return self._content.values(schema, self._rows)

    def __eq__(self, other: object) -> bool:
        return self._made() == tuple(other) if isinstance(other, PageRecords | tuple) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._made())

    def __add__(self, other: Iterable[StreamRecord]) -> tuple[StreamRecord, ...]:
        return (*self, *other) if isinstance(other, PageRecords | tuple) else NotImplemented

    def __radd__(self, other: Iterable[StreamRecord]) -> tuple[StreamRecord, ...]:
        return (*other, *self) if isinstance(other, tuple) else NotImplemented

    def __repr__(self) -> str:
        return repr(self._made())

    def __reduce__(self) -> tuple[Any, ...]:
        return tuple, (self._made(),)

    def _made(self) -> tuple[StreamRecord, ...]:
        return tuple(self)


@frozen
class _Page:
    """The common part of pages of shards and of channels."""

    records: PageRecords = field(repr=False)
    """The records in the order of the shard or channel. With the compiled codec, each is made on access."""

    @property
    def record_count(self) -> int:
        """The number of records in the page."""
        return len(self.records)

    def arrow(self, schema: Mapping[str, ColumnType] | None = None) -> Any:
        """Return the records by column, as an object with ``__arrow_c_array__``. No record objects are made.

        ``pyarrow.record_batch`` and every other Arrow library accepts it; ``streamclient.wire.columns`` describes its
        layout. ``schema`` names the attribute columns that become Arrow columns, and their types.

        Raises:
            CodecError: the records are not of one table.
            ConfigurationError: the schema holds a type that Arrow cannot hold, or the codec is in Python and pyarrow is
                missing.
        """
        return self.records.arrow(schema)

    def values(self, schema: Mapping[str, ColumnType]) -> Any | None:
        """Return only the values of the columns of ``schema``.

        They may be key columns. This is the cheapest way to read values.

        The result is an object like that of ``arrow``, with the same fields ``record_type`` and ``sequence_info``. Its
        field ``columns`` is a struct with one value per column, null where the record puts no value. The result is
        ``None`` if a record puts a value of another type, or several values, into one of these columns: the struct
        would be incomplete. It is also ``None`` for records that ``arrow`` refuses; then ``arrow`` names the reason.

        Raises:
            ConfigurationError: as for ``arrow``.
        """
        return self.records.values(schema)


@frozen
class DecodedPage(_Page):
    """The content of one answer to GetStreamRecord."""

    next_shard_iterator: str | None
    """The next iterator, which is never empty; ``None`` once the shard is closed and completely read."""
    may_more_record: bool | None
    """The service's hint that more records wait; ``None`` without a hint."""
    read_units: int = 0
    """The capacity units that the page has cost; 0 if the answer does not say."""


@frozen
class PageSummary:
    """A summary of one answer to GetStreamRecord, for callers that do not need the records."""

    record_count: int
    last: SequenceInfo | None
    """The position of the last record; ``None`` for a page without records."""
    next_shard_iterator: str | None
    """See ``DecodedPage.next_shard_iterator``."""
    may_more_record: bool | None
    """See ``DecodedPage.may_more_record``."""
    first: SequenceInfo | None = None
    """The position of the first record of a page of a tunnel; ``None`` for a stream, whose pages are only counted."""


@frozen
class TunnelPage(_Page):
    """The content of one answer to ReadRecords. Rows of full data have a sequence of zeros."""

    next_token: str
    """The next token; ``finished`` after the last record of the channel."""
    may_more_record: bool | None
    """The service's hint that more records wait; ``None`` without a hint."""
    body_bytes: int

    @property
    def is_finished(self) -> bool:
        """Whether the channel will never have more records."""
        return self.next_token == FINISHED


FINISHED = "finished"
"""The token after the last record of a channel. A checkpoint with this token ends the channel."""
