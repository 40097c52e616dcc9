"""Options of ``changes``: defaults, and wrong ones, which are refused before anything happens."""

from __future__ import annotations

import re
from typing import Any

import pytest
from attrs import evolve
from tablestore import OTSClient

import streamclient
from streamclient import ClientConfig, ConfigurationError, StreamClientException, aio
from streamclient.base.pools import DaemonPool
from streamclient.tunnel import TunnelWorkerConfig

THREADS = DaemonPool("given", 1)
GOOD: dict[str, Any] = {"table": "orders", "group": "billing"}


def client() -> OTSClient:
    """One that nothing is asked of."""
    return OTSClient("http://127.0.0.1:1", "id", "secret", "local", logger_name="tests.silent")


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"table": None}, "table must be the name of a table, or a sequence of different names, not None"),
        ({"table": ""}, "table must be the name of a table"),
        ({"table": []}, "table must be the name of a table"),
        ({"table": ["orders", "orders"]}, "a sequence of different names"),
        ({"table": ["orders", 1]}, "a sequence of different names"),
        ({"group": None}, "group must be a non-empty string, not None"),
        ({"group": "a-b"}, "group='a-b' makes the status table 'orders_a-b'"),
        ({"table": ["orders", "customers"]}, "status_table must be given for several tables (orders, customers)"),
        ({"status_table": ""}, "status_table must be a non-empty string"),
        ({"status_table": "orders"}, "is the data table itself"),
        ({"commit": "always"}, 'commit must be "turn" or "explicit", not \'always\''),
        ({"client": "orders"}, "client must be a tablestore.OTSClient"),
        ({"worker": ""}, "worker must be a non-empty string"),
        ({"initial_position": "newest"}, "initial_position must be InitialPosition.oldest()"),
        ({"max_records": 0}, "max_records must be a whole number above 0"),
        ({"config": {}}, "config must be a ClientConfig"),
        ({"tabel": "orders"}, "changes has no setting tabel; did you mean table?"),
        ({"tunnel": ""}, "tunnel must be a non-empty string"),
        ({"config": TunnelWorkerConfig()}, "config must be a ClientConfig: a TunnelWorkerConfig goes with tunnel=..."),
        (
            {"tunnel": "copy", "group": None, "config": TunnelWorkerConfig(process_records_executor=THREADS)},
            "process_records_executor must be left out of config",
        ),
        ({"tunnel": "copy"}, "group does not go with tunnel='copy'"),
        ({"tunnel": "copy", "group": None, "max_records": 5}, "max_records does not go with tunnel='copy'"),
        ({"tunnel": "copy", "group": None, "table": ["orders"]}, "table must be the name of the tunnel's table"),
    ],
)
@pytest.mark.parametrize("make", [streamclient.changes, aio.changes])
def test_a_wrong_option_is_refused_by_name(make: Any, given: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(text)):
        make(**{"client": client(), **GOOD, **given})


def test_an_empty_variable_of_the_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TABLESTORE_ENDPOINT", "")

    with pytest.raises(ConfigurationError, match="TABLESTORE_ENDPOINT"):
        streamclient.changes("orders", group="billing")


def test_the_defaults_of_a_worker() -> None:
    changes = streamclient.changes("orders", group="billing", client=client())
    worker = changes.worker
    (stream,) = worker._streams.values()

    assert (stream.config.data_table_name, stream.config.status_table_name) == ("orders", "orders_billing")
    assert (stream.config.max_records, worker._client_config.read_threads) == (1_000, 8)
    assert (
        worker.worker_identifier != streamclient.changes("orders", group="b", client=client()).worker.worker_identifier
    )
    assert worker is changes.worker


def test_given_settings_are_taken_as_they_are() -> None:
    config = ClientConfig()
    given = {"status_table": "leases", "worker": "w1", "max_records": 7, "initial_position": "latest", "config": config}
    worker = streamclient.changes(["orders", "customers"], group="b", client=client(), **given).worker

    assert worker.worker_identifier == "w1"
    assert worker._client_config is config
    assert [each.config.status_table_name for each in worker._streams.values()] == ["leases", "leases"]
    assert {each.config.max_records for each in worker._streams.values()} == {7}


def test_a_tunnel_takes_the_settings_of_its_worker() -> None:
    config = TunnelWorkerConfig(heartbeat_interval_seconds=5, client_tag="host-7")
    made = [
        streamclient.changes(tunnel="copy", client=client(), config=config),
        aio.changes(tunnel="copy", client=client(), config=config, worker="w1"),
    ]

    taken: list[Any] = [each._consumption._make_worker for each in made]
    assert [make.args[0] for make in taken] == [config, evolve(config, client_tag="w1")]
    assert [each._consumption.config for each in made] == [config.client_config] * 2


def test_wrong_handlers_are_refused_before_the_worker_begins() -> None:
    for method, given, text in (
        ("run", {"handler": print, "concurrency": 0}, "concurrency must be a whole number above 0"),
        ("run", {"handler": 5}, "handler must be"),
        ("each", {"handler": print, "concurrency": True}, "concurrency must be a whole number above 0"),
        ("each", {"handler": 5}, "process_record must be"),
    ):
        changes = streamclient.changes("orders", group="billing", client=client())
        with pytest.raises(ConfigurationError, match=text):
            getattr(changes, method)(**given)
        assert not changes._consumption.is_begun


def test_each_stores_positions_by_itself() -> None:
    changes = streamclient.changes("orders", group="billing", client=client(), commit="explicit")

    with pytest.raises(ConfigurationError, match="does not go with each"):
        changes.each(print)


def test_changes_of_tables_have_no_tunnel_worker() -> None:
    changes = streamclient.changes("orders", group="billing", client=client())

    with pytest.raises(StreamClientException, match="have a worker"):
        changes.tunnel_worker  # noqa: B018
