"""The source table of a mirror or replication, its stream, and the plan of the copy."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

from attrs import asdict, define, field, frozen

from streamclient.base.kept_formats import FORMAT_MEMBER, KeptFormat, parse_json
from streamclient.base.times import now_micros
from streamclient.destinations.folding.row_changes import CLOCKS_MARGIN_MICROS, TableRule
from streamclient.errors import ConfigurationError, DependencyException, StreamClientError, StreamClientException
from streamclient.records import KeyValue, StreamRecord
from streamclient.tablestore.ranges import TableScan, key_text, record_of
from streamclient.tablestore.read_retry import ReadRetry, Repeater
from streamclient.tablestore.signed_calls import SignedCalls
from streamclient.tablestore.stream_api import StreamDescription, StreamSummary
from streamclient.tablestore.stream_operations import TablestoreStreamApi
from streamclient.tablestore.stream_tables import TableDescription, split_points, split_request
from streamclient.wire import schema
from streamclient.wire.plainbuffer import Row, decode_row, encode_row
from streamclient.wire.service_errors import OBJECT_NOT_EXIST, classify

if TYPE_CHECKING:
    from tablestore import OTSClient

_T = TypeVar("_T")

PLAN_FORMAT = KeptFormat("the plan of the copy")
"""The format of the plan of the copy (``CopyPlan``), which a mirror or a replication stores. The version of the format
also covers the stored positions in the pieces of the table."""

COPY = "copy"
"""The name in ``Commit.shard`` of the commit that stores the plan of the copy. The pieces of the table have the names
``copy/0``, ``copy/1`` and so on."""

PIECE_MEBIBYTES = 100
"""The default size, in MiB, of the pieces in which mirrors and replications copy a table."""


@define(eq=False, slots=False)
class SourceTable:
    """The calls that mirrors and replications make for their source table and its stream. Thread-safe."""

    client: OTSClient
    name: str
    stop: threading.Event = field(factory=threading.Event)
    """An event. When a thread sets it, the repetition of failing calls stops immediately."""

    @cached_property
    def api(self) -> TablestoreStreamApi:
        """The operations of the Stream API, with the ``client`` and the event ``stop`` of this object."""
        return TablestoreStreamApi(self.client, stop=self.stop)

    @cached_property
    def _calls(self) -> SignedCalls:
        return SignedCalls(self.client)

    @cached_property
    def _repeater(self) -> Repeater:
        return Repeater(ReadRetry(), self.stop)

    @property
    def instance(self) -> str:
        """The name of the table's instance. An instance has the same name at each of its endpoints."""
        return str(self.client.protocol.instance_name)

    def describe(self) -> TableDescription:
        """Return the service's description of the table.

        Raises:
            ConfigurationError: the table does not exist.
        """
        try:
            return self._repeater.call("DescribeTable", lambda: self.api.describe_table(self.name))
        except DependencyException as error:
            if error.code != OBJECT_NOT_EXIST:
                raise
            raise ConfigurationError(
                f"there is no table {self.name!r} in instance {self.instance!r}: check both, and the endpoint ({error})"
            ) from error

    def rule(self) -> TableRule:
        """Return the current settings of the table that decide how a change affects a row."""
        described = self.describe()
        lifetime = described.options.time_to_live_seconds
        return TableRule(
            tuple(name for name, _ in described.definition.primary_key),
            described.options.max_versions or 1,
            None if lifetime is None or lifetime < 0 else lifetime * 1_000,
            {**dict(described.definition.primary_key), **described.definition.defined_columns},
        )

    def stream(self) -> StreamSummary:
        """Return the table's stream.

        Raises:
            ConfigurationError: the table has no stream.
        """
        streams = self._repeater.call("ListStream", lambda: self.api.list_stream(self.name))
        if not streams:
            raise ConfigurationError(
                f"table {self.name!r} has no stream, which a copy follows: enable it by UpdateTable with a "
                "StreamSpecification"
            )
        return streams[0]

    def require_table_of(self, plan: CopyPlan) -> None:
        """Check, without a call to the service, that ``plan`` is the plan of a copy of this table.

        Raises:
            ConfigurationError: ``plan`` is for another table.
        """
        if (plan.instance, plan.table) != (self.instance, self.name):
            raise ConfigurationError(
                f"the destination is the mirror of table {plan.table!r} of instance {plan.instance!r}, not of table "
                f"{self.name!r} of instance {self.instance!r}: name another destination, or that table"
            )

    def stream_of(self, plan: CopyPlan) -> StreamSummary:
        """Return the table's stream; require that it is still the stream in ``plan``.

        Raises:
            ConfigurationError: ``plan`` is for another table, or the table has no stream.
            StreamClientException: the table has another stream now, which lacks changes made after the copy began.
        """
        self.require_table_of(plan)
        stream = self.stream()
        if stream.stream_id != plan.stream_id:
            remedy = "begin a new mirror, with another destination and status table"
            raise self.replaced_stream("the mirror", plan.stream_id, stream.stream_id, remedy)
        return stream

    def replaced_stream(self, copy: str, followed: str, present: str, remedy: str) -> StreamClientException:
        """Return the error for a copy whose stream was replaced. The error names the two streams and the remedy.

        ``copy`` is the mirror or replication in words. ``followed`` and ``present`` are the ids of the stream that it
        follows, and of the table's present stream.
        """
        return StreamClientException(
            f"{copy} follows stream {followed}, and table {self.name!r} has {present} now: the stream was switched off "
            f"and on again, or the table made anew, and no stream has the changes between; {remedy}"
        )

    def describe_stream(self, stream_id: str) -> StreamDescription:
        """Return the description of a stream, with its shards."""
        return self._repeater.call("DescribeStream", lambda: self.api.describe_stream(stream_id))

    def position_at(self, shard_id: str, plan: CopyPlan) -> str:
        """Return the position in a shard from which changes are read: the position at the start time of ``plan``."""
        find = partial(self.api.get_shard_iterator, plan.stream_id, shard_id, plan.start_micros)
        return self._repeater.call("GetShardIterator", find)

    def require_kept(self, position: str) -> None:
        """Check, by a read of one record, that the stream still has the changes after ``position``.

        Raises:
            TrimmedDataException: the changes have left the stream.
        """
        self._repeater.call("GetStreamRecord", lambda: self.api.get_stream_record(position, 1))

    def split_points(self, mebibytes: int) -> list[tuple[KeyValue, ...]]:
        """Return keys that divide the table into pieces of about ``mebibytes`` MiB.

        A key may have values for the first key columns only.
        """
        return self._asked(split_request(self.name, mebibytes), split_points)

    def new_plan(self, mebibytes: int, most_pieces: int | None = None) -> CopyPlan:
        """Return the plan of a copy that begins now, in at most ``most_pieces`` pieces of at least ``mebibytes`` MiB.

        The plan stores the id of the stream, by which ``stream_of`` detects that the stream was switched off meanwhile.
        """
        stream, points = self.stream(), self.split_points(mebibytes)
        step = 1 if most_pieces is None else len(points) // most_pieces + 1
        texts = tuple(map(key_text, points[step - 1 :: step]))
        return CopyPlan(now_micros() - CLOCKS_MARGIN_MICROS, texts, self.instance, self.name, stream.stream_id)

    def scan(self, rule: TableRule) -> TableScan:
        """Return a scan that reads the table's rows page by page in the order of their keys."""
        return TableScan(
            calls=self._calls,
            table=self.name,
            key=rule.key,
            max_versions=rule.max_versions,
            repeater=self._repeater,
        )

    def read_again(self, rule: TableRule, keys: Sequence[Sequence[KeyValue]]) -> tuple[list[StreamRecord], int]:
        """Read the rows with the keys ``keys``; return them as records, and the time at which all reads had ended.

        The time is in microseconds since 1970. Rows that do not exist are left out.
        """
        records = []
        for key in keys:
            request = schema.GetRowRequest(
                table_name=self.name, primary_key=_encoded(rule.key, key), max_versions=rule.max_versions
            )
            records += self._asked(request, lambda answer: [record_of(decode_row(answer.row))] if answer.row else [])
        return records, now_micros()

    def _asked(self, request: Any, decode: Callable[[Any], _T]) -> _T:
        operation = request.DESCRIPTOR.name.removesuffix("Request")
        ask: Callable[[], _T] = partial(self._calls.ask, operation, request, decode, is_repeatable=True)
        return self.repeated(operation, ask)

    def repeated(self, operation: str, call: Callable[[], _T], *, write: bool = False) -> _T:
        """Return the result of ``call``, which calls the service. Repeat the call after transient errors.

        Raises:
            DependencyException: the service refused the call, or did not answer.
        """

        def translated() -> _T:
            try:
                return call()
            except StreamClientError:
                raise
            except Exception as error:
                raise classify(error, write=write, client=self.client) from error

        return self._repeater.call(operation, translated)


