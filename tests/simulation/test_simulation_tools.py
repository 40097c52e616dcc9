"""Plans, shrinking, replay, the command line, measuring: what people use when a law is broken."""

from __future__ import annotations

import io
import json
import signal
import threading
from multiprocessing import active_children
from pathlib import Path

import pytest

from streamclient.cli.main import main
from streamclient.cli.simulate_replay import Replay
from streamclient.testing.simulation.campaign import Summary, pool_of, violation_lines
from streamclient.testing.simulation.drawing import Size, draw_plan, size_of
from streamclient.testing.simulation.plan import Action, Plan, Rates, plan_from_json
from streamclient.testing.simulation.runner import RAISED, HistoryVerdict, run_plan
from streamclient.testing.simulation.shrink import shrink
from streamclient.testing.simulation.simulated_faults import Do
from tests.patience import until
from tests.simulation.measuring import is_measurable, measure_core
from tests.simulation.mutation import Mutation
from tests.simulation.mutations import MUTATIONS


def mutation(name: str) -> Mutation:
    (found,) = (each for each in MUTATIONS if each.name == name)
    return found


@pytest.fixture(scope="module")
def broken() -> HistoryVerdict:
    """A history that breaks a law, because a rule of the core is broken."""
    with mutation("a hand-over compares nothing").applied():
        for seed in range(50):
            verdict = run_plan(draw_plan(seed, Size.SMALL))
            if verdict.violation is not None:
                return verdict
    raise AssertionError("the mutation was not caught")


# --- plans -----------------------------------------------------------------------------------------------------------


def test_a_plan_is_stored_with_what_differs_from_the_defaults() -> None:
    plan = Plan(seed=3, rates=Rates(lost_answer=0.1), actions=(Action(at=1.5, do=Do.CUT, who="w1", seconds=4.0),))

    assert json.loads(plan.to_json()) == {
        "seed": 3,
        "rates": {"lost_answer": 0.1},
        "actions": [{"at": 1.5, "do": "cut", "who": "w1", "seconds": 4.0}],
    }


