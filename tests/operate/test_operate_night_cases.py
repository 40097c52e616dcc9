"""Twelve faults at three in the morning: the page shows what the commands print, whose first line is true."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from night_page import FAULTS, PAGE, agrees, commands_below, run, split_scene
from stuck_page import page_rows

from streamclient.base.processes import process_space

if TYPE_CHECKING:
    from streamclient.server import LocalTablestore

pytestmark = pytest.mark.slow

FIRST: dict[str, tuple[str, str]] = {
    "The status table is throttled": ("status table orders_status cannot be read: OTSServerBusy", "throttled"),
    "The stream is throttled": ("2 shards do not move: reading failed", "reading-fails"),
    "The owner is frozen": ("on this machine is stopped", "owner-frozen"),
    "A record is poisoned": ("stopped by failure_policy at record", "record-fails"),
    "A call hangs": ("2 shards do not move: process_records has been running for", "user-code-runs"),
    "A row was deleted": ("has no lease row yet: a worker creates it soon", "no-row-yet"),
    "A shard is paused": ("database maintenance", "paused"),
    "A position has expired": ("are past the stream's retention and lost", "position-trimmed"),
    "The worker's key was revoked": ("runs, but does not reach the status table", "owner-cut-off"),
    "The clock is 20 minutes off": ("this machine's clock is 20 min slow, by the service's clock", "clock-wrong"),
    "A process was killed": ("whose process is gone", "owner-silent"),
    "Nothing is running": ("has no owner, and no worker lives", "no-worker"),
}
"""What the first paragraph must say of each fault, and the situation whose advice must follow."""

OF_PROCESSES = {"The owner is frozen", "The worker's key was revoked", "A process was killed"}


def flat(text: str) -> str:
    return " ".join(text.split())


def advice_of(situation: str) -> str:
    return next(row.advice for row in page_rows() if row.name == situation)


def paragraph(shown: str) -> str:
    """The first line of a screen with the lines into which the terminal's width folded it."""
    first, *others = shown.splitlines()
    folded = []
    for line in others:
        if not line.startswith("  ") or line.strip().startswith(("since ", "seen since ", "what to do: ")):
            break
        folded.append(line)
    return flat(" ".join([first, *folded]))


@pytest.mark.parametrize("heading", FAULTS)
def test_the_screens_of_a_fault_are_on_the_page(local: LocalTablestore, heading: str) -> None:
    if heading in OF_PROCESSES and not process_space():
        pytest.skip("only Linux says what process ids count in")
    words, situation = FIRST[heading]
    scene, low, high = split_scene(local)
    shown = commands_below(PAGE.read_text())[heading]
    with FAULTS[heading](scene, low, high):
        ran = [(command, run(scene, command), expected) for command, expected in shown]

    assert [command.split()[1] for command, _, _ in ran] == ["explain", "top"]
    for command, screen, expected in ran:
        assert words in paragraph(screen.text), screen.text
        assert flat(advice_of(situation)) in flat(screen.text), screen.text
        assert max(map(len, screen.text.splitlines())) <= 80, screen.text
        assert agrees(expected, screen.on_the_page), f"$ {command}\n{screen.on_the_page}\nnot:\n{expected}"


def test_every_fault_has_its_section_and_a_wrong_screen_would_be_noticed() -> None:
    sections = commands_below(PAGE.read_text())

    assert [heading for heading in sections if heading in FAULTS] == list(FAULTS) == list(FIRST)
    assert agrees("lag 3 s\n", "lag 2 min 4 s\n")
    assert not agrees("what to do: Nothing.\n", "what to do: Start a worker.\n")
    assert Path(PAGE).name in (PAGE.parent / "operating.md").read_text()
