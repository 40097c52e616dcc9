"""The official Python SDK in each way of using it, against one server per module."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest

from streamclient.server import LocalTablestore
from tests.stage import started_server

_numbers = count(1)


class AsyncFacade:
    """Lets the tests call the asynchronous client like the synchronous one."""

    def __init__(self, loop: asyncio.AbstractEventLoop, client: Any) -> None:
        self._loop = loop
        self._client = client

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._client, name)
        return lambda *args, **options: self._loop.run_until_complete(method(*args, **options))


@pytest.fixture(scope="module")
def server() -> Iterator[LocalTablestore]:
    with started_server() as running:
        yield running


def _async_client(server: LocalTablestore) -> Iterator[AsyncFacade]:
    from tablestore import AsyncOTSClient

    loop = asyncio.new_event_loop()
    inner = AsyncOTSClient(
        server.endpoint,
        server.access_key_id,
        server.access_key_secret,
        server.instance,
        logger_name="streamclient.server.client",
    )
    try:
        yield AsyncFacade(loop, inner)
    finally:
        loop.run_until_complete(inner.close())
        loop.close()


@pytest.fixture(scope="module", params=["v2", "v4", "sts", "async"])
def client(request: pytest.FixtureRequest, server: LocalTablestore) -> Iterator[Any]:
    """A client signing with V2, with V4, carrying a security token, and the asynchronous one."""
    options: dict[str, dict[str, Any]] = {
        "v2": {},
        "v4": {"region": "cn-hangzhou"},
        "sts": {"sts_token": "token", "extra_headers": {"x-ots-request-tag": "tests"}},
    }
    yield from _async_client(server) if request.param == "async" else [server.client(**options[request.param])]


@pytest.fixture
def name() -> str:
    """A table name that no other test has."""
    return f"table_{next(_numbers)}"


@pytest.fixture
def table(client: Any, name: str) -> Iterator[str]:
    """A table with key (pk STRING, n INTEGER) that keeps three versions."""
    create(client, name, [("pk", "STRING"), ("n", "INTEGER")], max_version=3)
    yield name
    client.delete_table(name)


def create(client: Any, name: str, key: list[Any], **options: Any) -> None:
    from tablestore import CapacityUnit, ReservedThroughput, TableMeta, TableOptions

    client.create_table(TableMeta(name, key), TableOptions(**options), ReservedThroughput(CapacityUnit(0, 0)))


@pytest.fixture
def new_table(client: Any) -> Iterator[Callable[..., str]]:
    """Create further tables; they are deleted afterwards."""
    made: list[str] = []

    def make(key: list[Any], **options: Any) -> str:
        table = f"table_{next(_numbers)}"
        create(client, table, key, **options)
        made.append(table)
        return table

    yield make
    for each in made:
        client.delete_table(each)
