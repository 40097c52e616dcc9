"""The page about simulation shows what really is printed.

Counts and times depend on every detail of the core, so digits are not compared where a history is shown; everything
else is.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from page_examples import FENCE, matches

from streamclient.cli.main import main
from streamclient.testing import Faults
from streamclient.testing.simulation.laws import SAFETY
from streamclient.testing.simulation.laws.ownership_laws import OneReader
from streamclient.testing.simulation.laws.progress_laws import NothingIsLost
from streamclient.testing.simulation.runner import RAISED
from streamclient.testing.simulation.simulated_faults import EXCUSES, Excuse
from tests.installed import Installed
from tests.simulation.mutations import MUTATIONS

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "simulation.md"
SAMPLE = "test_my_processor.py"


def block(language: str, part: str) -> str:
    bodies: list[str] = [body for found, body in FENCE.findall(PAGE.read_text()) if found == language]
    return next(body for body in bodies if part in body)


def shape(text: str) -> list[str]:
    """Lines without what depends on the moment: numbers, and the padding beside them."""
    return [re.sub(r"\s+", " ", re.sub(r"\d+(\.\d+)?", "#", line)).strip() for line in text.strip().splitlines()]


def test_the_page_shows_the_sample_itself() -> None:
    assert block("python", "class PatientProcessor").strip() in (ROOT / "samples" / SAMPLE).read_text()


@pytest.mark.slow
def test_the_sample_prints_what_the_page_shows(installed: Installed, tmp_path: Path) -> None:
    """From a wheel, with fewer seeds, which says as much of its words: numbers are not compared."""
    installed.run("streamclient sample test_my_processor", tmp_path)
    printed = installed.run(f"python -m pytest {SAMPLE} -s --simulation-seeds 2", tmp_path)
    shown = block("text", "changes written, ").strip().splitlines()
    actual = printed.splitlines()
    first = next(number for number, line in enumerate(actual) if line.startswith(SAMPLE))

    assert shape("\n".join(actual[first : first + len(shown)])) == shape("\n".join(shown))
    assert "2 passed" in printed


@pytest.mark.slow
def test_the_command_prints_what_the_page_shows(capsys: pytest.CaptureFixture[str]) -> None:
    command, _, shown = block("console", "histories, ").partition("\n")

    assert main(command.removeprefix("$ streamclient ").split()) == 0
    assert matches(shown, capsys.readouterr().out)


@pytest.mark.slow
def test_the_page_of_a_history_is_written_as_the_page_shows(installed: Installed, tmp_path: Path) -> None:
    """From a wheel, which has to have the scripts of the page in it."""
    command, _, shown = block("console", "--page history.html").partition("\n")
    printed = installed.run(command.removeprefix("$ "), tmp_path)

    assert shape(re.sub(r"(?<=digest )\w+", "#", printed)) == shape(re.sub(r"(?<=digest )\w+", "#", shown))
    assert "streamclient-history-1" in (tmp_path / "history.html").read_text(encoding="utf-8")


def without_progress(text: str) -> str:
    """What is printed, without what a campaign says every ten seconds."""
    lines = text.splitlines(keepends=True)
    return "".join(line for line in lines if re.match(r"(\d\d:\d\d:\d\d  )?\d+ of \d+ histories, ", line) is None)


@pytest.mark.slow
def test_the_violation_on_the_page_is_real(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its plan breaks that law in those steps while the rule is broken, and no law otherwise.

    Which seed comes upon it first depends on every detail of the core, so what is printed below a plan is looked at for
    whatever seeds do now.
    """
    monkeypatch.chdir(tmp_path)
    shown = block("text", "breaks the law")
    story, _, rest = shown.partition("its plan:\n")
    plan, _, hints = rest.partition("\n\n")
    Path("plan.json").write_text(plan)
    (mutation,) = (each for each in MUTATIONS if each.name == "a hand-over compares nothing")

    with mutation.applied():
        assert main(["simulate", "--plan", "plan.json"]) == 1
        replayed = capsys.readouterr().out
        options = ["--seeds", "20", "--processes", "1", "--no-shrink"]
        monkeypatch.setattr("streamclient.cli.simulate_command.PROGRESS_SECONDS", 0.0)  # as where it takes long
        assert main(["simulate", *options, "--save", "found"]) == 1
    printed = without_progress(capsys.readouterr().err).split("\nseed ")[0]
    law = re.search(r"breaks the law '(.*?)'", shown)
    assert law is not None

    assert shape(replayed)[:-1] == shape(story)
    found = re.sub(r"found/[a-z-]+-(?=\d)", f"found/{law.group(1)}-", printed.partition("\n\n")[2])
    assert shape(found) == shape(hints)
    assert main(["simulate", "--plan", "plan.json"]) == 0


def rows_below(heading: str) -> str:
    """The tables of a section, without heads."""
    section = PAGE.read_text().split(f"{heading}\n", 1)[1].split("\n#", 1)[0]
    return "\n".join(line for line in section.splitlines() if line.startswith("| `"))


def test_every_law_and_every_fault_stands_on_the_page() -> None:
    laws = {law.name for law in SAFETY} | {NothingIsLost.order, OneReader.in_one_process, "recovery", "rest", RAISED}
    named = set(re.findall(r"`([^`]+)`", rows_below("### Its laws")))
    faults = {re.sub(r"\(.*", "", str(fault)) for fault in Faults.everything()}

    assert named == laws
    assert set(re.findall(r"`(Faults\.\w+)\(", rows_below("### What may go wrong"))) == faults


def test_every_excuse_stands_on_the_page_with_the_laws_that_it_excuses() -> None:
    rows = [re.findall(r"`([^`]+)`", row) for row in rows_below("### What is excused").splitlines()]

    assert {name: set(laws) for name, *laws in rows} == {
        excuse.value: set(excusing.laws) for excuse, excusing in EXCUSES.items()
    }
    assert set(EXCUSES) == set(Excuse)


def test_every_option_stands_on_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["simulate", "--help"])
    offered = set(re.findall(r"--[a-z-]+", capsys.readouterr().out)) - {"--help"}

    assert set(re.findall(r"--[a-z-]+", rows_below("### A broken law"))) == offered


def test_the_options_of_pytest_stand_on_the_page(pytestconfig: pytest.Config) -> None:
    named = re.findall(r"`--(simulation-\w+)", rows_below("### When it fails"))

    assert sorted(named) == sorted(
        name.replace("_", "-") for name in vars(pytestconfig.option) if name.startswith("simulation_")
    )
