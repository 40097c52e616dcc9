"""A real PostgreSQL for the tests of its destination, started by the first one that asks for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from postgres_server import Open, PostgresServer

from streamclient.destinations.postgres.postgres_destination import PostgresDestination


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer() as running:
        yield running


@pytest.fixture
def table(request: pytest.FixtureRequest) -> str:
    return f"t{abs(hash(request.node.name)) % 10**12}"


@pytest.fixture
def opened(server: PostgresServer, table: str) -> Iterator[Open]:
    """Opens handles over one table, whose connections are set as given, and closes them."""
    with ExitStack() as stack:

        def open_handle(
            kind: type[PostgresDestination] = PostgresDestination,
            conninfo: str = "",
            settings: str = "",
            **options: float,
        ) -> PostgresDestination:
            made = kind(f"{server.conninfo} options='{settings}' {conninfo}", table, **options)  # type: ignore[arg-type]
            stack.callback(made.close)
            return made

        yield open_handle
