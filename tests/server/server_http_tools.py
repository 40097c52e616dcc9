"""Signed requests over a plain HTTP connection, for tests that look below the SDKs or at what they lack."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any, Protocol

from streamclient.wire import schema, signature
from tests.patience import PATIENCE_SECONDS

Answer = tuple[int, dict[str, str], bytes]

PAGES_MAX = 1000
"""Bound of the loops that read a whole stream."""


class Address(Protocol):
    """Where a server is and how to sign for it: a LocalTablestore, or what stands for one in another process."""

    @property
    def endpoint(self) -> str: ...

    @property
    def instance(self) -> str: ...

    @property
    def access_key_id(self) -> str: ...

    @property
    def access_key_secret(self) -> str: ...


def headers_for(local: Address, operation: str, body: bytes) -> dict[str, str]:
    headers = {
        "x-ots-date": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.000Z"),
        "x-ots-apiversion": "2015-12-31",
        "x-ots-accesskeyid": local.access_key_id,
        "x-ots-instancename": local.instance,
        "x-ots-contentmd5": signature.content_md5(body),
    }
    headers["x-ots-signature"] = signature.sign_request_v2(local.access_key_secret, f"/{operation}", headers)
    return headers


def connect(local: Address) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(local.endpoint.removeprefix("http://"), timeout=PATIENCE_SECONDS)


def send(local: Address, connection: http.client.HTTPConnection, operation: str, body: bytes = b"") -> Answer:
    connection.request("POST", f"/{operation}", body, headers_for(local, operation, body))
    return receive(connection)


def receive(connection: http.client.HTTPConnection) -> Answer:
    response = connection.getresponse()
    return response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()


def error_code(body: bytes) -> str:
    return str(schema.parse(schema.Error, body).code)


def create_table(local: Address, connection: http.client.HTTPConnection, name: str = "t") -> None:
    request = schema.CreateTableRequest()
    request.table_meta.table_name = name
    request.table_meta.primary_key.add(name="pk", type=schema.PrimaryKeyType.INTEGER)
    request.reserved_throughput.capacity_unit.read = request.reserved_throughput.capacity_unit.write = 0
    request.table_options.time_to_live, request.table_options.max_versions = -1, 1
    request.stream_spec.enable_stream, request.stream_spec.expiration_time = True, 24
    assert send(local, connection, "CreateTable", request.SerializeToString())[0] == 200


def ask(local: Address, operation: str, **fields: Any) -> Any:
    """The answer to one request, which must succeed, over a connection of its own."""
    messages = schema.OPERATIONS[operation]
    connection = connect(local)
    try:
        status, _, body = send(local, connection, operation, messages.request(**fields).SerializeToString())
    finally:
        connection.close()
    assert status == 200, body
    return schema.parse(messages.response, body)


def stream_elements(local: Address, table: str) -> Iterator[Any]:
    """The records of a table's only shard, oldest first, as messages."""
    (stream,) = ask(local, "ListStream", table_name=table).streams
    (shard,) = ask(local, "DescribeStream", stream_id=stream.stream_id).shards
    iterator = ask(local, "GetShardIterator", stream_id=stream.stream_id, shard_id=shard.shard_id).shard_iterator
    for _ in range(PAGES_MAX):
        page = ask(local, "GetStreamRecord", shard_iterator=iterator, limit=500)
        yield from page.stream_records
        if page.next_shard_iterator == iterator:
            return
        iterator = page.next_shard_iterator
    raise AssertionError("the stream did not end")
