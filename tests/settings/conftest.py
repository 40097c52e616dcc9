"""The folder in which tests of settings of a run have their files and objects."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

THINGS = """
from tablestore import OTSClient
from streamclient import MemoryLeaseManager, MemoryParkingStore
from streamclient.metrics import MemoryMetrics
from concurrent.futures import Executor

client = OTSClient("http://127.0.0.1:1", "id", "secret", "instance")
lease_manager, store, metrics = MemoryLeaseManager(), MemoryParkingStore(), MemoryMetrics()
executor = Executor()

class Strategy:
    def should_retry(self, *arguments): return False
    def backoff_millis(self, *arguments): return 0

strategy = Strategy()

def process(batch):
    pass

class Needy:
    def __init__(self, table):
        pass
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with the objects that settings name, and an environment that gives no setting."""
    (tmp_path / "things.py").write_text(THINGS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [name for name in os.environ if name.startswith(("STREAMCLIENT_", "TABLESTORE_"))]:
        monkeypatch.delenv(name)
