"""Many histories in several processes, and their coverage of the production core."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import active_children, get_context

from streamclient.testing.simulation.drawing import Size, draw_plan
from streamclient.testing.simulation.report import Summary
from streamclient.testing.simulation.runner import HistoryVerdict, run_plan

SEEDS_PER_TASK = 20
"""Seeds that a process gets at once: seconds of work, so that the transfer costs nothing and progress shows."""

Judged = tuple[HistoryVerdict, float]
"""A verdict and the processor seconds that it took."""


def run_seeds(seeds: Sequence[int], size: Size | None = None) -> list[Judged]:
    """Run the histories of some seeds in this process."""
    judged = []
    for seed in seeds:
        began = time.process_time()
        verdict = run_plan(draw_plan(seed, size))
        judged.append((verdict, time.process_time() - began))
    return judged


def run_campaign(
    seeds: range,
    *,
    processes: int = 0,
    size: Size | None = None,
    progress: Callable[[Summary, HistoryVerdict], None] | None = None,
) -> tuple[Summary, list[HistoryVerdict]]:
    """Run the histories of many seeds; return the summary and the verdicts with a violation, in order.

    ``processes=0`` means one per core. ``progress`` is called after each history, in the order of the seeds.
    """
    summary, broken = Summary(), []
    for verdict, seconds in _all(seeds, processes or os.cpu_count() or 1, size):
        summary.add(verdict, seconds)
        if verdict.violation is not None:
            broken.append(verdict)
        if progress is not None:
            progress(summary, verdict)
    return summary, broken


def _all(seeds: range, processes: int, size: Size | None) -> Iterator[Judged]:
    tasks = [seeds[start : start + SEEDS_PER_TASK] for start in range(0, len(seeds), SEEDS_PER_TASK)]
    if processes == 1 or len(tasks) == 1:
        for task in tasks:
            for seed in task:
                yield from run_seeds([seed], size)
        return
    with pool_of(processes) as pool:
        for judged in pool.map(run_seeds, tasks, [size] * len(tasks)):
            yield from judged


@contextmanager
def pool_of(processes: int) -> Iterator[ProcessPoolExecutor]:
    """Start processes that end with the block, and at once if an exception, Ctrl-C or SIGTERM leaves it.

    The executor by itself waits for running tasks, which may be a minute of histories.
    """
    before = {child.pid for child in active_children()}
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        try:
            yield pool
        except BaseException:
            for child in active_children():
                if child.pid not in before:
                    child.terminate()
            raise
