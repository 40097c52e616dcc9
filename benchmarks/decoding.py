"""Bytes to records and to columns: our codecs against the decoders of the official SDK, on equal rows."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pyarrow
from tablestore import native
from tablestore.plainbuffer.plain_buffer_coded_stream import PlainBufferCodedInputStream
from tablestore.plainbuffer.plain_buffer_stream import PlainBufferInputStream

from benchmarks.report import Line, Round, compare, interleaved, seconds_of
from benchmarks.settings import Settings
from benchmarks.shapes import PAGE_RECORDS, Shape, shapes
from benchmarks.stage import Stage
from streamclient.records import NATIVE, StreamRecord
from streamclient.wire.records import PurePythonCodec, default_codec


def measure(stage: Stage, settings: Settings) -> list[Line]:
    """Rows per second of processor time for each shape; ratios within one shape."""
    lines: list[Line] = []
    for shape in shapes():
        decoders = _decoders(shape)
        for name, decode in decoders.items():
            _check(shape, name, decode())
        rounds: dict[str, Round] = {
            name: partial(_rate, decode, settings.decoded_pages * _speed(name)) for name, decode in decoders.items()
        }
        lines += compare(
            "decode",
            "rows/s of CPU",
            interleaved(settings.rounds, rounds, is_warmed_up=settings.is_warmed_up),
            partial(_detail, len(shape.body) // PAGE_RECORDS),
        )
    return lines + _threads(settings)


def _detail(row_bytes: int, name: str, figure: float) -> str:
    return f"{row_bytes} bytes per row, {figure * row_bytes / 1e6:.1f} MB/s"


_NATIVE = "compiled codec"


def _speed(name: str) -> int:
    """Pages in the time of one of the slow decoders: rounds of a millisecond would be lost in the clock's steps."""
    return 50 if _NATIVE in name else 1


def _decoders(shape: Shape) -> dict[str, Callable[[], Any]]:
    body, twin, codec = shape.body, PurePythonCodec(), default_codec()
    decoders: dict[str, Callable[[], Any]] = {
        f"{shape.name}: SDK, its decoder in Python, bare rows": lambda: list(map(_read_with_sdk, shape.rows)),
    }
    if native.NATIVE_AVAILABLE:
        decoders[f"{shape.name}: SDK, its decoder in C, bare rows"] = lambda: list(
            map(native.parse_single_row, shape.rows)
        )
    decoders[f"{shape.name}: streamclient in Python, records"] = lambda: twin.decode_page(body).records
    if NATIVE is not None:
        decoders |= {
            f"{shape.name}: streamclient, {_NATIVE}, records": lambda: codec.decode_page(body).records,
            f"{shape.name}: streamclient, {_NATIVE}, records, each cell looked at": lambda: _looked_at(
                codec.decode_page(body).records
            ),
            f"{shape.name}: streamclient, {_NATIVE}, Arrow": lambda: _columns(body),
        }
    return decoders


def _looked_at(records: tuple[StreamRecord, ...]) -> tuple[StreamRecord, ...]:
    for record in records:
        for cell in record.columns:
            _ = cell.name, cell.value
    return records


def _columns(body: bytes) -> Any:
    return pyarrow.record_batch(default_codec().decode_page(body).arrow())


def _threads(settings: Settings) -> list[Line]:
    """Pages turned into columns by one thread and by two, by the wall: the lock of Python is given up meanwhile."""
    if NATIVE is None:
        return []
    shape = shapes()[0]
    rounds: dict[str, Round] = {
        f"{shape.name}: {_NATIVE}, Arrow, {name}": partial(_wall_rate, shape.body, threads, settings.decoded_pages * 50)
        for threads, name in ((1, "one thread"), (2, "two threads"))
    }
    rates = interleaved(settings.rounds, rounds, is_warmed_up=settings.is_warmed_up)
    return compare("decode", "rows/s", rates)


def _wall_rate(body: bytes, threads: int, count: int) -> float:
    def pages() -> None:
        for _ in range(count // threads):
            _columns(body)

    def run() -> None:
        others = [threading.Thread(target=pages) for _ in range(threads)]
        for one in others:
            one.start()
        for one in others:
            one.join()

    return PAGE_RECORDS * (count // threads) * threads / seconds_of(run)


def _read_with_sdk(row: bytes) -> Any:
    return PlainBufferCodedInputStream(PlainBufferInputStream(row)).read_row()


def _rate(decode: Callable[[], object], count: int) -> float:
    """Processor time, as nothing here waits: other programs on the machine disturb it less."""

    def pages() -> None:
        for _ in range(count):
            decode()

    return PAGE_RECORDS * count / seconds_of(pages, time.process_time)


def _check(shape: Shape, name: str, decoded: Any) -> None:
    """Equal rows out of each decoder, or the comparison means nothing."""
    if isinstance(decoded, pyarrow.RecordBatch):
        decoded = list(map(_from_columns, decoded.to_pylist()))
    for record, found in zip(shape.records, decoded, strict=True):
        if isinstance(found, StreamRecord):
            is_equal = found == record
        else:
            key, cells = found
            is_equal = _plain(key) == [*map(list, record.primary_key)] and sorted(_plain(cells)) == sorted(
                [column.name, column.value, column.timestamp_millis] for column in record.columns
            )
        if not is_equal:
            raise RuntimeError(f"{shape.name}, {name}: {record} was decoded as {found!r}")


def _from_columns(row: dict[str, Any]) -> tuple[Any, Any]:
    cells = [(name, cell["value"], cell["timestamp_millis"]) for name, cell in row["columns"].items() if cell]
    return tuple(row["primary_key"].items()), cells


def _plain(cells: Any) -> list[list[Any]]:
    """The SDK's Python decoder gives binary values as ``bytearray``."""
    return [[bytes(part) if isinstance(part, bytearray) else part for part in cell] for cell in cells or ()]
