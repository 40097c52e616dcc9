"""Settings of ``streamclient run``: from a file, the environment and options; a mistake is named where it was made."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import attrs
import pytest

from streamclient import (
    Backoff,
    CallLimits,
    ClientConfig,
    ConfigurationError,
    FailurePolicy,
    FileParkingStore,
    OnFailure,
    Prefetch,
    StreamConfig,
    TableParkingStore,
    Worker,
)
from streamclient.cli.main import make_parser
from streamclient.cli.run_layers import OPTIONS
from streamclient.cli.run_sections import SECTIONS, SETTINGS
from streamclient.cli.run_settings import RunSettings
from tests.operate.operate_scene import run_cli

CLASSES: Mapping[str, type] = {
    "stream": StreamConfig,
    "client": ClientConfig,
    "client.prefetch": Prefetch,
    "client.backoff": Backoff,
    "client.limits": CallLimits,
    "failure": FailurePolicy,
}
GROUPS = {"prefetch", "backoff", "limits", "failure_policy"}
"""Fields of ``ClientConfig`` that are sections."""

FIELDS = [
    (section, field.name)
    for section, kind in CLASSES.items()
    for field in attrs.fields(kind)
    if not (section == "client" and field.name in GROUPS)
]

PLAIN: Mapping[str, dict[str, Any]] = {
    "run": {"factory": "things:process", "worker": "w"},
    "stream": {"data_table_name": "orders", "status_table_name": "orders_status"},
}
"""The file to which each test adds."""

OBJECTS = {
    ("stream", "client"): "client",
    ("stream", "record_processor_factory"): "process",
    ("stream", "lease_manager"): "lease_manager",
    ("client", "metrics"): "metrics",
    ("client", "task_retry_strategy"): "strategy",
    ("client", "lease_manager_retry_strategy"): "strategy",
    ("failure", "parking"): "store",
}
OTHERS = {
    ("stream", "initial_position"): "latest",
    ("stream", "data_table_name"): "visits",
    ("stream", "status_table_name"): "visits_status",
    ("stream", "name"): "mine",
    ("client", "balance_by"): "records",
    ("client", "trimmed_data_policy"): "restart_at_oldest",
    ("client", "max_reads_per_second"): 7,
    ("failure", "then"): "stop_shard",
    ("failure", "most_parked_share"): 0.5,
}
"""Values for the settings whose default says nothing of them."""


pytestmark = pytest.mark.usefixtures("here")


def write(sections: Mapping[str, Mapping[str, Any]], name: str = "run.toml") -> str:
    """A file with these sections."""
    lines = []
    for section, contents in sections.items():
        lines += [f"[{section}]", *(f"{key} = {json.dumps(value)}" for key, value in contents.items())]
    Path(name).write_text("\n".join(lines) + "\n")
    return name


def parsed(*words: str) -> argparse.Namespace:
    return make_parser(["run"]).parse_args(["run", *words])


def settings_of(
    sections: Mapping[str, Mapping[str, Any]], *words: str, environment: Mapping[str, str] | None = None
) -> RunSettings:
    return RunSettings.read(parsed("--config", write(sections), *words), environment or {})


def merged(*parts: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    names = {name: None for part in parts for name in part}
    return {name: {key: value for part in parts for key, value in part.get(name, {}).items()} for name in names}


def given_value(key: tuple[str, str]) -> Any:
    """A value that is not the default."""
    if key in OBJECTS:
        return f"things:{OBJECTS[key]}"
    if key in OTHERS:
        return OTHERS[key]
    default = getattr(attrs.fields(CLASSES[key[0]]), key[1]).default
    return not default if isinstance(default, bool) else default + 1


def beside(key: tuple[str, str]) -> dict[str, dict[str, Any]]:
    """The other settings of the file."""
    if key == ("failure", "parking"):
        return merged(PLAIN, {"failure": {"then": "park"}})
    if key == ("stream", "record_processor_factory"):
        return merged({"run": {"worker": "w"}}, {"stream": PLAIN["stream"]})
    return merged(PLAIN)


def got(worker: Worker, key: tuple[str, str]) -> Any:
    """What the worker got for a setting."""
    (stream,) = worker._streams.values()
    config = worker._client_config
    owners = {"stream": stream.config, "client": config, "failure": config.failure_policy}
    section, _, group = key[0].partition(".")
    owner = getattr(owners[section], group) if group else owners[section]
    return getattr(owner, key[1])


def is_as_given(key: tuple[str, str], value: Any) -> bool:
    given = given_value(key)
    if key in OBJECTS:
        import things  # type: ignore[import-not-found]

        return bool(type(value).__name__ == type(getattr(things, OBJECTS[key])).__name__)
    if key == ("stream", "initial_position"):
        return bool(value.kind == given)
    return bool((str(value.value).lower() if isinstance(value, Enum) else value) == given)


def as_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


# --- every field reaches the worker ----------------------------------------------------------------------------------


def test_every_field_of_the_classes_is_a_setting() -> None:
    assert [key for key in SETTINGS if key[0] in CLASSES] == FIELDS
    assert {section.name for section in SECTIONS} - {*CLASSES} == {"run", "connection", "parking", "serve", "log"}


def ways(key: tuple[str, str]) -> Iterator[tuple[dict[str, dict[str, Any]], list[str], dict[str, str]]]:
    """A file, options and an environment for each way of giving a setting."""
    section, name = key
    value, others = given_value(key), beside(key)
    yield merged(others, {section: {name: value}}), [], {}
    yield others, [], {f"STREAMCLIENT_{section.replace('.', '_')}_{name}".upper(): as_text(value)}
    yield others, ["--set", f"{section}.{name}={as_text(value)}"], {}


@pytest.mark.parametrize("key", FIELDS, ids=".".join)
def test_each_field_by_file_environment_and_option_reaches_the_worker(key: tuple[str, str]) -> None:
    for sections, words, environment in ways(key):
        worker = settings_of(sections, *words, environment=environment).make_worker(None)
        assert is_as_given(key, got(worker, key)), (words, environment)
        assert worker.worker_identifier == "w"


RENEWER = ["--set", "client.renewer_interval_millis=500"]
"""``--lease-duration`` only derives this interval, so the value wins."""

OWN_OPTIONS: list[tuple[list[str], tuple[str, str], Any]] = [
    (["--data-table", "visits"], ("stream", "data_table_name"), "visits"),
    (["--status-table", "s"], ("stream", "status_table_name"), "s"),
    (["--group", "billing"], ("stream", "status_table_name"), "orders_billing"),
    (["--max-records", "7"], ("stream", "max_records"), 7),
    (["--lease-duration", "5"], ("client", "lease_duration_millis"), 5_000),
    (["--lease-duration", "5"], ("client", "renewer_interval_millis"), 1_515),
    ([*RENEWER, "--lease-duration", "5"], ("client", "renewer_interval_millis"), 500),
    ([*RENEWER, "--lease-duration", "5"], ("client", "taker_interval_millis"), 1_515),
    (
        ["--set", "client.lease_duration_millis=9000", "--lease-duration", "5"],
        ("client", "lease_duration_millis"),
        5_000,
    ),
    (["--on-failure", "stop"], ("failure", "then"), OnFailure.STOP_SHARD),
    (["--on-failure", "stop"], ("failure", "retries"), 3),
    (["--retries", "2"], ("failure", "retries"), 2),
    (["--retries", "2"], ("failure", "then"), OnFailure.RESTART),
]


@pytest.mark.parametrize(("words", "key", "expected"), OWN_OPTIONS, ids=[" ".join(each[0]) for each in OWN_OPTIONS])
def test_options_of_their_own_reach_the_worker(words: list[str], key: tuple[str, str], expected: Any) -> None:
    assert got(settings_of(PLAIN, *words).make_worker(None), key) == expected


def test_every_option_that_gives_a_setting_exists() -> None:
    options = {option for action in parsed_actions() for option in action.option_strings or [action.dest]}

    assert {*OPTIONS.values()} <= options


def parsed_actions() -> list[argparse.Action]:
    groups = [each for each in make_parser(["run"])._actions if isinstance(each, argparse._SubParsersAction)]
    return list(groups[0].choices["run"]._actions)


def test_an_option_wins_over_the_environment_and_that_over_the_file_and_that_over_the_default() -> None:
    variable = "STREAMCLIENT_STREAM_MAX_RECORDS"
    file = merged(PLAIN, {"stream": {"max_records": 5}})
    found = [
        settings_of(file, "--max-records", "7", environment={variable: "6"}),
        settings_of(file, environment={variable: "6"}),
        settings_of(file),
        settings_of(PLAIN),
    ]

    assert [got(each.make_worker(None), ("stream", "max_records")) for each in found] == [7, 6, 5, 1_000]


def test_the_variables_of_every_command_count_here_too() -> None:
    environment = {"TABLESTORE_ENDPOINT": "http://127.0.0.1:4711", "TABLESTORE_DATA_TABLE": "t"}
    settings = settings_of(merged(PLAIN, {"connection": {"endpoint": "http://127.0.0.1:1"}}), environment=environment)
    worker = settings.make_worker(None)

    assert got(worker, ("stream", "data_table_name")) == "t"
    assert got(worker, ("stream", "client")).host == "http://127.0.0.1:4711"


def test_without_a_file_the_arguments_are_enough() -> None:
    words = ["things:process", "--data-table", "t", "--group", "g", "--worker", "w"]
    worker = RunSettings.read(parsed(*words), {}).make_worker(None)

    assert got(worker, ("stream", "status_table_name")) == "t_g"
    assert worker._client_config == ClientConfig()


@pytest.mark.parametrize(
    ("sections", "words", "kind"),
    [
        ({"failure": {"then": "park"}, "parking": {"directory": "parked"}}, [], FileParkingStore),
        ({"failure": {"then": "park"}, "parking": {"table": "parked"}}, [], TableParkingStore),
        ({"failure": {"then": "park"}, "parking": {"directory": "d"}}, ["--parking-table", "t"], TableParkingStore),
        ({}, ["--on-failure", "park", "--parking-directory", "d"], FileParkingStore),
        ({"failure": {"then": "park"}, "parking": {"table": "t"}}, ["--on-failure", "stop"], type(None)),
    ],
)
def test_the_store_of_parked_records_is_that_of_the_place_that_wins(
    sections: Mapping[str, Mapping[str, Any]], words: list[str], kind: type
) -> None:
    worker = settings_of(merged(PLAIN, sections), *words).make_worker(None)

    assert isinstance(got(worker, ("failure", "parking")), kind)


def test_the_executor_runs_user_code() -> None:
    import things

    worker = settings_of(merged(PLAIN, {"run": {"executor": "things:executor"}})).make_worker(None)

    assert type(worker._executor).__name__ == type(things.executor).__name__


def test_a_time_in_toml_is_a_beginning() -> None:
    Path("run.toml").write_text(
        '[run]\nfactory = "things:process"\n[stream]\ndata_table_name = "a"\nstatus_table_name = "b"\n'
        "initial_position = 2026-01-31T12:00:00Z\n"
    )
    worker = RunSettings.read(parsed("--config", "run.toml"), {}).make_worker(None)

    assert got(worker, ("stream", "initial_position")).timestamp_micros == 1_769_860_800_000_000


def test_the_secret_comes_from_a_variable_that_the_file_names_or_from_a_file() -> None:
    Path("secret").write_text("of a file\n")
    named = merged(PLAIN, {"connection": {"access_key_secret": "${MINE}"}})
    filed = merged(PLAIN, {"connection": {"access_key_secret_file": "secret"}})

    assert settings_of(named, environment={"MINE": "of a variable"}).connection().access_key_secret == "of a variable"
    assert settings_of(filed).connection().access_key_secret == "of a file"
    above = settings_of(filed, environment={"TABLESTORE_ACCESS_KEY_SECRET": "above"})
    assert above.connection().access_key_secret == "above"


# --- mistakes --------------------------------------------------------------------------------------------------------

WRONG: dict[str, tuple[Any, list[str]]] = {
    "unknown section": ({"clients": {}}, ["run.toml: section clients does not exist; did you mean client?"]),
    "section of later": ({"destination": {"kind": "delta"}}, ["run.toml: section destination does not exist: dest"]),
    "misspelt key": (
        {"client": {"lease_duration_milis": 5}},
        ["run.toml: client has no key lease_duration_milis; did you mean lease_duration_millis?"],
    ),
    "key of Java": (
        {"stream": {"maxRecords": 5}},
        ["run.toml: stream has no key maxRecords; did you mean max_records?"],
    ),
    "key of another section": (
        {"client": {"max_records": 5, "maxRecords": 5, "prefetch_bytes": 5, "port": 5}},
        [
            "run.toml: client has no key max_records: it is a key of [stream]",
            "run.toml: client has no key maxRecords: it is a key of [stream]",
            "run.toml: client has no key prefetch_bytes: it is a key of [client.prefetch]",
            "run.toml: client has no key port: it is a key of [serve]",
        ],
    ),
    "misspelt key of a group": (
        {"client.prefetch": {"prefetch_byte": 5}},
        ["run.toml: client.prefetch has no key prefetch_byte; did you mean prefetch_bytes?"],
    ),
    "misspelt group": ({"client.prefetches": {}}, ["run.toml: client has no key prefetches; it has "]),
    "a group as a value": ({"client": {"prefetch": 5}}, ["run.toml: client.prefetch must be a section, not 5"]),
    "a policy in client": (
        {"client": {"failure_policy": "stop"}},
        ["run.toml: client has no key failure_policy: it is the section [failure]"],
    ),
    "a value as a section": ("client = 5\n", ["run.toml: client must be a section, not 5"]),
    "text for a number": (
        {"client": {"lease_duration_millis": "5 s"}},
        ["run.toml: client.lease_duration_millis must be a whole number above 0, not '5 s'"],
    ),
    "truth for a number": (
        {"stream": {"max_records": True}},
        ["run.toml: stream.max_records must be a whole number above 0, not True"],
    ),
    "number for truth": (
        {"client": {"auto_steal_lease": 1}},
        ["run.toml: client.auto_steal_lease must be True or False, not 1"],
    ),
    "number for text": (
        {"stream": {"data_table_name": 5}},
        ["run.toml: stream.data_table_name must be a non-empty string, not 5"],
    ),
    "out of range": (
        {"failure": {"most_parked_share": 1.5}},
        ["run.toml: failure.most_parked_share must be a number above 0 and up to 1, not 1.5"],
    ),
    "port out of range": (
        {"serve": {"port": 70_000}},
        ["run.toml: serve.port must be a port number from 0 to 65535, not 70000"],
    ),
    "no such choice": (
        {"client": {"balance_by": "record"}},
        ["run.toml: client.balance_by must be 'count' or ", "not 'record': did you mean records?"],
    ),
    "no such level": (
        {"log": {"level": "warn"}},
        ["run.toml: log.level must be 'debug' or ", "not 'warn': did you mean warning?"],
    ),
    "no such place to begin": (
        {"stream": {"initial_position": "yesterday"}},
        ["run.toml: stream.initial_position must be oldest, latest, a time or 2h-ago, not 'yesterday': "],
    ),
    "settings that do not go together": (
        {"client": {"lease_duration_millis": 5_000}},
        ["run.toml: client.renewer_interval_millis=6000 must be below lease_duration_millis=5000"],
    ),
    "two stores": (
        {"failure": {"then": "park"}, "parking": {"table": "t", "directory": "d"}},
        ["run.toml: parking.table and run.toml: parking.directory exclude each other"],
    ),
    "group and status table": (
        {"run": {"group": "billing"}},
        ["run.toml: run.group and run.toml: stream.status_table_name exclude each other"],
    ),
    "two factories": (
        {"stream": {"record_processor_factory": "things:process"}},
        ["run.toml: run.factory and run.toml: stream.record_processor_factory exclude each other"],
    ),
    "park without a store": ({"failure": {"then": "park"}}, ["run.toml: failure.then: PARK needs a store"]),
    "store without park": ({"parking": {"table": "t"}}, ["run.toml: parking.table is only used if a failed record"]),
    "leases in the table": (
        {"stream": {"status_table_name": "orders"}},
        ["run.toml: stream.status_table_name='orders' is the data table itself"],
    ),
    "no table": ("[run]\nfactory = 'things:process'\n", ["name the table whose stream is consumed: --data-table"]),
    "no factory": ("[stream]\ndata_table_name = 'a'\n", ["name the factory of the processors: PACKAGE:FACTORY"]),
    "no TOML": ("[run\n", ["streamclient run: run.toml is not TOML: "]),
    "ports beyond the last": (
        {"run": {"processes": 3}, "serve": {"port": 65_534}},
        ["run.toml: serve.port: 3 processes serve at the ports 65534 to 65536, but the highest port is 65535"],
    ),
    "no UTF-8": (b"[run]\nworker = '\xff'\n", ["cannot read the configuration run.toml: 'utf-8' codec"]),
    "a variable that is not there": (
        {"run": {"worker": "${NOBODY_SET}"}},
        ["run.toml: run.worker: the environment has no variable NOBODY_SET"],
    ),
    "an object without a name": (
        {"client": {"metrics": "things"}},
        ["run.toml: client.metrics must be a text such as 'module:name', not 'things'"],
    ),
    "an object of no module": (
        {"client": {"metrics": "thing:metrics"}},
        ["run.toml: client.metrics: 'thing:metrics' names no object", "No module named 'thing'"],
    ),
    "an object that is not there": (
        {"client": {"metrics": "things:metric"}},
        ["run.toml: client.metrics: 'things:metric' names no object", "has no attribute 'metric'"],
    ),
    "another object": (
        {"client": {"metrics": "things:store"}},
        ["run.toml: client.metrics must be an IMetrics or None, not <"],
    ),
    "a class as a factory": (
        {"run": {"factory": "things:Needy"}},
        ["run.toml: run.factory must be an IRecordProcessorFactory", "cannot be made without table"],
    ),
    "a client beside a connection": (
        {"stream": {"client": "things:client"}, "connection": {"instance": "i"}},
        ["run.toml: connection.instance is not used, as run.toml: stream.client names a client with a connection"],
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_file_is_refused_with_file_section_key_and_the_nearest_name(case: str) -> None:
    content, told = WRONG[case]
    if isinstance(content, Mapping):
        write(merged(PLAIN, content))
    else:
        Path("run.toml").write_bytes(content if isinstance(content, bytes) else content.encode())
    ran = run_cli("run", "--config", "run.toml", "--check")

    assert (ran.code, ran.out) == (2, ""), ran.err
    assert "Traceback" not in ran.err
    for part in told:
        assert part in ran.err, ran.err


def test_a_file_that_is_not_toml_is_the_only_mistake() -> None:
    """It may give what would otherwise be named as missing."""
    write(PLAIN)
    Path("run.toml").write_text(Path("run.toml").read_text() + "[failure]\nretries = 3x\n")
    for words in (["run", "--check"], ["run"], ["settings"]):
        ran = run_cli(*words, "--config", "run.toml", "--retries", "-1")

        assert ran.code == 2
        assert ran.err.startswith(f"streamclient {words[0]}: run.toml is not TOML: ")
        assert ran.err.count("\n") == 1


def test_a_file_that_is_not_there_is_named() -> None:
    ran = run_cli("run", "--config", "nowhere.toml")

    assert ran.code == 2
    assert ran.err.startswith("streamclient run: cannot read the configuration nowhere.toml: ")


def test_all_mistakes_are_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    write(merged(PLAIN, {"client": {"lease_duration_milis": 5}, "log": {"level": 5}}))
    monkeypatch.setenv("STREAMCLIENT_STREAM_MAX_RECORDS", "many")
    monkeypatch.setenv("STREAMCLIENT_CLIENT_READ_THREAD", "5")
    ran = run_cli("run", "nothing:here", "--config", "run.toml", "--retries", "-1", "--set", "cliend.x=1", "--check")

    first, *mistakes = ran.err.splitlines()
    assert ran.code == 2
    assert first == "streamclient run: 7 settings cannot work:"
    assert [mistake.split(" ")[2].rstrip(":") for mistake in mistakes] == [
        "run.toml",
        "STREAMCLIENT_CLIENT_READ_THREAD",
        "--set",
        "STREAMCLIENT_STREAM_MAX_RECORDS",
        "--retries",
        "run.toml",
        "'nothing:here'",
    ]
    assert "  STREAMCLIENT_CLIENT_READ_THREAD: client has no key read_thread; did you mean read_threads?" in mistakes


def test_variables_that_a_cluster_sets_for_a_service_of_this_name_are_no_settings() -> None:
    environment = {"STREAMCLIENT_RUN_SERVICE_HOST": "10.0.0.1", "STREAMCLIENT_RUN_PORT": "tcp://10.0.0.1:80"}

    assert settings_of(PLAIN, environment=environment).mistakes == []


def test_an_empty_variable_gives_nothing_but_where_every_command_refuses_it() -> None:
    emptied = settings_of(PLAIN, environment={"STREAMCLIENT_STREAM_MAX_RECORDS": ""})
    assert ("stream", "max_records") not in emptied.found
    with pytest.raises(ConfigurationError, match="TABLESTORE_ENDPOINT must be http"):
        settings_of(PLAIN, environment={"TABLESTORE_ENDPOINT": ""}).parts()


@pytest.mark.parametrize("given", ["connection.access_key_secret", "s3cret=s3cret", "=s3cret"])
def test_a_setting_that_is_given_in_no_form_shows_no_value(given: str) -> None:
    ran = run_cli("run", "--set", given)

    assert ran.code == 2
    shown = given.partition("=")[0] or "=..."
    assert f"--set must be SECTION.KEY=VALUE, not {shown!r}" in ran.err
    assert "=s3cret" not in ran.err


def test_the_mark_that_some_editors_write_before_a_text_is_no_part_of_it() -> None:
    write(PLAIN)
    Path("run.toml").write_bytes(b"\xef\xbb\xbf" + Path("run.toml").read_bytes())
    ran = run_cli("settings", "--config", "run.toml", "--given", "--json")

    assert ran.code == 0, ran.err
    assert [f"{row['section']}.{row['name']}" for row in ran.document["settings"]] == [
        "run.factory",
        "run.worker",
        "stream.data_table_name",
        "stream.status_table_name",
    ]


@pytest.mark.parametrize("port", [0, 65_533])
def test_processes_may_serve_up_to_the_last_port(port: int) -> None:
    settings = settings_of(merged(PLAIN, {"run": {"processes": 3}, "serve": {"port": port}}))

    assert settings.mistakes == []


def test_one_of_several_processes_has_a_port_of_its_own() -> None:
    """It is given the number of all processes, too."""
    write(merged(PLAIN, {"run": {"processes": 3}, "serve": {"port": 65_533}}))
    words = ["run", "--config", "run.toml", "--is-one-of-processes", "--metrics-port", "65535"]

    assert RunSettings.read(make_parser().parse_args(words), {}).mistakes == []
