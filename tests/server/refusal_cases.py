"""A request, or a few, for each refusal of the server: what provokes it, and the values of its words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

from attrs import evolve, field, frozen
from server_state_driver import (
    GENERATED_KEY,
    PUT,
    TWO_COLUMN_KEY,
    Driver,
    batch_row,
    condition_fields,
    creation,
    frame,
    put,
    single,
)
from tablestore import NoRetryPolicy, OTSClient, OTSServiceError
from tablestore.auth import RequestContext

from streamclient.server.iterators import decode_iterator, encode_iterator
from streamclient.server.server_errors import ServiceError
from streamclient.wire import schema
from streamclient.wire.plainbuffer import Cell, CellOperation, KeyBound, encode_value
from streamclient.wire.schema import ComparatorType, LogicalOperator
from streamclient.wire.tunnel import Token, decode_token

MEGABYTE = 1 << 20
LOW, HIGH = KeyBound.INF_MIN, KeyBound.INF_MAX
LOWEST, HIGHEST = (("pk", LOW),), (("pk", HIGH),)
IGNORE = schema.Condition(row_existence=0)
STREAM, TIMES, OPTIONS = schema.StreamSpecification, schema.TimeRange, schema.TableOptions
IS_1 = single(ComparatorType.EQUAL, "x")
AND, NOT = LogicalOperator.AND, LogicalOperator.NOT
DELETION = Cell("x", None, CellOperation.DELETE_ONE_VERSION)
DATED_DELETION = Cell("x", None, CellOperation.DELETE_ALL_VERSIONS, 5)
VALUED_DELETION = Cell("x", 1, CellOperation.DELETE_ALL_VERSIONS)
MARKED = frame("a", put("x", 1), delete_marker=True)
AUTO = (("pk", "a"), ("id", KeyBound.AUTO_INCREMENT))

Request = tuple[str, dict[str, Any]]
Key = tuple[tuple[str, Any], ...]


class SdkEngine:
    """Sends any message by the official Python SDK: its headers, signature, connection and reading of errors."""

    def __init__(self, client: OTSClient) -> None:
        self._client = client

    def execute(self, operation: str, body: bytes, changes: Mapping[str, str | None] | None = None) -> bytes:
        """Send a request; ``changes`` are headers that are set, or removed with ``None``, after it was signed."""
        client, path = self._client, f"/{operation}"
        context = RequestContext(client.credentials_provider.get_credentials())
        signed = client.protocol._make_request_headers(body, path, client._signer, context)
        headers = {name: value for name, value in {**signed, **(changes or {})}.items() if value is not None}
        status, reason, answered, content = client.connection.send_receive(path, headers, body)
        try:  # the name only has to be one that the SDK knows
            client.protocol.handle_error("ListTable", path, status, reason, answered, content, client._signer, context)
        except OTSServiceError as error:
            raise ServiceError(error.get_http_status(), error.get_error_code(), error.get_error_message()) from error
        return bytes(content)


def by_the_sdk(service: Any) -> Driver:
    """A driver whose requests the official Python SDK signs, sends and judges."""
    driver = Driver.__new__(Driver)
    driver.engine = SdkEngine(service.client(retry_policy=NoRetryPolicy()))
    return driver


@frozen
class Stage:
    """What a case works with: a server with a table ``t``, which has a stream, and a driver of it."""

    service: Any
    driver: Driver

    def send(self, operation: str, body: bytes = b"", **changes: str | None) -> object:
        """Send bytes; a header's underscores stand for hyphens."""
        return self.driver.engine.execute(operation, body, {name.replace("_", "-"): changes[name] for name in changes})

    def client(self, *, headers: Mapping[str, str] | None = None, **options: Any) -> SdkEngine:
        """A client of the SDK with other arguments than the service's own, which signs ``headers`` too."""
        service = self.service
        given = {
            "end_point": service.endpoint,
            "access_key_id": service.access_key_id,
            "access_key_secret": service.access_key_secret,
            "instance_name": service.instance,
            "retry_policy": NoRetryPolicy(),
            **options,
        }
        made = OTSClient(**given)
        made.protocol.extra_headers = headers
        return SdkEngine(made)

    @property
    def stream_id(self) -> str:
        return self.driver.stream_id()

    @property
    def shard_id(self) -> str:
        (shard,) = self.driver.describe_shards(self.stream_id)
        return str(shard.shard_id)

    def tunnel(self, kind: int = 2, name: str = "n", **config: Any) -> str:
        tunnel = schema.Tunnel(table_name="t", tunnel_name=name, tunnel_type=kind)
        if config:
            tunnel.stream_tunnel_config.CopyFrom(schema.StreamTunnelConfig(**config))
        return str(self.driver.call("tunnel/create", tunnel=tunnel).tunnel_id)

    def channel(self, tunnel_id: str, name: str = "n") -> str:
        """The only channel of a tunnel; its tunnel is of full data or of changes."""
        described = self.driver.call("tunnel/describe", table_name="t", tunnel_name=name)
        assert described.tunnel.tunnel_id == tunnel_id
        (channel,) = described.channels
        return str(channel.channel_id)

    def read(self, tunnel_id: str, token: str, channel: str | None = None) -> Any:
        return self.driver.call(
            "tunnel/readrecords",
            tunnel_id=tunnel_id,
            client_id="c",
            channel_id=channel or self.channel(tunnel_id),
            token=token,
        )

    def token(self, tunnel_id: str) -> str:
        answer = self.driver.call(
            "tunnel/getcheckpoint", tunnel_id=tunnel_id, client_id="c", channel_id=self.channel(tunnel_id)
        )
        return str(answer.checkpoint)

    def store(self, tunnel_id: str, token: str, number: int = 1) -> Any:
        return self.driver.call(
            "tunnel/checkpoint",
            tunnel_id=tunnel_id,
            client_id="c",
            channel_id=self.channel(tunnel_id),
            checkpoint=token,
            sequence_number=number,
        )

    def transaction(self, key: str = "a", table: str = "t") -> str:
        fields = {"table_name": table, "key": frame(key)}
        return str(self.driver.call("StartLocalTransaction", **fields).transaction_id)


