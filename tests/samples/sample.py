"""What a sample prints, and what its page shows of it."""

from __future__ import annotations

import io
import runpy
import sys
import threading
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from tests.docs.page_examples import FENCE
from tests.patience import PATIENCE_SECONDS

ROOT = Path(__file__).resolve().parents[2]


def printed_by(sample: str, *arguments: str) -> str:
    """The output of ``python -m samples.SAMPLE``, run here: most of a process would be its imports.

    As a process it would end only when its threads do, so here it has to, too.
    """
    before, output = set(threading.enumerate()), io.StringIO()
    with pytest.MonkeyPatch.context() as patched, redirect_stdout(output):
        patched.setattr(sys, "argv", [sample, *arguments])
        # By its path: by its name it would be refused where another test has imported it.
        runpy.run_path(str(ROOT / "samples" / f"{sample}.py"), run_name="__main__")
    for thread in set(threading.enumerate()) - before:
        if not thread.daemon:
            thread.join(PATIENCE_SECONDS)
            assert not thread.is_alive(), thread
    return output.getvalue()


def blocks_of(page: str, language: str = "text") -> list[str]:
    return [body for found, body in FENCE.findall((ROOT / page).read_text()) if found == language]


def shown_in(page: str, beginning: str) -> str:
    """The text block of a page that begins so."""
    return next(block for block in blocks_of(f"docs/{page}") if block.startswith(beginning))
