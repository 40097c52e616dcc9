"""One Spark session for all tests of this room."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from streamclient.spark import local_session
from streamclient.spark.session import running_session


@pytest.fixture(scope="session")
def spark_ends() -> Iterator[None]:
    """Whatever session runs when all is over is stopped."""
    yield
    session = running_session()
    if session is not None:
        session.stop()


@pytest.fixture(scope="module")
def spark(spark_ends: None) -> Any:
    """The session that runs. Looked for by each file: what ran between two may have stopped the one before."""
    # Compiling code for each tiny job takes most of its time; the documentation's examples run with it.
    return local_session("tests", **{"spark.sql.codegen.wholeStage": "false"})
