"""The table and its judge: each trouble is known where it can be, and each law that is broken is found."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from streamclient.destinations import DeltaDestination
from tests.hostile.cases import chosen, hurry
from tests.hostile_lake import play
from tests.hostile_lake.consumers import DestinationConsumer
from tests.hostile_lake.places import Servers
from tests.hostile_lake.steps import Steps, TellingDelta
from tests.hostile_lake.table import (
    DESTINATION,
    DIRECTORY,
    MIRROR,
    OTHERS,
    SETTINGS,
    TROUBLES,
    Case,
    Lasting,
    PlaceKind,
    Step,
    all_cases,
    singles,
)

pytestmark = pytest.mark.slow

HARMLESS = next(one for one in OTHERS if one.name == "another's column")
NAMED = next(one for one in SETTINGS if one.name == "an unsafe property")


def case_of(trouble: Any, lasting: Lasting, consumer: Any = DESTINATION) -> Case:
    return Case(DIRECTORY, consumer, trouble, Step.IDLE, lasting)


def played(case: Case) -> list[str]:
    with Servers() as servers:
        return play.play(case, servers, patience=600.0).findings


# --- the table --------------------------------------------------------------------------------------------------------


def test_each_place_knows_its_troubles_and_no_others(tmp_path: Path) -> None:
    with Servers() as servers:
        for kind in PlaceKind:
            wanted = {trouble.name for trouble in TROUBLES if kind in trouble.at}
            case = next(case for case in all_cases() if case.place is kind)
            with play.place_of(case, servers, tmp_path, Steps(Step.START)) as place:
                known = place.troubles.keys()
            assert known >= wanted, kind
            # A catalog is another's, so of what befalls its database the table has only a part.
            assert known == wanted or kind is PlaceKind.ICEBERG, kind


def test_every_run_of_the_tests_plays_each_trouble_and_each_step_of_each_consumer() -> None:
    cases, few = list(all_cases()), chosen(all_cases(), 1, singles)

    assert {case.trouble for case in few} == set(TROUBLES)
    assert {(case.consumer, case.step) for case in few} == {(case.consumer, case.step) for case in cases}
    assert {(case.place, case.consumer) for case in few} == {(case.place, case.consumer) for case in cases}


# --- the judge --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("consumer", [DESTINATION, MIRROR])
@pytest.mark.parametrize("trouble", [HARMLESS, NAMED], ids=str)
def test_nothing_is_found_where_no_law_is_broken(trouble: Any, consumer: Any) -> None:
    lasting = Lasting.UNTIL_EVEN if trouble is HARMLESS else Lasting.UNTIL_NAMED

    assert played(case_of(trouble, lasting, consumer)) == []


class Losing(TellingDelta):
    def commit(self, rows: Any, commits: Any) -> None:
        super().commit(rows.slice(1) if rows.num_rows > 1 else rows, commits)


class Doubling(TellingDelta):
    def commit(self, rows: Any, commits: Any) -> None:
        super().commit(pa.concat_tables([rows, rows]), commits)


@pytest.mark.parametrize(
    ("kind", "law"), [(Losing, "lost: "), (Doubling, "stored twice: ")], ids=["a loss", "a double"]
)
def test_rows_that_are_lost_or_doubled_are_found(
    monkeypatch: pytest.MonkeyPatch, kind: type[DeltaDestination], law: str
) -> None:
    monkeypatch.setattr("tests.hostile_lake.delta.TellingDelta", kind)
    found = played(case_of(HARMLESS, Lasting.UNTIL_EVEN))

    assert any(text.startswith(law) for text in found), found


def patched(monkeypatch: pytest.MonkeyPatch, name: str, work: Callable[..., Any]) -> None:
    made = type("Broken", (DestinationConsumer,), {name: work})
    monkeypatch.setattr(play, "consumer_of", lambda case: made)


def test_trouble_that_is_never_named_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    patched(monkeypatch, "told", lambda self: "")
    hurry(monkeypatch, "not named where people look")
    found = played(case_of(NAMED, Lasting.UNTIL_NAMED))

    assert any(text.startswith("not named where people look: ") for text in found), found


def test_trouble_that_is_named_without_its_cause_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    patched(monkeypatch, "told", lambda self: "something is wrong" if self.place.steps.has_begun.is_set() else "")
    hurry(monkeypatch, "not named where people look", "trouble is named although it is over")
    found = played(case_of(NAMED, Lasting.UNTIL_NAMED))

    assert "not named where people look: something is wrong" in found
    assert "trouble is named although it is over: something is wrong" in found


def test_a_consumer_that_does_not_go_on_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    case = case_of(NAMED, Lasting.UNTIL_NAMED)
    with ExitStack() as stack:
        stack.enter_context(monkeypatch.context()).setattr(play._Run, "_ends", lambda self: True)
        hurry(monkeypatch, "stall")
        found = played(case)

    assert any(text.startswith("stall: ") for text in found), found
