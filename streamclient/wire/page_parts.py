"""The result of decoding one response of the service: a page of records, and the position after the page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, overload

from attrs import field, frozen

from streamclient.errors import DisorderError
from streamclient.records import ColumnType, SequenceInfo, StreamRecord
from streamclient.wire.plainbuffer import RowWrite


class PageContent(Protocol):
    """The verified content of a page, in the form that the codec has chosen.

    In all methods, ``row`` is the index of a record in the page, and ``rows`` are indices of several records.
    """

    @property
    def record_count(self) -> int:
        """The number of records in the page."""

    @property
    def disorder(self) -> int:
        """The index of the first record whose position is not after its predecessor's; 0 if the page is in order."""

    def record(self, row: int, /) -> StreamRecord:
        """Return the record at ``row``. If a caller still uses an object of this record, return that object."""

    def records(self, rows: Rows, /) -> Iterator[StreamRecord]:
        """Return the records at ``rows``, in the order of ``rows``."""

    def sequence(self, row: int, /) -> SequenceInfo:
        """Return the sequence information of the record at ``row``, that is, its position in the shard."""

    def size(self, rows: Rows, /) -> int:
        """Return the number of bytes that the records at ``rows`` have in the response."""

    def writes(self, rows: Rows, /) -> list[RowWrite]:
        """Return for each record at ``rows`` the write that repeats the record's change in another table."""

    def arrow(self, schema: Mapping[str, ColumnType] | None, rows: Rows) -> Any:
        """Return the records at ``rows`` by column, as an object that Arrow libraries accept."""

    def values(self, schema: Mapping[str, ColumnType], rows: Rows) -> Any | None:
        """Return only the values of the columns in ``schema``; ``None`` if the result would lack a value."""


Rows = range | tuple[int, ...]


class PageRecords(Sequence[StreamRecord]):
    """The records of one page, oldest first. The object behaves like a tuple, but makes each record on access.

    A slice is also a ``PageRecords``, and makes no records. The methods that a tuple lacks make no records, either.
    Equality, hash, ``repr`` and sums have the results that the tuple of the records would have. A copy or a pickle is
    this tuple.

    Each slice keeps the whole page in memory, as bytes. With the compiled codec, it keeps no record objects. If no
    caller uses a record any more, the next access makes a new object. So make a list if you read a page more than once.
    A record does not keep the page in memory. After the page and all its slices are gone, a record keeps only its own
    cells.
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
        """Return the records at ``indices``, in the order of ``indices``, without making record objects.

        Raises:
            IndexError: the page has no record at one of ``indices``.
        """
        return PageRecords(self._content, tuple([self._rows[index] for index in indices]))

    def sequence_info(self, index: int) -> SequenceInfo:
        """Return the sequence information of the record at ``index``. A negative index counts from the end.

        Raises:
            IndexError: the page has no record at ``index``.
        """
        return self._content.sequence(self._rows[index])

    @property
    def size_bytes(self) -> int:
        """The number of bytes of the records in the response. It includes the cells that rows had before the change."""
        return self._content.size(self._rows)

    def require_order(self) -> None:
        """Check that positions rise from each record of the page to the next record, as they must in a shard.

        Raises:
            DisorderError: the position of a record is not after the position of its predecessor.
        """
        row = self._content.disorder
        if row:
            place, before = self._content.sequence(row), self._content.sequence(row - 1)
            raise DisorderError(
                f"record {row} of a page of {self._content.record_count} is at {place}, and the record before it at "
                f"{before}: positions in a shard rise, so the service's answer cannot be true"
            )

    def writes(self) -> list[RowWrite]:
        """Return for each record the write that repeats the record's change in another table."""
        return self._content.writes(self._rows)

    def arrow(self, schema: Mapping[str, ColumnType] | None = None) -> Any:
        """Return the records by column, as an object with ``__arrow_c_array__``; see ``DecodedPage.arrow``."""
        return self._content.arrow(schema, self._rows)

    def values(self, schema: Mapping[str, ColumnType]) -> Any | None:
        """Return only the values of the columns in ``schema``; see ``DecodedPage.values``."""
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
    """The base class of a shard's page and of a page of a tunnel's channel."""

    records: PageRecords = field(repr=False)
    """The records in the order of the shard or channel. The compiled codec makes each record on access."""

    @property
    def record_count(self) -> int:
        """The number of records in the page."""
        return len(self.records)

    def arrow(self, schema: Mapping[str, ColumnType] | None = None) -> Any:
        """Return the records by column, as an object with ``__arrow_c_array__``, without making record objects.

        ``pyarrow.record_batch`` and every other Arrow library accept this object. ``streamclient.wire.columns``
        describes its layout. ``schema`` names the attribute columns that become Arrow columns, with their types.

        Raises:
            CodecError: the records do not belong to one table.
            ConfigurationError: ``schema`` is invalid for Arrow, or the codec in Python is used and pyarrow is missing.
        """
        return self.records.arrow(schema)

    def values(self, schema: Mapping[str, ColumnType]) -> Any | None:
        """Return only the values of the columns in ``schema``. These may be key columns, too.

        This is the cheapest way to read values. Arrow libraries accept the result. It has the columns ``record_type``
        and ``sequence_info``, like the result of ``arrow``. Its column ``columns`` is a struct with one value for each
        column in ``schema``. The value is null if the record puts no value.

        Return ``None`` if a record puts several values, or a value of another type, into one of these columns, because
        the struct would lack a value. Also return ``None`` if ``arrow`` would raise ``CodecError``.

        Raises:
            ConfigurationError: ``schema`` is invalid for Arrow, or the codec in Python is used and pyarrow is missing.
        """
        return self.records.values(schema)


@frozen
class DecodedPage(_Page):
    """The decoded response to one GetStreamRecord request."""

    next_shard_iterator: str | None
    """The iterator after this page; ``None`` if the shard is closed and this page is its last."""
    may_more_record: bool | None
    """The service's hint whether the shard has further records now; ``None`` if the response has no hint."""
    read_units: int = 0
    """The number of capacity units that the read has cost; 0 if the response does not state the cost."""


@frozen
class PageSummary:
    """A summary of one response to GetStreamRecord, for callers that do not need the records."""

    record_count: int
    last: SequenceInfo | None
    """The sequence information of the last record; ``None`` for a page without records."""
    next_shard_iterator: str | None
    """The iterator after this page; ``None`` if the shard is closed and this page is its last."""
    may_more_record: bool | None
    """The service's hint whether the shard has further records now; ``None`` if the response has no hint."""
    first: SequenceInfo | None = None
    """The sequence information of the first record of a tunnel's page; ``None`` for a stream's page, of which only the
    last record is decoded."""


@frozen
class TunnelPage(_Page):
    """The decoded response to one ReadRecords request. In rows of full data, the sequence information is all zeros."""

    next_token: str
    """The token after this page; ``finished`` after the last record of the channel."""
    may_more_record: bool | None
    """The service's hint whether the channel has further records now; ``None`` if the response has no hint."""
    body_bytes: int

    @property
    def is_finished(self) -> bool:
        """Whether this page is the last page of the channel."""
        return self.next_token == FINISHED


FINISHED = "finished"
"""The token after the last record of a channel. A checkpoint with this token ends the channel."""
