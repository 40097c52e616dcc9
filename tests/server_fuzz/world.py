"""One server that is fuzzed for a while: what is asked, and what must hold after every answer.

- Every answer is the protocol's: a status, a request id, and an error message where it is no success; never a 500.
- A refused request changes nothing: tables, rows, streams, shards, tunnels, sessions and transactions are compared.
- No request has the processor for long, and none makes the counters grow without a bound.
- With a data directory, what is there after a restart is what was there before.
"""

from __future__ import annotations

import asyncio
import random
import socket
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attrs import frozen

from streamclient.server import Clock, LocalTablestore
from streamclient.server.counters import MOST_TALLIES
from streamclient.server.http_service import Answer, Service, real_time
from streamclient.server.server_errors import ServiceError
from streamclient.server.server_state import ServerState
from streamclient.wire import schema
from streamclient.wire.plainbuffer import KeyBound
from tests.patience import PATIENCE_SECONDS, until
from tests.server.server_state_driver import HIGHEST, LOWEST, MESSAGES, TWO_COLUMN_KEY, creation, frame, put
from tests.server_fuzz.making import Maker
from tests.service_under_test import signed_headers, signed_v4_headers

START_MICROS = 1_700_000_000_000_000

SLOW_SECONDS = 5.0
"""Of processor time, whatever else the machine does: ten times what one request may take by the server's own bounds. A
request without a bound is what the fuzzer looks for."""

ANSWER_SECONDS = 0.2
"""For an answer to bytes that may be no whole request. One that comes later is not judged."""

RARE = ("DeleteTable", "UpdateTable", "CreateTable", "tunnel/delete")
"""Operations that take away what the others work on."""


class Finding(AssertionError):
    """Something that must not be."""


@frozen
class Sent:
    """A request as it went out."""

    operation: str
    headers: dict[str, str]
    body: bytes

    def __str__(self) -> str:
        return f"{self.operation} {self.body.hex()} {self.headers}"


class Wall:
    """A machine clock that stands still during a request."""

    def __init__(self) -> None:
        self.micros = START_MICROS

    def __call__(self) -> int:
        return self.micros