@frozen
class Case:
    """One way to be refused. ``act`` must raise; ``values`` are those of the words, as far as they are known before."""

    act: Callable[[Stage], object]
    values: Mapping[str, object] = field(factory=dict)
    limits: Mapping[str, int] = field(factory=dict)
    """Limits that are lowered, of a local server only."""


def asked(request: Request, limits: Mapping[str, int] | None = None, **values: object) -> Case:
    """A case of one request."""
    operation, fields = request
    return Case(lambda stage: stage.driver.call(operation, **fields), values, limits or {})


def compressed(body: bytes, values: Mapping[str, object] | None = None, **headers: str) -> Case:
    """A request with a body that is said to be compressed; underscores of ``headers`` stand for hyphens."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Case(lambda stage: stage.client(headers=named).execute("ListTable", body), values or {})


# --- requests ------------------------------------------------------------------------------------------------------


def put_row(*cells: Cell, key: Any = "a", **fields: Any) -> Request:
    return "PutRow", {"table_name": "t", "row": frame(key, *cells), "condition": IGNORE, **fields}


def update_row(*cells: Cell, key: Any = "a", **fields: Any) -> Request:
    return "UpdateRow", {"table_name": "t", "row_change": frame(key, *cells), "condition": IGNORE, **fields}


def delete_row(*cells: Cell, is_marked: bool = True, key: Any = "a", **fields: Any) -> Request:
    row = frame(key, *cells, delete_marker=is_marked)
    return "DeleteRow", {"table_name": "t", "primary_key": row, "condition": IGNORE, **fields}


def get_row(**fields: Any) -> Request:
    return "GetRow", {"table_name": "t", "primary_key": frame("a"), "max_versions": 1, **fields}


def get_range(start: Any, end: Any, **fields: Any) -> Request:
    bounds = {"inclusive_start_primary_key": frame(start), "exclusive_end_primary_key": frame(end)}
    return "GetRange", {"table_name": "t", "direction": 0, "max_versions": 1, **bounds, **fields}


def export(**fields: Any) -> Request:
    bounds = {"inclusive_start_primary_key": frame(LOWEST), "exclusive_end_primary_key": frame(HIGHEST)}
    return "BulkExport", {"table_name": "t", **bounds, **fields}


def batch_write(*tables: Any, **fields: Any) -> Request:
    return "BatchWriteRow", {"tables": tables, **fields}


def batch_get(*keys: bytes, **fields: Any) -> Request:
    return "BatchGetRow", {"tables": [schema.TableInBatchGetRowRequest(table_name="t", primary_key=keys, **fields)]}


def conditional(expect: int = 0, **fields: Any) -> Any:
    return batch_row(PUT, "a", expect=schema.RowExistenceExpectation(expect), **fields)


def conditional_put(column_condition: bytes) -> Request:
    return put_row(**condition_fields(column_condition=column_condition))


def update_table(**fields: Any) -> Request:
    return "UpdateTable", {"table_name": "t", **fields}


def create_table(*key: tuple[str, ...], **fields: Any) -> Request:
    return "CreateTable", creation("new", key or (("pk", "STRING"),), **fields)


def with_capacity(**units: int) -> Request:
    operation, fields = create_table()
    fields["reserved_throughput"] = schema.ReservedThroughput(capacity_unit=schema.CapacityUnit(**units))
    return operation, fields


def with_columns(*columns: tuple[str, int]) -> Request:
    operation, fields = create_table()
    for name, kind in columns:
        fields["table_meta"].defined_column.add(name=name, type=kind)
    return operation, fields


def of_unknown_key_type(number: int) -> Request:
    """Sent as a number that the enumeration of the Python SDK has, and ours does not."""
    return _with_key(b"\x0a\x02pk\x10" + bytes((number,)))


def of_unknown_option(number: int) -> Request:
    return _with_key(b"\x0a\x01a\x10\x03", b"\x0a\x02pk\x10\x01\x18" + bytes((number,)))


def _with_key(*columns: bytes) -> Request:
    operation, fields = create_table()
    fields["table_meta"].ClearField("primary_key")
    for column in columns:
        fields["table_meta"].primary_key.append(schema.PrimaryKeySchema.FromString(column))
    return operation, fields


def with_partitions(kind: str, *points: Any) -> Request:
    places = [LOW, *points, HIGH]
    ranges = [
        schema.PartitionRange(begin=encode_value(begin), end=encode_value(end)) for begin, end in pairwise(places)
    ]
    return create_table(("pk", kind), partitions=ranges)


def rule(**fields: Any) -> Request:
    return get_row(filter=single(ComparatorType.EQUAL, "x", rule=schema.ValueTransferRule(**fields)))


def stream(**fields: Any) -> Any:
    return STREAM(enable_stream=True, **fields)


def new_tunnel(**fields: Any) -> Request:
    config = fields.pop("config", {})
    tunnel = schema.Tunnel(**{"table_name": "t", "tunnel_name": "new", "tunnel_type": 2, **fields})
    tunnel.stream_tunnel_config.CopyFrom(schema.StreamTunnelConfig(**config))
    return "tunnel/create", {"tunnel": tunnel}


def split_points(**fields: Any) -> Request:
    return "ComputeSplitPointsBySize", {"table_name": "t", **fields}


# --- acts of several requests --------------------------------------------------------------------------------------


def generated(request: Request) -> Case:
    """A request to a table with a generated key column."""
    operation, fields = request

    def act(stage: Stage) -> object:
        stage.driver.create("generated", GENERATED_KEY)
        return stage.driver.call(operation, **{**fields, "table_name": "generated"})

    return Case(act)


def on_table(request: Request, *, before: Request | None = None, **options: Any) -> Case:
    """A request to a table with these options, after another one."""
    operation, fields = request

    def act(stage: Stage) -> object:
        stage.driver.create("special", options=options)
        if before is not None:
            stage.driver.call(before[0], **{**before[1], "table_name": "special"})
        return stage.driver.call(operation, **{**fields, "table_name": "special"})

    return Case(act)


def defined_value(stage: Stage) -> object:
    operation, fields = with_columns(("c", 1))
    stage.driver.call(operation, **fields)
    return stage.driver.put("a", put("c", True), table="new")


def large_row(stage: Stage) -> object:
    for number in range(5):
        stage.driver.update("a", put(f"a{number}", "v" * (2 * MEGABYTE - 50)), put(f"b{number}", "v" * (2 * MEGABYTE)))
    raise AssertionError("the row was not refused")


def large_batch_get(stage: Stage) -> object:
    for key in "ab":
        stage.driver.put(key, put("x", "v" * 100))
    operation, fields = batch_get(frame("a"), frame("b"), max_versions=1)
    return stage.driver.call(operation, **fields).tables[0].rows[1:]


def import_row(kind: int) -> Callable[[Stage], object]:
    rows = [schema.RowInBulkImportRequest(type=kind, row_change=frame("a"))]
    return lambda stage: stage.driver.call("BulkImport", table_name="t", rows=rows)


def second_transaction(stage: Stage) -> object:
    stage.transaction()
    return stage.transaction()


def ended_transaction(stage: Stage) -> object:
    transaction = stage.transaction()
    stage.driver.call("CommitTransaction", transaction_id=transaction)
    return stage.driver.call("AbortTransaction", transaction_id=transaction)


def in_transaction(*keys: str, size: int = 1) -> Callable[[Stage], object]:
    def act(stage: Stage) -> object:
        transaction = stage.transaction()
        return [stage.driver.put(key, put("x", "v" * size), transaction_id=transaction) for key in keys]

    return act


def on_rows(use: Callable[[Driver, Key, str], object]) -> Callable[[Stage], object]:
    """The use of a transaction on the row (a, 1): it takes the driver, the key (a, 2) and the transaction's id."""

    def act(stage: Stage) -> object:
        stage.driver.create("pairs", TWO_COLUMN_KEY)
        own, other = ((("pk", "a"), ("sk", number)) for number in (1, 2))
        fields = {"table_name": "pairs", "key": frame("a"), "row_keys": [frame(own)]}
        started = stage.driver.call("StartLocalTransaction", **fields)
        return use(stage.driver, other, str(started.transaction_id))

    return act


