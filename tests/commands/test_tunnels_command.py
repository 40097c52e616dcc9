"""``streamclient tunnels`` against real HTTP: what it makes, tells, deletes and refuses."""

from __future__ import annotations

import re
import shlex
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from streamclient.base.times import utc_text
from streamclient.server import DEFAULT_ACCESS_KEY_ID, FaultRule, LocalTablestore
from streamclient.server.fault_rules import Fail, Latency
from streamclient.tunnel import StartOffset, StreamTunnelConfig, TunnelType
from tests.commands.command_process import CommandProcess
from tests.commands.commands_page import agrees
from tests.docs.page_examples import commands
from tests.operate.operate_scene import Ran, run_cli
from tests.patience import FOREVER_SECONDS, until
from tests.tunnel.tunnel_scene import TABLE, Log, Scene

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tunnels.md"
SECOND = 1_000_000
DAY_SECONDS = 86_400


@pytest.fixture
def scene(local: LocalTablestore) -> Scene:
    return Scene(local)


def run(scene: Scene, *words: str) -> Ran:
    return run_cli("tunnels", *words, "--endpoint", scene.local.endpoint)


def say(scene: Scene, *words: str) -> Any:
    """The document of a command that succeeds and says nothing else."""
    ran = run(scene, *words, "--json")
    assert (ran.code, ran.err) == (0, ""), ran
    return ran.document


def hold(scene: Scene, tunnel_id: str) -> str:
    """A client that holds all channels of a tunnel, as long as its time-out."""
    client_id = scene.tunnels.connect(tunnel_id, timeout_seconds=round(FOREVER_SECONDS), client_tag="shop")
    assert scene.tunnels.heartbeat(tunnel_id, client_id, [])
    return client_id


# --- list, create, describe ----------------------------------------------------------------------------------------


def test_a_tunnel_is_created_listed_and_described(scene: Scene) -> None:
    scene.put(1, 2)
    created = say(scene, "create", TABLE, "billing", "--kind", "both")
    described = say(scene, "describe", TABLE, "billing")
    (listed,) = say(scene, "list")["tunnels"]

    (info,) = scene.tunnels.list_tunnel(TABLE)
    assert created == {"tunnel": "billing", "id": info.tunnel_id, "table": TABLE, "kind": "both", "created": True}
    assert listed == {
        "tunnel": "billing",
        "id": info.tunnel_id,
        "table": TABLE,
        "kind": "both",
        "stage": "full",
        "expired": False,
        "stream": info.stream_id,
        "created_micros": info.create_time_micros,
        "from": "latest",
        "from_micros": None,
        "until_micros": None,
    }
    of_full_data, of_changes = described.pop("channels")
    assert abs(described.pop("now_micros") - info.create_time_micros) < FOREVER_SECONDS * SECOND
    assert described == {
        **listed,
        "consumed_micros": None,
        "lag_seconds": None,
        "time_to_loss_seconds": None,
        "records": 0,
        "backlog_records": None,
        "clients": [],
    }
    unread = {
        "client": None,
        "consumed_micros": None,
        "records": 0,
        "lag_seconds": None,
        "time_to_loss_seconds": None,
    }
    assert of_full_data == {"channel": of_full_data["channel"], "kind": "full", "status": "OPEN", **unread}
    assert of_changes == {"channel": of_changes["channel"], "kind": "incremental", "status": "WAIT", **unread}


