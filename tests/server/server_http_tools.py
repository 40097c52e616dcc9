"""Signed requests over a plain HTTP connection, for tests that look below the SDKs or at what they lack."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from server_state_driver import INTEGER_KEY, over_http
from tablestore import OTSServiceError

from streamclient.wire import schema
from tests.patience import PATIENCE_SECONDS
from tests.service_under_test import Address, connection_to, signed_headers

Answer = tuple[int, dict[str, str], bytes]

WAYS: dict[str, dict[str, str]] = {"plain": {}, "aiohttp": {"TE": "trailers"}}
"""Headers that choose the half of the server that answers."""


def connect(local: Address) -> http.client.HTTPConnection:
    return connection_to(local.endpoint)


def port_of(local: Address) -> int:
    return int(local.endpoint.rpartition(":")[2])


def raw(local: Address) -> socket.socket:
    """A connection for any bytes."""
    return socket.create_connection(("127.0.0.1", port_of(local)), timeout=PATIENCE_SECONDS)


def raw_request(local: Address, operation: str, body: bytes = b"", **headers: str) -> bytes:
    """A signed request as it travels."""
    signed = signed_headers(local, operation, body)
    lines = {"Host": "localhost", **signed, "Content-Length": str(len(body)), **headers}
    text = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"POST /{operation} HTTP/1.1\r\n{text}\r\n".encode() + body


def send(local: Address, connection: http.client.HTTPConnection, operation: str, body: bytes = b"") -> Answer:
    connection.request("POST", f"/{operation}", body, signed_headers(local, operation, body))
    return receive(connection)


def receive(connection: http.client.HTTPConnection) -> Answer:
    response = connection.getresponse()
    return response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()


def answer_to_headers(local: Address, headers: dict[str, str], path: str = "/ListTable", body: bytes = b"") -> Answer:
    """The answer to a request with no other headers, over a connection of its own."""
    with closing(connect(local)) as connection:
        connection.request("POST", path, body, headers)
        return receive(connection)


def error_code(body: bytes) -> str:
    return str(schema.parse(schema.Error, body).code)


def sdk_refusal(act: Callable[..., object], *arguments: Any) -> tuple[int, str, str]:
    """Status, code and text of the error of the Python SDK in which a call must end."""
    with pytest.raises(OTSServiceError) as caught:
        act(*arguments)
    return caught.value.get_http_status(), caught.value.get_error_code(), caught.value.get_error_message()


def request(operation: str, **fields: Any) -> bytes:
    return bytes(schema.OPERATIONS[operation].request(**fields).SerializeToString())


def create_table(local: Address, name: str = "t") -> None:
    """A table with a stream."""
    stream = schema.StreamSpecification(enable_stream=True, expiration_time=24)
    over_http(local).create(name, INTEGER_KEY, stream_spec=stream)
