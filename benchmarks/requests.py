"""The processor time of the local Tablestore for each row and record, and its memory for many rows and records.

Requests are encoded before the measurement, and processor time is measured in the server's process. So only figures of
wall time include the client.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

from benchmarks.decoding import read_with_sdk
from benchmarks.pages import KeptConnection
from benchmarks.report import (
    Line,
    Round,
    aimed,
    at_most,
    compare,
    cpu_seconds,
    interleaved,
    progress,
    ratio_of_at_most,
    seconds_of,
)
from benchmarks.settings import Settings
from benchmarks.stage import Stage
from benchmarks.tables import BATCH_ROWS, attributes, key_of, make_table
from streamclient import TablestoreStreamApi
from streamclient.wire import schema
from streamclient.wire.plainbuffer import Cell, KeyBound, Row, encode_row
from streamclient.wire.schema import Direction, OperationType

PAGE = 1_000
"""The number of rows in one GetRange, and of records in one GetStreamRecord."""

MOST_ROW_BYTES = 700.0
"""The largest accepted memory of a row and its record, in bytes. It is half of their memory as Python objects."""

SDK_ROW = "the SDK's decoder in Python, one such row"
"""The candidate with which all others are compared. It shows how fast the machine is."""

MOST = {"PutRow": 3.5, "BatchWriteRow": 1.1, "GetRange": 0.29, "GetStreamRecord": 0.033}
"""The largest accepted cost of each operation for a row or record, as a multiple of the cost of ``SDK_ROW``. For rows
as Python objects it was 10.7, 3.3, 0.29 and 0.033. As bytes, writes shall cost a third of that, and reads no more."""

_TABLE = "orders_requests"
_MICROS = 1e6
_MEGABYTE = 1e6


class Caller(KeptConnection):
    """A kept connection to a server process, which also reads the processor time and the memory of the process."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage.endpoint)
        self.stage = stage

    def send_all(self, operation: str, bodies: list[bytes]) -> None:
        """Send ``bodies``, one after the other."""
        for body in bodies:
            self.send(operation, body)

    def cpu_seconds(self) -> float:
        """Return the processor seconds that the server's process has used."""
        return cpu_seconds(self.stage.process_id)

    def memory_bytes(self) -> int:
        """Return the memory of the server's process in bytes."""
        status = Path(f"/proc/{self.stage.process_id}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) * 1024


def measure(stage: Stage, settings: Settings) -> list[Line]:
    """Measure the processor time for each row by operation, and the memory."""
    with Stage() as own, closing(Caller(own)) as caller:
        return [*_costs(caller, settings), _memory(caller, settings)]


def _costs(caller: Caller, settings: Settings) -> list[Line]:
    client = caller.stage.client()
    stream_id = make_table(client, _TABLE, 1)
    streams = TablestoreStreamApi(client)
    iterator = streams.get_shard_iterator(stream_id, streams.describe_stream(stream_id).shards[0].shard_id)
    frames = list(_frames(settings.written_rows))
    batches = [_batch(frames[start : start + BATCH_ROWS]) for start in range(0, len(frames), BATCH_ROWS)]
    pages = max(1, len(frames) // PAGE)
    walls: dict[str, list[float]] = {}
    few = len(frames) // 10
    rounds: dict[str, Round] = {
        SDK_ROW: partial(_decoding, frames[:few]),
        "PutRow": partial(_cost, caller, "PutRow", [_put(frame) for frame in frames[:few]], few, walls),
        f"BatchWriteRow, {BATCH_ROWS} rows": partial(_cost, caller, "BatchWriteRow", batches, len(frames), walls),
        f"GetRange, {PAGE} rows": partial(_cost, caller, "GetRange", [_range()] * pages, len(frames), walls),
        f"GetStreamRecord, {PAGE} records": partial(
            _cost, caller, "GetStreamRecord", [_read(iterator)] * pages, len(frames), walls
        ),
    }
    measured = interleaved(settings.rounds, rounds, is_warmed_up=True)  # warmed up, because reads need rows
    lines = compare("requests", "ns of CPU per row", measured, lambda name, _: _wall(walls.get(name.partition(",")[0])))
    most = {line.name: MOST[operation] for line in lines if (operation := line.name.partition(",")[0]) in MOST}
    return aimed(lines, {name: ratio_of_at_most(ratio) for name, ratio in most.items()})


def _decoding(frames: list[bytes]) -> float:
    before = time.process_time()
    for frame in frames:
        read_with_sdk(frame)
    return (time.process_time() - before) / len(frames) * 1e9


def _cost(caller: Caller, operation: str, bodies: list[bytes], rows: int, walls: dict[str, list[float]]) -> float:
    before = caller.cpu_seconds()
    seconds = seconds_of(partial(caller.send_all, operation, bodies))
    walls.setdefault(operation, []).append(seconds / rows)
    return (caller.cpu_seconds() - before) / rows * 1e9


def _wall(seconds: list[float] | None) -> str:
    if seconds is None:
        return ""
    middle = sorted(seconds)[len(seconds) // 2]
    return f"{1 / middle:,.0f} rows/s by the wall, {middle * _MICROS:.1f} µs each"


def _memory(caller: Caller, settings: Settings) -> Line:
    make_table(caller.stage.client(), f"{_TABLE}_kept", 1)
    rows = settings.kept_rows
    before = caller.memory_bytes()
    numbers = list(range(rows))
    random.Random(1).shuffle(numbers)
    for start in range(0, rows, BATCH_ROWS):
        progress(f"writing {rows} rows: {start}")
        caller.send(
            "BatchWriteRow", _batch([_frame(number, rows) for number in numbers[start : start + BATCH_ROWS]], "_kept")
        )
    used = caller.memory_bytes() - before
    name = f"memory of {rows:,} rows and their records"
    aim = at_most(used / rows, MOST_ROW_BYTES, "bytes for a row and its record")
    return Line("requests", name, used / _MEGABYTE, "MB", 1.0, aims=(aim,))


def _frame(number: int, rows: int) -> bytes:
    cells = tuple(Cell(name, value) for name, value in attributes(number))
    return encode_row(Row(tuple(key_of(number, rows)), cells))


def _frames(rows: int) -> Iterator[bytes]:
    """Yield the encoded rows of a table with ``rows`` rows, in random order."""
    numbers = list(range(rows))
    random.Random(1).shuffle(numbers)
    return (_frame(number, rows) for number in numbers)


def _put(frame: bytes) -> bytes:
    request = schema.PutRowRequest(table_name=_TABLE, row=frame, condition=schema.Condition(row_existence=0))
    return bytes(request.SerializeToString())


def _batch(frames: list[bytes], suffix: str = "") -> bytes:
    table = schema.TableInBatchWriteRowRequest(table_name=_TABLE + suffix)
    for frame in frames:
        table.rows.add(type=int(OperationType.PUT), row_change=frame, condition=schema.Condition(row_existence=0))
    return bytes(schema.BatchWriteRowRequest(tables=[table]).SerializeToString())


def _range() -> bytes:
    low, high = (encode_row(Row((("customer", bound), ("order_id", bound)))) for bound in _BOUNDS)
    request = schema.GetRangeRequest(
        table_name=_TABLE,
        direction=int(Direction.FORWARD),
        max_versions=1,
        limit=PAGE,
        inclusive_start_primary_key=low,
        exclusive_end_primary_key=high,
    )
    return bytes(request.SerializeToString())


def _read(iterator: str) -> bytes:
    return bytes(schema.GetStreamRecordRequest(shard_iterator=iterator, limit=PAGE).SerializeToString())


_BOUNDS = (KeyBound.INF_MIN, KeyBound.INF_MAX)