def test_tunnels_of_one_table_or_of_all_are_listed_by_their_names(scene: Scene) -> None:
    scene.create_table("visits")
    for table, name in ((TABLE, "b"), ("visits", "c"), (TABLE, "a")):
        scene.tunnels.create_tunnel(table, name, TunnelType.BASE_DATA)

    def names(*words: str) -> Sequence[tuple[str, str]]:
        return [(each["table"], each["tunnel"]) for each in say(scene, "list", *words)["tunnels"]]

    assert names() == [(TABLE, "a"), (TABLE, "b"), ("visits", "c")]
    assert names("visits") == [("visits", "c")]
    assert [line.split()[:4] for line in run(scene, "list", "visits").out.splitlines()] == [
        ["TUNNEL", "TABLE", "KIND", "STAGE"],
        ["c", "visits", "full", "full"],
    ]
    for name in ("a", "b"):
        scene.tunnels.delete_tunnel(TABLE, name)
    assert run(scene, "list", TABLE).out == "no tunnels\n"


@pytest.mark.parametrize(
    ("words", "config"),
    [
        ([], StreamTunnelConfig()),
        (["--from", "latest"], StreamTunnelConfig()),
        (["--from", "oldest"], StreamTunnelConfig(StartOffset.EARLIEST)),
        (["--until", "2100-01-01T00:00:00Z"], StreamTunnelConfig(end_micros=4_102_444_800 * SECOND)),
        (
            ["--from", "oldest", "--until", "2020-01-01T00:00:00Z"],
            StreamTunnelConfig(StartOffset.EARLIEST, end_micros=1_577_836_800 * SECOND),
        ),
    ],
)
def test_the_changes_begin_and_end_where_the_options_say(
    scene: Scene, words: list[str], config: StreamTunnelConfig
) -> None:
    assert run(scene, "create", TABLE, "billing", "--kind", "incremental", *words).code == 0

    assert scene.tunnels.list_tunnel(TABLE)[0].config == config


def test_the_changes_may_begin_at_a_time_of_the_past(scene: Scene) -> None:
    assert run(scene, "create", TABLE, "billing", "--kind", "incremental", "--from", "2h-ago").code == 0

    described = say(scene, "describe", TABLE, "billing")
    assert described["from"] is None
    hours = (described["created_micros"] - described["from_micros"]) / 3_600 / SECOND
    assert hours == pytest.approx(2.0, abs=0.5)
    assert f"changes   from {utc_text(described['from_micros'])}\n" in run(scene, "describe", TABLE, "billing").out


def test_a_tunnel_is_named_by_its_name_or_by_the_beginning_of_its_id(scene: Scene) -> None:
    ids = {scene.tunnel(TunnelType.BASE_DATA, f"t{number}"): f"t{number}" for number in range(17)}
    (letter, _), *_ = Counter(each[0] for each in ids).most_common()
    first = next(each for each in ids if each[0] == letter)
    shared = run(scene, "describe", TABLE, letter)

    assert say(scene, "describe", TABLE, first)["tunnel"] == ids[first]
    assert say(scene, "describe", TABLE, first[:-1])["tunnel"] == ids[first]
    assert (shared.code, shared.out) == (2, "")
    assert f"tunnel '{letter}' is ambiguous: " in shared.err
    while not (named := next((each for each in ids if each[0].isalpha()), "")):  # no name begins with a digit
        ids[scene.tunnel(TunnelType.BASE_DATA, f"t{len(ids)}")] = f"t{len(ids)}"
    scene.tunnel(TunnelType.BASE_DATA, named[:8])
    assert say(scene, "describe", TABLE, named[:8])["id"] != named, "a name is its own, whatever id begins so"


