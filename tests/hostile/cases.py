"""What each table of hostile cases needs: few cases that show all pairs, the watch over one case, the command line.

Used by ``tests.hostile``, where the service answers, and by ``tests.hostile_lake``, where destinations do.
"""

from __future__ import annotations

import argparse
import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from heapq import heapify, heappop, heappush
from itertools import combinations
from typing import Any

from attrs import astuple, define, field, frozen

from streamclient.errors import StreamClientError
from tests.hostile.judge import Act, Journal

LOOK_SECONDS = 0.02
"""Between two looks at what is waited for."""

PATIENCE_SECONDS = 60.0
"""Of the command: fifty times what the longest wait of an unhurried case takes."""

HURRY_SECONDS = 0.5
"""Of a wait that must run out, in tests of the judge."""

Traits = Callable[[Any], frozenset[object]]
"""What a case shows, of which each must be shown by one of the chosen cases."""


# --- which cases are played -------------------------------------------------------------------------------------------


def pairs(case: Any) -> frozenset[object]:
    """Each value of each column beside each value of each other one."""
    return frozenset(combinations(enumerate(astuple(case, recurse=False)), 2))


def chosen(cases: Iterable[Any], seed: int, traits: Traits = pairs) -> list[Any]:
    """Few cases that show all traits of all cases; greedy, by seed."""
    left = list(cases)
    random.Random(seed).shuffle(left)
    shown = [traits(case) for case in left]
    # What a case shows of what is missing only becomes less, so one that is still the best need not be compared anew.
    heap = [(-len(found), place) for place, found in enumerate(shown)]
    heapify(heap)
    missing = set().union(*shown)
    picked = []
    while missing:
        _, place = heappop(heap)
        news = len(shown[place] & missing)
        if heap and -news > heap[0][0]:
            heappush(heap, (-news, place))
            continue
        picked.append(left[place])
        missing -= shown[place]
    return sorted(picked, key=str)


# --- one case ---------------------------------------------------------------------------------------------------------


@frozen
class Outcome:
    """What one case showed."""

    case: Any
    findings: list[str]
    named: str
    """The first trouble that was named while it lasted."""
    played: int
    """How often the trouble was met."""
    seconds: float

    def __str__(self) -> str:
        verdict = "ok" if not self.findings else "FAILED " + "; ".join(self.findings)
        named = f", named: {self.named[:160]!r}" if self.named else ""
        return f"{self.case}: {verdict} (played {self.played}{named}, {self.seconds:.1f} s)"


class _Ear(logging.Handler):
    """Hears the package's warnings, and that something of it crashed."""

    def __init__(self, journal: Journal) -> None:
        super().__init__(logging.WARNING)
        self._journal = journal

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not isinstance(error, StreamClientError):
            self._journal.note(Act.CRASHED, text=f"{record.getMessage()} ({error!r})")
        else:
            self._journal.note(Act.SAID, text=record.getMessage())


@contextmanager
def listening(journal: Journal) -> Iterator[None]:
    """Note what the package logs, and the threads that end with an error."""
    logger, ear, before = logging.getLogger("streamclient"), _Ear(journal), threading.excepthook
    propagates = logger.propagate

    def crashed(arguments: Any) -> None:
        journal.note(Act.CRASHED, text=f"thread {arguments.thread}: {arguments.exc_value!r}")

    logger.addHandler(ear)
    logger.propagate = False
    threading.excepthook = crashed
    try:
        yield
    finally:
        threading.excepthook = before
        logger.propagate = propagates
        logger.removeHandler(ear)


@define(eq=False)
class Watch:
    """Waits for conditions of one case, at most ``patience`` seconds each; the ones that did not come are findings."""

    journal: Journal
    patience: float
    trouble: Callable[[], str]
    """The trouble that is named just now; empty for none."""
    findings: list[str] = field(factory=list)
    named: str = ""

    def until(self, condition: Callable[[], bool], otherwise: str) -> bool:
        """Whether the condition came in time; ``otherwise`` is the finding, none if it is empty."""
        pause, deadline = threading.Event(), time.monotonic() + self.patience
        while not condition():
            crashed = self.journal.texts(Act.CRASHED)
            if crashed or time.monotonic() > deadline:
                latest = self.journal.texts(Act.SAID, Act.ENDED)[-1:]
                said = self.trouble() or self.named or next(iter(latest), "")
                if otherwise:
                    self.findings.append(f"{otherwise}: {said or 'and nothing is said'}")
                return False
            pause.wait(LOOK_SECONDS)
        return True


