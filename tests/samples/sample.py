"""What a sample prints, and what its page shows of it."""

from __future__ import annotations

import io
import runpy
import sys
import threading
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from streamclient.cli.sample_command import write_sample
from tests.docs.page_examples import commands
from tests.installed import ROOT, Installed
from tests.patience import PATIENCE_SECONDS

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
RUN_IT_WITH = "run it with: "
FAILS = {"fenced_sink", "parked_records"}
"""Samples whose processors fail, of which the log on standard error tells."""


def as_told(installed: Installed, sample: str, folder: Path, **variables: str) -> str:
    """The output of a sample that the installed command wrote below a folder, run in that as the command says."""
    written = installed.run(f"streamclient sample {sample} --directory written", folder).splitlines()
    assert written[-1].startswith(RUN_IT_WITH), written
    return installed.run(written[-1].removeprefix(RUN_IT_WITH), folder, logs=sample in FAILS, **variables)


def printed_by(sample: str, folder: Path) -> str:
    """The output of ``python SAMPLE.py`` in a folder where it is written, run here: with the Spark of this process.

    As a process it would end only when its threads do, so here it has to, too.
    """
    write_sample(sample, folder)
    before, output = set(threading.enumerate()), io.StringIO()
    with pytest.MonkeyPatch.context() as patched, redirect_stdout(output):
        patched.chdir(folder)
        patched.setattr(sys, "argv", [sample])
        runpy.run_path(str(folder / f"{sample}.py"), run_name="__main__")
    for thread in set(threading.enumerate()) - before:
        if not thread.daemon:
            thread.join(PATIENCE_SECONDS)
            assert not thread.is_alive(), thread
    return output.getvalue()


def shown_by(sample: str) -> str:
    """What the one page that runs the sample shows of its output."""
    shown = [each for page in PAGES for each in commands(page.read_text()) if each[0] == f"python {sample}.py"]
    ((_, output),) = shown
    return output