@pytest.mark.slow
def test_positions_move_while_a_worker_consumes(scene: Scene) -> None:
    tunnel_id = scene.tunnel(TunnelType.BASE_AND_STREAM, "billing")
    scene.put(*range(5))

    def now() -> Any:
        return say(scene, "describe", TABLE, "billing")

    with scene.worker(tunnel_id, Log(), client_tag="shop"):
        until(lambda: now()["stage"] == "incremental", now)
        scene.put(*range(7))
        until(lambda: now()["channels"][-1]["records"] == 12, now)
        during = now()
        text = run(scene, "describe", TABLE, "billing").out
    over, rows = now(), during["channels"][0]
    changes = during["channels"][-1]

    assert (rows["kind"], rows["status"], rows["records"], rows["lag_seconds"]) == ("full", "TERMINATED", 5, None)
    assert during["clients"] == [{"client": changes["client"], "channels": 1}]
    assert changes["client"].startswith("shop")
    assert during["records"] == 17, "those of the channels together"
    assert during["consumed_micros"] == changes["consumed_micros"] > during["created_micros"]
    age = max(0, during["now_micros"] - during["consumed_micros"]) / SECOND
    assert during["lag_seconds"] == changes["lag_seconds"] == pytest.approx(age)
    assert during["time_to_loss_seconds"] == changes["time_to_loss_seconds"] == pytest.approx(DAY_SECONDS - age)
    assert re.search(r"^read      17 records, changes up to \d{4}-.*Z$", text, re.MULTILINE)
    assert f"clients   {changes['client']} (1 channel)\n" in text
    assert over["clients"] == []
    assert over["channels"][-1]["client"] is None
    assert over["consumed_micros"] >= during["consumed_micros"]


@pytest.mark.parametrize(
    ("kind", "lag"),
    [
        ("full", "none: it delivers no changes"),
        ("incremental", "unknown until each channel of changes has a checkpoint"),
        ("both", "unknown until each channel of changes has a checkpoint"),
    ],
)
def test_what_the_service_does_not_tell_is_unknown(scene: Scene, kind: str, lag: str) -> None:
    scene.put(1)
    assert run(scene, "create", TABLE, "t", "--kind", kind).code == 0
    shown = run(scene, "describe", TABLE, "t").out

    assert f"lag       {lag}\n" in shown
    assert "backlog   unknown: the service counts the records that were read, not those that are left\n" in shown
    assert "clients   none holds a channel\n" in shown
    assert ("changes   from its creation\n" in shown) == (kind != "full")


@pytest.mark.slow
def test_a_tunnel_with_an_end_says_that_its_changes_are_over(scene: Scene) -> None:
    scene.put(1)
    say(scene, "create", TABLE, "t", "--kind", "incremental", "--from", "oldest", "--until", "2020-01-01T00:00:00Z")
    (info,) = scene.tunnels.list_tunnel(TABLE)
    with scene.worker(info.tunnel_id, Log()):
        until(lambda: say(scene, "describe", TABLE, "t")["channels"][0]["status"] == "TERMINATED")

    assert "lag       none: each channel of changes is finished\n" in run(scene, "describe", TABLE, "t").out
    assert say(scene, "describe", TABLE, "t")["lag_seconds"] is None


def test_an_expired_tunnel_says_so(scene: Scene) -> None:
    scene.tunnel(TunnelType.STREAM)
    scene.put(1, 2)
    scene.local.trim(TABLE)

    assert say(scene, "describe", TABLE, "t")["expired"] is True
    assert say(scene, "list")["tunnels"][0]["expired"] is True
    shown = run(scene, "describe", TABLE, "t")
    assert shown.code == 0
    assert "stage     expired: the changes that it needs are past retention; only another tunnel helps\n" in shown.out
    assert run(scene, "list").out.splitlines()[1].split()[:4] == ["t", TABLE, "incremental", "expired"]


# --- delete --------------------------------------------------------------------------------------------------------