def hurry(monkeypatch: Any, *otherwise: str) -> None:
    """Let the waits with these findings, which must run out, end soon. All others keep their patience."""
    until = Watch.until

    def hurried(self: Watch, condition: Callable[[], bool], text: str) -> bool:
        patience = self.patience
        self.patience = HURRY_SECONDS if text in otherwise else patience
        try:
            return until(self, condition, text)
        finally:
            self.patience = patience

    monkeypatch.setattr(Watch, "until", hurried)


# --- the command line -------------------------------------------------------------------------------------------------


@frozen
class Table:
    """A table of cases, as its command plays it."""

    name: str
    """Of the module, as in ``python -m tests.hostile``."""
    cases: Callable[[], Iterable[Any]]
    singles: Traits
    """The traits that ``make test`` plays."""
    play: Callable[[Any, int, float], Outcome]
    """Called with the case, the seed and the patience in seconds."""
    rows: Sequence[str]
    columns: Sequence[str]
    cell: Callable[[Any], tuple[str, str]]
    """The row and the column of a case in the summary."""

    def main(self) -> int:
        """Play the table as the arguments say: one line a case, then failures by row and column."""
        options = self._options()
        cases: list[Any] = list(self.cases())
        if not options.every:
            cases = chosen(cases, options.seed, pairs if options.all else self.singles)
        cases = [case for case in cases if all(part in str(case) for part in options.only.split("|"))]
        if options.list:
            print(*cases, f"{len(cases)} cases", sep="\n")
            return 0
        outcomes = []
        for case in cases:
            outcomes.append(self._played(case, options.seed, options.patience))
            print(outcomes[-1], flush=True)
        print(self.summary(outcomes))
        return 1 if not outcomes or any(outcome.findings for outcome in outcomes) else 0

    def _options(self) -> argparse.Namespace:
        parser = argparse.ArgumentParser(prog=f"python -m {self.name}")
        parser.add_argument(
            "--all", action="store_true", help="all pairs of values; by default the cases of `make test`"
        )
        parser.add_argument("--every", action="store_true", help="the whole table, which takes hours")
        parser.add_argument(
            "--only",
            default="",
            metavar="TEXT",
            help="cases with this text in their names; may be parts, separated by |, all of which must be there",
        )
        parser.add_argument("--seed", type=int, default=1, help="decides which cases show the pairs, and other chances")
        parser.add_argument("--patience", type=float, default=PATIENCE_SECONDS, metavar="SECONDS")
        parser.add_argument("--list", action="store_true", help="name the cases, and play none")
        return parser.parse_args()

    def _played(self, case: Any, seed: int, patience: float) -> Outcome:
        """One case; an error of the harness is a finding, too, so that the others are played."""
        try:
            return self.play(case, seed, patience)
        except Exception as error:
            return Outcome(case, [f"the harness itself: {error!r}"], "", 0, 0.0)

    def summary(self, outcomes: Sequence[Outcome]) -> str:
        """Cases by row and column, and how many of them failed."""
        played = Counter(self.cell(one.case) for one in outcomes)
        failed = Counter(self.cell(one.case) for one in outcomes if one.findings)
        width = max(map(len, self.rows))
        wide = max(map(len, self.columns)) + 2
        lines = ["", " " * width + "".join(f"{name:>{wide}}" for name in self.columns)]
        for row in self.rows:
            cells = [_cell(played[row, name], failed[row, name]) for name in self.columns]
            lines.append(f"{row:<{width}}" + "".join(f"{cell:>{wide}}" for cell in cells))
        seconds = sum(one.seconds for one in outcomes)
        return "\n".join([*lines, "", f"{len(outcomes)} cases, {failed.total()} failed, {seconds:.0f} s"])


def _cell(played: int, failed: int) -> str:
    if not played:
        return "."
    return f"{failed} of {played}" if failed else f"{played}"
