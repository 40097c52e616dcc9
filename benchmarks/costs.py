"""The cost of each operation of the local Tablestore with few and with many shards and channels.

Only the engine runs, in this process and without HTTP. The constant cost of HTTP would hide a cost that grows.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from attrs import define, field

from benchmarks.report import Line, progress
from benchmarks.settings import Settings
from benchmarks.stage import Stage
from streamclient.server import Clock
from streamclient.server.engine import Engine
from streamclient.server.storage import open_storage
from streamclient.wire import schema
from streamclient.wire.page_parts import FINISHED
from streamclient.wire.plainbuffer import Cell, KeyBound, Row, encode_row
from streamclient.wire.schema import OperationType, StartOffsetFlag, TunnelTypeNumber

TABLE = "orders"
ROWS = 100
"""The number of rows in the table; a range reads all of them. With few rows, only the number of shards matters."""

LONG_SECONDS = 86_400
"""The time-out of a tunnel's client. It is long, because the benchmark sends heartbeats only to measure them."""

_Request = dict[str, Any] | Callable[[int], dict[str, Any]]
"""The fields of a request, or a function that prepares the n-th request, unmeasured, and returns its fields."""

_MESSAGES = {**schema.OPERATIONS, **schema.TUNNEL_OPERATIONS}


_ITEMIZED = {
    "DescribeTable",
    "UpdateTable",
    "tunnel/heartbeat",
    "tunnel/describe",
    "tunnel/getrpo",
    "tunnel/getrpobyoffset",
}
"""The operations that return or write every open partition or channel. Their cost is given per partition or channel."""


def measure(stage: Stage, settings: Settings) -> list[Line]:
    """Measure every operation with each storage and each kind of shards; return one line for each combination."""
    return [
        _line(operation, storage, kind, micros)
        for storage in ("memory", "SQLite")
        for kind in ("open", "closed")
        for operation, micros in _costs(storage, kind, settings)
    ]


def _costs(storage: str, kind: str, settings: Settings) -> Iterator[tuple[str, dict[int, float]]]:
    """Yield each operation, with the median processor time of a call in microseconds by the number of shards.

    The calls take turns between all numbers of shards, so that a busy moment of the machine slows all of them.
    """
    with ExitStack() as stack:
        scenes = []
        for shards in settings.shard_counts:
            progress(f"{kind} shards: {shards}, {storage}")
            is_kept = storage == "SQLite"
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory())) if is_kept else None
            scenes.append(stack.enter_context(Scene(directory, shards, is_past=kind == "closed")))
        requests = [scene.requests() for scene in scenes]
        for operation in requests[0]:
            progress(f"{operation}, {kind} shards, {storage}")
            times: dict[int, list[float]] = {scene.shards: [] for scene in scenes}
            for number in range(settings.calls):
                for scene, those in zip(scenes, requests, strict=True):
                    times[scene.shards].append(scene.seconds(operation, those[operation], number))
            yield operation, {shards: statistics.median(seconds) * 1e6 for shards, seconds in times.items()}


def _line(operation: str, storage: str, kind: str, micros: dict[int, float]) -> Line:
    name = f"{operation}, {storage}, {max(micros):,} {kind} shards"
    if kind == "open" and operation in _ITEMIZED:
        name += ", each of them"
        micros = {shards: cost / shards for shards, cost in micros.items()}
    least, most = min(micros), max(micros)
    detail = ", ".join(f"{shards:,}: {cost:,.0f}" for shards, cost in sorted(micros.items()))
    return Line("costs", name, micros[most], "µs", micros[most] / micros[least], detail)