def test_a_deletion_says_what_would_be_lost_and_does_nothing_without_consent(scene: Scene) -> None:
    tunnel_id = scene.tunnel(TunnelType.STREAM)
    client_id = hold(scene, tunnel_id)
    before = scene.tunnels.describe_tunnel(TABLE, "t")
    scene.local.reset_requests()
    told = run(scene, "delete", TABLE, "t")
    asked = run(scene, "delete", TABLE, "t", "--json")

    called = {count.operation for count in scene.local.requests()}
    assert called == {"tunnel/list", "tunnel/describe", "DescribeTable"}
    assert scene.tunnels.describe_tunnel(TABLE, "t") == before
    complaint = (
        "streamclient tunnels delete: deleting tunnel 't' loses its positions and ends its clients; "
        "add --yes to accept that\n"
    )
    assert (told.code, told.err) == (asked.code, asked.err) == (2, complaint)
    assert told.out.splitlines() == [
        "tunnel    t",
        f"id        {tunnel_id}",
        "channels  1: 0 of full data, 1 of changes; 0 finished",
        "read      0 records",
        "lag       unknown until each channel of changes has a checkpoint",
        f"clients   {client_id} (1 channel)",
    ]
    described = say(scene, "describe", TABLE, "t")
    assert {**asked.document, "now_micros": 0} == {**described, "now_micros": 0, "deleted": False}


def test_a_deletion_with_consent_deletes_this_tunnel_alone(scene: Scene) -> None:
    tunnel_id = scene.tunnel(TunnelType.STREAM, "t")
    scene.tunnel(TunnelType.STREAM, "kept")

    assert say(scene, "delete", TABLE, tunnel_id[:12], "--yes") == {
        "tunnel": "t",
        "id": tunnel_id,
        "table": TABLE,
        "deleted": True,
    }
    assert [info.tunnel_name for info in scene.tunnels.list_tunnel(TABLE)] == ["kept"]
    assert run(scene, "delete", TABLE, "kept", "--yes").out == f"deleted tunnel kept of table {TABLE}\n"
    assert scene.tunnels.list_tunnel(TABLE) == ()


# --- refusals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["list", "nothing"], "OTSParameterInvalid: The table 'nothing' does not exist."),
        (["list", "nothing"], "; `streamclient tables list` names all tables"),
        (["list", ""], "table must be a non-empty string, not ''"),
        (["describe", "", "t"], "table must be a non-empty string, not ''"),
        (["describe", "nothing", "t"], "The table 'nothing' does not exist."),
        (["describe", TABLE, "x"], f"table '{TABLE}' has no tunnel 'x'; its tunnels are: t"),
        (["describe", TABLE, ""], f"table '{TABLE}' has no tunnel ''; its tunnels are: t"),
        (["describe", "empty", "t"], "table 'empty' has no tunnel 't'; it has none"),
        (["delete", TABLE, "x"], f"table '{TABLE}' has no tunnel 'x'"),
        (["delete", TABLE, "x", "--yes"], f"table '{TABLE}' has no tunnel 'x'"),
        (["delete", "", "t", "--yes"], "table must be a non-empty string, not ''"),
        (["create", "nothing", "n", "--kind", "full"], "The table 'nothing' does not exist."),
        (["create", TABLE, "", "--kind", "full"], "tunnel_name must be a non-empty string, not ''"),
        (
            ["create", TABLE, "t", "--kind", "full"],
            f"table '{TABLE}' has a tunnel 't' already; `streamclient tunnels describe {TABLE} t` shows it",
        ),
        (
            ["create", TABLE, "n", "--kind", "full", "--from", "oldest"],
            "leave --from out: it is about changes, and a tunnel of --kind full delivers none",
        ),
        (
            ["create", TABLE, "n", "--kind", "full", "--until", "2100-01-01T00:00:00Z"],
            "leave --until out: it is about changes, and a tunnel of --kind full delivers none",
        ),
        (["create", TABLE, "n", "--kind", "both", "--from", "yesterday"], "a time is written like"),
        (["create", TABLE, "n", "--kind", "both", "--until", "yesterday"], "a time is written like"),
        (
            ["create", TABLE, "n", "--kind", "both", "--until", "1h-ago"],
            "--until 1h-ago is not after the creation of the tunnel, where its changes begin: give a later time, or",
        ),
        (
            ["create", TABLE, "n", "--kind", "both", "--from", "1h-ago", "--until", "2h-ago"],
            "is not after start_micros=",
        ),
        (["create", TABLE, "n", "--kind", "both", "--from", "3d-ago"], "is outside of the log"),
    ],
)
def test_what_cannot_work_is_one_line_and_changes_nothing(scene: Scene, words: list[str], reason: str) -> None:
    scene.create_table("empty")
    scene.tunnel(TunnelType.STREAM)
    ran = run(scene, *words)

    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1), ran
    assert ran.err.startswith(f"streamclient tunnels {words[0]}: ")
    assert reason in ran.err
    assert [info.tunnel_name for info in scene.tunnels.list_tunnel()] == ["t"]


