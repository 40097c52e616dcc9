"""Simulated loops: the laws hold, one seed is one history, and each law can be broken."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from attrs import evolve, fields

from streamclient.base.reasons import Raised
from streamclient.cli.main import main
from streamclient.testing.history import LawBroken
from streamclient.testing.simulation.campaign import SEEDS_PER_TASK, run_campaign
from streamclient.testing.simulation.drawing import MOST_AWAITS, MOST_MISHAPS, Size, draw_plan, size_of
from streamclient.testing.simulation.loops import loop_witness
from streamclient.testing.simulation.loops.loop_witness import Body, LoopLife, LoopReader, LoopWitness, WitnessedCall
from streamclient.testing.simulation.loops.simulated_bridge import SimulatedBridge
from streamclient.testing.simulation.plan import Action, LoopPlan, Mishaps, plan_from_json
from streamclient.testing.simulation.runner import run_plan
from streamclient.testing.simulation.simulated_faults import Do
from streamclient.testing.simulation.workers import Simulation
from tests.rings import every
from tests.simulation.loop_mutations import LOOP_MUTATIONS

SEEDS = range(40)
FOUND = sorted((Path(__file__).parent / "found_loops").glob("*.json"))

DIGESTS = """
from streamclient.testing.simulation.drawing import Size, draw_plan
from streamclient.testing.simulation.runner import run_plan
print([run_plan(draw_plan(seed, Size.LOOP)).digest for seed in range(6)])
"""

LAWS = {
    getattr(loop_witness, name)
    for name in dir(loop_witness)
    if name.isupper() and isinstance(getattr(loop_witness, name), str) and " " in getattr(loop_witness, name)
}

BY_HAND = {
    loop_witness.ONE_OUT,
    loop_witness.ANSWERS,
    loop_witness.RAISES,
}

ONE_WORKER = (Action(at=0.0, do=Do.START, who="w1"),)


@pytest.mark.slow
@pytest.mark.parametrize("seed", every(2, SEEDS))
def test_no_law_is_broken(seed: int) -> None:
    verdict = run_plan(draw_plan(seed, Size.LOOP))

    assert verdict.violation is None, f"streamclient simulate --loops --seed {seed}: {verdict.violation}"
    assert verdict.counts["finished"] > 0
    assert verdict.recovery_seconds is not None


@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.stem)
def test_what_was_found_once_is_mended(path: Path) -> None:
    assert run_plan(plan_from_json(path.read_text())).violation is None


@pytest.mark.slow
def test_one_seed_is_one_history_whatever_the_order_of_hashes() -> None:
    first, second = (
        subprocess.run(
            [sys.executable, "-c", DIGESTS],
            env={**os.environ, "PYTHONHASHSEED": number},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for number in ("1", "2")
    )

    assert first == second
    assert len(set(first.split(", "))) == 6


@pytest.mark.slow
@pytest.mark.long
def test_processes_side_by_side_give_the_same_histories() -> None:
    """More seeds than one process gets at a time, so that two have work."""
    seeds = range(SEEDS_PER_TASK + 2)
    (alone, _), (together, _) = (run_campaign(seeds, processes=number, size=Size.LOOP) for number in (1, 2))

    assert alone.digest == together.digest
    assert alone.injected == together.injected
    assert alone.counts == together.counts


def test_a_plan_of_loops_survives_being_stored() -> None:
    plans = [draw_plan(seed, Size.LOOP) for seed in range(20)]

    assert [plan_from_json(plan.to_json()) for plan in plans] == plans
    assert {size_of(plan) for plan in plans} == {Size.LOOP}


def test_seeds_cancel_at_each_wait_in_turn() -> None:
    plans = [draw_plan(seed, Size.LOOP) for seed in range(8 * MOST_AWAITS)]

    assert {plan.cancel_at for plan in plans if isinstance(plan, LoopPlan)} == set(range(MOST_AWAITS + 1))


def test_every_mishap_is_drawn() -> None:
    assert {each.name for each in fields(Mishaps)} == set(MOST_MISHAPS)


@pytest.mark.parametrize(
    ("mishaps", "changes"),
    [
        (Mishaps(raises=0.2), {}),
        (Mishaps(fails=0.3), {}),
        (Mishaps(breaks=0.5), {}),
        (Mishaps(leaves=0.2), {}),
        (Mishaps(sleeps=0.1), {}),
        (Mishaps(closes_loop=0.1), {}),
        (Mishaps(time_outs=0.8), {}),
        (Mishaps(drops=1.0, leaves=0.2), {}),
        (Mishaps(), {"cancel_at": 20}),
        (Mishaps(raises=0.2, sleeps=0.1), {"concurrency": 2}),
        (Mishaps(), {"concurrency": 2, "cancel_at": 20}),
        (Mishaps(closes_loop=0.1), {"concurrency": 2, "commit_every": 2, "is_processor": True}),
    ],
)
def test_each_mishap_happens_and_breaks_no_law(mishaps: Mishaps, changes: dict[str, Any]) -> None:
    plan = LoopPlan(seed=1, shards=2, actions=ONE_WORKER, storm_seconds=60.0, mishaps=mishaps, **changes)
    verdict = run_plan(plan)
    wanted = [each.name for each in fields(Mishaps) if getattr(mishaps, each.name)]

    assert verdict.violation is None
    assert all(verdict.injected[name] for name in wanted or ["cancel"])


# --- the command -----------------------------------------------------------------------------------------------------


def test_the_command_runs_loops(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["simulate", "--loops", "--seeds", "2", "--processes", "1"])
    printed = capsys.readouterr().out

    assert code == 0
    assert "2 histories, 0 violations, digest " in printed
    assert "2 of loops" in printed


def test_a_broken_law_names_the_command_that_replays_it(capsys: pytest.CaptureFixture[str]) -> None:
    (mutation,) = (each for each in LOOP_MUTATIONS if each.name == "a call is claimed without a lock")
    with mutation.applied():
        code = main(["simulate", "--loops", "--seeds", "1", "--processes", "1", "--no-shrink"])
    captured = capsys.readouterr()

    assert code == 1
    assert "breaks the law 'settled once'" in captured.err
    assert "streamclient simulate --loops --seed 0 --replay" in captured.err


def test_a_replay_shows_the_bodies_of_a_shard_and_their_ends(capsys: pytest.CaptureFixture[str]) -> None:
    plan = ["--loops", "--seed", "2", "--replay"]
    assert main(["simulate", *plan, "--lease", "shard-01"]) == 0
    printed = capsys.readouterr().out

    assert re.search(r" w\d +body shard-01 ", printed)
    assert "process_records shard-01 finished" in printed
    assert "body shard-02" not in printed
    assert main(["simulate", *plan]) == 0
    assert "body shard-02" in capsys.readouterr().out


# --- laws ------------------------------------------------------------------------------------------------------------


def test_every_law_is_broken_by_some_mutation_or_below() -> None:
    named = {law for mutation in LOOP_MUTATIONS for law in mutation.laws}

    assert LAWS - named - BY_HAND == set()


def test_every_law_stands_on_the_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "simulation.md").read_text()
    section = page.split("### Loops\n", 1)[1].split("\n#", 1)[0]

    assert set(re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)) == LAWS


@pytest.fixture
def witness() -> LoopWitness:
    """A stream with two changes of one key in the shard ``s``, read by nobody."""
    witness = LoopWitness(lambda who, what, detail: None, set, is_quiet=True)
    for number in (1, 2):
        witness.places[witness.write("k", number)] = ("s", number - 1)
    return witness


@pytest.fixture
def reader(witness: LoopWitness) -> LoopReader:
    """A reader of both changes that has begun."""
    own = SimpleNamespace(shutdown=lambda given, call: None)
    reader = LoopReader(witness, LoopLife("w1"), own)  # type: ignore[arg-type]
    info = SimpleNamespace(shard_id="s", lease_identifier="i", epoch=1)
    reader.begins(SimpleNamespace(shard_info=info, initial_checkpoint="s@0"))  # type: ignore[arg-type]
    witness.tell(loop_witness.Called(reader, "s", "initialize"))
    witness.tell(loop_witness.Returned(reader, "s"))
    witness.current["s"] = reader
    return reader


def called(reader: LoopReader, *numbers: int) -> WitnessedCall:
    """A call with these changes, which nobody has claimed."""
    call = WitnessedCall.__new__(WitnessedCall)
    call.name, call.shard_id, call.reader = "process_records", "s", reader
    call.changes = [reader.witness.written[number - 1] for number in numbers]
    return call


def test_two_batches_of_a_shard_are_one_too_many(reader: LoopReader) -> None:
    reader.claimed(called(reader, 1), was_free=True)

    with pytest.raises(LawBroken, match=loop_witness.ONE_OUT):
        reader.claimed(called(reader, 2), was_free=True)


def test_a_commit_that_returns_before_its_position_is_stored_lies(reader: LoopReader, witness: LoopWitness) -> None:
    call = called(reader, 1)
    reader.claimed(call, was_free=True)
    call.body = Body.RUNS
    witness.asks_to_commit(call)

    with pytest.raises(LawBroken, match=loop_witness.ANSWERS):
        witness.committed(call)
    witness.stored("s", "s@1")
    witness.committed(call)
    assert call.body is Body.COMMITTED


def test_a_position_beyond_what_is_finished_is_found_out(reader: LoopReader, witness: LoopWitness) -> None:
    call = called(reader, 1)
    reader.claimed(call, was_free=True)
    call.body = Body.RUNS
    witness.became(call, Body.ENDED)
    witness.stored("s", "s@1")

    with pytest.raises(LawBroken, match=loop_witness.STORED):
        witness.stored("s", "s@2")


def test_a_lease_that_is_lost_beside_a_slow_body_is_found_out(reader: LoopReader) -> None:
    given = SimpleNamespace(shutdown_reason=loop_witness.ShutdownReason.ZOMBIE)

    with pytest.raises(LawBroken, match=loop_witness.LEASES):
        reader.shutdown(given, called(reader))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("body", "law"),
    [
        (Body.RUNS, loop_witness.STORED),
        (Body.CANCELLED, loop_witness.CANCELLED),
        (Body.LEFT, loop_witness.LEFT),
        (Body.FAILED, loop_witness.LEFT),
    ],
)
def test_a_batch_is_accepted_only_if_its_body_ended(reader: LoopReader, body: Body, law: str) -> None:
    call = called(reader, 1)
    reader.claimed(call, was_free=True)
    call.body = body

    with pytest.raises(LawBroken, match=law):
        reader.ended(call, None, is_given_back=False)


def test_a_batch_that_is_left_does_not_fail(reader: LoopReader) -> None:
    call = called(reader, 1)
    reader.claimed(call, was_free=True)
    call.body = Body.LEFT

    with pytest.raises(LawBroken, match=loop_witness.LEFT):
        reader.ended(call, Raised.of(ValueError("no")), is_given_back=False)


def test_a_dropped_object_that_keeps_its_leases_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamclient.loops.consumption.Consumption.give_up", lambda self: None)
    plan = LoopPlan(seed=1, actions=ONE_WORKER, mishaps=Mishaps(drops=1.0, leaves=0.5))
    violation = run_plan(plan).violation

    assert violation is not None
    assert violation.law == loop_witness.NO_LEAK


def test_what_a_posted_function_raises_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "streamclient.testing.simulation.loops.simulated_bridge.SimulatedWaiter.ring", lambda self: 1 / 0
    )
    violation = run_plan(LoopPlan(seed=1, actions=ONE_WORKER)).violation

    assert violation is not None
    assert violation.law == loop_witness.RAISES


# --- the event loop --------------------------------------------------------------------------------------------------


@pytest.fixture
def bridge() -> SimulatedBridge:
    return SimulatedBridge(Simulation(), "w1", lambda error: pytest.fail(repr(error)))


def drained(bridge: SimulatedBridge) -> None:
    """Run what is posted, and what follows from it."""
    while bridge.queue.calls:
        bridge.queue.run_one()


def test_posted_functions_run_in_their_order(bridge: SimulatedBridge) -> None:
    ran: list[int] = []
    for number in range(3):
        assert bridge.post(lambda number=number: ran.append(number))
    drained(bridge)

    assert ran == [0, 1, 2]


@pytest.mark.parametrize("is_rung", [False, True])
def test_a_cancellation_reaches_a_task_where_it_waits(bridge: SimulatedBridge, is_rung: bool) -> None:
    """Also if what it waits for has just come, as in asyncio."""
    waiter, ends = bridge.waiter(), []

    async def wait() -> None:
        await waiter

    task = bridge.start(wait(), ends.append)
    drained(bridge)
    if is_rung:
        waiter.ring()
    assert task.cancel()
    drained(bridge)

    assert [type(end) for end in ends] == [asyncio.CancelledError]
    assert not task.cancel()


def test_a_wait_with_a_time_out_ends_by_it(bridge: SimulatedBridge) -> None:
    ends: list[BaseException | None] = []
    simulation = bridge._simulation

    async def wait() -> None:
        await bridge.within(2.0, bridge.sleep(3.0))

    bridge.start(wait(), ends.append)
    simulation.advance(1.9)
    assert ends == []
    simulation.advance(0.2)

    assert [type(end) for end in ends] == [TimeoutError]


def test_nothing_in_a_closed_event_loop_goes_on(bridge: SimulatedBridge) -> None:
    ends: list[BaseException | None] = []
    bridge.start(bridge.sleep(1.0), ends.append)
    bridge._simulation.advance(0.5)
    bridge.close()
    bridge._simulation.advance(1.0)

    assert ends == []
    assert not bridge.post(lambda: None)
    bridge.close_tasks()
    assert bridge.tasks[0].is_over


def test_a_plan_without_faults_is_quiet() -> None:
    plan = LoopPlan(seed=1, actions=ONE_WORKER)

    assert plan.is_quiet
    assert not evolve(plan, actions=(*ONE_WORKER, Action(at=5.0, do=Do.FREEZE))).is_quiet
