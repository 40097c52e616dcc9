"""Reading a range of a shard's records on an executor: pages are decoded into columns, and joined to Arrow batches.

An executor's Python process runs many tasks, so it keeps its clients for later tasks. While Spark works on an Arrow
batch, the process reads the pages of the next batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from attrs import define, field, frozen

from streamclient.base.position import no_progress
from streamclient.base.reasons import counted
from streamclient.destinations.destination_packages import compute
from streamclient.destinations.rows.change_rows import OF_CHANGES, RESERVED, rows_of_schema, rows_of_values
from streamclient.destinations.rows.column_layout import column_type
from streamclient.destinations.rows.column_names import marked, original_name
from streamclient.destinations.rows.page_columns import columns_of_pages
from streamclient.errors import (
    ConfigurationError,
    DependencyException,
    ErrorKind,
    StreamClientException,
    TrimmedDataException,
)
from streamclient.records import ColumnType, SequenceInfo
from streamclient.spark.source.offsets import ShardSlice, data_loss, not_as_planned
from streamclient.spark.source.planner import PAGE_RECORDS
from streamclient.spark.spark_packages import pyarrow
from streamclient.tablestore.instance import Connection
from streamclient.tablestore.read_retry import ReadRetry, Repeater
from streamclient.tablestore.signed_calls import SignedCalls
from streamclient.tablestore.stream_api import StreamApi
from streamclient.tablestore.stream_operations import TablestoreStreamApi
from streamclient.wire import schema
from streamclient.wire.page_parts import DecodedPage, PageSummary, TunnelPage
from streamclient.wire.record_decoding import default_codec
from streamclient.wire.service_errors import classify

if TYPE_CHECKING:
    from pyarrow import RecordBatch, Schema

_T = TypeVar("_T")
_PageT = TypeVar("_PageT", DecodedPage, PageSummary)

BATCH_RECORDS = 16_000
"""The number of records at which an Arrow batch is complete. In smaller batches, the fixed cost of each column would
matter. Larger batches would only take more memory."""

BATCH_BYTES = 64 * 1_024 * 1_024
"""The size of the pages, in bytes, at which an Arrow batch is complete. The limit protects the memory of a task from
large records, and keeps a column below Arrow's limit of two gigabytes of text."""

LAYOUT_COLUMNS_MAX = 1_024
"""The number of columns at which ``PageDecoder`` adds no further column to its layout. A single write has at most this
number of columns, and each column takes about twenty bytes of memory for every record."""

SPARSE = 16
"""``PageDecoder`` adds a column to its layout if on average at least one of ``SPARSE`` records has a value in this
column. For rarer values, a list of single cells takes less memory than a column."""

MOST_CONNECTIONS = 8
"""The largest number of instances of Tablestore for which one process keeps clients. A query reads one instance."""


@lru_cache(maxsize=MOST_CONNECTIONS)
def opened(connection: Connection) -> Any:
    """Return the client of the SDK for an instance. The first call of the process opens it."""
    return connection.quiet_client()


@lru_cache(maxsize=MOST_CONNECTIONS)
def calls_of(connection: Connection) -> SignedCalls:
    """Return the signed calls to an instance, over the client that ``opened`` returns."""
    return SignedCalls(opened(connection))


def asked(connection: Connection, operation: str, request: Any) -> Any:
    """Send a read request, repeat it after transient errors, and return the response.

    Raises:
        StreamClientError: an error is permanent, or the transient errors lasted too long.
    """
    return repeated(connection, operation, lambda calls: calls.ask(operation, request, is_repeatable=True))


@cache
def _repeater() -> Repeater:
    """Return the repeater of reads. The whole process shares it, because it costs much to make one for each read."""
    return Repeater(ReadRetry())


def repeated(connection: Connection, operation: str, call: Callable[[SignedCalls], _T]) -> _T:
    """Return the result of ``call``, which reads by this process's client. Repeat the call after transient errors.

    Raises:
        StreamClientError: an error is permanent, or the transient errors lasted too long.
    """
    calls = calls_of(connection)

    def attempt() -> _T:
        try:
            return call(calls)
        except Exception as error:
            raise classify(error, write=False, client=calls.client) from error

    return _repeater().call(operation, attempt)


