"""A loop that was begun before a fork; run in a process of its own by ``test_loop_programs.py``."""

from __future__ import annotations

from tests.loops.loop_scene import LoopScene, ids
from tests.process.forks import in_child
from tests.worker.stage import keys


def test_a_loop_that_was_made_before_a_fork_is_refused_in_the_child_and_goes_on_in_the_parent() -> None:
    scene = LoopScene()
    scene.write("a", 10)
    with scene.changes() as changes:
        next(changes)

        for use in (lambda: next(changes), changes.close, lambda: changes.run(print)):
            assert "ForkedError: a loop over changes was started before a fork" in in_child(use)

        assert ids(next(changes)) == keys(5, 5)
