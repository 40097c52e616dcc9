"""The decoding of pages into records and columns: this package's codecs beside the decoders of the official SDKs."""

from __future__ import annotations

import hashlib
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow
from attrs import evolve
from tablestore import native
from tablestore.plainbuffer.plain_buffer_coded_stream import PlainBufferCodedInputStream
from tablestore.plainbuffer.plain_buffer_stream import PlainBufferInputStream

from benchmarks.java import JavaMissingError, RoundsProcess, java_rounds
from benchmarks.report import (
    Aim,
    Line,
    Round,
    aimed,
    aims_beside,
    beside,
    compare,
    interleaved,
    progress,
    ratio_of_at_least,
    seconds_of,
)
from benchmarks.settings import Settings
from benchmarks.shapes import PAGE_RECORDS, Shape, shapes
from benchmarks.stage import Stage
from benchmarks.twin import twin_rounds
from streamclient import StreamRecord
from streamclient.records import NATIVE
from streamclient.wire.record_decoding import PurePythonCodec, default_codec

SDK = "SDK, its decoder in Python, bare rows"
JAVA = "Java SDK, its decoder"
TWIN = "streamclient in Python, records"
ROWS = "streamclient, compiled codec, records"
KEPT = "streamclient, compiled codec, records kept without their page"
LOOKED_AT = "streamclient, compiled codec, records, each cell looked at"
COLUMNS = "streamclient, compiled codec, Arrow"

FAST = (ROWS, KEPT, LOOKED_AT, COLUMNS)

MIXED = "mixed"
"""The first word in the name of the shape whose records differ from each other."""


TWO_THREADS = 1.4
"""The smallest accepted rate of two threads that make Arrow, as a multiple of the rate of one thread."""


def _targets(name: str, shape: Shape) -> tuple[float | None, float | None]:
    """Return the targets of a decoder, as multiples of the rates of the SDK in Python and of the SDK in Java."""
    targets: dict[str, tuple[float, float | None]] = {
        ROWS: (60, 1.8) if shape.name.startswith(MIXED) else (110, 2.8),
        COLUMNS: (150, 4.5),
        TWIN: (4, None),
    }
    return targets.get(name, (None, None))


def measure(stage: Stage, settings: Settings) -> list[Line]:
    """Measure the rows per second of processor time of each decoder, for each shape. Ratios are within one shape."""
    lines: list[Line] = []
    with tempfile.TemporaryDirectory() as directory:
        for number, shape in enumerate(shapes()):
            path = Path(directory, f"page-{number}")
            path.write_bytes(shape.body)
            lines += _lines(shape, _rates(shape, path, settings))
    return lines + _threads(settings)


def _rates(shape: Shape, path: Path, settings: Settings) -> dict[str, list[float]]:
    rounds: dict[str, Round] = {}
    for name, decode in _decoders(shape).items():
        _check(shape, name, decode())
        rounds[name] = partial(_rate, decode, settings.decoded_pages * (settings.fast_times if name in FAST else 1))
    rounds[TWIN] = partial(_process_rate, twin_rounds, path, settings.decoded_pages)
    for name, action in _limits(shape).items():
        rounds[name] = partial(_rate, action, settings.decoded_pages * settings.fast_times * 10)
    pages = settings.decoded_pages * settings.fast_times
    try:
        _warm_java(shape, path, settings.java_warm_seconds)
        rounds[JAVA] = partial(_process_rate, java_rounds, path, pages)
    except JavaMissingError as error:
        progress("")
        rounds[f"{JAVA}: not here: {error}"] = lambda: float("nan")
    return interleaved(settings.rounds, rounds, is_warmed_up=settings.is_warmed_up)


def _lines(shape: Shape, rates: dict[str, list[float]]) -> list[Line]:
    """Return one line for each decoder, with its ratios to the SDK in Python and to the SDK in Java."""
    row_bytes = len(shape.body) // PAGE_RECORDS

    def detail(name: str, figure: float) -> str:
        java = beside(rates, name, JAVA, called="Java SDK") if name != SDK and _targets(name, shape)[1] is None else ""
        return "; ".join(filter(None, (f"{row_bytes} bytes per row, {figure * row_bytes / 1e6:.1f} MB/s", java)))

    def aims(name: str, _: float) -> list[Aim]:
        python, java = _targets(name, shape)
        in_python = aims_beside(rates, name, SDK, python, called="SDK")
        return in_python + aims_beside(rates, name, JAVA, java, called="Java SDK")

    found = compare("decode", "rows/s of CPU", rates, detail, aims)
    return [evolve(line, name=f"{shape.name}: {line.name}") for line in found]