def check_key(columns: Schema, key: Iterable[str], owner: str) -> None:
    """Refuse a schema that spells the name of a key column in a different case.

    Tablestore's names are case-sensitive, so the schema's column would be null in each row.

    Raises:
        ConfigurationError: the schema spells the name of a key column in a different case.
    """
    missing = {name.lower(): name for name in key if name not in set(map(original_name, columns.names))}
    for name in columns.names:
        if name.lower() in missing:
            right = missing[name.lower()]
            raise ConfigurationError(
                f"the schema has {name!r}, and the key of {owner} has {right!r}, which differs by its case: "
                f"name it {right!r}, or {marked(name)!r} if it is not a key column"
            )


@frozen
class StreamService:
    """The reads of a stream, for planner and executors. Spark pickles this object, which connects at its first call."""

    connection: Connection

    def streams(self) -> StreamApi:
        """Return the operations by which the planner lists shards and gets their iterators."""
        return TablestoreStreamApi(opened(self.connection))

    def summary(self, shard_id: str, iterator: str, limit: int) -> PageSummary:
        """Read a page for the planner; return the number of records, the last record's sequence, and the next iterator.

        Raises:
            TrimmedDataException: the records at ``iterator`` have left the stream.
        """
        return self._read(iterator, limit, default_codec().summarize_page)

    def page(self, iterator: str, limit: int) -> DecodedPage:
        """Read a page of records for an executor, as columns.

        Raises:
            TrimmedDataException: the records at ``iterator`` have left the stream.
        """
        return self._read(iterator, limit, _ordered_page)

    def _read(self, iterator: str, limit: int, read: Callable[[bytes], _PageT]) -> _PageT:
        message = schema.GetStreamRecordRequest(shard_iterator=iterator, limit=limit).SerializeToString()
        return repeated(
            self.connection,
            "GetStreamRecord",
            lambda calls: calls.page("GetStreamRecord", message, read, is_last=_ends_shard),
        )

    def oldest(self, stream_id: str, shard_id: str) -> str:
        """Return the iterator of the oldest record that the shard still has."""
        return self.streams().get_shard_iterator(stream_id, shard_id)


def _ends_shard(page: DecodedPage | PageSummary) -> bool:
    return page.next_shard_iterator is None