@define
class Scene:
    """A context manager with an engine, a table, its stream with ``shards`` shards, and a tunnel on the stream."""

    directory: Path | None
    shards: int
    is_past: bool
    """Whether all shards except one are closed, and their channels have ended."""
    engine: Engine = field(init=False)
    ids: dict[str, str] = field(factory=dict)

    def __enter__(self) -> Scene:
        self.engine = Engine(clock=Clock(), storage=open_storage(self.directory))
        self._make_table()
        self._make_tunnel()
        self._make_shards()
        for number in range(ROWS):
            self._call("PutRow", **_write("row", number))
        return self

    def __exit__(self, *unused: object) -> None:
        self.engine.close()

    def _call(self, operation: str, **fields: Any) -> Any:
        body = _MESSAGES[operation].request(**fields).SerializeToString()
        return schema.parse(_MESSAGES[operation].response, self.engine.execute(operation, body))

    def _make_table(self) -> None:
        self._call("CreateTable", **_table(TABLE))

    def _make_tunnel(self) -> None:
        tunnel = schema.Tunnel(table_name=TABLE, tunnel_name="all", tunnel_type=int(TunnelTypeNumber.STREAM))
        tunnel.stream_tunnel_config.flag = int(StartOffsetFlag.EARLIEST)
        tunnel_id = self._call("tunnel/create", tunnel=tunnel).tunnel_id
        config = schema.TunnelClientConfig(timeout=LONG_SECONDS)
        client_id = self._call("tunnel/connect", tunnel_id=tunnel_id, client_config=config).client_id
        self.ids = {"tunnel_id": tunnel_id, "client_id": client_id}

    def _make_shards(self) -> None:
        """Split shards for open ones; split and merge for closed ones: a split closes one shard, a merge two."""
        if not self.is_past:
            for number in range(1, self.shards):
                self.engine.split_shard(TABLE, at=[number * ROWS])
        for _ in range(max(1, self.shards // 3) if self.is_past else 0):
            lower, upper = self.engine.split_shard(TABLE, at=[ROWS // 2])
            self.engine.merge_shards(TABLE, lower, upper)
        self._end_channels()

    def _end_channels(self) -> None:
        """End the channels of closed shards, as a client does that has consumed all of their records."""
        is_open = {shard.shard_id for shard in self.engine.shards(TABLE) if shard.is_open}
        described = self._call("tunnel/describe", table_name=TABLE, tunnel_name="all")
        for channel in described.channels:
            if channel.channel_id not in is_open and channel.channel_status != "TERMINATED":
                whose = {"tunnel_id": self.ids["tunnel_id"], "client_id": "benchmark", "channel_id": channel.channel_id}
                self._call("tunnel/checkpoint", **whose, checkpoint=FINISHED, sequence_number=1)

    def requests(self) -> dict[str, _Request]:
        """Return one request for each operation, in the order in which they are measured."""
        return {**self._steady(), **self._table_moves(), **self._moves(), **self._tunnel_moves()}

    def seconds(self, operation: str, request: _Request, number: int) -> float:
        """Return the processor seconds of the call with the number ``number``, which equal its time: it never waits."""
        fields = request(number) if callable(request) else request
        body = _MESSAGES[operation].request(**fields).SerializeToString()
        started = time.process_time()
        self.engine.execute(operation, body)
        return time.process_time() - started

    def _steady(self) -> dict[str, _Request]:
        """Return requests that may be repeated without preparation."""
        stream_id = self._call("ListStream", table_name=TABLE).streams[0].stream_id
        shard_id = next(shard.shard_id for shard in self.engine.shards(TABLE) if shard.is_open)
        iterator = self._call("GetShardIterator", stream_id=stream_id, shard_id=shard_id).shard_iterator
        while (page := self._call("GetStreamRecord", shard_iterator=iterator)).stream_records:
            iterator = page.next_shard_iterator
        self._call("tunnel/heartbeat", **self.ids)
        channel = {**self.ids, "channel_id": shard_id}
        token = self._call("tunnel/getcheckpoint", **channel).checkpoint
        batch = schema.TableInBatchWriteRowRequest(table_name=TABLE)
        for number in range(10):
            write = _write("row_change", number)
            batch.rows.add(type=int(OperationType.PUT), row_change=write["row_change"], condition=write["condition"])
        low, high = (_key(bound) for bound in (KeyBound.INF_MIN, KeyBound.INF_MAX))
        page_of_rows = {"inclusive_start_primary_key": low, "exclusive_end_primary_key": high}
        tunnel = {"tunnel_id": self.ids["tunnel_id"]}
        keys = schema.TableInBatchGetRowRequest(table_name=TABLE, primary_key=map(_key, range(10)), max_versions=1)
        rows = [schema.RowInBulkImportRequest(type=row.type, row_change=row.row_change) for row in batch.rows]
        return {
            "PutRow": _write("row", 1),
            "UpdateRow": _write("row_change", 1),
            "BatchWriteRow": {"tables": [batch]},
            "BulkImport": {"table_name": TABLE, "rows": rows},
            "BatchGetRow": {"tables": [keys]},
            "BulkExport": {"table_name": TABLE, "columns_to_get": ["amount"], **page_of_rows},
            "ComputeSplitPointsBySize": {"table_name": TABLE, "split_size": 1},
            "ListSearchIndex": {},
            "ListTimeseriesTable": {},
            "GetRow": {"table_name": TABLE, "primary_key": _key(1), "max_versions": 1},
            "GetRange": {"table_name": TABLE, "direction": 0, "max_versions": 1, **page_of_rows},
            "ListTable": {},
            "DescribeTable": {"table_name": TABLE},
            "ListStream": {"table_name": TABLE},
            "DescribeStream": {"stream_id": stream_id, "shard_limit": 10},
            "GetShardIterator": {"stream_id": stream_id, "shard_id": shard_id},
            "GetStreamRecord": {"shard_iterator": iterator},
            "tunnel/list": {},
            "tunnel/heartbeat": self.ids,
            "tunnel/getcheckpoint": channel,
            "tunnel/readrecords": {**channel, "token": token},
            # A checkpoint with a repeated sequence number would not be written.
            "tunnel/checkpoint": lambda number: {**channel, "checkpoint": token, "sequence_number": number + 1},
            "tunnel/schedule": lambda number: {
                **tunnel,
                "channels": [schema.Channel(channel_id=shard_id, version=0, status=_TO_AND_FRO[number % 2])],
            },
            "tunnel/getrpobyoffset": {"tunnel_id": self.ids["tunnel_id"]},
            "tunnel/describe": {"table_name": TABLE, "tunnel_name": "all"},
            "tunnel/getrpo": tunnel,
        }

    def _table_moves(self) -> dict[str, _Request]:
        """Return requests about tables. The next request undoes their effect first, so that there are few tables."""

        def created(number: int) -> dict[str, Any]:
            if number:
                self._call("DeleteTable", table_name="spare")
            return _table("spare")

        def deleted(number: int) -> dict[str, Any]:
            if number:
                self._call("CreateTable", **_table("spare"))
            return {"table_name": "spare"}

        def updated(number: int) -> dict[str, Any]:
            return {"table_name": TABLE, "table_options": schema.TableOptions(max_versions=1 + number % 2)}

        return {"CreateTable": created, "DeleteTable": deleted, "UpdateTable": updated}

    def _moves(self) -> dict[str, _Request]:
        """Return requests that need a new row to delete, or a new transaction to start or end."""

        def row_deleted(number: int) -> dict[str, Any]:
            self._call("PutRow", **_write("row", 1))
            row = encode_row(Row((("id", 1),), delete_marker=True))
            return {"table_name": TABLE, "primary_key": row, "condition": schema.Condition(row_existence=0)}

        def started(number: int) -> dict[str, Any]:
            return {"table_name": TABLE, "key": _key(ROWS + number)}

        def ended(number: int) -> dict[str, Any]:
            key = -1 - number
            ids = {
                "transaction_id": self._call("StartLocalTransaction", table_name=TABLE, key=_key(key)).transaction_id
            }
            self._call("PutRow", **_write("row", key), **ids)
            return ids

        return {
            "DeleteRow": row_deleted,
            "StartLocalTransaction": started,
            "CommitTransaction": ended,
            "AbortTransaction": ended,
        }

    def _tunnel_moves(self) -> dict[str, _Request]:
        tunnel = {"tunnel_id": self.ids["tunnel_id"]}

        def ended(number: int) -> dict[str, Any]:
            return {**tunnel, "client_id": self._call("tunnel/connect", **tunnel).client_id}

        def created(number: int) -> dict[str, Any]:
            if number:
                self._call("tunnel/delete", **_SPARE_NAME)
            return {"tunnel": schema.Tunnel(**_SPARE_NAME, tunnel_type=int(TunnelTypeNumber.STREAM))}

        def deleted(number: int) -> dict[str, Any]:
            if number:
                self._call("tunnel/create", **created(0))
            return _SPARE_NAME

        return {
            "tunnel/shutdown": ended,
            "tunnel/create": created,
            "tunnel/delete": deleted,
            "tunnel/connect": lambda number: tunnel,
        }


_SPARE_NAME = {"table_name": TABLE, "tunnel_name": "spare"}

_TO_AND_FRO = int(schema.ChannelStatusNumber.CLOSING), int(schema.ChannelStatusNumber.OPEN)


def _table(name: str) -> dict[str, Any]:
    key = schema.PrimaryKeySchema(name="id", type=schema.PrimaryKeyType.INTEGER)
    return {
        "table_meta": schema.TableMeta(table_name=name, primary_key=[key]),
        "reserved_throughput": schema.ReservedThroughput(capacity_unit=schema.CapacityUnit(read=0, write=0)),
        "table_options": schema.TableOptions(time_to_live=-1, max_versions=1),
        "stream_spec": schema.StreamSpecification(enable_stream=True, expiration_time=168),
    }


def _key(value: Any) -> bytes:
    return encode_row(Row((("id", value),)))


def _write(name: str, number: int) -> dict[str, Any]:
    row = encode_row(Row((("id", number),), (Cell("amount", number),)))
    return {"table_name": TABLE, name: row, "condition": schema.Condition(row_existence=0)}
