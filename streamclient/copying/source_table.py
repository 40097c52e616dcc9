"""A table of Tablestore that is copied, its stream, and the plan of the copy; for mirrors and replications alike."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

from attrs import asdict, define, field, frozen

from streamclient.base.kept_formats import FORMAT_MEMBER, KeptFormat
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
"""The format of the plan of a mirror or a replication. It covers the positions of the pieces."""

COPY = "copy"
"""The name of the plan. The copy is made in pieces, whose names are ``copy/0``, ``copy/1`` and so on."""

PIECE_MEBIBYTES = 100
"""The default size of a piece."""


@define(eq=False, slots=False)
class SourceTable:
    """A table of Tablestore with its stream. Thread-safe."""

    client: OTSClient
    name: str
    stop: threading.Event = field(factory=threading.Event)
    """Once set, ends the repetition of failing calls at once."""

    @cached_property
    def api(self) -> TablestoreStreamApi:
        """The operations of the table's stream."""
        return TablestoreStreamApi(self.client, stop=self.stop)

    @cached_property
    def _calls(self) -> SignedCalls:
        return SignedCalls(self.client)

    @cached_property
    def _repeater(self) -> Repeater:
        return Repeater(ReadRetry(), self.stop)

    @property
    def instance(self) -> str:
        """The name of the table's instance, which is the same at every endpoint."""
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
        """Return the options that the table's rows obey at present."""
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
        """Check that the plan copied this table. Makes no call.

        Raises:
            ConfigurationError: the plan copied another table.
        """
        if (plan.instance, plan.table) != (self.instance, self.name):
            raise ConfigurationError(
                f"the destination is the mirror of table {plan.table!r} of instance {plan.instance!r}, not of table "
                f"{self.name!r} of instance {self.instance!r}: name another destination, or that table"
            )

    def stream_of(self, plan: CopyPlan) -> StreamSummary:
        """Return the table's stream. It must be the stream that the mirror has followed from its beginning.

        Raises:
            ConfigurationError: the plan copied another table, or the table has no stream.
            StreamClientException: the table has another stream, which lacks changes since the copy.
        """
        self.require_table_of(plan)
        stream = self.stream()
        if stream.stream_id != plan.stream_id:
            raise StreamClientException(
                f"the mirror follows stream {plan.stream_id}, and table {self.name!r} has {stream.stream_id} now: the "
                "stream was switched off and on again, or the table made anew, and changes in between are in neither; "
                "begin a new mirror, with another destination and status table"
            )
        return stream

    def describe_stream(self, stream_id: str) -> StreamDescription:
        """Return a stream with its shards."""
        return self._repeater.call("DescribeStream", lambda: self.api.describe_stream(stream_id))

    def position_at(self, shard_id: str, plan: CopyPlan) -> str:
        """Return the position at which a copy begins to read a shard."""
        find = partial(self.api.get_shard_iterator, plan.stream_id, shard_id, plan.start_micros)
        return self._repeater.call("GetShardIterator", find)

    def require_kept(self, position: str) -> None:
        """Check that the stream still has the changes after a position.

        Raises:
            TrimmedDataException: the stream does not have them any more.
        """
        self._repeater.call("GetStreamRecord", lambda: self.api.get_stream_record(position, 1))

    def split_points(self, mebibytes: int) -> list[tuple[KeyValue, ...]]:
        """Return keys that cut the table into pieces of about ``mebibytes``, perhaps with their first columns only."""
        return self._asked(split_request(self.name, mebibytes), split_points)

    def new_plan(self, mebibytes: int, most_pieces: int | None = None) -> CopyPlan:
        """Plan a copy that begins now, in pieces of at least ``mebibytes``, at most ``most_pieces`` of them.

        The stream is looked up before the first row is read. So the plan shows if the stream is switched off meanwhile.
        """
        stream, points = self.stream(), self.split_points(mebibytes)
        step = 1 if most_pieces is None else len(points) // most_pieces + 1
        texts = tuple(map(key_text, points[step - 1 :: step]))
        return CopyPlan(now_micros() - CLOCKS_MARGIN_MICROS, texts, self.instance, self.name, stream.stream_id)

    def scan(self, rule: TableRule) -> TableScan:
        """Return a scan of the table's rows, in the order of their keys."""
        return TableScan(
            calls=self._calls,
            table=self.name,
            key=rule.key,
            max_versions=rule.max_versions,
            repeater=self._repeater,
        )

    def read_again(self, rule: TableRule, keys: Sequence[Sequence[KeyValue]]) -> tuple[list[StreamRecord], int]:
        """Return the present rows with the keys ``keys``, and the time after the last read, in microseconds."""
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
        """Return the answer of a call to the service. The call is repeated in the same way as reads.

        Raises:
            DependencyException: the service refused, or did not answer.
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
    """Return the approximate number of bytes that ``values`` have on the wire."""
    return sum(len(value) if isinstance(value, str | bytes | bytearray) else 8 for value in values)


def _encoded(names: Sequence[str], key: Sequence[KeyValue]) -> bytes:
    return encode_row(Row(tuple(zip(names, key, strict=True))))


@frozen
class CopyPlan:
    """The beginning of a copy, its pieces, and the table that it copies."""

    start_micros: int
    """The time, in microseconds since 1970, from which on changes are read."""
    points: tuple[str, ...] = ()
    """The keys at which the table is cut into pieces that are copied separately."""
    instance: str = ""
    table: str = ""
    stream_id: str = ""
    """The id of the stream from which changes are read. The table gets a stream with another id if its stream is
    switched off and on, or if the table is deleted and created again, perhaps with another key."""

    @property
    def pieces(self) -> Mapping[str, tuple[str, str]]:
        """The names of the pieces, and the keys between which each lies.

        An empty text stands for an end of the table.
        """
        bounds = ["", *self.points, ""]
        return {f"{COPY}/{number}": pair for number, pair in enumerate(pairwise(bounds))}

    def to_text(self) -> str:
        """Return the text that is stored."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> CopyPlan:
        """Read a text of ``to_text``.

        Raises:
            StreamClientException: the text is another one, or of a version that is not known.
        """
        try:
            plain = json.loads(text)
            if problem := PLAN_FORMAT.problem(plain.get(FORMAT_MEMBER)):
                raise StreamClientException(problem)
            source = (plain[name] for name in ("instance", "table", "stream_id"))
            return cls(plain["start_micros"], tuple(plain["points"]), *source)
        except (AttributeError, ValueError, KeyError, TypeError) as error:
            raise StreamClientException(f"the plan of the copy is damaged: {text!r}") from error
