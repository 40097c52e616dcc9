"""``python -m tests.console_drill``: fifteen steps through the console, as a person takes them; a line each.

Servers, consoles, workers and commands are processes, the pages are in a real Chromium. Pictures and logs stay in
``build/console-drill``. ``--only 5,6`` takes these steps alone, ``--minutes`` is the length of the look through a
proxy, ``--starts`` the number of measured starts of each kind of server. The exit code is 1 if a step did not see what
it must.
"""

from __future__ import annotations

import logging
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.console.chromium import REASON, chromium, path_of_chromium
from tests.console_drill import steps_of_cost, steps_of_doors, steps_of_fleet, steps_of_pages, steps_of_server
from tests.console_drill.stand import LOGGER, Stand
from tests.drill_kit import options

STEPS: Mapping[int, Callable[[Stand], str]] = {
    1: steps_of_server.newcomer,
    2: steps_of_server.two_sdks,
    3: steps_of_server.reshards,
    4: steps_of_server.throttled,
    5: steps_of_fleet.poison,
    6: steps_of_fleet.silent,
    7: steps_of_fleet.parked,
    8: steps_of_fleet.orders,
    9: steps_of_cost.costs,
    10: steps_of_cost.large,
    11: steps_of_doors.doors,
    12: steps_of_cost.proxied,
    13: steps_of_pages.player,
    14: steps_of_pages.everybody,
    15: steps_of_pages.documentation,
}

DIRECTORY = Path(__file__).resolve().parents[2] / "build" / "console-drill"

MISSING = "NOT SEEN"
"""The mark in a step's line of what this machine cannot show."""

ELSEWHERE = "--host-resolver-rules=MAP evil.example 127.0.0.1"
"""A name of another site that leads to this machine, as the owner of such a name can arrange."""

LEFT_TO_A_PERSON = (
    "look at the pictures in build/console-drill/pictures, Firefox's among them, and at those in docs/figures",
    "go through the pages in Firefox by hand, and once with a screen reader",
)


def chosen(text: str) -> list[int]:
    """Return the numbers of the steps in an option; all if it is empty."""
    try:
        numbers = [int(each) for each in text.split(",")] if text else list(STEPS)
    except ValueError:
        numbers = [0]
    if not set(numbers) <= set(STEPS):
        raise SystemExit(f"--only: {text!r} names no steps; there are 1 to {max(STEPS)}, with commas between them")
    return numbers


def taken(number: int, browser: Any, directory: Path, **figures: Any) -> tuple[str, str]:
    """Take a step; return whether all was seen, and what."""
    try:
        with Stand(browser, directory / f"{number:02}", **figures) as stand:
            seen = STEPS[number](stand)
    except Exception as error:  # whatever goes wrong, the other steps are taken
        with (directory / f"{number:02}" / "failure.txt").open("w", encoding="utf-8") as lines:
            traceback.print_exc(file=lines)
        return "FAILED", f"{type(error).__name__}: {' '.join(str(error).split())[:600]}"
    return ("in part" if MISSING in seen else "seen"), seen


def play(numbers: list[int], directory: Path, **figures: Any) -> dict[int, str]:
    """Take steps in a fresh directory, and print a line for each; return their results by number."""
    shutil.rmtree(directory, ignore_errors=True)
    results = {}
    logging.getLogger(LOGGER).setLevel(logging.CRITICAL)  # requests that are refused on purpose are no news
    with chromium(ELSEWHERE) as browser:
        for number in numbers:
            began = time.monotonic()
            results[number], seen = taken(number, browser, directory, **figures)
            print(f"{number:>2}  {results[number]:<7} {time.monotonic() - began:5.0f} s  {seen}", flush=True)
    return results


def main() -> None:
    given = options(only="", minutes=10.0, starts=10)
    if path_of_chromium() is None:
        raise SystemExit(f"console-drill: {REASON}")
    results = play(chosen(given.only), DIRECTORY, minutes=given.minutes, starts=given.starts)
    for text in LEFT_TO_A_PERSON:
        print(f"left to a person: {text}")
    counts = [f"{list(results.values()).count(word)} {word}" for word in ("seen", "in part", "FAILED")]
    print(f"console-drill: {', '.join(counts)}")
    sys.exit("FAILED" in results.values())


if __name__ == "__main__":
    main()
