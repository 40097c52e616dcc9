"""A local Tablestore in a process of its own, so that it and the client never wait for the same interpreter."""

from __future__ import annotations

import http.client
import json
import logging
import subprocess
import sys
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
"""A server that has nothing left to do stops within a fraction of this."""

ADMIN_SECONDS = 30.0
"""Time-out of one call to the admin surface."""

MOST_PARTITIONS = 10
"""With which a table may begin."""

_LISTENING = "listening on "
_LOGGER = "streamclient.benchmarks.client"


def connect(endpoint: str) -> OTSClient:
    """A client of the official SDK for a server that runs."""
    # Below WARNING the SDK renders each request as text before it asks whether anybody listens; at ERROR it
    # reports each answer that is no success, also the expected one that a status table is not there yet.
    logging.getLogger(_LOGGER).setLevel(logging.CRITICAL)
    return Connection(endpoint=endpoint).client(logger_name=_LOGGER)


class Stage:
    """The server and the tables that the groups share; a context manager. Nothing starts before it is needed."""

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
        """``http://HOST:PORT`` of the running server."""
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
        """Of the running server."""
        if self._process is None:
            raise RuntimeError("no server runs yet: ask for its endpoint first")
        return self._process.pid

    def client(self) -> OTSClient:
        """A client of the official SDK."""
        return connect(self.endpoint)

    def table(self, shards: int, records: int) -> FilledTable:
        """A table with so many shards and records; the same one each time."""
        if (shards, records) not in self._tables:
            name = f"orders_{shards}_{records}"
            progress(f"writing {records} rows into {name}")
            self._tables[shards, records] = fill_table(self.client(), name, shards, records)
        return self._tables[shards, records]

    def make_table(self, name: str, shards: int) -> str:
        """An empty table with any number of open shards; returns the stream id.

        A table begins with few partitions at most. Where more are wanted they come of splits; the stream is then
        switched off and on, as a new stream has one open shard for each partition and knows of no closed ones.
        """
        begun = min(shards, MOST_PARTITIONS)
        stream_id = make_table(self.client(), name, begun)
        if begun == shards:
            return stream_id
        made = [1_000 * part // begun for part in range(begun)]
        wanted = [1_000 * part // shards for part in range(shards)]
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

    def requests(self, table: str) -> dict[str, int]:
        """Requests by operation since the last reset."""
        counts = self._admin("GET")["requests"]
        return {count["operation"]: count["requests"] for count in counts if count["table"] == table}

    def reset_requests(self) -> None:
        """Set all counters to zero."""
        self._admin("DELETE")

    @contextmanager
    def late_answers(self, operation: str, seconds: float) -> Iterator[None]:
        """Answer one operation later by so much, as a server far away does; faults are left out again at the end."""
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