def test_a_denied_permission_and_a_wrong_key_are_named(scene: Scene) -> None:
    wrong = run(scene, "list", "--access-key-secret", "wrong")
    scene.local.add_fault(FaultRule("tunnel/list", Fail("OTSPermissionDenied", "You have no permission.")))
    denied = run(scene, "list")

    assert (denied.code, denied.out, wrong.code, wrong.out) == (2, "", 2, "")
    assert denied.err.startswith("streamclient tunnels list: OTSPermissionDenied: You have no permission.")
    assert f"Signed with access key id '{DEFAULT_ACCESS_KEY_ID}'" in wrong.err


def test_a_short_outage_is_waited_out(scene: Scene) -> None:
    for verb in ("create", "list", "describe", "delete"):
        scene.local.add_fault(FaultRule(f"tunnel/{verb}", Fail("OTSServerBusy"), times=1))

    say(scene, "create", TABLE, "t", "--kind", "full")
    say(scene, "describe", TABLE, "t")
    say(scene, "delete", TABLE, "t", "--yes")


@pytest.mark.slow
def test_ctrl_c_ends_a_command_that_waits_for_its_answer(scene: Scene, tmp_path: Path) -> None:
    """The endpoint comes from the environment."""
    scene.local.add_fault(FaultRule("tunnel/list", Latency(FOREVER_SECONDS)))
    with closing(CommandProcess(tmp_path, scene.local.endpoint, "tunnels", "list")) as ran:
        until(lambda: scene.local.faults()[0].struck > 0, "the request")
        ran.process.send_signal(signal.SIGINT)

        assert (ran.ended(), ran.out) == (130, [])
    assert ran.err == ["streamclient tunnels list: interrupted\n"]


# --- the page ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_page_shows_what_the_commands_print(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker consumes from the creation on, and has left before the tunnel is deleted."""
    monkeypatch.setenv("TABLESTORE_ENDPOINT", scene.local.endpoint)
    scene.put(*range(3))
    shown = [each for each in commands(PAGE.read_text()) if each[0].startswith("streamclient tunnels ")]
    assert [command.split()[2] for command, _ in shown] == ["create", "list", "describe", "delete", "delete"]
    with ExitStack() as consuming:
        for command, expected in shown:
            if command.endswith("--yes"):
                consuming.close()
            ran = run_cli(*shlex.split(command)[1:])
            printed = ran.out + ran.err + (f"[exit code {ran.code}]\n" if ran.code else "")

            assert agrees(with_ids(expected), with_ids(printed)), f"$ {command}\n{printed}"
            if " list " in command:
                consuming.enter_context(consumer(scene))


def with_ids(text: str) -> str:
    """Clients and channels of full data have ids at the end of their names."""
    return re.sub(r"(?<=_)[0-9a-f]{8}-[0-9a-f-]{27}", "ID", text)


@contextmanager
def consumer(scene: Scene) -> Iterator[None]:
    """A worker that has read all rows, and two changes, and has stored how far it came."""
    (info,) = scene.tunnels.list_tunnel(TABLE)

    def now() -> Any:
        return say(scene, "describe", TABLE, info.tunnel_name)

    with scene.worker(info.tunnel_id, Log(), client_tag="shop"):
        until(lambda: now()["stage"] == "incremental", now)
        scene.put(1, 2)
        until(lambda: now()["records"] == 5, now)
        yield
