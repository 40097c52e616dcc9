"""The operations on streams, and on tables with streams, through a user's ``OTSClient``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, Any, TypeVar

from streamclient.base import checks, logs
from streamclient.base.position import Position
from streamclient.errors import CodecError, DependencyException, ErrorKind
from streamclient.interfaces import IMetrics
from streamclient.metrics.labelled import NO_METRICS
from streamclient.metrics.metric_table import STREAM_REQUESTS, STREAM_UNITS
from streamclient.metrics.request_metrics import RequestCounter
from streamclient.model import Shard
from streamclient.tablestore import stream_extension, stream_tables
from streamclient.tablestore.read_retry import ReadRetry, Repeater
from streamclient.tablestore.signed_calls import SUCCESS, SignedCalls
from streamclient.tablestore.stream_api import (
    RecordPage,
    StreamDescription,
    StreamDetails,
    StreamSpecification,
    StreamStatus,
    StreamSummary,
)
from streamclient.wire import schema
from streamclient.wire.record_decoding import RecordCodec, default_codec
from streamclient.wire.service_errors import classify, unreadable

if TYPE_CHECKING:
    from tablestore import OTSClient, ReservedThroughput, SecondaryIndexMeta, SSESpecification, TableMeta, TableOptions

_log = logs.logger(__name__)
_T = TypeVar("_T")

MOST_SHARD_PAGES = 10_000
"""The largest number of pages in a list of a stream's shards. At 100 shards per page this is a million shards, far
above any real stream, so a list with more pages will never end."""

MOST_CONTINUATIONS = 1_000
"""The largest number of requests in one search for an iterator. Each response may ask for a further request. Java's
client and DataX have no such bound, and may never return."""

_STATUSES = {
    schema.StreamStatusNumber.ENABLING: StreamStatus.ENABLING,
    schema.StreamStatusNumber.ACTIVE: StreamStatus.ACTIVE,
}


_page_size = checks.optional(checks.positive)


@checks.explains_names
class TablestoreStreamApi:
    """``StreamApi`` over HTTP, and operations on tables with streams. Thread-safe; the given client is not changed.

    Failed reads are repeated by ``retry``, never by the SDK's own policy. In one attempt, each wait for the connection
    or for bytes takes at most the client's ``socket_timeout``, by default 50 s. The whole attempt takes at most twice
    as long, or as long as ``streamclient.tablestore.with_limits`` allows. Changes of tables are repeated only by the
    client's own ``retry_policy``.
    """

    def __init__(
        self,
        client: OTSClient,
        *,
        retry: ReadRetry | None = None,
        stop: Event | None = None,
        codec: RecordCodec | None = None,
        metrics: IMetrics | None = None,
    ) -> None:
        """Prepare the operations, without a call to the service.

        Setting ``stop`` ends a pause between repetitions immediately. The call then raises the last error of its read.
        ``metrics`` counts read requests, and capacity units of pages. ``streamclient.metrics.labelled`` can add labels.

        Raises:
            ConfigurationError: the client is not a ``tablestore.OTSClient`` of the supported version.
        """
        checks.optional(checks.instance(ReadRetry)).require("retry", retry)
        checks.optional(checks.implementation(IMetrics)).require("metrics", metrics)
        checks.optional(checks.instance(Event)).require("stop", stop)
        checks.optional(checks.implementation(RecordCodec)).require("codec", codec)
        self._tables = stream_extension.for_tables(client)
        self._calls = SignedCalls(client)
        self._repeater = Repeater(ReadRetry() if retry is None else retry, stop)
        self._codec = default_codec() if codec is None else codec
        self._requests = RequestCounter(metrics, STREAM_REQUESTS)
        self._metrics = NO_METRICS if metrics is None else metrics

    def list_stream(self, table_name: str | None = None) -> Sequence[StreamSummary]:
        """Return the stream of ``table_name`` (at most one), or by default all streams of the instance."""
        response = self._read(schema.ListStreamRequest(table_name=table_name), schema.ListStreamResponse)
        return tuple(
            StreamSummary(stream.stream_id, stream.table_name, stream.creation_time) for stream in response.streams
        )

    def describe_stream(self, stream_id: str, *, shard_limit: int | None = None) -> StreamDescription:
        """Return the stream with all its shards, joined from pages of at most ``shard_limit`` shards.

        The shards may change between two pages. A shard on two pages is returned once, as the later page shows it.
        """
        request = schema.DescribeStreamRequest(
            stream_id=stream_id, shard_limit=_page_size.require("shard_limit", shard_limit)
        )
        shards: dict[str, Shard] = {}
        for _ in range(MOST_SHARD_PAGES):
            response = self._send(request, _stream_page)
            shards.update((shard.shard_id, _shard(shard)) for shard in response.shards)
            if not response.next_shard_id:
                return _description(response, tuple(shards.values()))
            if response.next_shard_id == request.inclusive_start_shard_id:
                raise _endless(
                    f"list of shards of {stream_id}",
                    f"the next page begins with the same shard as this page, {response.next_shard_id}",
                )
            request.inclusive_start_shard_id = response.next_shard_id
        raise _endless(f"list of shards of {stream_id}", f"{MOST_SHARD_PAGES} pages")

    def get_shard_iterator(self, stream_id: str, shard_id: str, timestamp_micros: int | None = None) -> str:
        """Return the iterator of the shard's oldest record, or of records written at or after ``timestamp_micros``.

        The iterator for a time may also lead to earlier records. The service may answer a long search in several
        responses, and the method requests them all. If a search by time ends without an iterator, the iterator of the
        oldest record is returned, so that no record can be missed.
        """
        request = schema.GetShardIteratorRequest(stream_id=stream_id, shard_id=shard_id, timestamp=timestamp_micros)
        for _ in range(MOST_CONTINUATIONS):
            response = self._read(request, schema.GetShardIteratorResponse)
            if response.shard_iterator:
                return str(response.shard_iterator)
            if not response.next_token:
                return self._without_time(stream_id, shard_id, timestamp_micros)
            request.token = response.next_token
        raise _endless(f"search in shard {shard_id}", f"{MOST_CONTINUATIONS} continuations")

    def get_stream_record(self, shard_iterator: str, limit: int | None = None) -> RecordPage:
        """Return one page of at most ``limit`` records from ``shard_iterator`` on, oldest first.

        An empty page does not mean the end of the shard.

        Raises:
            TrimmedDataException: the records at ``shard_iterator`` are older than the retention.
        """
        request = schema.GetStreamRecordRequest(shard_iterator=shard_iterator, limit=_page_size.require("limit", limit))
        message = request.SerializeToString()
        page = self._repeated(
            "GetStreamRecord",
            lambda: self._calls.page("GetStreamRecord", message, self._decoded, is_last=_ends_shard),
        )
        if page.read_units:
            self._metrics.increment(STREAM_UNITS, page.read_units)
        return page

    def create_table(
        self,
        table_meta: TableMeta,
        table_options: TableOptions,
        reserved_throughput: ReservedThroughput,
        secondary_indexes: Sequence[SecondaryIndexMeta] | None = None,
        sse_spec: SSESpecification | None = None,
        *,
        stream: StreamSpecification | None = None,
        split_points: Sequence[Any] | None = None,
    ) -> None:
        """Create a table, with a stream if ``stream`` enables it. The other arguments are as in the SDK.

        ``split_points`` are values of the first key column that divide the table into partitions. On the real service,
        it takes up to a minute until a new table accepts reads and writes.

        Raises:
            DependencyException: the call failed; with ``kind`` AMBIGUOUS the table may exist.
        """
        spec = None if stream is None else stream_tables.specification_message(stream)
        arguments = (table_meta, table_options, reserved_throughput, sse_spec, secondary_indexes or [], split_points)
        self._change("CreateTable", spec, *arguments, decode=lambda answer: None)

    def update_table(
        self,
        table_name: str,
        table_options: TableOptions | None = None,
        reserved_throughput: ReservedThroughput | None = None,
        *,
        stream: StreamSpecification | None = None,
    ) -> StreamDetails:
        """Change a table, or switch its stream on or off. Return the stream's details after the change.

        The retention of an enabled stream cannot be changed. Disabling a stream drops its records. Enabling a stream
        later begins a new stream with a new id.

        Raises:
            DependencyException: the call failed; with ``kind`` AMBIGUOUS the change may have been applied.
        """
        spec = None if stream is None else stream_tables.specification_message(stream)
        arguments = (table_name, table_options, reserved_throughput)
        return self._change("UpdateTable", spec, *arguments, decode=_details_after_update)

    def describe_table(self, table_name: str) -> stream_tables.TableDescription:
        """Return the definition, the options and the stream of a table."""
        request = schema.DescribeTableRequest(table_name=table_name)
        return self._send(request, stream_tables.table_description)

    def _without_time(self, stream_id: str, shard_id: str, timestamp_micros: int | None) -> str:
        if timestamp_micros is None:
            raise DependencyException(
                f"the service gave no iterator for shard {shard_id} of stream {stream_id}", kind=ErrorKind.PERMANENT
            )
        _log.warning("no iterator at %s in shard %s: beginning at its oldest record", timestamp_micros, shard_id)
        return self.get_shard_iterator(stream_id, shard_id)

    def _decoded(self, body: bytes) -> RecordPage:
        page = self._codec.decode_page(body)
        page.records.require_order()
        next_position = Position.SHARD_END if page.next_shard_iterator is None else Position(page.next_shard_iterator)
        return RecordPage(page.records, next_position, page.may_more_record, len(body), page.read_units)

    def _read(self, request: Any, response_class: Any) -> Any:
        return self._send(request, partial(schema.parse, response_class))

    def _send(self, request: Any, decode: Callable[[bytes], _T]) -> _T:
        operation, message = request.DESCRIPTOR.name.removesuffix("Request"), request.SerializeToString()
        return self._repeated(operation, lambda: self._calls.read(operation, message, decode, is_repeatable=True))

    def _repeated(self, operation: str, read: Callable[[], _T]) -> _T:
        def attempt() -> _T:
            try:
                answer = read()
            except Exception as error:
                failure = classify(error, write=False, client=self._calls.client)
                self._requests.count(operation, failure)
                if failure is error:
                    raise
                raise failure from error
            self._requests.count(operation)
            return answer

        return self._repeater.call(operation, attempt)

    def _change(self, operation: str, *arguments: Any, decode: Callable[[Any], _T]) -> _T:
        try:
            answer = self._tables._request_helper(operation, *arguments)
            try:
                return decode(answer)
            except CodecError as error:
                raise unreadable(operation, error, SUCCESS) from error
        except Exception as error:
            raise classify(error, write=True, client=self._tables) from error


def _ends_shard(page: RecordPage) -> bool:
    return page.next_position is Position.SHARD_END


def _shard(message: Any) -> Shard:
    return Shard(message.shard_id, message.parent_id or None, message.parent_sibling_id or None)


def _details_after_update(body: bytes) -> StreamDetails:
    return stream_tables.stream_details(schema.parse(schema.UpdateTableResponse, body))


def _stream_page(body: bytes) -> Any:
    page = schema.parse(schema.DescribeStreamResponse, body)
    if page.stream_status not in _STATUSES:
        raise CodecError(f"unknown stream status {page.stream_status}, expected 1 (ENABLING) or 2 (ACTIVE)")
    return page


def _description(page: Any, shards: tuple[Shard, ...]) -> StreamDescription:
    status = _STATUSES[page.stream_status]
    return StreamDescription(page.stream_id, page.table_name, page.expiration_time, page.creation_time, status, shards)


def _endless(listing: str, sign: str) -> DependencyException:
    return DependencyException(f"the {listing} does not end: {sign}", kind=ErrorKind.PERMANENT)
