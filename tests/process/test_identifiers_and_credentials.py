"""Names that can never work, credentials that come late, and samples out of an archive."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tablestore
from tablestore import OTSClient
from tablestore.credentials import CredentialsProvider, StaticCredentialsProvider

import streamclient
from streamclient import ClientConfig, LeaseManager, MemoryLeaseManager, StreamConfig, Worker
from streamclient.copying import Mirror
from streamclient.destinations import DeltaDestination
from streamclient.errors import ConfigurationError
from streamclient.server import LocalTablestore
from streamclient.tablestore import StreamSpecification, TablestoreStreamApi
from streamclient.tunnel import TunnelClient, TunnelType, TunnelWorker, TunnelWorkerConfig
from streamclient.worker.parking import TableParkingStore
from tests.patience import PATIENCE_SECONDS
from tests.process.test_refused_threads import Careful, Seen

CLIENT = OTSClient("http://127.0.0.1:1", "id", "secret", "instance")
STREAM: dict[str, Any] = {"client": CLIENT, "data_table_name": "orders", "status_table_name": "status"}

NAMES: dict[str, Callable[[str], object]] = {
    "worker_identifier": lambda name: Worker(name, ClientConfig(), StreamConfig(**STREAM), list),  # type: ignore[arg-type]
    "data_table_name": lambda name: StreamConfig(**{**STREAM, "data_table_name": name}),
    "status_table_name": lambda name: StreamConfig(**{**STREAM, "status_table_name": name}),
    "name": lambda name: StreamConfig(**STREAM, name=name),
    "status_table_name of leases": lambda name: LeaseManager(CLIENT, name, "stream"),
    "stream_id": lambda name: LeaseManager(CLIENT, "status", name),
    "stream_id in memory": MemoryLeaseManager,
    "table_name of parking": lambda name: TableParkingStore(CLIENT, name),
    "tunnel_id": lambda name: TunnelWorker(name, TunnelClient(CLIENT), print),
    "table_name of a tunnel": lambda name: TunnelClient(CLIENT).create_tunnel(name, "t", TunnelType.STREAM),
    "tunnel_name": lambda name: TunnelClient(CLIENT).create_tunnel("orders", name, TunnelType.STREAM),
    "client_tag": lambda name: TunnelWorkerConfig(client_tag=name),
    "application": lambda name: DeltaDestination("/nowhere", application=name),
    "table of a mirror": lambda name: Mirror(CLIENT, name, "status", "/nowhere"),
    "worker_name": lambda name: Mirror(CLIENT, "orders", "status", "/nowhere", worker_name=name),
}


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("x" * 1_025, "it has 1,025 bytes in UTF-8, and the service takes at most 1,024"),
        ("ä" * 513, "it has 1,026 bytes in UTF-8, and the service takes at most 1,024"),
        ("order\udc80", "its character 5 is half of a surrogate pair, which UTF-8 cannot encode"),
    ],
)
@pytest.mark.parametrize("taker", list(NAMES))
def test_a_name_that_can_never_work_is_refused_when_it_is_given(taker: str, name: str, why: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        NAMES[taker](name)

    said = str(raised.value)
    assert said.startswith(f"{taker.partition(' ')[0]} must be a non-empty string")
    assert said.endswith(why)
    said.encode()


def test_the_longest_name_is_taken() -> None:
    StreamConfig(**{**STREAM, "name": "x" * 1_024})


class Late(CredentialsProvider):  # type: ignore[misc]  # the SDK has no types
    """Raises until it may give."""

    def __init__(self, local: LocalTablestore, failures: int) -> None:
        self.inner = StaticCredentialsProvider(local.access_key_id, local.access_key_secret)
        self.failures = failures

    def get_credentials(self) -> Any:
        self.failures -= 1
        if self.failures >= 0:
            raise RuntimeError("the metadata server does not answer")
        return self.inner.get_credentials()


@pytest.mark.parametrize("failures", [1, 3, 14])
def test_credentials_that_come_late_are_waited_for_from_the_start_on(failures: int, caplog: Any) -> None:
    """Named meanwhile; more failures than one read repeats by itself are those of an outage."""
    with LocalTablestore() as local:
        own = local.client()
        TablestoreStreamApi(own).create_table(
            tablestore.TableMeta("orders", [("id", "INTEGER")]),
            tablestore.TableOptions(),
            tablestore.ReservedThroughput(tablestore.CapacityUnit(0, 0)),
            stream=StreamSpecification(enable_stream=True, expiration_time_hours=24),
        )
        for key in range(200):
            own.put_row("orders", tablestore.Row([("id", key)], [("v", key)]))
        provider = Late(local, failures)
        client = OTSClient(local.endpoint, "", "", local.instance, credentials_provider=provider)
        seen = Seen()
        seen.go_on.set()
        config = StreamConfig(client=client, data_table_name="orders", status_table_name="status")
        quick = ClientConfig(taker_interval_millis=200, sync_shard_interval_millis=200)
        with Worker("w", quick, config, lambda: Careful(seen)) as worker:
            assert worker.wait(PATIENCE_SECONDS, until=lambda: len(seen.keys) == 200)
            assert worker.exception is None

    assert provider.failures < 0
    if failures > 11:  # as often as a read repeats by itself
        assert "gave no credentials: RuntimeError: the metadata server does not answer" in caplog.text


def test_samples_come_out_of_an_archive(tmp_path: Path) -> None:
    package = Path(streamclient.__file__).parent
    archive = tmp_path / "package.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        for path in [*package.rglob("*.py"), *(package / "samples").glob("**/*.py")]:
            packed.write(path, Path("streamclient") / path.relative_to(package))
    target = tmp_path / "mine"
    environment = {**os.environ, "PYTHONPATH": str(archive)}
    code = (
        "import sys, streamclient; assert '.zip' in streamclient.__file__; "
        "from streamclient.cli.main import main; sys.exit(main())"
    )
    command = [sys.executable, "-c", code, "sample", "print_changes", "--directory", str(target)]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert (target / "print_changes.py").read_text() == (package / "samples" / "print_changes.py").read_text()
