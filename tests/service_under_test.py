"""The Tablestore that suites run against: a local one of the test's own, or the one that the environment names.

The environment's instance must hold no table when the run begins: whatever is in it after a test is deleted.
"""

from __future__ import annotations

import http.client
import os
import threading
import time
from functools import cache
from typing import Any, Protocol
from urllib.parse import urlsplit

import pytest
from attrs import frozen
from tablestore import OTSClient

from streamclient.server.server_errors import ServiceError
from streamclient.wire import schema, signature
from tests.patience import PATIENCE_SECONDS

VARIABLES = {
    "endpoint": "STREAMCLIENT_TEST_ENDPOINT",
    "instance": "STREAMCLIENT_TEST_INSTANCE",
    "access_key_id": "STREAMCLIENT_TEST_ACCESS_KEY_ID",
    "access_key_secret": "STREAMCLIENT_TEST_ACCESS_KEY_SECRET",
}
"""All of them, or none."""

READY_SECONDS = 120.0
"""How long a new table may take: about a minute is usual."""

_NOT_READY = ("OTSTableNotReady", "OTSPartitionUnavailable")
_BETWEEN_TRIES_SECONDS = 1.0


class Address(Protocol):
    """Where a service is and how to sign for it."""

    @property
    def endpoint(self) -> str: ...

    @property
    def instance(self) -> str: ...

    @property
    def access_key_id(self) -> str: ...

    @property
    def access_key_secret(self) -> str: ...


@frozen
class RealService:
    """A service in place of a ``LocalTablestore``. A test that asks for more than the protocol is skipped."""

    endpoint: str
    instance: str
    access_key_id: str
    access_key_secret: str

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        pytest.skip(f"only the local server has {name!r}")

    def client(self, **options: Any) -> OTSClient:
        """A client of the official Python SDK."""
        return OTSClient(self.endpoint, self.access_key_id, self.access_key_secret, self.instance, **options)

    def clear(self) -> None:
        """Delete every table."""
        client = self.client()
        for table in client.list_table():
            client.delete_table(table)


class RealEngine:
    """A service behind HTTP in place of the local server's engine, for tests that speak in messages."""

    def __init__(self, service: Address) -> None:
        self._service = service

    def __getattr__(self, name: str) -> Any:
        pytest.skip(f"only the local server's engine has {name!r}")

    def close(self) -> None:
        pytest.skip("a real service is not closed")

    def execute(self, operation: str, body: bytes) -> bytes:
        """Like the engine's; waits for tables that are not ready yet."""
        until = time.monotonic() + READY_SECONDS
        while True:
            status, answer = self._send(operation, body)
            if status == http.HTTPStatus.OK:
                return answer
            error = schema.parse(schema.Error, answer)
            if error.code not in _NOT_READY or time.monotonic() > until:
                raise ServiceError(status, error.code, error.message)
            threading.Event().wait(_BETWEEN_TRIES_SECONDS)

    def _send(self, operation: str, body: bytes) -> tuple[int, bytes]:
        connection = connection_to(self._service.endpoint)
        try:
            connection.request("POST", f"/{operation}", body, signed_headers(self._service, operation, body))
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()


def signed_headers(service: Address, operation: str, body: bytes) -> dict[str, str]:
    """The headers of a request that is sent now."""
    headers = {
        "x-ots-date": time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime()),
        "x-ots-apiversion": "2015-12-31",
        "x-ots-accesskeyid": service.access_key_id,
        "x-ots-instancename": service.instance,
        "x-ots-contentmd5": signature.content_md5(body),
    }
    headers["x-ots-signature"] = signature.sign_request_v2(service.access_key_secret, f"/{operation}", headers)
    return headers


def signed_v4_headers(
    service: Address, operation: str, body: bytes, day: str, region: str = "cn-hangzhou"
) -> dict[str, str]:
    """As ``signed_headers``, by the key of a day and a region."""
    headers = signed_headers(service, operation, body)
    del headers[signature.SIGNATURE_V2_HEADER]
    headers |= {signature.SIGN_DATE_HEADER: day, signature.SIGN_REGION_HEADER: region}
    key = signature.derive_v4_key(service.access_key_secret, day, region)
    headers[signature.SIGNATURE_V4_HEADER] = signature.sign_request_v4(key, f"/{operation}", headers)
    return headers


def connection_to(endpoint: str) -> http.client.HTTPConnection:
    """An unopened connection to an endpoint, plain or encrypted."""
    address = urlsplit(endpoint)
    kind = http.client.HTTPSConnection if address.scheme == "https" else http.client.HTTPConnection
    return kind(address.netloc, timeout=PATIENCE_SECONDS)


@cache
def real_service() -> RealService | None:
    """The service that the environment names; ``None`` if it names none.

    Raises:
        RuntimeError: it is named by halves, or its instance is in use.
    """
    given = {name: os.environ.get(variable, "") for name, variable in VARIABLES.items()}
    if not any(given.values()):
        return None
    missing = [VARIABLES[name] for name, value in given.items() if not value]
    if missing:
        raise RuntimeError(f"to test a real service, also set {', '.join(missing)}")
    service = RealService(**given)
    tables = list(service.client().list_table())
    if tables:
        raise RuntimeError(
            f"the instance {service.instance!r} holds tables: {tables}. Tests delete what they find: name one without"
        )
    return service
