"""What a codec makes of one answer of the service: its records, and where reading goes on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, overload

from attrs import field, frozen

from streamclient.errors import DisorderError
from streamclient.records import ColumnType, SequenceInfo, StreamRecord
from streamclient.wire.plainbuffer import RowWrite


class PageContent(Protocol):
    """What a page holds, verified as a whole, in the form in which its codec keeps it.

    Records are named by their places in the page; ``rows`` are some places, as a range or a tuple.
    """

    @property
    def record_count(self) -> int:
        """How many records the page holds."""

    @property
    def disorder(self) -> int:
        """The first record that does not stand after the one before it; 0 if all do."""

    def record(self, row: int, /) -> StreamRecord:
        """One record: the one that somebody holds, or else a new one."""

    def records(self, rows: Rows, /) -> Iterator[StreamRecord]:
        """These records, each as ``record`` gives it."""

    def sequence(self, row: int, /) -> SequenceInfo:
        """The position of a record."""

    def size(self, rows: Rows, /) -> int:
        """How many bytes these records had on the wire."""

    def writes(self, rows: Rows, /) -> list[RowWrite]:
        """These records as the writes that do the same."""

    def arrow(self, schema: Mapping[str, ColumnType] | None, rows: Rows) -> Any:
        """The cells of these records by column."""

    def values(self, schema: Mapping[str, ColumnType], rows: Rows) -> Any | None:
        """The values of these columns alone; ``None`` if there is more to say of them."""


Rows = range | tuple[int, ...]


class PageRecords(Sequence[StreamRecord]):
    """Records of one page, oldest first: a tuple whose items are made when somebody asks for them.

    A slice is of this class too, and makes none; nor do the methods beside those of a tuple.
    Equality, hash, ``repr`` and sums are those of the tuple of the same records, and a copy or a pickle is that tuple.

    All parts of a page keep the whole of it in memory, as bytes. Of a compiled codec it keeps no record: one that
    nobody holds is made anew when it is asked for again, so whoever goes through a page more than once may want a list.
    Nor does a record keep the page: once no part of that is left, it keeps its own cells only.
    """

    __slots__ = ("_content", "_rows")

    def __init__(self, content: PageContent, rows: Rows | None = None) -> None:
        self._content = content
        self._rows = range(content.record_count) if rows is None else rows

    def __len__(self) -> int:
        return len(self._rows)

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
        """The records at these places of this sequence, in this order; ``IndexError`` where there is none."""
        return PageRecords(self._content, tuple([self._rows[index] for index in indices]))

    def sequence_info(self, index: int) -> SequenceInfo:
        """That of the record at this index, which may be negative as for items; ``IndexError`` where there is none."""
        return self._content.sequence(self._rows[index])

    @property
    def size_bytes(self) -> int:
        """What these records had on the wire: their rows and the rows of their previous cells."""
        return self._content.size(self._rows)

    def require_order(self) -> None:
        """Check that the records of the whole page rise, as those of a shard do.

        Raises:
            DisorderError: they do not.
        """
        row = self._content.disorder
        if row:
            place, before = self._content.sequence(row), self._content.sequence(row - 1)
            raise DisorderError(
                f"record {row} of a page of {self._content.record_count} stands at {place}, and the one before it at "
                f"{before}: the records of a shard rise, so the service's answer cannot be true"
            )

    def writes(self) -> list[RowWrite]:
        """These records as the writes that do the same."""
        return self._content.writes(self._rows)

    def arrow(self, schema: Mapping[str, ColumnType] | None = None) -> Any:
        """These records by column: an object with ``__arrow_c_array__``, as of ``DecodedPage.arrow``."""
        return self._content.arrow(schema, self._rows)

    def values(self, schema: Mapping[str, ColumnType]) -> Any | None:
        """The values of these columns alone, as of ``DecodedPage.values``."""
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
    """What pages of shards and of channels have in common."""

    records: PageRecords = field(repr=False)
    """In the order of the shard or channel. Each is made when it is asked for, if the codec is compiled."""

    @property
    def record_count(self) -> int:
        """How many records the page holds."""
        return len(self.records)

    def arrow(self, schema: Mapping[str, ColumnType] | None = None) -> Any:
        """The records by column, without making them: an object with ``__arrow_c_array__``.

        ``pyarrow.record_batch`` and every other Arrow library takes it in; ``streamclient.wire.columns`` describes its
        layout. A schema names the attribute columns, and their types, that columns are made of.

        Raises:
            CodecError: the records are not of one table.
            ConfigurationError: the schema holds what Arrow cannot, or the codec is in Python and pyarrow is missing.
        """
        return self.records.arrow(schema)

    def values(self, schema: Mapping[str, ColumnType]) -> Any | None:
        """The values of these columns alone, keys or not: what costs least, where it is all that one wants to know.

        An object as of ``arrow``, with the fields ``record_type`` and ``sequence_info`` as there, and ``columns``: a
        struct of one value per column, null where the record does not put one. ``None`` if that does not say all: a
        record puts a value of another type, or several, into one of these columns. ``None`` too for what ``arrow``
        refuses, so that it can say why.

        Raises:
            ConfigurationError: as ``arrow``.
        """
        return self.records.values(schema)


@frozen
class DecodedPage(_Page):
    """One GetStreamRecord response."""

    next_shard_iterator: str | None
    """``None`` (never empty) once the shard is closed and everything was read."""
    may_more_record: bool | None
    """The service's hint that more records wait; ``None`` where it gives none."""


@frozen
class PageSummary:
    """What one GetStreamRecord response says to whoever leaves its records to somebody else."""

    record_count: int
    last: SequenceInfo | None
    """Position of the last record; ``None`` of a page without records."""
    next_shard_iterator: str | None
    """As in ``DecodedPage``."""
    may_more_record: bool | None
    """As in ``DecodedPage``."""


@frozen
class TunnelPage(_Page):
    """One ReadRecords response. Rows of full data have a sequence of zeros."""

    next_token: str
    """``finished`` behind the last record of the channel."""
    may_more_record: bool | None
    """The service's hint that more waits; ``None`` where it gives none."""
    body_bytes: int

    @property
    def is_finished(self) -> bool:
        """Whether nothing follows, ever."""
        return self.next_token == FINISHED


FINISHED = "finished"
"""The token behind the last record of a channel; as a checkpoint, it ends the channel."""