def _warm_java(shape: Shape, path: Path, seconds: float) -> None:
    """Run Java's decoder unmeasured for ``seconds``: Java's compiler improves the code for about ten seconds."""
    until = time.monotonic() + seconds
    while True:
        progress(f"warming up: {shape.name}: {JAVA}")
        _process_rate(java_rounds, path, 20)
        if time.monotonic() >= until:
            return


def _process_rate(process: Callable[[], RoundsProcess], path: Path, pages: int) -> float:
    found = process().run("decode", path, pages)
    if found["records"] != pages * PAGE_RECORDS:
        raise RuntimeError(f"found {found['records']} records in {pages} pages of {PAGE_RECORDS}")
    return float(found["records"] / found["nanos"] * 1e9)


def _decoders(shape: Shape) -> dict[str, Callable[[], Any]]:
    body, twin, codec = shape.body, PurePythonCodec(), default_codec()
    decoders: dict[str, Callable[[], Any]] = {SDK: lambda: list(map(read_with_sdk, shape.rows))}
    if native.NATIVE_AVAILABLE:
        decoders["SDK, its decoder in C, bare rows"] = lambda: list(map(native.parse_single_row, shape.rows))
    decoders[TWIN] = lambda: _passed(twin.decode_page(body).records)
    if NATIVE is not None:
        decoders |= {
            ROWS: lambda: _passed(codec.decode_page(body).records),
            KEPT: lambda: list(codec.decode_page(body).records),
            LOOKED_AT: lambda: _looked_at(codec.decode_page(body).records),
            COLUMNS: lambda: _columns(body),
        }
    return decoders


def _limits(shape: Shape) -> dict[str, Callable[[], Any]]:
    """Return work that touches each byte once, which every decoder has to do at least."""
    return {
        "limit: memory copy of the body": lambda: bytearray(shape.body),
        "limit: MD5 of the body": lambda: hashlib.md5(shape.body).digest(),
    }


def _passed(records: Sequence[StreamRecord]) -> Sequence[StreamRecord]:
    """Iterate over the records once, like a processor that counts them."""
    for _ in records:
        pass
    return records


def _looked_at(records: Sequence[StreamRecord]) -> Sequence[StreamRecord]:
    for record in records:
        for cell in record.columns:
            _ = cell.name, cell.value
    return records


def _columns(body: bytes) -> Any:
    return pyarrow.record_batch(default_codec().decode_page(body).arrow())


def _threads(settings: Settings) -> list[Line]:
    """Measure in wall time how one thread and two threads turn pages into columns. The codec releases Python's lock."""
    if NATIVE is None:
        return []
    shape = shapes()[0]
    one, two = (f"{shape.name}: {COLUMNS}, {threads}" for threads in ("one thread", "two threads"))
    rounds: dict[str, Round] = {
        name: partial(_wall_rate, shape.body, threads, settings.decoded_pages * settings.fast_times)
        for threads, name in ((1, one), (2, two))
    }
    rates = interleaved(settings.rounds, rounds, is_warmed_up=settings.is_warmed_up)
    return aimed(compare("decode", "rows/s", rates), {two: ratio_of_at_least(TWO_THREADS)})


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


def read_with_sdk(row: bytes) -> Any:
    """Decode a bare row with the SDK's decoder in Python."""
    return PlainBufferCodedInputStream(PlainBufferInputStream(row)).read_row()


def _rate(decode: Callable[[], object], count: int) -> float:
    """Return rows per second of processor time, which other programs disturb less. Decoders never wait."""

    def pages() -> None:
        for _ in range(count):
            decode()

    return PAGE_RECORDS * count / seconds_of(pages, time.process_time)


def _check(shape: Shape, name: str, decoded: Any) -> None:
    """Check that a decoder returns the rows of the shape; otherwise the comparison would mean nothing."""
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
    """Return the cells as lists, with ``bytes`` in place of ``bytearray``, which the SDK's Python decoder returns."""
    return [[bytes(part) if isinstance(part, bytearray) else part for part in cell] for cell in cells or ()]
