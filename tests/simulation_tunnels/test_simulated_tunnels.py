"""Tunnel clients in simulated time: laws hold, seeds repeat, and broken rules are found."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from attrs import evolve

from streamclient.cli.main import main
from streamclient.cli.simulate_replay import Replay
from streamclient.core.tunnel.tunnel_connection import ChannelConnection, ConnectionState
from streamclient.core.tunnel.tunnel_session import TunnelSession
from streamclient.server.tunnels import tunnel_actions
from streamclient.server.tunnels.tunnel_channels import Status, Tunnel, TunnelChannel
from streamclient.testing.simulation.drawing import Size, draw_plan
from streamclient.testing.simulation.plan import plan_from_json
from streamclient.testing.simulation.runner import HistoryVerdict, run_plan
from streamclient.testing.simulation.shrink import shrink

A_FEW = 10
"""Seeds in which a broken rule is looked for, from the first one on that is known to show it."""


def play(seed: int) -> HistoryVerdict:
    return run_plan(draw_plan(seed, Size.TUNNEL))


@pytest.mark.slow
@pytest.mark.parametrize("block", range(3))
def test_laws_hold_in_many_histories(block: int) -> None:
    for seed in range(block * 20, block * 20 + 20):
        verdict = play(seed)
        assert verdict.violation is None, f"streamclient simulate --tunnels --seed {seed}: {verdict.violation}"
        assert verdict.counts["delivered"] > 0


@pytest.mark.slow
def test_one_seed_gives_one_history_whatever_the_order_of_hashes() -> None:
    code = "from tests.simulation_tunnels.test_simulated_tunnels import play; print(play(7).digest)"
    digests = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": hashseed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hashseed in ("1", "2")
    }

    assert len(digests) == 1


def test_a_plan_of_tunnels_survives_being_stored() -> None:
    plan = draw_plan(7, Size.TUNNEL)

    assert plan_from_json(plan.to_json()) == plan


def test_a_replay_shows_events_and_commands_of_sessions() -> None:
    output = io.StringIO()
    verdict = run_plan(draw_plan(1, Size.TUNNEL), Replay(output=output))

    assert verdict.digest == play(1).digest
    assert "w1       -> Connect" in output.getvalue()
    assert "<- HeartbeatAnswered" in output.getvalue()


def found_from(first: int) -> HistoryVerdict | None:
    """The first violation in a few histories."""
    verdicts = (play(seed) for seed in range(first, first + A_FEW))
    return next((verdict for verdict in verdicts if verdict.violation is not None), None)


def never_expires(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TunnelSession, "_valid_until", lambda self, sent_at: float("1e18"))


def keeps_what_is_dropped(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TunnelSession, "_drop", lambda self, connection: None)


def starts_a_second_reader(patch: pytest.MonkeyPatch) -> None:
    original = TunnelSession._find_checkpoint

    def find(self: TunnelSession, connection: ChannelConnection) -> None:
        self._state.readers.pop(connection.channel_id, None)
        original(self, connection)

    patch.setattr(TunnelSession, "_find_checkpoint", find)


def calls_everything_finished(patch: pytest.MonkeyPatch) -> None:
    def ended(self: ChannelConnection, *, is_finished: bool) -> None:
        self.is_finished, self.state = True, ConnectionState.CLOSED
        self.check()

    patch.setattr(ChannelConnection, "reader_ended", ended)


def reports_before_the_reader_ended(patch: pytest.MonkeyPatch) -> None:
    original = TunnelSession._let_go

    def let_go(self: TunnelSession, connection: ChannelConnection) -> None:
        original(self, connection)
        connection.reader_ended(is_finished=False)

    patch.setattr(TunnelSession, "_let_go", let_go)


def server_opens_children_early(patch: pytest.MonkeyPatch) -> None:
    def open_at_once(self: Tunnel, channel: TunnelChannel) -> None:
        if channel.status is Status.WAIT:
            channel.status = Status.OPEN

    patch.setattr(Tunnel, "_open_if_ready", open_at_once)


def server_takes_old_checkpoints(patch: pytest.MonkeyPatch) -> None:
    original = tunnel_actions.checkpoint

    def checkpoint(state: Any, request: Any) -> Any:
        channel = state.tunnels[request.tunnel_id].channels[request.channel_id]
        channel.sequence_number = 0
        state.tunnels[request.tunnel_id].former_clients.clear()
        channel.client_id = request.client_id
        return original(state, request)

    from streamclient.server import engine

    operations = dict(engine.OPERATIONS)
    operations["tunnel/checkpoint"] = evolve(operations["tunnel/checkpoint"], act=checkpoint)
    patch.setattr(engine, "OPERATIONS", operations)


MUTATIONS: list[tuple[Callable[[pytest.MonkeyPatch], None], int, str]] = [
    (never_expires, 70, "one holder"),
    (keeps_what_is_dropped, 2, "one holder"),
    (starts_a_second_reader, 7, "one reader"),
    (calls_everything_finished, 1, "order per key"),
    (reports_before_the_reader_ended, 251, "one holder"),
    (server_opens_children_early, 0, "parents first"),
    (server_takes_old_checkpoints, 20, "checkpoints only advance"),
]
"""Each with the first seed that shows it, and the law that it breaks there."""


@pytest.mark.slow
@pytest.mark.parametrize(("mutation", "first", "law"), MUTATIONS)
def test_broken_rule_is_found(
    mutation: Callable[[pytest.MonkeyPatch], None], first: int, law: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a change moves them, any other seed that shows a rule will do as the first."""
    mutation(monkeypatch)
    found = found_from(first)

    assert found is not None
    assert found.violation is not None
    assert found.violation.law == law


def test_a_violation_is_cut_down(monkeypatch: pytest.MonkeyPatch) -> None:
    server_opens_children_early(monkeypatch)
    found = found_from(0)
    assert found is not None
    smallest = shrink(found)

    assert smallest.violation is not None
    assert len(smallest.plan.actions) < len(found.plan.actions)
    monkeypatch.undo()
    assert run_plan(smallest.plan).violation is None


def test_the_command_runs_tunnels(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--tunnels", "--seeds", "3", "--processes", "1"]) == 0
    assert "by size: 3 of tunnels" in capsys.readouterr().out
