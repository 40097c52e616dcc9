"""Random histories of one table: writes, reads, splits, merges and restarts, against a model of dictionaries.

A consumer follows the stream at the same time, each shard after its parents, and must end with the same table.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from server_state_driver import (
    DELETE,
    PUT,
    START_MICROS,
    UPDATE,
    Driver,
    batch_row,
    delete_all,
    delete_one,
    increment,
    plain_key,
    put,
)

from streamclient.records import ColumnOperation, RecordType, StreamRecord
from streamclient.server.server_errors import ServiceError
from streamclient.server.storage import open_storage
from streamclient.wire.plainbuffer import Cell, CellOperation, Row, decode_rows
from streamclient.wire.schema import OperationType

Key = tuple[str, int]
Versions = dict[int, Any]
Columns = dict[str, Versions]

# Few keys and columns, so that versions and writes meet.
KEYS = st.tuples(st.sampled_from(["a", "a\x00", "ü"]), st.sampled_from([-(2**40), 7]))
COLUMNS = st.sampled_from(["x", "y"])
VALUES = st.sampled_from([0, 1, True, 2.5, "text", b"\x00\xff"])
OFFSETS = st.none() | st.integers(-3, 3)
MILLIS = START_MICROS // 1000


@contextmanager
def suppress_refusal(text: str) -> Iterator[None]:
    """Let a refusal pass if it is the expected one."""
    try:
        yield
    except ServiceError as error:
        if text not in error.message:
            raise


def named(key: Key) -> tuple[tuple[str, Any], ...]:
    return ("pk", key[0]), ("sk", key[1])


def kept(versions: Versions, number: int) -> Versions:
    return {timestamp: versions[timestamp] for timestamp in sorted(versions, reverse=True)[:number]}


class Replica:
    """What a consumer makes of the records alone."""

    def __init__(self, max_versions: int) -> None:
        self.max_versions = max_versions
        self.rows: dict[Key, Columns] = {}
        self.positions: dict[str, str | None] = {}

    def follow(self, driver: Driver, limit: int) -> None:
        """Read on in every shard whose parents are read to their end, until nothing more comes."""
        stream_id = driver.stream_id()
        moved = True
        while moved:
            moved = False
            for shard in driver.describe_shards(stream_id):
                parents = [parent for parent in (shard.parent_id, shard.parent_sibling_id) if parent]
                if any(self.positions.get(parent, "unread") is not None for parent in parents):
                    continue
                if shard.shard_id not in self.positions:
                    self.positions[shard.shard_id] = driver.iterator(stream_id, shard.shard_id)
                moved |= self._read(driver, shard.shard_id, limit)

    def _read(self, driver: Driver, shard_id: str, limit: int) -> bool:
        position = self.positions[shard_id]
        if position is None:
            return False
        records, self.positions[shard_id] = driver.page(position, limit=limit)
        for record in records:
            self._apply(record)
        return self.positions[shard_id] != position

    def _apply(self, record: StreamRecord) -> None:
        key = (str(record.key["pk"]), int(record.key["sk"]))
        if record.record_type is RecordType.DELETE:
            self.rows.pop(key, None)
            return
        columns = {} if record.record_type is RecordType.PUT else self.rows.get(key, {})
        puts = False
        for column in record.columns:
            versions = columns.setdefault(column.name, {})
            if column.operation is ColumnOperation.DELETE_ALL_VERSION:
                versions.clear()
            elif column.operation is ColumnOperation.DELETE_ONE_VERSION:
                versions.pop(column.timestamp_millis or 0, None)
            else:
                puts = True
                versions[column.timestamp_millis or 0] = column.value
                columns[column.name] = kept(versions, self.max_versions)
        if record.record_type is RecordType.PUT or puts or key in self.rows:
            self.rows[key] = {name: versions for name, versions in columns.items() if versions}


class TableMachine(RuleBasedStateMachine):
    """One table under random use."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="streamclient-machine-"))
        self.driver = Driver(open_storage(self.directory))
        self.model: dict[Key, Columns] = {}
        self.millis = MILLIS

    def teardown(self) -> None:
        try:
            self.replica.follow(self.driver, 1000)
            assert self.replica.rows == self.model
            every = self.driver.all_records()
            assert len(every) == self.record_count
        finally:
            self.driver.engine.close()
            shutil.rmtree(self.directory)

    @initialize(max_versions=st.integers(1, 3))
    def create(self, max_versions: int) -> None:
        self.max_versions = max_versions
        self.replica = Replica(max_versions)
        self.record_count = 0
        key = (("pk", "STRING"), ("sk", "INTEGER"))
        self.driver.create_with_stream(key=key, options={"max_versions": max_versions})

    def _set_clock(self) -> None:
        """Each look at the clock costs a microsecond, and it never goes back: the looks so far may be a millisecond."""
        self.millis = max(self.millis, self.driver.clock.now_micros() // 1000)
        self.driver.wall.micros = self.millis * 1000

    def _dated(self, offset: int | None) -> int | None:
        return None if offset is None else MILLIS + offset

    # The model

    def _model_cell(self, columns: Columns, cell: Cell) -> None:
        versions = columns.setdefault(cell.name, {})
        if cell.operation is CellOperation.DELETE_ALL_VERSIONS:
            versions.clear()
        elif cell.operation is CellOperation.DELETE_ONE_VERSION:
            versions.pop(cell.timestamp_millis or 0, None)
        elif cell.operation is CellOperation.INCREMENT:
            newest = max(versions, default=0)
            versions[max(newest, self.millis)] = versions.get(newest, 0) + cell.value
        else:
            versions[self.millis if cell.timestamp_millis is None else cell.timestamp_millis] = cell.value
        columns[cell.name] = kept(versions, self.max_versions)

    def _model_write(self, kind: OperationType, key: Key, cells: tuple[Cell, ...]) -> None:
        self.record_count += 1
        if kind is DELETE:
            self.model.pop(key, None)
            return
        old = {} if kind is PUT else self.model.get(key, {})
        columns = {name: dict(versions) for name, versions in old.items()}
        if kind is PUT:
            # All cells of a put stand side by side; only then the oldest are dropped.
            versions: Versions
            for cell in cells:
                versions = columns.setdefault(cell.name, {})
                versions[self.millis if cell.timestamp_millis is None else cell.timestamp_millis] = cell.value
            columns = {name: kept(versions, self.max_versions) for name, versions in columns.items()}
        else:
            for cell in cells:
                self._model_cell(columns, cell)
        puts = any(cell.operation in (CellOperation.PUT, CellOperation.INCREMENT) for cell in cells)
        if kind is PUT or puts or key in self.model:
            self.model[key] = {name: versions for name, versions in columns.items() if versions}

    # Writes

    def _put_cells(self, cells: list[tuple[str, Any, int | None]]) -> tuple[Cell, ...]:
        return tuple(put(name, value, self._dated(offset)) for name, value, offset in cells)

    @rule(key=KEYS, cells=st.lists(st.tuples(COLUMNS, VALUES, OFFSETS), max_size=4))
    def put_row(self, key: Key, cells: list[tuple[str, Any, int | None]]) -> None:
        self._set_clock()
        self.driver.put(named(key), *self._put_cells(cells))
        self._model_write(PUT, key, self._put_cells(cells))

    @rule(
        key=KEYS,
        puts=st.lists(st.tuples(COLUMNS, VALUES, OFFSETS), max_size=2),
        ones=st.lists(st.tuples(COLUMNS, st.integers(-3, 3)), max_size=2),
        alls=st.lists(COLUMNS, max_size=1),
        order=st.randoms(use_true_random=False),
    )
    def update_row(self, key: Key, puts: Any, ones: Any, alls: Any, order: Any) -> None:
        cells = [*self._put_cells(puts), *(delete_one(name, MILLIS + at) for name, at in ones), *map(delete_all, alls)]
        if not cells:
            return
        order.shuffle(cells)
        self._set_clock()
        self.driver.update(named(key), *cells)
        self._model_write(UPDATE, key, tuple(cells))

    @rule(key=KEYS, name=COLUMNS, delta=st.integers(-5, 5))
    def increment_column(self, key: Key, name: str, delta: int) -> None:
        versions = self.model.get(key, {}).get(name, {0: 0})
        self._set_clock()
        if type(versions[max(versions)]) is not int:
            try:
                self.driver.update(named(key), increment(name, delta))
            except ServiceError:
                return
            raise AssertionError("an increment of another type was accepted")
        self.driver.update(named(key), increment(name, delta))
        self._model_write(UPDATE, key, (increment(name, delta),))

    @rule(key=KEYS)
    def delete_row(self, key: Key) -> None:
        self._set_clock()
        self.driver.delete(named(key))
        self._model_write(DELETE, key, ())

    @rule(writes=st.lists(st.tuples(KEYS, st.sampled_from([1, 2, 3]), COLUMNS, VALUES), min_size=1, max_size=4))
    def write_batch(self, writes: list[tuple[Key, int, str, Any]]) -> None:
        self._set_clock()
        rows = []
        for key, number, name, value in writes:
            kind = OperationType(number)
            cells = () if kind is DELETE else (put(name, value),)
            rows.append(batch_row(kind, named(key), *cells))
            self._model_write(kind, key, cells)
        answers = self.driver.write_batch(rows)
        assert all(row.is_ok for row in answers)

    @rule(millis=st.integers(1, 3))
    def let_time_pass(self, millis: int) -> None:
        self.millis += millis

    # Reads

    def _as_model(self, row: Row) -> Columns:
        columns: Columns = {}
        for cell in row.cells:
            columns.setdefault(cell.name, {})[cell.timestamp_millis or 0] = cell.value
        return columns

    @rule(key=KEYS)
    def get_row(self, key: Key) -> None:
        row = self.driver.get_row(named(key), max_versions=9)
        assert (None if row is None else self._as_model(row)) == self.model.get(key)

    @rule(first=KEYS, second=KEYS, limit=st.integers(1, 4), backward=st.booleans())
    def get_range(self, first: Key, second: Key, limit: int, backward: bool) -> None:
        start, end = sorted((first, second), reverse=backward)
        if start == end:
            return
        between = (key for key in self.model if (start >= key > end if backward else start <= key < end))
        expected = sorted(between, reverse=backward)
        answer = self.driver.range_page(named(start), named(end), limit=limit, max_versions=9, backward=backward)
        rows = decode_rows(answer.rows)
        assert [(plain_key(row), self._as_model(row)) for row in rows] == [
            (key, self.model[key]) for key in expected[:limit]
        ]
        assert answer.HasField("next_start_primary_key") is (len(expected) > limit)

    # Shards

    @rule(key=KEYS, whole=st.booleans())
    def split(self, key: Key, whole: bool) -> None:
        with suppress_refusal("must be strictly inside"):
            self.driver.engine.split_shard("t", at=key if whole else key[:1])

    @rule(which=st.integers(0, 5))
    def merge(self, which: int) -> None:
        shards = [view.shard_id for view in self.driver.engine.shards("t") if view.is_open]
        if len(shards) < 2:
            return
        # Listed in order of creation, so that neighbours in the list need not adjoin.
        first = shards[which % len(shards)]
        for second in shards:
            with suppress_refusal("do not adjoin"):
                self.driver.engine.merge_shards("t", first, second)
                return
        raise AssertionError("an open shard has no neighbour")

    @rule(limit=st.integers(1, 3))
    def consume(self, limit: int) -> None:
        self.replica.follow(self.driver, limit)
        assert self.replica.rows == self.model

    @precondition(lambda self: self.record_count > 3)
    @rule()
    def restart(self) -> None:
        self.driver.engine.close()
        self.driver = Driver(open_storage(self.directory))
        self._set_clock()

    @invariant()
    def open_shards_cover_all_keys_once(self) -> None:
        ranges = [view.key_range for view in self.driver.engine.shards("t") if view.is_open]
        begins = sorted(text[1:].split("), ")[0] if text[1] == "(" else "INF_MIN" for text in ranges)
        assert begins.count("INF_MIN") == 1
        assert len(set(begins)) == len(ranges)

    @invariant()
    def sequences_rise_within_each_shard(self) -> None:
        stream_id = self.driver.stream_id()
        for shard in self.driver.describe_shards(stream_id):
            infos = [record.sequence_info for record in self.driver.records(stream_id, shard.shard_id)]
            assert infos == sorted(set(infos))


TestTableMachine = pytest.mark.slow(TableMachine.TestCase)
TestTableMachine.settings = settings(
    deadline=None,
    max_examples=30,
    stateful_step_count=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
