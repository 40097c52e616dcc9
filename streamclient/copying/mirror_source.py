"""The table that is mirrored, and the copy of its rows.

The place of the copy lies in the destination's own log. Its first commit is the plan: of which table the mirror is, by
which stream, and in which pieces. The others are of those pieces: each begins at the key where the one before ended. So
a copy goes on where it was, whoever goes on; any number of processes may copy, as of two that copy the same rows one is
refused; and a copied row is there once. The history, if it is kept, gets the same commits before: what it has and the
destination has not, whoever read it from the table, goes into the destination as it is.

Changes are read from before the first row was. When the copy took longer than the stream keeps changes, some are lost,
which no reading of the stream would show: then the mirror ends with an error.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any, TypeVar

from attrs import asdict, define, evolve, field, frozen

from streamclient.base import logs
from streamclient.base.times import MICROS_PER_HOUR, now_micros
from streamclient.destinations.commit import Commit, Destination, MergingDestination
from streamclient.destinations.destination_packages import compute, pyarrow
from streamclient.destinations.folding.fold import copied, empty_rows, stored_keys
from streamclient.destinations.folding.row_changes import CLOCKS_MARGIN_MICROS, TableRule
from streamclient.destinations.rows.change_rows import COMMIT, change_rows, records_of
from streamclient.destinations.rows.digest import records_digest
from streamclient.errors import ConfigurationError, DependencyException, StreamClientException, TrimmedDataException
from streamclient.model import CheckpointPosition
from streamclient.records import KeyValue, SequenceInfo, StreamRecord
from streamclient.tablestore.ranges import TableScan, key_from, key_text, record_of
from streamclient.tablestore.read_retry import ReadRetry, Repeater
from streamclient.tablestore.signed_calls import SignedCalls
from streamclient.tablestore.stream_api import StreamDescription, StreamSummary
from streamclient.tablestore.stream_operations import TablestoreStreamApi
from streamclient.tablestore.stream_tables import TableDescription, split_points, split_request
from streamclient.wire import schema
from streamclient.wire.plainbuffer import Row, decode_row, encode_row
from streamclient.wire.service_errors import classify

if TYPE_CHECKING:
    from tablestore import OTSClient

_log = logs.logger(__name__)
_T = TypeVar("_T")

COPY = "copy"
"""The shard whose first commit says when the copy began and which pieces it has; those are ``copy/0`` and so on."""

COMMIT_PAGES = 5
"""Pages of rows in one commit: a page has at most 5,000 rows and 4 MB."""


@define(eq=False, slots=False)
class SourceTable:
    """A table of Tablestore with its stream. Thread-safe."""

    client: OTSClient
    name: str
    stop: threading.Event = field(factory=threading.Event)
    """Ends repeated calls at once."""

    @cached_property
    def api(self) -> TablestoreStreamApi:
        """Its stream."""
        return TablestoreStreamApi(self.client)

    @cached_property
    def _calls(self) -> SignedCalls:
        return SignedCalls(self.client)

    @cached_property
    def _repeater(self) -> Repeater:
        return Repeater(ReadRetry(), self.stop)

    @property
    def instance(self) -> str:
        """Name of its instance, by whatever endpoint that is reached."""
        return str(self.client.protocol.instance_name)

    def describe(self) -> TableDescription:
        """What the service says of it now.

        Raises:
            ConfigurationError: there is no such table.
        """
        try:
            return self._repeater.call("DescribeTable", lambda: self.api.describe_table(self.name))
        except DependencyException as error:
            if error.code != "OTSObjectNotExist":
                raise
            raise ConfigurationError(
                f"there is no table {self.name!r} in instance {self.instance!r}: check both, and the endpoint ({error})"
            ) from error

    def rule(self) -> TableRule:
        """What its rows obey now."""
        described = self.describe()
        lifetime = described.options.time_to_live_seconds
        return TableRule(
            tuple(name for name, _ in described.definition.primary_key),
            described.options.max_versions or 1,
            None if lifetime is None or lifetime < 0 else lifetime * 1_000,
            {**dict(described.definition.primary_key), **described.definition.defined_columns},
        )

    def stream(self) -> StreamSummary:
        """Its stream.

        Raises:
            ConfigurationError: it has none.
        """
        found = self._repeater.call("ListStream", lambda: self.api.list_stream(self.name))
        if not found:
            raise ConfigurationError(
                f"table {self.name!r} has no stream, by which a mirror follows it: enable it by UpdateTable with a "
                "StreamSpecification"
            )
        return found[0]

    def check_table(self, plan: CopyPlan) -> None:
        """Whether it is the table that was copied by a plan. Calls nobody.

        Raises:
            ConfigurationError: it is not.
        """
        if (plan.instance, plan.table) != (self.instance, self.name):
            raise ConfigurationError(
                f"the destination is the mirror of table {plan.table!r} of instance {plan.instance!r}, not of table "
                f"{self.name!r} of instance {self.instance!r}: name another destination, or that table"
            )

    def stream_of(self, plan: CopyPlan) -> StreamSummary:
        """Its stream, which is the one that the mirror has followed from its beginning.

        Raises:
            ConfigurationError: it is not the table that was copied, or has no stream.
            StreamClientException: it has another stream, which does not have all changes since the copy.
        """
        self.check_table(plan)
        found = self.stream()
        if found.stream_id != plan.stream_id:
            raise StreamClientException(
                f"the mirror follows stream {plan.stream_id}, and table {self.name!r} has {found.stream_id} now: the "
                "stream was switched off and on again, or the table made anew, and changes in between are in neither; "
                "begin a new mirror, with another destination and status table"
            )
        return found

    def describe_stream(self, stream_id: str) -> StreamDescription:
        """A stream with its shards."""
        return self._repeater.call("DescribeStream", lambda: self.api.describe_stream(stream_id))

    def place_at(self, shard_id: str, plan: CopyPlan) -> str:
        """Where the changes of a shard begin that a mirror reads."""
        find = partial(self.api.get_shard_iterator, plan.stream_id, shard_id, plan.start_micros)
        return self._repeater.call("GetShardIterator", find)

    def check_kept(self, place: str) -> None:
        """Whether the stream still has what lies behind a place.

        Raises:
            TrimmedDataException: it does not.
        """
        self._repeater.call("GetStreamRecord", lambda: self.api.get_stream_record(place, 1))

    def split_points(self, mebibytes: int) -> list[tuple[KeyValue, ...]]:
        """Keys, perhaps with their first columns only, that cut the table into pieces of about this size."""
        return self._asked(split_request(self.name, mebibytes), split_points)

    def scan(self, rule: TableRule) -> TableScan:
        """Its rows, in the order of their keys."""
        return TableScan(
            calls=self._calls,
            table=self.name,
            key=rule.key,
            max_versions=rule.max_versions,
            repeater=self._repeater,
        )

    def read_again(self, rule: TableRule, keys: Sequence[Sequence[KeyValue]]) -> tuple[list[StreamRecord], int]:
        """The rows with these keys, as far as they are there, and when the last of them was read, in microseconds."""
        found = []
        for key in keys:
            request = schema.GetRowRequest(
                table_name=self.name, primary_key=_encoded(rule.key, key), max_versions=rule.max_versions
            )
            found += self._asked(request, lambda answer: [record_of(decode_row(answer.row))] if answer.row else [])
        return found, now_micros()

    def _asked(self, request: Any, decode: Callable[[Any], _T]) -> _T:
        operation = request.DESCRIPTOR.name.removesuffix("Request")

        def ask() -> _T:
            try:
                answer: _T = self._calls.ask(operation, request, decode, is_repeatable=True)
            except Exception as error:
                raise classify(error, write=False, client=self._calls.client) from error
            return answer

        return self._repeater.call(operation, ask)


def _encoded(names: Sequence[str], key: Sequence[KeyValue]) -> bytes:
    return encode_row(Row(tuple(zip(names, key, strict=True))))


@frozen
class CopyPlan:
    """Of which table a copy is, when it began, and in which pieces."""

    start_micros: int
    """Changes are read from here on."""
    points: tuple[str, ...] = ()
    """Where the pieces are cut."""
    instance: str = ""
    table: str = ""
    stream_id: str = ""
    """Changes are read from this one. The table has another one once its stream was switched off and on, or it was made
    anew, perhaps with another key."""

    @property
    def pieces(self) -> Mapping[str, tuple[str, str]]:
        """Names of the pieces, and between which keys they lie; empty for the table's ends."""
        bounds = ["", *self.points, ""]
        return {f"{COPY}/{number}": pair for number, pair in enumerate(pairwise(bounds))}

    def to_text(self) -> str:
        """As it stands in the log."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> CopyPlan:
        """Read what ``to_text`` wrote.

        Raises:
            StreamClientException: it wrote another text.
        """
        try:
            plain = json.loads(text)
            source = (plain[name] for name in ("instance", "table", "stream_id"))
            return cls(plain["start_micros"], tuple(plain["points"]), *source)
        except (ValueError, KeyError, TypeError) as error:
            raise StreamClientException(f"the plan of the copy is damaged: {text!r}") from error


@define(eq=False)
class TableCopy:
    """Copies all rows of a table into a destination, together with whoever else does."""

    source: SourceTable
    destination: MergingDestination
    rule: TableRule
    stop: threading.Event
    piece_mebibytes: int = 100
    history: Destination | None = None
    rows: int = 0
    """Copied by this process."""
    plan: CopyPlan = field(init=False, default=CopyPlan(0))

    def prepare(self) -> None:
        """Read the plan, or make one and with it the destination's table.

        Raises:
            ConfigurationError: the destination is the mirror of another table.
            StreamClientException: the table has another stream than when it was copied.
        """
        known = self._last(COPY)
        if known is None:
            commit = self._commit(None, COPY, self._new_plan().to_text(), [])
            try:
                self.destination.commit(empty_rows(self.rule), [commit])
            except StreamClientException:
                if self._last(COPY) is None:
                    raise
            known = self._last(COPY) or commit
        self.plan = CopyPlan.from_text(known.end)
        self.source.stream_of(self.plan)

    def _new_plan(self) -> CopyPlan:
        # The stream is looked up before the first row is read: if it is switched off meanwhile, that shows.
        source, stream = self.source, self.source.stream()
        points = tuple(map(key_text, source.split_points(self.piece_mebibytes)))
        return CopyPlan(now_micros() - CLOCKS_MARGIN_MICROS, points, source.instance, source.name, stream.stream_id)

    def begin_history(self) -> None:
        """Give the history its table and the plan, by which it is known as that of this mirror."""
        plan = self._last(COPY)
        if self.history is None or plan is None:
            return
        columns = self.history.columns()
        rows = change_rows((), shard=COPY, number=plan.number, columns=columns, declared=self.rule.declared)
        # No change says what the key is; its columns come first all the same.
        places = {name: place for place, name in enumerate(stored_keys(self.rule))}
        rows = rows.select(sorted(rows.column_names, key=lambda name: places.get(name, len(places))))
        self.history.commit(rows, [plan])

    @property
    def left(self) -> list[str]:
        """Pieces that are not copied to their ends."""
        lasts = self.destination.last_commits(list(self.plan.pieces))
        return [name for name, last in lasts.items() if last is None or last.end != CheckpointPosition.SHARD_END]

    def run(self, first: int = 0) -> None:
        """Copy until every piece is copied, or ``stop`` is set; begins with the piece of that number, turned round."""
        names = self.left
        names = names[first % len(names) :] + names[: first % len(names)] if names else names
        while names and not self.stop.is_set():
            advanced = [self._advance(name) for name in names]
            if not any(advanced):
                # All that is left is being copied by others; if they end, it is ours.
                self.stop.wait(1.0)
            left = set(self.left)
            names = [name for name in names if name in left]

    def _advance(self, name: str) -> bool:
        """Copy a piece until its end, or until somebody else is found to copy it; whether anything was copied."""
        start, end = (key_from(text) for text in self.plan.pieces[name])
        is_advanced = False
        while not self.stop.is_set():
            last = self._last(name)
            if last is not None and last.end == CheckpointPosition.SHARD_END:
                return is_advanced
            step = self._next(name, last, (start, end))
            if step is None:
                return is_advanced
            commit, records = step
            try:
                columns = self.destination.columns() or empty_rows(self.rule).schema
                self.destination.commit(copied(records, now_micros(), columns, self.rule), [commit])
            except StreamClientException:
                if self._last(name) == last:
                    raise
                return is_advanced
            is_advanced = True
            self.rows += len(records)
        return is_advanced

    def _next(
        self, name: str, last: Commit | None, piece: tuple[tuple[KeyValue, ...] | None, tuple[KeyValue, ...] | None]
    ) -> tuple[Commit, list[StreamRecord]] | None:
        """The next commit of a piece and its rows, of which the history knows; ``None`` if others are at it."""
        known = self._remembered(name, last)
        if known is not None:
            return known
        start, end = piece
        following, records = self._read(start if last is None else key_from(last.end), end)
        reached = CheckpointPosition.SHARD_END if following is None else key_text(following)
        commit = self._commit(last, name, reached, records)
        if self.history is not None:
            columns, declared = self.history.columns(), self.rule.declared
            rows = change_rows(records, shard=name, number=commit.number, columns=columns, declared=declared)
            try:
                self.history.commit(rows, [commit])
            except StreamClientException:
                if self._remembered(name, last) is None and self._last(name) == last:
                    raise
                return None
        return commit, records

    def _remembered(self, name: str, last: Commit | None) -> tuple[Commit, list[StreamRecord]] | None:
        """The next commit of a piece, if the history has it already: of a process that died, or is still at it."""
        known = None if self.history is None else self.history.last_commits([name])[name]
        if self.history is None or known is None or (last is not None and known.number <= last.number):
            return None
        pa, pc = pyarrow(), compute()
        tables = [table.filter(pc.field(COMMIT) == known.number) for table in self.history.rows([name])]
        found = records_of(pa.concat_tables(tables, promote_options="default")) if tables else []
        if records_digest(found) != known.content:
            raise StreamClientException(f"the history has other rows than {known} says: begin a new mirror")
        return known, found

    def _read(
        self, place: tuple[KeyValue, ...] | None, end: tuple[KeyValue, ...] | None
    ) -> tuple[tuple[KeyValue, ...] | None, list[StreamRecord]]:
        pages = [*islice(self.source.scan(self.rule).pages(place, end), COMMIT_PAGES)]
        following, _ = pages[-1]
        records = [record_of(row) for _, rows in pages for row in rows]
        # They came to be before the first change that is read, as far as the history tells.
        begun = self.plan.start_micros
        return following, [evolve(one, sequence_info=SequenceInfo(0, begun, at)) for at, one in enumerate(records)]

    def _last(self, shard: str) -> Commit | None:
        return self.destination.last_commits([shard])[shard]

    def _commit(self, last: Commit | None, shard: str, end: str, records: Sequence[StreamRecord]) -> Commit:
        return Commit.after(
            last,
            application=self.destination.application,
            shard=shard,
            epoch=0,
            start=CheckpointPosition.TRIM_HORIZON if last is None else last.end,
            end=end,
            count=len(records),
            content=records_digest(records),
        )


def check_changes_are_kept(plan: CopyPlan, now: int, hours: int) -> None:
    """Whether the stream still has the changes since the copy began.

    Raises:
        TrimmedDataException: it does not, or may not.
    """
    if now - plan.start_micros > hours * MICROS_PER_HOUR - CLOCKS_MARGIN_MICROS:
        raise TrimmedDataException(
            f"the copy began {(now - plan.start_micros) / MICROS_PER_HOUR:.1f} h ago, and the stream keeps changes for "
            f"{hours} h: those since the beginning are not all there any more; mirror into a new table, with a stream "
            "that keeps them longer, or with more processes that copy"
        )
