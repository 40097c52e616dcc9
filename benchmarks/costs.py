"""What each operation of the local Tablestore costs as shards and channels become many: open ones, and past ones.

The engine alone, in this process, without HTTP: what grows would else be hidden behind what does not.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from attrs import define, field

from benchmarks.report import Line, progress
from benchmarks.settings import Settings
from benchmarks.stage import Stage
from streamclient.server.clock import Clock
from streamclient.server.engine import Engine
from streamclient.server.storage import open_storage
from streamclient.wire import schema
from streamclient.wire.plainbuffer import Cell, KeyBound, Row, encode_row
from streamclient.wire.schema import OperationType, StartOffsetFlag, TunnelType
from streamclient.wire.tunnel import FINISHED

TABLE = "orders"
ROWS = 100
"""Of the table, and of one range: few, so that what grows is the shards."""

LONG_SECONDS = 86_400
"""Of a session: the benchmark sends heartbeats only where it measures them."""

_MESSAGES = {**schema.OPERATIONS, **schema.TUNNEL_OPERATIONS}


def measure(stage: Stage, settings: Settings) -> list[Line]:
    """One line per operation, storage, and kind of shards."""
    lines: list[Line] = []
    for storage in ("memory", "SQLite"):
        for kind in ("open", "closed"):
            medians: dict[str, dict[int, float]] = {}
            for shards in settings.shard_counts:
                progress(f"{kind} shards: {shards}, {storage}")
                with ExitStack() as stack:
                    directory = None
                    if storage == "SQLite":
                        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
                    scene = stack.enter_context(Scene(directory, shards, is_past=kind == "closed"))
                    for operation, micros in scene.costs(settings.calls):
                        medians.setdefault(operation, {})[shards] = micros
            lines += [_line(operation, storage, kind, found) for operation, found in medians.items()]
    return lines


def _line(operation: str, storage: str, kind: str, micros: Mapping[int, float]) -> Line:
    least, most = min(micros), max(micros)
    detail = ", ".join(f"{shards:,}: {cost:,.0f}" for shards, cost in sorted(micros.items()))
    name = f"{operation}, {storage}, {most:,} {kind} shards"
    return Line("costs", name, micros[most], "µs", micros[most] / micros[least], detail)


@define
class Scene:
    """An engine with a table, a stream of so many shards, and a tunnel that follows it; a context manager."""

    directory: Path | None
    shards: int
    is_past: bool
    """Whether all shards but one are closed, and their channels are over."""
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
        self._call(
            "CreateTable",
            table_meta=schema.TableMeta(
                table_name=TABLE, primary_key=[schema.PrimaryKeySchema(name="id", type=schema.PrimaryKeyType.INTEGER)]
            ),
            reserved_throughput=schema.ReservedThroughput(capacity_unit=schema.CapacityUnit(read=0, write=0)),
            stream_spec=schema.StreamSpecification(enable_stream=True, expiration_time=168),
        )

    def _make_tunnel(self) -> None:
        tunnel = schema.Tunnel(table_name=TABLE, tunnel_name="all", tunnel_type=int(TunnelType.STREAM))
        tunnel.stream_tunnel_config.flag = int(StartOffsetFlag.EARLIEST)
        tunnel_id = self._call("tunnel/create", tunnel=tunnel).tunnel_id
        config = schema.TunnelClientConfig(timeout=LONG_SECONDS)
        client_id = self._call("tunnel/connect", tunnel_id=tunnel_id, client_config=config).client_id
        self.ids = {"tunnel_id": tunnel_id, "client_id": client_id}

    def _make_shards(self) -> None:
        """Parents that are split are closed; a merge closes two more."""
        if not self.is_past:
            for number in range(1, self.shards):
                self.engine.split_shard(TABLE, at=[number * ROWS])
        for _ in range(max(1, self.shards // 3) if self.is_past else 0):
            lower, upper = self.engine.split_shard(TABLE, at=[ROWS // 2])
            self.engine.merge_shards(TABLE, lower, upper)
        self._end_channels()

    def _end_channels(self) -> None:
        """Everything in closed shards was consumed."""
        is_open = {shard.shard_id for shard in self.engine.shards(TABLE) if shard.is_open}
        described = self._call("tunnel/describe", table_name=TABLE, tunnel_name="all")
        for channel in described.channels:
            if channel.channel_id not in is_open and channel.channel_status != "TERMINATED":
                whose = {"tunnel_id": self.ids["tunnel_id"], "client_id": "benchmark", "channel_id": channel.channel_id}
                self._call("tunnel/checkpoint", **whose, checkpoint=FINISHED, sequence_number=1)

    def costs(self, calls: int) -> Iterator[tuple[str, float]]:
        """Median processor time of one call, in microseconds, by operation: it waits for nothing."""
        for operation, fields in self._requests().items():
            request = _MESSAGES[operation].request(**fields)
            times = []
            for number in range(calls):
                if operation == "tunnel/checkpoint":
                    request.sequence_number = number + 1  # the same one again would not be written
                body = request.SerializeToString()
                started = time.process_time()
                self.engine.execute(operation, body)
                times.append(time.process_time() - started)
            yield operation, statistics.median(times) * 1e6

    def _requests(self) -> dict[str, dict[str, Any]]:
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
        return {
            "PutRow": _write("row", 1),
            "UpdateRow": _write("row_change", 1),
            "BatchWriteRow": {"tables": [batch]},
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
            "tunnel/checkpoint": {**channel, "checkpoint": token, "sequence_number": 1},
            "tunnel/describe": {"table_name": TABLE, "tunnel_name": "all"},
            "tunnel/getrpo": tunnel,
        }


def _key(value: Any) -> bytes:
    return encode_row(Row((("id", value),)))


def _write(name: str, number: int) -> dict[str, Any]:
    row = encode_row(Row((("id", number),), (Cell("amount", number),)))
    return {"table_name": TABLE, name: row, "condition": schema.Condition(row_existence=0)}