def transactions_of(*keys: str) -> Callable[[Stage], object]:
    return lambda stage: [stage.transaction(key) for key in keys]


def many_tables(stage: Stage) -> object:
    return [stage.driver.create(f"t{number}") for number in range(65)]


def without_transactions(stage: Stage) -> object:
    stage.driver.create("plain", enable_local_txn=False)
    return stage.transaction(table="plain")


def iterator(**fields: Any) -> Callable[[Stage], object]:
    def act(stage: Stage) -> object:
        named = {"stream_id": stage.stream_id, "shard_id": stage.shard_id, **fields}
        return stage.driver.call("GetShardIterator", **named)

    return act


def long_name(stage: Stage) -> object:
    stream_id = stage.driver.create_with_stream("n" * 239)
    (shard,) = stage.driver.describe_shards(stream_id)
    return stage.driver.page(stage.driver.iterator(stream_id, shard.shard_id))


def trimmed(stage: Stage) -> object:
    found = stage.driver.only_iterator()
    stage.driver.put("a")
    stage.service.trim("t")
    return stage.driver.page(found)


def describe_stream(**fields: Any) -> Callable[[Stage], object]:
    return lambda stage: stage.driver.call("DescribeStream", **{"stream_id": stage.stream_id, **fields})


def on_tunnel(operation: str, **fields: Any) -> Callable[[Stage], object]:
    return lambda stage: stage.driver.call(f"tunnel/{operation}", tunnel_id=stage.tunnel(), **fields)