class World:
    """A server with a table, a stream and tunnels, and somebody who means it no good."""

    def __init__(self, dice: random.Random, directory: Path | None) -> None:
        self.dice = dice
        self.maker = Maker(dice)
        self.statuses: Counter[int] = Counter()
        self.successes: Counter[str] = Counter()
        """Requests that were not refused, by operation."""
        self.last: Sent | None = None
        """The request that went out last."""
        self._directory = directory
        self._wall = Wall()
        self._local = self._start()
        self._furnish()

    def _start(self) -> LocalTablestore:
        return LocalTablestore(clock=Clock(self._wall), data_dir=self._directory).start()

    @property
    def _service(self) -> Service:
        server: Any = self._local._server
        service: Service = server._service
        return service

    @property
    def _state(self) -> ServerState:
        engine: Any = self._local._engine
        state: ServerState = engine._state
        return state

    @contextmanager
    def open(self) -> Iterator[World]:
        """The world, until it ends."""
        try:
            yield self
        finally:
            self._local.stop()

    def _furnish(self) -> None:
        self.maker.forget()
        stream = schema.StreamSpecification(enable_stream=True, expiration_time=24)
        tables = {
            "t": creation("t", options={"max_versions": 3}, stream_spec=stream),
            # Its partition keys have several rows.
            "u": creation("u", TWO_COLUMN_KEY, enable_local_txn=True, stream_spec=stream),
        }
        for name, fields in tables.items():
            if name not in self._state.tables:
                self._must("CreateTable", schema.CreateTableRequest(**fields))
        tunnels = [found.definition for found in self._state.tunnels.values()]
        for name in [definition.name for definition in tunnels if definition.table_name == "t"]:
            self._must("tunnel/delete", schema.DeleteTunnelRequest(table_name="t", tunnel_name=name))
        for kind in (1, 2, 3):
            tunnel = schema.Tunnel(table_name="t", tunnel_name=f"n{kind}", tunnel_type=kind)
            made = self._must("tunnel/create", schema.CreateTunnelRequest(tunnel=tunnel))
            config = schema.ConnectRequest(tunnel_id=made.tunnel_id)
            client = self._must("tunnel/connect", config).client_id
            self._must("tunnel/heartbeat", schema.HeartbeatRequest(tunnel_id=made.tunnel_id, client_id=client))
            self._must("tunnel/describe", schema.DescribeTunnelRequest(table_name="t", tunnel_name=f"n{kind}"))

    def _must(self, operation: str, message: Any) -> Any:
        answer = self._execute(self._signed(operation, message.SerializeToString()))
        if answer.status != 200:
            raise Finding(f"{operation} was refused: {answer.status} {answer.body!r}")
        return self._learned(operation, answer)

    def _learned(self, operation: str, answer: Answer) -> Any:
        response = schema.parse(MESSAGES[operation].response, answer.body)
        self.maker.learn(response)
        return response

    # --- one step

    def step(self) -> None:
        """Do one thing to the server, and look what came of it."""
        tunnels = [found for found in self._state.tunnels.values() if not found.is_expired and found.live]
        if not {"t", "u"} <= self._state.tables.keys() or len(tunnels) < 2:
            self._furnish()
        what = self.dice.random()
        self._wall.micros += self.dice.choice((0, 1, 1_000, 1_000_000))
        if what < 0.02:
            self._over_the_wire()
        elif what < 0.03:
            self._stir()
        elif what < 0.4:
            operation, message = self.dice.choice((self._write, self._read, self._consume, self._transact))()
            if self.dice.random() < 0.3:
                message = self.maker.changed(message)
            self._ask(self._signed(operation, message.SerializePartialToString()))
        else:
            self._ask(self._request())

    def _write(self) -> tuple[str, Any]:
        row = self.maker.good_row()
        if self.dice.random() < 0.2:
            imported = schema.BulkImportRequest(table_name="t")
            imported.rows.add(type=self.dice.choice((1, 2)), row_change=row)
            return "BulkImport", imported
        if self.dice.random() < 0.5:
            message = schema.BatchWriteRowRequest()
            table = message.tables.add(table_name="t")
            for _ in range(self.dice.randrange(1, 4)):
                table.rows.add(type=1, row_change=self.maker.good_row()).condition.row_existence = 0
            return "BatchWriteRow", message
        message = schema.PutRowRequest(table_name="t", row=row)
        message.condition.row_existence = self.dice.choice((0, 0, 1, 2))
        if self.dice.random() < 0.3:
            message.condition.column_condition = self.maker.filter(self.dice.randrange(3))
        return "PutRow", message

    def _read(self) -> tuple[str, Any]:
        if self.dice.random() < 0.3:
            several = schema.BatchGetRowRequest()
            key = frame(self.dice.choice("abc"))
            several.tables.add(table_name="t", primary_key=[key, key], max_versions=1)
            return "BatchGetRow", several
        bounds = {"inclusive_start_primary_key": frame(LOWEST), "exclusive_end_primary_key": frame(HIGHEST)}
        message = schema.GetRangeRequest(table_name="t", direction=0, max_versions=1, **bounds)
        if self.dice.random() < 0.8:
            message.filter = self.maker.filter(self.dice.randrange(3))
        return "GetRange", message

    def _transact(self) -> tuple[str, Any]:
        """The next step of somebody with a local transaction, most often on the partition key that it holds."""
        open_ones = self._open_transactions()
        if not open_ones or self.dice.random() < 0.1:
            partition = self.dice.choice("abc")
            numbers = self.dice.sample(range(4), self.dice.choice((0, 0, 1, 2)))
            return "StartLocalTransaction", schema.StartLocalTransactionRequest(
                table_name="u",
                key=frame(partition),
                row_keys=[frame((("pk", partition), ("sk", number))) for number in numbers],
            )
        transaction = self.dice.choice(open_ones)
        whose = {"transaction_id": transaction.transaction_id}
        partition = transaction.partition_key if self.dice.random() < 0.9 else self.dice.choice("abc")
        key = (("pk", partition), ("sk", self.dice.randrange(4)))
        low, high = ((("pk", partition), ("sk", bound)) for bound in (KeyBound.INF_MIN, KeyBound.INF_MAX))
        row = frame(key, put("a", self.dice.randrange(9)))
        condition = schema.Condition(row_existence=self.dice.choice((0, 0, 1, 2)))
        change = {"table_name": "u", "condition": condition, **whose}
        batch = schema.BatchWriteRowRequest(is_atomic=self.dice.random() < 0.5, **whose)
        batch.tables.add(table_name="u").rows.add(type=1, row_change=row, condition=condition)
        read = {"table_name": "u", "max_versions": 1, **whose}
        bounds = {"inclusive_start_primary_key": frame(low), "exclusive_end_primary_key": frame(high)}
        return self.dice.choice(
            (
                ("PutRow", schema.PutRowRequest(**change, row=row)),
                ("UpdateRow", schema.UpdateRowRequest(**change, row_change=row)),
                ("DeleteRow", schema.DeleteRowRequest(**change, primary_key=frame(key, delete_marker=True))),
                ("BatchWriteRow", batch),
                ("GetRow", schema.GetRowRequest(**read, primary_key=frame(key))),
                ("GetRange", schema.GetRangeRequest(**read, **bounds, direction=0)),
                ("CommitTransaction", schema.CommitTransactionRequest(**whose)),
                ("AbortTransaction", schema.AbortTransactionRequest(**whose)),
            )
        )

    def _open_transactions(self) -> list[Any]:
        transactions: Any = self._state.transactions
        transactions._expire(self._state.clock.now_micros())
        return list(transactions._open.values())

    def _consume(self) -> tuple[str, Any]:
        """What a consumer of a tunnel would do next, at one of its channels."""
        tunnel = self.dice.choice([found for found in self._state.tunnels.values() if found.live])
        channel = self.dice.choice(list(tunnel.live.values()))
        ids: dict[str, Any] = {
            "tunnel_id": tunnel.definition.tunnel_id,
            "client_id": channel.client_id or self.dice.choice([*tunnel.clients, "spark-client"]),
            "channel_id": channel.channel_id,
        }
        token = self.maker.token(channel.checkpoint)
        number = channel.sequence_number + self.dice.choice((0, 1, 1, 2**40, -1))
        report = schema.Channel(
            channel_id=channel.channel_id,
            version=min(max(channel.version + self.dice.choice((0, 1, 1, 2**63 - 1)), 0), 2**63 - 1),
            status=self.dice.choice((1, 2, 3, 4)),
        )
        whose = {"tunnel_id": ids["tunnel_id"], "client_id": ids["client_id"]}
        return self.dice.choice(
            (
                ("tunnel/getcheckpoint", schema.GetCheckpointRequest(**ids)),
                ("tunnel/readrecords", schema.ReadRecordsRequest(**ids, token=token)),
                ("tunnel/checkpoint", schema.CheckpointRequest(**ids, checkpoint=token, sequence_number=number)),
                ("tunnel/heartbeat", schema.HeartbeatRequest(**whose, channels=[report])),
                ("tunnel/schedule", schema.ScheduleRequest(tunnel_id=ids["tunnel_id"], channels=[report])),
            )
        )

    def _request(self) -> Sent:
        operation = self.dice.choice(list(MESSAGES))
        if operation in RARE and self.dice.random() < 0.8:
            operation = self.dice.choice(("PutRow", "UpdateRow", "tunnel/heartbeat", "tunnel/checkpoint"))
        body = self.maker.request(MESSAGES[operation].request).SerializePartialToString()
        if self.dice.random() < 0.1:
            body = self.maker.damaged(body)
        sent = self._signed(operation, body)
        return self._mistreated(sent) if self.dice.random() < 0.1 else sent

    def _signed(self, operation: str, body: bytes) -> Sent:
        if self.dice.random() < 0.5:
            return Sent(operation, signed_headers(self._local, operation, body), body)
        day = real_time().strftime("%Y%m%d")
        return Sent(operation, signed_v4_headers(self._local, operation, body, day), body)

    def _mistreated(self, sent: Sent) -> Sent:
        headers = dict(sent.headers)
        name = self.dice.choice(list(headers))
        bad = self.dice.choice(("", "\udcff\udc80", "\x7f", "é", "x" * 8_000, "9" * 50, "0001-01-01T00:00:00Z"))
        if self.dice.random() < 0.3:
            del headers[name]
        elif self.dice.random() < 0.5:
            headers[name] = bad
        else:
            headers[self.dice.choice(("x-ots-request-compress-type", "x-ots-signdate", "content-type"))] = bad
        return Sent(sent.operation, headers, sent.body)

    def _ask(self, sent: Sent) -> None:
        before = self._snapshot()
        started = time.thread_time()
        answer = self._execute(sent)
        if time.thread_time() - started > SLOW_SECONDS:
            raise Finding(f"it took {time.thread_time() - started:.1f} s")
        self.statuses[answer.status] += 1
        if "x-ots-requestid" not in answer.headers:
            raise Finding("the answer has no request id")
        if answer.status >= 500:
            raise Finding(f"{answer.status} {answer.body!r}")
        if answer.status == 200:
            self.successes[sent.operation] += 1
            self._learned(sent.operation, answer)
            return
        error = schema.parse(schema.Error, answer.body)
        if not error.code or not error.message:
            raise Finding(f"an error without code or text: {answer.body!r}")
        after = self._snapshot()
        if after != before:
            raise Finding(f"a refused request changed {_difference(before, after)}: {error.code} {error.message}")
        if len(self._service.counters.counts()) > MOST_TALLIES + 1:
            raise Finding("the counters grow without a bound")

    def _execute(self, sent: Sent) -> Answer:
        self.last = sent
        path = f"/{sent.operation}"
        try:
            return self._service.execute(self._service.admit(path, sent.headers, sent.body))
        except ServiceError as error:
            return self._service.refuse(path, {}, error)

    def _stir(self) -> None:
        """What happens by itself, or at an operator's hand."""
        try:
            self.dice.choice((self._split, self._merge, self._trim, self._restart, self._wait))()
        except ServiceError:
            return  # shards that cannot be split or merged

    def _split(self) -> None:
        self._local.split("t", at=self.dice.choice(("b", "m", "c")))

    def _merge(self) -> None:
        shards = [shard for shard in self._local.shards("t") if shard.is_open]
        if len(shards) > 1:
            place = self.dice.randrange(len(shards) - 1)
            self._local.merge("t", shards[place].shard_id, shards[place + 1].shard_id)

    def _trim(self) -> None:
        self._local.trim("t", keep_last=self.dice.randrange(20))

    def _wait(self) -> None:
        self._local.advance_clock(self.dice.choice((60, 3_600, 86_400, 200_000)))

    def _restart(self) -> None:
        if self._directory is None:
            return
        before = {**self._snapshot(), "transactions": {}}  # which end with the server
        self._local.stop()
        self._local = self._start()
        after = self._snapshot()
        if before != after:
            raise Finding(f"a restart changed {_difference(before, after)}")

    # --- the wire

    def _over_the_wire(self) -> None:
        """Bytes over a connection: an answer is the protocol's, and the server goes on answering others."""
        sent = self._request()
        lines = [f"POST /{sent.operation} HTTP/1.1", f"content-length: {len(sent.body)}", "connection: close"]
        if self.dice.random() < 0.9:
            lines.append("host: 127.0.0.1")
        lines += [f"{name}: {value}" for name, value in sent.headers.items()]
        data = "\r\n".join([*lines, "", ""]).encode("utf-8", "surrogateescape")
        if self.dice.random() < 0.7:
            data = self.maker.damaged(data)
        before = self._snapshot()
        answer = self._exchange(data + sent.body)
        if answer and not answer.startswith(b"HTTP/"):
            raise Finding(f"the answer to {data!r} is no HTTP: {answer[:200]!r}")
        if answer[8:10] == b" 5":
            raise Finding(f"the answer to {data!r} is {answer[:200]!r}")
        if answer and b"x-ots-requestid" not in answer.lower():
            raise Finding(f"the answer to {data!r} has no request id: {answer[:300]!r}")
        if answer and answer[8:12] != b" 200" and self._snapshot() != before:
            raise Finding(f"a refused request changed {_difference(before, self._snapshot())}: {data!r}")

    def _exchange(self, data: bytes) -> bytes:
        """What comes back; a request that was cut short gets no answer in the time that this waits.

        Nothing of it is in work afterwards: what it does later would be taken for the next request's doing.
        """
        port = int(self._local.endpoint.rpartition(":")[2])
        server: Any = self._local._server
        guards, loop = server._connections._guards, server._loop
        parts: list[bytes] = []
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS) as connection:
            until(lambda: bool(guards), "the server's side of a connection")
            try:
                connection.sendall(data)
                connection.settimeout(ANSWER_SECONDS)
                while part := connection.recv(65536):
                    parts.append(part)
            except (ConnectionError, TimeoutError):
                pass
        until(lambda: not guards and len(asyncio.all_tasks(loop)) == 1, "the end of a connection")
        return b"".join(parts)

    # --- state

    def _snapshot(self) -> dict[str, Any]:
        """Everything that a client can come to see. Rows are frozen, so that they need not be copied."""
        state = self._state
        for tunnel in list(state.tunnels.values()):  # what time brings about is not the request's doing
            self._refresh(tunnel)
        tables = {
            name: (table.definition, {key: row.body(table.key_names) for key, row in table.rows._rows.items()})
            for name, table in state.tables.items()
        }
        streams = {
            stream.stream_id: (
                stream.definition,
                [(shard.to_json(), shard.next_position) for shard in stream.shards.values()],
            )
            for stream in state.streams.values()
        }
        tunnels = {
            tunnel.definition.tunnel_id: (
                tunnel.definition,
                tunnel.stage,
                tunnel.is_expired,
                [channel.to_json() for channel in tunnel.channels.values()],
                sorted(tunnel.clients),
                sorted(tunnel.former_clients),
            )
            for tunnel in state.tunnels.values()
        }
        transactions = {
            found.transaction_id: (
                found.partition_key,
                found.row_keys,
                [plan.encoded_key for plan in found.draft.plans],
            )
            for found in self._open_transactions()
        }
        return {"tables": tables, "streams": streams, "tunnels": tunnels, "transactions": transactions}

    def _refresh(self, tunnel: Any) -> None:
        request = schema.GetRpoRequest(tunnel_id=tunnel.definition.tunnel_id)
        engine: Any = self._local._engine
        engine.execute("tunnel/getrpo", request.SerializeToString())


def _difference(before: dict[str, Any], after: dict[str, Any]) -> str:
    changed = [name for name in before if before[name] != after[name]]
    return ", ".join(f"{name} from {before[name]!r} to {after[name]!r}"[:2_000] for name in changed)
