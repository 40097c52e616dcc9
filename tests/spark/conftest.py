"""One Spark session for all tests of this room."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from streamclient.spark import local_session


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    # Compiling code for each tiny job takes most of its time; the documentation's examples run with it.
    session = local_session("tests", **{"spark.sql.codegen.wholeStage": "false"})
    yield session
    session.stop()