@frozen
class StreamPages:
    """Reads the pages of a range of a stream's records: exactly the records that the planner counted."""

    service: StreamService
    fails_on_data_loss: bool = True

    def __call__(self, part: ShardSlice) -> Iterator[DecodedPage]:
        """Yield the pages of the range ``part``, in order.

        Raises:
            StreamClientException: records of the range have left the stream, or differ from the planned records.
        """
        count = 0
        latest: DecodedPage | None = None
        try:
            for page in self._planned(part):
                count += page.record_count
                latest = page if page.record_count else latest
                yield page
        except TrimmedDataException as error:
            loss = f"records of shard {part.shard_id} were trimmed after they were planned: {error}"
            if self.fails_on_data_loss:
                raise StreamClientException(data_loss(loss)) from error
            yield from self._remaining(part, _last_of(latest) or part.after)
            return
        if count != part.count or _last_of(latest) != part.last:
            raise not_as_planned(part, count, _last_of(latest))

    def _planned(self, part: ShardSlice) -> Iterator[DecodedPage]:
        """Yield pages from the beginning of the range until all planned records are read, or the shard ends."""
        at: str | None = part.at
        left, seen = part.count, part.after
        while left > 0 and at is not None:
            page = self._read(part, at, left, seen)
            seen = _last_of(page) if page.record_count else seen
            yield page
            left, at = left - page.record_count, page.next_shard_iterator

    def _read(self, part: ShardSlice, iterator: str, left: int, seen: SequenceInfo | None) -> DecodedPage:
        """Read a page with at most ``left`` records, all after the record ``seen``; the page may be empty.

        The planner has counted ``left`` further records. If the shard seems to end before them, the page was cut or
        comes from a replica that lags, so the method reads it again.
        """

        def attempt() -> DecodedPage:
            page = self.service.page(iterator, min(PAGE_RECORDS, left))
            is_stuck = page.next_shard_iterator == iterator
            if page.record_count:
                following = page.next_shard_iterator if page.record_count < left else None
                first, last = page.records.sequence_info(0), page.records.sequence_info(-1)
                why = no_progress(iterator, following, first, last, seen)
                if why:
                    raise DependencyException(f"shard {part.shard_id} cannot be read: {why}", kind=ErrorKind.TRANSIENT)
            if page.record_count < left and (is_stuck or page.next_shard_iterator is None):
                missing = counted(left - page.record_count, "record")
                raise DependencyException(
                    f"shard {part.shard_id} ends {missing} before the planned position",
                    kind=ErrorKind.TRANSIENT,
                )
            return page

        return _repeater().call("GetStreamRecord", attempt)

    def _page_after(self, part: ShardSlice, iterator: str, seen: SequenceInfo | None) -> DecodedPage:
        """Read the page at ``iterator``, after the record ``seen``. Repeat the read if the shard seems to end early.

        The shard must not end before the last planned record of the range.
        """

        def attempt() -> DecodedPage:
            page = self.service.page(iterator, PAGE_RECORDS)
            if page.record_count:
                first, last = page.records.sequence_info(0), page.records.sequence_info(-1)
                why = no_progress(iterator, page.next_shard_iterator, first, last, seen)
                if page.next_shard_iterator is None and last < part.last:
                    why = f"it ends at {last}, and records up to {part.last} were planned"
                if why:
                    raise DependencyException(f"shard {part.shard_id} cannot be read: {why}", kind=ErrorKind.TRANSIENT)
            return page

        return _repeater().call("GetStreamRecord", attempt)

    def _remaining(self, part: ShardSlice, last: SequenceInfo | None) -> Iterator[DecodedPage]:
        """Yield the range's records after ``last`` that the stream still has, in a query that accepts losses."""
        iterator: str | None = self.service.oldest(part.stream_id, part.shard_id)
        seen = None
        while iterator is not None:
            page = self._page_after(part, iterator, seen)
            before = 0 if last is None else sum(record.sequence_info <= last for record in page.records)
            if page.record_count:
                seen = page.records.sequence_info(before - 1)
            if before:
                # The query has already read the first ``before`` records. Only its iterator had expired.
                whole = before == page.record_count
                iterator = (
                    page.next_shard_iterator if whole else self.service.page(iterator, before).next_shard_iterator
                )
                continue
            within = sum(record.sequence_info <= part.last for record in page.records)
            if within:
                # If the page has records after the range, repeat the read with fewer records.
                yield page if within == page.record_count else self.service.page(iterator, within)
            if within < page.record_count or page.next_shard_iterator == iterator:
                return
            iterator = page.next_shard_iterator


def _ordered_page(body: bytes) -> DecodedPage:
    page = default_codec().decode_page(body)
    page.records.require_order()
    return page


def _last_of(page: DecodedPage | None) -> SequenceInfo | None:
    return None if page is None else page.records[-1].sequence_info