def schedule(*statuses: int) -> Callable[[Stage], object]:
    def act(stage: Stage) -> object:
        tunnel_id = stage.tunnel()
        channel_id = stage.channel(tunnel_id)
        for status in statuses:
            channel = schema.Channel(channel_id=channel_id, version=1, status=status)
            stage.driver.call("tunnel/schedule", tunnel_id=tunnel_id, channels=[channel])
        raise AssertionError("nothing was refused")

    return act


def two_sessions(stage: Stage) -> object:
    tunnel_id = stage.tunnel()
    return [stage.driver.call("tunnel/connect", tunnel_id=tunnel_id) for _ in range(2)]


def lost_log(stage: Stage, *, then: str = "read") -> object:
    tunnel_id = stage.tunnel()
    token = stage.token(tunnel_id)
    channel = stage.channel(tunnel_id)
    stage.driver.put("a")
    stage.service.trim("t")
    return stage.read(tunnel_id, token, channel) if then == "read" else stage.token(tunnel_id)


def sequence(stage: Stage) -> object:
    tunnel_id = stage.tunnel()
    token = stage.token(tunnel_id)
    stage.store(tunnel_id, token, 5)
    return stage.store(tunnel_id, token, 4)


def odd_token(kind: int, change: Callable[[Token, Stage], Token]) -> Callable[[Stage], object]:
    """Reads a channel of a tunnel of this kind at its own token, changed."""

    def act(stage: Stage) -> object:
        stage.driver.put("a")
        tunnel_id = stage.tunnel(kind)
        return stage.read(tunnel_id, change(decode_token(stage.token(tunnel_id)), stage).encode())

    return act


