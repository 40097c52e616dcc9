"""A local Tablestore with its console, and requests to it as bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from console_tools import Scene

from streamclient.console.doors import DoorRule
from streamclient.server import LocalTablestore


@pytest.fixture
def opened() -> Iterator[Callable[..., Scene]]:
    """Start a Tablestore with a console; ``without`` is a rule that is off, ``secret`` another one than the public."""
    with ExitStack() as stack:

        def start(without: DoorRule | None = None, secret: str | None = None, **doors: Any) -> Scene:
            options = {} if secret is None else {"access_key_secret": secret}
            local = stack.enter_context(LocalTablestore(tables={"orders": {"id": str}}, **options))
            return stack.enter_context(Scene(local, frozenset(DoorRule) - {without}, **doors))

        yield start


@pytest.fixture
def scene(opened: Callable[..., Scene]) -> Scene:
    return opened()