@frozen
class RangeReader:
    """Reads ranges of changes as Arrow batches of one schema. Spark pickles the reader and sends it to executors."""

    pages: Callable[[ShardSlice], Iterator[DecodedPage | TunnelPage]]
    """A function that yields the pages of a range, with exactly the records that the planner counted."""
    columns: Schema
    batch_records: int = field(default=BATCH_RECORDS)
    batch_bytes: int = field(default=BATCH_BYTES)

    def read(self, part: ShardSlice) -> Iterator[RecordBatch]:
        """Yield the rows of a range, oldest first. Each call for the same range yields the same rows.

        Raises:
            ConfigurationError: the schema spells the name of a key column in a different case.
            StreamClientException: records of the range have left the stream, or differ from the planned records.
            UnfitValueError: a value does not fit its column, and the schema lacks ``_unfit``.
        """
        for batches, is_values in _made_ahead(self._batches(part)):
            yield from self._rows_of_values(batches, part.shard_id) if is_values else self._rows(batches, part.shard_id)

    def _batches(self, part: ShardSlice) -> Iterator[tuple[list[RecordBatch], bool]]:
        """Yield the pages of each Arrow batch, converted to columns, and the way in which they were converted.

        The second element is true if ``DecodedPage.values`` has made the columns, and false if a ``PageDecoder`` has.
        """
        types = self._types()
        decoder = PageDecoder(dict(types))
        asks_for_values = OF_CHANGES.issuperset(name for name in self.columns.names if name in RESERVED)
        waiting: list[RecordBatch] = []
        rows, size, are_values, is_checked = 0, 0, asks_for_values, False
        for page in self.pages(part):
            if page.record_count and not is_checked:
                check_key(self.columns, dict(page.records[0].primary_key), f"shard {part.shard_id}")
                is_checked = True
            values = page.values(types) if asks_for_values else None
            is_full = rows >= self.batch_records or size >= self.batch_bytes
            if waiting and (is_full or are_values is not (values is not None)):
                yield waiting, are_values
                waiting, rows, size = [], 0, 0
            are_values = values is not None
            waiting.append(decoder.batch(page) if values is None else pyarrow().record_batch(values))
            rows, size = rows + page.record_count, size + waiting[-1].nbytes
        if waiting:
            yield waiting, are_values

    def _rows_of_values(self, batches: list[RecordBatch], shard_id: str) -> Iterator[RecordBatch]:
        yield rows_of_values(pyarrow().concat_batches(batches), shard=shard_id, columns=self.columns)

    def _types(self) -> dict[str, ColumnType]:
        names = [name for name in self.columns.names if name not in RESERVED]
        types = {original_name(name): column_type(self.columns.field(name).type) for name in names}
        return {name: kind for name, kind in types.items() if kind is not None}

    def _rows(self, batches: list[RecordBatch], shard_id: str) -> Iterator[RecordBatch]:
        if all(batch.schema == batches[0].schema for batch in batches):
            # Join the pages first, because the conversion costs more for each batch than for each value.
            batches = [pyarrow().concat_batches(batches)]
        table = rows_of_schema(columns_of_pages(batches, keeps_order=True), shard=shard_id, columns=self.columns)
        yield from table.combine_chunks().to_batches()


@define
class PageDecoder:
    """Converts the pages of a range to columns. After the first few pages, all pages have one layout.

    The decoder lists the cells of columns outside the layout one by one, which costs as much as making records. So the
    layout begins with the wanted columns. The decoder adds any other column when it first occurs often enough, with the
    type of its first value.
    """

    types: dict[str, ColumnType]

    def batch(self, page: DecodedPage | TunnelPage) -> RecordBatch:
        """Return ``page`` as columns, in a layout that has all columns that are frequent in this page."""
        made = pyarrow().record_batch(page.arrow(self.types))
        met = self._met(made)
        if not met:
            return made
        columns = pyarrow().record_batch(page.arrow()).schema.field("columns").type
        kinds = {field.name: column_type(field.type.field("value").type) for field in columns if field.name in met}
        self.types |= {name: kind for name, kind in kinds.items() if kind is not None}
        return pyarrow().record_batch(page.arrow(self.types))

    def _met(self, made: RecordBatch) -> set[str]:
        """Return the columns outside the layout that occur often enough in ``made`` to join the layout."""
        listed = made.column("other_cells").flatten()
        if not len(listed) or len(self.types) >= LAYOUT_COLUMNS_MAX:
            return set()
        names, counts = compute().value_counts(listed.field("name")).flatten()
        often = compute().greater_equal(counts, made.num_rows / SPARSE)
        return set(names.filter(often).to_pylist()) - self.types.keys()


def _made_ahead(items: Iterator[_T]) -> Iterator[_T]:
    """Yield ``items``, and make each item in another thread while the caller works on the previous one."""
    with ThreadPoolExecutor(1, "tablestore-reader") as pool:
        coming = pool.submit(next, items, None)
        while (item := coming.result()) is not None:
            coming = pool.submit(next, items, None)
            yield item
