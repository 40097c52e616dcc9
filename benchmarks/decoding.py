"""Bytes to records: our codec against the decoders of the official SDK, on equal rows."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from tablestore import native
from tablestore.plainbuffer.plain_buffer_coded_stream import PlainBufferCodedInputStream
from tablestore.plainbuffer.plain_buffer_stream import PlainBufferInputStream

from benchmarks.report import Line, Round, compare, interleaved, seconds_of
from benchmarks.settings import Settings
from benchmarks.shapes import PAGE_RECORDS, Shape, shapes
from benchmarks.stage import Stage
from streamclient.records import StreamRecord
from streamclient.wire.records import default_codec


def measure(stage: Stage, settings: Settings) -> list[Line]:
    """Rows per second of processor time for each shape; ratios within one shape."""
    lines: list[Line] = []
    for shape in shapes():
        decoders = _decoders(shape)
        for decode in decoders.values():
            _check(shape, decode())
        rounds: dict[str, Round] = {
            name: partial(_rate, decode, settings.decoded_pages) for name, decode in decoders.items()
        }
        lines += compare(
            "decode",
            "rows/s of CPU",
            interleaved(settings.rounds, rounds, is_warmed_up=settings.is_warmed_up),
            partial(_detail, len(shape.body) // PAGE_RECORDS),
        )
    return lines


def _detail(row_bytes: int, name: str, figure: float) -> str:
    return f"{row_bytes} bytes per row, {figure * row_bytes / 1e6:.1f} MB/s"


def _decoders(shape: Shape) -> dict[str, Callable[[], list[Any]]]:
    decoders: dict[str, Callable[[], list[Any]]] = {
        f"{shape.name}: SDK, its decoder in Python, bare rows": lambda: list(map(_read_with_sdk, shape.rows)),
        f"{shape.name}: streamclient, whole page with sequence": lambda: list(
            default_codec().decode_page(shape.body).records
        ),
    }
    if native.NATIVE_AVAILABLE:
        decoders[f"{shape.name}: SDK, its decoder in C, bare rows"] = lambda: list(
            map(native.parse_single_row, shape.rows)
        )
    return decoders


def _read_with_sdk(row: bytes) -> Any:
    return PlainBufferCodedInputStream(PlainBufferInputStream(row)).read_row()


def _rate(decode: Callable[[], object], count: int) -> float:
    """Processor time, as nothing here waits: other programs on the machine disturb it less."""

    def pages() -> None:
        for _ in range(count):
            decode()

    return PAGE_RECORDS * count / seconds_of(pages, time.process_time)


def _check(shape: Shape, decoded: list[Any]) -> None:
    """Equal rows out of each decoder, or the comparison means nothing."""
    for record, found in zip(shape.records, decoded, strict=True):
        if isinstance(found, StreamRecord):
            is_equal = found == record
        else:
            key, cells = found
            is_equal = _plain(key) == [*map(list, record.primary_key)] and _plain(cells) == [
                [column.name, column.value, column.timestamp_millis] for column in record.columns
            ]
        if not is_equal:
            raise RuntimeError(f"{shape.name}: {record} was decoded as {found!r}")


def _plain(cells: Any) -> list[list[Any]]:
    """The SDK's Python decoder gives binary values as ``bytearray``."""
    return [[bytes(part) if isinstance(part, bytearray) else part for part in cell] for cell in cells or ()]