def size_of(values: Iterable[object]) -> int:
    """Return the approximate size of ``values`` in bytes, as the service sends them."""
    return sum(len(value) if isinstance(value, str | bytes | bytearray) else 8 for value in values)


def _encoded(names: Sequence[str], key: Sequence[KeyValue]) -> bytes:
    return encode_row(Row(tuple(zip(names, key, strict=True))))


@frozen
class CopyPlan:
    """The plan of a copy: the time of its start, the source table, the table's stream, and the pieces."""

    start_micros: int
    """The time, in microseconds since 1970, from which on the mirror or replication reads changes."""
    points: tuple[str, ...] = ()
    """The keys that divide the table into pieces, each encoded as text."""
    instance: str = ""
    table: str = ""
    stream_id: str = ""
    """The id of the stream from which changes are read. The id changes if the table's stream is switched off and on
    again, or if the table is deleted and created again."""

    @property
    def pieces(self) -> Mapping[str, tuple[str, str]]:
        """The keys at which each piece begins and ends, by the piece's name. Empty texts stand for the table's ends."""
        bounds = ["", *self.points, ""]
        return {f"{COPY}/{number}": pair for number, pair in enumerate(pairwise(bounds))}

    def to_text(self) -> str:
        """Return the plan as JSON text. The plan is stored in this form."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> CopyPlan:
        """Return the plan from its JSON text, which ``to_text`` has made.

        Raises:
            StreamClientException: the text is not a plan, or the plan is of an unknown version.
        """
        try:
            plain = parse_json(text)
            if problem := PLAN_FORMAT.problem(plain.get(FORMAT_MEMBER)):
                raise StreamClientException(problem)
            source = (plain[name] for name in ("instance", "table", "stream_id"))
            return cls(plain["start_micros"], tuple(plain["points"]), *source)
        except (AttributeError, ValueError, KeyError, TypeError) as error:
            raise StreamClientException(f"the plan of the copy is damaged: {text!r}") from error
