"""The cost of preparing a commit for a destination: its digest and its rows, made from records or from columns."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from attrs import evolve

from benchmarks.report import Line, Round, compare, interleaved, seconds_of
from benchmarks.settings import Settings
from benchmarks.shapes import PAGE_RECORDS, Shape, shapes
from benchmarks.stage import Stage
from streamclient import SequenceInfo, StreamRecord
from streamclient.destinations import change_rows, columns_of_pages, records_digest
from streamclient.wire import schema
from streamclient.wire.page_parts import DecodedPage
from streamclient.wire.record_decoding import default_codec

_FIRST_MICROS = 1_700_000_000_000_000


def measure(stage: Stage, settings: Settings) -> list[Line]:
    """Measure the records per second of processor time for each shape, with many pages in one commit."""
    lines: list[Line] = []
    for shape in shapes():
        bodies = _bodies(shape, settings.commit_pages)
        ways: dict[str, Callable[[list[DecodedPage]], tuple[str, Any]]] = {
            f"{shape.name}: digest and rows of records": _by_record,
            f"{shape.name}: digest and rows of columns": _by_column,
        }
        _check([way(_decoded(bodies)) for way in ways.values()], shape)
        rounds: dict[str, Round] = {name: partial(_rate, bodies, way) for name, way in ways.items()}
        rates = interleaved(settings.rounds, rounds, is_warmed_up=settings.is_warmed_up)
        lines += compare("destinations", "records/s of CPU", rates, _detail)
    return lines


def _detail(name: str, figure: float) -> str:
    return f"{1e6 / figure:.1f} µs per record"


def _bodies(shape: Shape, pages: int) -> list[bytes]:
    """Return ``pages`` copies of the shape's page. Each copy has other positions in the stream."""
    return [_body(shape.records, number * PAGE_RECORDS) for number in range(pages)]


def _body(records: tuple[StreamRecord, ...], first: int) -> bytes:
    page = schema.GetStreamRecordResponse(next_shard_iterator="iterator")
    for number, record in enumerate(records):
        placed = evolve(record, sequence_info=SequenceInfo(0, _FIRST_MICROS + first + number, 0))
        action, data, _ = default_codec().encode_record(placed)
        page.stream_records.add(action_type=action, record=data)
    body: bytes = page.SerializeToString()
    return body


def _decoded(bodies: list[bytes]) -> list[DecodedPage]:
    return [default_codec().decode_page(body) for body in bodies]


def _by_record(pages: list[DecodedPage]) -> tuple[str, Any]:
    records = [record for page in pages for record in page.records]
    return records_digest(records), change_rows(records, shard="shard", number=1)


def _by_column(pages: list[DecodedPage]) -> tuple[str, Any]:
    columns = columns_of_pages(page.arrow() for page in pages)
    return records_digest(columns), change_rows(columns, shard="shard", number=1)


def _check(found: list[tuple[str, Any]], shape: Shape) -> None:
    """Check that both ways give equal rows and digests; otherwise the comparison would mean nothing."""
    (digest, rows), (other_digest, other_rows) = found
    if digest != other_digest or not rows.equals(other_rows):
        raise RuntimeError(f"{shape.name}: digest or rows of columns are not those of the records")


def _rate(bodies: list[bytes], way: Callable[[list[DecodedPage]], tuple[str, Any]]) -> float:
    """Return records per second of processor time, from verified pages to the rows and the digest of the commit."""
    pages = _decoded(bodies)
    return len(bodies) * PAGE_RECORDS / seconds_of(lambda: way(pages), time.process_time)
