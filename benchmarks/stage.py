"""The stage of the benchmarks: a local Tablestore in a process of its own, and the tables that the groups share.

Server and client never wait for the same Python interpreter.
"""

from __future__ import annotations

import http.client
import json
import logging
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from tablestore import OTSClient

from benchmarks.report import progress
from benchmarks.tables import FilledTable, fill_table, make_table
from streamclient.tablestore import Connection, StreamSpecification, TablestoreStreamApi
from streamclient.tablestore.instance import LOCAL_ACCESS_KEY_SECRET

STOP_SECONDS = 10.0
"""The time-out, in seconds, for a server to stop. An idle server stops within a fraction of it."""

ADMIN_SECONDS = 30.0
"""The time-out of one call to the server's admin interface, in seconds."""

MOST_PARTITIONS = 10
"""The largest number of partitions with which the service creates a table."""

_LISTENING = "listening on "
_LOGGER = "streamclient.benchmarks.client"


def connect(endpoint: str) -> OTSClient:
    """Return a client of the official SDK for the running server at ``endpoint``."""
    # Below WARNING the SDK renders each request as text, even if no handler uses the text. At ERROR it logs each failed
    # answer, also the expected answer that a status table does not exist yet.
    logging.getLogger(_LOGGER).setLevel(logging.CRITICAL)
    return Connection(endpoint=endpoint).client(logger_name=_LOGGER)


class Stage:
    """A context manager with the server, and with the tables that the groups share. Each is made when first needed."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._endpoint = ""
        self._tables: dict[tuple[int, int], FilledTable] = {}

    def __enter__(self) -> Stage:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._process is not None:
            with self._process as process:
                process.terminate()
                try:
                    process.wait(STOP_SECONDS)
                except subprocess.TimeoutExpired:
                    process.kill()
                    raise

    @property
    def endpoint(self) -> str:
        """The endpoint ``http://HOST:PORT`` of the server. The first access to this property starts the server."""
        if self._process is None:
            command = [sys.executable, "-m", "streamclient", "server", "--port", "0"]
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            line = self._process.stdout.readline() if self._process.stdout is not None else ""
            if not line.startswith(_LISTENING):
                raise RuntimeError(f"the server did not start; its first line was {line!r}")
            self._endpoint = line.removeprefix(_LISTENING).strip()
        return self._endpoint

    @property
    def process_id(self) -> int:
        """The process id of the running server."""
        if self._process is None:
            raise RuntimeError("no server runs yet: ask for its endpoint first")
        return self._process.pid

    def client(self) -> OTSClient:
        """Return a client of the official SDK for the server."""
        return connect(self.endpoint)

    def table(self, shards: int, records: int) -> FilledTable:
        """Return a table with ``shards`` shards and ``records`` records. Equal arguments give the same table."""
        if (shards, records) not in self._tables:
            name = f"orders_{shards}_{records}"
            progress(f"writing {records} rows into {name}")
            self._tables[shards, records] = fill_table(self.client(), name, shards, records)
        return self._tables[shards, records]

    def make_table(self, name: str, shards: int) -> str:
        """Create an empty table with any number of open shards; return the stream id.

        A table begins with few partitions, and splits add the others. Then the stream is switched off and on: a new
        stream has one open shard for each partition, and no closed shards.
        """
        begun = min(shards, MOST_PARTITIONS)
        wanted = [1_000 * part // shards for part in range(shards)]
        made = [wanted[shards * part // begun] for part in range(begun)]
        stream_id = make_table(self.client(), name, begun, made)
        if begun == shards:
            return stream_id
        for place in (place for place in wanted if place not in made):
            self._admin("POST", "split", json.dumps({"table": name, "at": [f"customer-{place:03d}"]}))
        streams = TablestoreStreamApi(self.client())
        streams.update_table(name, stream=StreamSpecification(enable_stream=False))
        streams.update_table(name, stream=StreamSpecification(enable_stream=True, expiration_time_hours=24))
        stream_id = streams.list_stream(name)[0].stream_id
        found = len(streams.describe_stream(stream_id).shards)
        if found != shards:
            raise RuntimeError(f"the stream of {name} has {found} shards, expected {shards}")
        return stream_id

    def requests(self, table: str | None = None) -> dict[str, int]:
        """Return the number of requests of each operation since the last reset, for ``table`` or for all tables.

        Requests about a tunnel do not count for a table.
        """
        found: Counter[str] = Counter()
        for count in self._admin("GET")["requests"]:
            if table in (None, count["table"]):
                found[count["operation"]] += count["requests"]
        return dict(found)

    def reset_requests(self) -> None:
        """Set the server's counters of requests to zero."""
        self._admin("DELETE")

    @contextmanager
    def late_answers(self, operation: str, seconds: float) -> Iterator[None]:
        """Delay the answers of one operation by ``seconds`` during the block, like a distant server."""
        rule = {"operation": operation, "action": {"kind": "late-answer", "seconds": seconds}}
        self._admin("POST", "faults", json.dumps(rule))
        try:
            yield
        finally:
            self._admin("DELETE", "faults")

    def _admin(self, method: str, what: str = "requests", body: str | None = None) -> Any:
        url = urlsplit(self.endpoint)
        connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=ADMIN_SECONDS)
        try:
            headers = {"Authorization": f"Bearer {LOCAL_ACCESS_KEY_SECRET}"}
            connection.request(method, f"/_admin/{what}", body, headers)
            response = connection.getresponse()
            answer = response.read()
        finally:
            connection.close()
        if response.status != http.HTTPStatus.OK:
            raise RuntimeError(f"the admin surface answered {response.status}: {answer!r}")
        return json.loads(answer)
