"""The table of ``make loop-programs``, in short: this Python, three programs; and that it can fail."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve

from tests.loops.programs import PROGRAMS, Table, complaint, fill, played, program
from tests.loops.type_checkers import NOT_AT_HAND, public_names, verified

SHORT = ("cancels_each", "closes_its_event_loop", "catches_ctrl_c")
PENDING = program("leaves_a_task_pending")


@pytest.mark.slow
@pytest.mark.parametrize("name", SHORT)
def test_a_program_ends_with_nothing_to_complain_about(name: str) -> None:
    (one,) = [each for each in PROGRAMS if each.name == name]

    assert played(one) == ""


@pytest.mark.slow
def test_a_pending_task_and_a_wrong_exit_code_are_noticed() -> None:
    assert played(PENDING).startswith("Task was destroyed but it is pending!")
    assert played(evolve(PENDING, codes=(143,))).startswith("it ended with 0; ")


def test_a_ctrl_c_may_be_told_and_nothing_besides() -> None:
    told = 'Traceback (most recent call last):\n  File "x.py", line 1, in <module>\nKeyboardInterrupt\n'

    assert complaint(told, is_interrupted=True) == ""
    assert complaint(told) != ""
    assert complaint(f"x.py:1: ResourceWarning: unclosed\n{told}", is_interrupted=True) != ""
    assert complaint(f"{told}Exception ignored in: x\n", is_interrupted=True) != ""
    took_long = "Executing <Task pending> took 0.2 seconds\n"
    assert complaint(took_long) == ""
    assert complaint(took_long + told, is_interrupted=True) == ""


def test_a_python_that_is_not_here_is_not_said_to_be_ok() -> None:
    table = Table()
    fill(table, PROGRAMS, ["3.99"])

    assert table.columns == ["3.99", "3.99 uvloop"]
    assert {*table.cells.values()} == {NOT_AT_HAND}
    assert len(table.cells) == len(PROGRAMS) + sum(one.is_async for one in PROGRAMS)


def test_a_public_name_without_a_known_type_is_noticed_and_an_internal_one_is_not() -> None:
    def symbol(name: str, **changed: Any) -> dict[str, Any]:
        facts = {"isExported": True, "isTypeKnown": True, "isTypeAmbiguous": False}
        return {"name": name, "diagnostics": [{"message": "why\nmore"}], **facts, **changed}

    batch = "streamclient.worker.handlers.batches.Batch"
    symbols = [
        symbol(batch),
        symbol(f"{batch}.commit", isTypeAmbiguous=True),
        symbol(f"{batch}.fail", isTypeKnown=False),
        symbol(f"{batch}.__secret", isExported=False, isTypeKnown=False),
        symbol("streamclient.core.held.HeldLease", isTypeKnown=False),
    ]

    assert batch in public_names()
    assert verified({"typeCompleteness": {"symbols": symbols}}, public_names()) == (
        3,
        [f"{batch}.commit: why", f"{batch}.fail: why"],
    )