def trimmed_checkpoint(stage: Stage) -> object:
    """The log before the checkpoint's place is forgotten, which the tunnel itself does not need any more."""
    tunnel_id = stage.tunnel()
    early = stage.token(tunnel_id)
    stage.driver.put("a")
    late = stage.read(tunnel_id, early).next_token
    stage.store(tunnel_id, late)
    stage.service.trim("t")
    return stage.store(tunnel_id, early, 2)


def other_range(stage: Stage) -> object:
    """A channel of full data is read at a key of the other one's range."""
    operation, fields = with_partitions("STRING", "m")
    stage.driver.call(operation, **fields)
    tunnel = schema.Tunnel(table_name="new", tunnel_name="n", tunnel_type=1)
    tunnel_id = stage.driver.call("tunnel/create", tunnel=tunnel).tunnel_id
    first, _ = stage.driver.call("tunnel/describe", table_name="new", tunnel_name="n").channels
    return stage.read(tunnel_id, Token(primary_key=frame("z")).encode(), first.channel_id)


def closed_shard(stage: Stage) -> object:
    parent = stage.shard_id
    stage.service.split("t", at=("m",))
    return stage.service.split("t", parent, at=("b",))


def apart(stage: Stage) -> object:
    low, _ = stage.service.split("t", at=("m",))
    stage.service.split("t", low, at=("c",))
    shards = [shard.shard_id for shard in stage.service.shards("t") if shard.is_open]
    return stage.service.merge("t", shards[0], shards[2])


def split_past_64_bits(stage: Stage) -> object:
    stage.driver.create_with_stream("numbers", key=(("n", "INTEGER"),))
    return stage.service.split("numbers", at=(2**63,))


def no_stream(stage: Stage) -> object:
    stage.driver.create("plain")
    return stage.service.shards("plain")


def other_place(token: Token, stage: Stage) -> Token:
    place = decode_iterator(token.iterator)
    return evolve(token, iterator=encode_iterator(evolve(place, position=place.position + 9)))
