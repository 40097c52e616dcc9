"""Runs all tests on a machine that has better things to do: ``make test-busy``.

Eight processes compute without an end; the tests, and they, run at ``nice 19``. They have the same niceness because the
kernel would give tests of a lower one a two-hundredth of a processor beside each of them, and a run would take days.
Several processes may share the tests (``-n``, as in ``make test``): each of them has less of the machine then.

usage: python -m tests.busy [--processes N] [what pytest takes]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

LOWEST = 19
COMPUTE = "while True: pass"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.busy", description="Run tests beside busy processes.")
    parser.add_argument("--processes", type=int, default=8)
    options, words = parser.parse_known_args(arguments)
    os.nice(LOWEST - os.nice(0))
    busy = [subprocess.Popen([sys.executable, "-c", COMPUTE]) for _ in range(options.processes)]
    try:
        return subprocess.run([sys.executable, "-m", "pytest", *words], check=False).returncode
    finally:
        for process in busy:
            process.kill()
            process.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
