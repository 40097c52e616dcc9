"""The rate at which the local Tablestore serves pages of records, with as little client as possible."""

from __future__ import annotations

import http.client
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from functools import partial
from urllib.parse import urlsplit

from benchmarks.report import Line, Round, compare, interleaved, seconds_of
from benchmarks.settings import Settings
from benchmarks.stage import Stage
from streamclient import TablestoreStreamApi
from streamclient.server import DEFAULT_ACCESS_KEY_ID, DEFAULT_ACCESS_KEY_SECRET, DEFAULT_INSTANCE
from streamclient.wire import schema
from streamclient.wire.signature import SIGNATURE_V2_HEADER, content_md5, sign_request_v2

PAGE_SIZES = (1_000, 100)

CONNECTIONS = 2
"""The largest number of connections that read at the same time."""

READ_SECONDS = 30.0
"""The time-out of one page, in seconds. A page takes milliseconds."""


class KeptConnection:
    """One kept connection that sends signed requests, and does not decode the answers."""

    def __init__(self, endpoint: str) -> None:
        url = urlsplit(endpoint)
        self._connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=READ_SECONDS)

    def send(self, operation: str, body: bytes) -> bytes:
        """Send one request, which must succeed, and return the body of its answer."""
        path = f"/{operation}"
        self._connection.request("POST", path, body, signed_headers(path, body))
        response = self._connection.getresponse()
        answer = response.read()
        if response.status != http.HTTPStatus.OK:
            raise RuntimeError(f"the server answered {response.status}: {answer!r}")
        return answer

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


class PageReader(KeptConnection):
    """A connection that reads the same page repeatedly."""

    def __init__(self, endpoint: str, iterator: str, limit: int) -> None:
        super().__init__(endpoint)
        request = schema.GetStreamRecordRequest(shard_iterator=iterator, limit=limit)
        self._body: bytes = request.SerializeToString()

    def read(self) -> bytes:
        """Read one page as bytes."""
        return self.send("GetStreamRecord", self._body)

    def read_many(self, count: int) -> None:
        """Read ``count`` pages, one after the other."""
        for _ in range(count):
            self.read()


def signed_headers(path: str, body: bytes) -> dict[str, str]:
    """Return the headers of a request to the local server, with its signature."""
    headers = {
        "x-ots-date": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.000Z"),
        "x-ots-apiversion": "2015-12-31",
        "x-ots-accesskeyid": DEFAULT_ACCESS_KEY_ID,
        "x-ots-instancename": DEFAULT_INSTANCE,
        "x-ots-contentmd5": content_md5(body),
    }
    headers[SIGNATURE_V2_HEADER] = sign_request_v2(DEFAULT_ACCESS_KEY_SECRET, path, headers)
    return headers


def measure(stage: Stage, settings: Settings) -> list[Line]:
    """Measure the pages per second for each page size and each number of connections."""
    filled = stage.table(1, settings.stream_records)
    streams = TablestoreStreamApi(stage.client())
    shard = streams.describe_stream(filled.stream_id).shards[0].shard_id
    iterator = streams.get_shard_iterator(filled.stream_id, shard)
    rounds: dict[str, Round] = {}
    contents: dict[str, tuple[int, int]] = {}
    readers: list[PageReader] = []
    for size, connections in ((PAGE_SIZES[0], 1), (PAGE_SIZES[0], CONNECTIONS), (PAGE_SIZES[1], 1)):
        name = f"GetStreamRecord, {size} records per page, {connections} connection{'s' * (connections > 1)}"
        own = [PageReader(stage.endpoint, iterator, size) for _ in range(connections)]
        readers += own
        contents[name] = (size, _checked_size(own[0].read(), size))
        rounds[name] = partial(_rate, own, settings.pages)
    try:
        return compare(
            "server",
            "pages/s",
            interleaved(settings.rounds, rounds, is_warmed_up=settings.is_warmed_up),
            partial(_detail, contents),
        )
    finally:
        for reader in readers:
            reader.close()


def _checked_size(body: bytes, expected: int) -> int:
    found = len(schema.parse(schema.GetStreamRecordResponse, body).stream_records)
    if found != expected:
        raise RuntimeError(f"a page has {found} records, expected {expected}")
    return len(body)


def _rate(readers: list[PageReader], pages: int) -> float:
    """Return pages per second of wall time, because the work is done in the server's process."""
    with ThreadPoolExecutor(len(readers)) as threads:
        seconds = seconds_of(lambda: list(threads.map(lambda reader: reader.read_many(pages), readers)))
    return len(readers) * pages / seconds


def _detail(contents: dict[str, tuple[int, int]], name: str, figure: float) -> str:
    records, size_bytes = contents[name]
    return f"{figure * records:,.0f} records/s, {figure * size_bytes / 1e6:.1f} MB/s"