@pytest.mark.parametrize(
    ("text", "problem"),
    [("[]", "at least a seed"), ('{"seed": 1, "colour": 2}', "colour"), ('{"seed": 1, "actions": [{}]}', "do")],
)
def test_what_is_no_plan_is_refused(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        plan_from_json(text)


def test_most_fleets_are_small_and_some_have_full_size() -> None:
    sizes = [size_of(draw_plan(seed)) for seed in range(1_000)]

    assert sizes.count(Size.SMALL) > 900
    assert 0 < sizes.count(Size.FULL) < 20


# --- violations ------------------------------------------------------------------------------------------------------


def test_a_violation_names_law_time_actors_and_what_led_to_it(broken: HistoryVerdict) -> None:
    lines = list(violation_lines(broken))

    assert broken.violation is not None
    assert lines[0].startswith(f"seed {broken.plan.seed} breaks the law '{broken.violation.law}' of s0")
    assert "after" in lines[0]
    assert any("transfer" in line for line in lines[1:])


def test_an_exception_of_the_core_is_a_violation() -> None:
    with mutation("a heartbeat compares nothing").applied(), pytest.MonkeyPatch.context() as patched:
        patched.setattr("streamclient.core.settle.leases.renew", lambda seen: seen.nothing)
        verdict = run_plan(draw_plan(1, Size.SMALL))

    assert verdict.violation is not None
    assert verdict.violation.law == RAISED
    assert "AttributeError" in verdict.violation.text


@pytest.mark.slow
def test_shrinking_leaves_a_smaller_plan_that_breaks_the_same_law(broken: HistoryVerdict) -> None:
    with mutation("a hand-over compares nothing").applied():
        smallest = shrink(broken)

    assert broken.violation is not None
    assert smallest.violation is not None
    assert smallest.violation.law == broken.violation.law
    assert len(smallest.plan.actions) < len(broken.plan.actions)
    assert smallest.plan.storm_seconds < broken.plan.storm_seconds
    assert run_plan(smallest.plan).violation is None  # without the mutation


def test_nothing_broken_cannot_be_shrunk() -> None:
    with pytest.raises(ValueError, match="nothing to shrink"):
        shrink(run_plan(draw_plan(2, Size.SMALL)))


# --- replay and summary ----------------------------------------------------------------------------------------------


def replayed(plan: Plan, lease_key: str | None) -> str:
    output = io.StringIO()
    run_plan(plan, Replay(lease_key, output=output))
    return output.getvalue()


def test_a_replay_shows_events_commands_and_rows_with_their_times() -> None:
    plan = Plan(seed=1, shards=2, actions=(Action(at=0.0, do=Do.START, who="w1"),), storm_seconds=30.0)
    everything, one = replayed(plan, None), replayed(plan, "s002")

    assert "w1#1     <- ReadRows: 0 rows" in everything
    assert "w1#1     -> WriteLease create s001 (owner none, counter 0, at TRIM_HORIZON)" in everything
    assert "w1#1     take s001" in everything
    assert "s002" in one
    assert "s001(" not in one


def test_a_replay_does_not_change_the_history() -> None:
    plan = draw_plan(4, Size.SMALL)

    assert run_plan(plan, Replay(output=io.StringIO())).digest == run_plan(plan).digest


def test_a_summary_adds_up_and_digests_the_histories_in_order() -> None:
    verdicts = [run_plan(draw_plan(seed, Size.SMALL)) for seed in (1, 2)]
    forwards, backwards = Summary(), Summary()
    for verdict in verdicts:
        forwards.add(verdict, 0.5)
    for verdict in reversed(verdicts):
        backwards.add(verdict, 0.5)

    assert forwards.as_json()["events"] == sum(verdict.events for verdict in verdicts)
    assert forwards.per_minute("small") == 120.0
    assert forwards.digest != backwards.digest


# --- the command -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_command_runs_seeds_and_prints_what_happened(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["simulate", "--seeds", "4", "--processes", "1"])
    printed = capsys.readouterr().out

    assert code == 0
    assert "4 histories, 0 violations, digest " in printed
    assert "simulated hours" in printed
    assert "injected: " in printed


@pytest.mark.slow
def test_an_interrupted_campaign_does_not_wait_for_its_histories() -> None:
    interrupted = threading.Event()

    def campaign() -> None:
        try:
            with pool_of(1) as pool:
                history = pool.submit(signal.pause)
                until(history.running, "a history that never ends")
                raise KeyboardInterrupt
        except KeyboardInterrupt:
            interrupted.set()

    before = {*active_children()}
    threading.Thread(target=campaign, daemon=True).start()
    until(interrupted.is_set, "the interrupted campaign's end")

    assert {*active_children()} == before


def test_processes_side_by_side_give_the_same_digest(capsys: pytest.CaptureFixture[str]) -> None:
    for processes in ("1", "2"):
        main(["simulate", "--seeds", "4", "--from", "100", "--processes", processes, "--json"])
    first, second = (json.loads(text + "}") for text in capsys.readouterr().out.split("\n}\n")[:2])

    assert first["digest"] == second["digest"]
    assert first["injected"] == second["injected"]


def test_the_command_runs_one_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "plan.json"
    file.write_text(draw_plan(1, Size.SMALL).to_json(), encoding="utf-8")

    assert main(["simulate", "--plan", str(file), "--replay", "--lease", "s001"]) == 0
    assert "digest " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "need"),
    [
        (["--replay"], "--replay needs --seed or --plan"),
        (["--seeds", "0"], "--seeds must be at least 1, not 0"),
        (["--plan", "/nowhere"], "[Errno 2] No such file or directory: '/nowhere'"),
    ],
)
def test_the_command_says_what_it_needs(arguments: list[str], need: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", *arguments]) == 2
    assert f"streamclient simulate: {need}" in capsys.readouterr().err


@pytest.mark.slow
def test_a_violation_is_shrunk_printed_and_saved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with mutation("a checkpoint is answered before it is stored").applied():
        code = main(["simulate", "--seeds", "1", "--processes", "1", "--save", str(tmp_path / "found")])
    captured = capsys.readouterr()

    assert code == 1
    assert "breaks the law 'answers are true'" in captured.err
    assert "streamclient simulate --seed 0 --replay" in captured.err
    (file,) = (tmp_path / "found").iterdir()
    assert plan_from_json(file.read_text()).seed == 0


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.skipif(not is_measurable(), reason="the package coverage is not installed")
def test_the_core_is_measured_from_its_import_on() -> None:
    coverage = measure_core(0, 2)

    assert coverage.histories == 2
    assert 0.3 < coverage.lines < 1.0
    assert 0.2 < coverage.branches < coverage.lines
    assert "settle.py" in coverage.missed


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> int:
    """Standard output and error are as wide as this."""
    for module in ("streamclient.cli.terminal.output", "streamclient.cli.simulate_replay"):
        monkeypatch.setattr(f"{module}.width_of", lambda stream: 80)
    return 80


def test_a_replay_fits_a_terminal(terminal: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--seed", "1", "--replay", "--lease", "s001"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= terminal


def test_a_violation_fits_a_terminal(terminal: int, capsys: pytest.CaptureFixture[str]) -> None:
    with mutation("a checkpoint is answered before it is stored").applied():
        code = main(["simulate", "--seeds", "1", "--processes", "1", "--no-shrink"])
    captured = capsys.readouterr()

    assert code == 1
    assert "breaks the law" in captured.err
    assert max(map(len, f"{captured.out}{captured.err}".splitlines())) <= terminal


def test_a_replay_is_not_part_of_the_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--seed", "1", "--replay", "--lease", "s001", "--json"]) == 0
    captured = capsys.readouterr()

    assert json.loads(captured.out)["plan"]["seed"] == 1
    assert " s001" in captured.err


def test_a_folder_that_cannot_hold_plans_is_told_before_anything_is_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert main(["simulate", "--seeds", "1", "--save", str(tmp_path / "file")]) == 2
    assert capsys.readouterr().err.startswith(f"streamclient simulate: cannot save plans in {tmp_path / 'file'}: ")


def test_a_plan_that_cannot_be_saved_does_not_lose_the_summary(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "answers-are-true-0.json").mkdir()
    with mutation("a checkpoint is answered before it is stored").applied():
        options = ["--processes", "1", "--no-shrink", "--save", str(tmp_path)]
        assert main(["simulate", "--seeds", "1", *options]) == 1
    captured = capsys.readouterr()

    assert "cannot write " in captured.err
    assert captured.out.startswith("1 history, 1 violation")
