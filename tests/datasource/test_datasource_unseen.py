"""Shards that appear, and perhaps end, while a reader stands still: it has every change in the end, or says why not.

Two readers store their looks at the list of shards, each in its own way: a query in its offsets, a mirror in its log.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from attrs import evolve
from hypothesis import example, given, settings
from hypothesis import strategies as st

from streamclient.base.times import MICROS_PER_HOUR
from streamclient.copying import mirror_listing
from streamclient.copying.mirror_listing import LISTED, ShardWatch
from streamclient.copying.source_table import CopyPlan
from streamclient.destinations.commit import Commit
from streamclient.destinations.memory_destination import MemoryDestination
from streamclient.errors import StreamClientException, TrimmedDataException
from streamclient.tablestore.stream_api import StreamDescription
from tests.datasource.query import COLUMNS, NOW_MICROS, MemoryStream, Query, two_shards

KEPT_HOURS = 24
SURELY_SEEN_HOURS = 22
"""A look so long ago is enough: the one that is stored may be an hour older, and clocks may differ."""

WRITE, SPLIT, MERGE = "write", "split", "merge"


class ForgetfulStream(MemoryStream):
    """Forgets records that are older than a day, and the closed shards whose records they were so many hours later."""

    hours = 0.0

    def __init__(self, lingering_hours: float) -> None:
        super().__init__()
        self.lingering_hours = lingering_hours
        self.closed_at: dict[str, float] = {}

    @property
    def now_micros(self) -> int:
        return NOW_MICROS + self.written + int(self.hours * MICROS_PER_HOUR)

    def write(self, shard: str, count: int) -> None:
        now = self.now_micros
        super().write(shard, count)
        records = self.records[shard]
        records[-count:] = [
            evolve(one, sequence_info=evolve(one.sequence_info, timestamp_micros=now + number))
            for number, one in enumerate(records[-count:])
        ]

    def change(self, kind: str, number: int) -> None:
        shards = self.open_shards
        if kind == WRITE:
            self.write(shards[number % len(shards)], 1 + number % 3)
        elif kind == SPLIT:
            self.split(shards[number % len(shards)])
        elif len(shards) > 1:
            self.merge(*shards[:2])

    def pass_hours(self, hours: float) -> None:
        for shard in self.closed - self.closed_at.keys():
            self.closed_at[shard] = self.hours
        self.hours += hours
        oldest = self.now_micros - KEPT_HOURS * MICROS_PER_HOUR
        for shard, records in self.records.items():
            self.trimmed[shard] = sum(one.sequence_info.timestamp_micros < oldest for one in records)
        self.gone |= {
            shard for shard, at in self.closed_at.items() if self.hours - at > KEPT_HOURS + self.lingering_hours
        }


class QueryReader:
    """A query that is started, reads all there is, and crashes."""

    def __init__(self, stream: ForgetfulStream, monkeypatch: pytest.MonkeyPatch) -> None:
        self.query, self.stream = Query(stream), stream

    def visit(self) -> None:
        self.query.passed_hours = self.stream.hours
        self.query.start()
        self.query.catch_up()

    def numbers(self) -> list[int]:
        return self.query.keys()


class MirrorReader:
    """A mirror that looks at the shards, merges all there is, and stops. It is also the source that it reads from."""

    def __init__(self, stream: ForgetfulStream, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stream, self.to = stream, MemoryDestination()
        monkeypatch.setattr(mirror_listing, "now_micros", lambda: stream.now_micros)
        self.to.commit(COLUMNS.empty_table(), [Commit.note(None, application="default", shard="copy", text="plan")])
        self.plan = CopyPlan(stream.now_micros)
        self.merged: dict[str, int] = {}
        self.found: list[int] = []

    def visit(self) -> None:
        ShardWatch(self, self.to, self.plan).look()  # type: ignore[arg-type]
        for shard, records in self.stream.records.items():
            first = self.stream.trimmed.get(shard, 0)
            if shard in self.merged and self.merged[shard] < first:
                raise TrimmedDataException("its lease says where it stands")
            new = records[self.merged.get(shard, first) :]
            if new and shard not in self.stream.gone:
                self.found += [dict(one.primary_key)["pk"] for one in new]
                self.merged[shard] = len(records)
                last = self.to.last_commits([shard])[shard]
                note = Commit.note(last, application="default", shard=shard, text=str(len(records)))
                self.to.commit(COLUMNS.empty_table(), [note])

    def numbers(self) -> list[int]:
        return sorted(self.found)

    def describe_stream(self, stream_id: str) -> StreamDescription:
        return self.stream.describe_stream(stream_id)

    def position_at(self, shard_id: str, plan: CopyPlan) -> str:
        return self.stream.get_shard_iterator("stream", shard_id)

    def require_kept(self, place: str) -> None:
        self.stream.page(place, 1)


Step = tuple[float, Sequence[tuple[str, int]], bool]
"""Hours that pass, what happens to the shards then, and whether the reader comes afterwards."""

LONG_STOP: list[Step] = [(1, [(SPLIT, 0), (WRITE, 1)], False), (30, [], True)]
BETWEEN_TWO_LOOKS: list[Step] = [(1, [(SPLIT, 0), (WRITE, 1), (SPLIT, 1)], False), (30, [], True)]

steps = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.25, 1.0, 6.0, 11.0, 23.0, 25.0]),
        st.lists(st.tuples(st.sampled_from([WRITE, WRITE, SPLIT, MERGE]), st.integers(0, 7)), max_size=4),
        st.booleans(),
    ),
    max_size=10,
)


def outcome(reader: Any, stream: ForgetfulStream, history: Sequence[Step]) -> tuple[str, float]:
    """Return why the reader ended, empty if it did not, and for how many hours it had not come then."""
    away = 0.0
    reader.visit()
    for hours, changes, comes in [*history, (0.0, [], True)]:
        stream.pass_hours(hours)
        away += hours
        for kind, number in changes:
            stream.change(kind, number)
        if comes:
            try:
                reader.visit()
            except StreamClientException as error:
                return str(error), away
            away = 0.0
    return "", away


@pytest.mark.parametrize("make", [QueryReader, MirrorReader])
@settings(deadline=None, max_examples=100)
@given(steps, st.sampled_from([0, 12, 48]))
@example(LONG_STOP, 48)
@example(BETWEEN_TWO_LOOKS, 0)
def test_a_reader_has_every_change_or_says_why_not_and_only_after_a_long_stop(
    make: Callable[..., Any], history: list[Step], lingering_hours: int
) -> None:
    stream = ForgetfulStream(lingering_hours)
    two_shards(1, stream)
    with pytest.MonkeyPatch.context() as monkeypatch:
        reader = make(stream, monkeypatch)
        why, away = outcome(reader, stream, history)

        if why:
            assert away > SURELY_SEEN_HOURS, why
        else:
            assert reader.numbers() == list(range(stream.written))
            assert make is QueryReader or reader.to.last_commits([LISTED])[LISTED] is not None
