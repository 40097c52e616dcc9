"""What every test may use."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from streamclient.server import LocalTablestore
    from tests.installed import Installed

# How long an example takes says something of the machine, not of the code.
settings.register_profile("streamclient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("streamclient")

# A shell starts what runs in its background with Ctrl-C ignored, and so would be whatever the tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def local() -> Iterator[LocalTablestore]:
    """A running local Tablestore of the test's own, in memory; or the service that the environment names, emptied."""
    from streamclient.server import LocalTablestore
    from tests.service_under_test import real_service

    service = real_service()
    if service is not None:
        yield cast("LocalTablestore", service)
        service.clear()
        return
    with LocalTablestore() as running:
        yield running


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """An environment with the wheel of this checkout."""
    from tests.installed import install

    return install(tmp_path_factory.mktemp("wheel"))
