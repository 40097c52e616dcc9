"""The wheel on every Python that is at hand: ``python -m tests.wire.wheels``, or ``make test-wheels``.

One wheel is built and looked into. For each Python it is installed into a new environment, where the tests of the codec
pass on it; then the package is installed from its sources with the compiler hidden, and they pass on the twin.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tools.make_wheels import require_library, sources

ROOT = Path(__file__).resolve().parents[2]
VERSIONS = ("3.10", "3.11", "3.12", "3.13")
TESTS = ("test_wire_native.py", "test_wire_columns.py", "test_wire_records.py", "test_wire_tunnel.py")
NEEDED = ("pytest", "hypothesis", "pyarrow")
"""What these tests import besides the package."""


def pythons(versions: Sequence[str] = VERSIONS) -> Iterator[tuple[str, str]]:
    """Those of these versions that can be run here, each with its program: on the path, or one of pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    for version in versions:
        installed = sorted(map(str, pyenv.glob(f"{version}.*/bin/python")))
        for candidate in (f"python{version}", *installed):
            question = [candidate, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
            try:
                answer = subprocess.run(question, capture_output=True, text=True, check=False).stdout.strip()
            except OSError:
                continue
            if answer == version:
                yield version, candidate
                break


def run(command: list[str], directory: Path, **changed: str) -> None:
    """Run a command to its end; its output is shown if it fails."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command,
        cwd=directory,
        env={**environment, **changed},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}")


def built_wheel(directory: Path) -> Path:
    """The wheel, which must say that it is for all these Pythons and hold the extension."""
    source = sources(directory / "source")
    run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(directory), "."], source)
    (wheel,) = directory.glob("*.whl")
    require_library(wheel)
    return wheel


def tested(python: str, directory: Path, package: str, expected: str, variables: Mapping[str, str]) -> None:
    """Install the package into a new environment, and run the tests of the codec there, away from its sources."""
    run([python, "-m", "venv", "environment"], directory)
    own = str(directory / "environment" / "bin" / "python")
    run([own, "-m", "pip", "install", "-q", "--disable-pip-version-check", package, *NEEDED], directory, **variables)
    tests = Path(shutil.copytree(ROOT / "tests" / "wire", directory / "tests"))
    question = "from streamclient.records import NATIVE; print('compiled' if NATIVE else 'twin')"
    answer = subprocess.run([own, "-c", question], cwd=tests, capture_output=True, text=True, check=True).stdout.strip()
    if answer != expected:
        raise SystemExit(f"{python}: expected the {expected} codec, got the {answer} one")
    run([own, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS], tests)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.wire.wheels", description=__doc__.split("\n")[0])
    parser.add_argument("--python", action="append", choices=VERSIONS, help="only this version; may be repeated")
    wanted = parser.parse_args().python or VERSIONS
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        wheel = built_wheel(directory)
        print(f"{wheel.name} holds the compiled codec", flush=True)
        hidden = {"CC": "/no/such/compiler"}
        for version, python in pythons():
            if version not in wanted:
                continue
            for kind, variables in (("compiled", {}), ("twin", hidden)):
                own = directory / f"{version}-{kind}"
                own.mkdir()
                package = str(wheel) if kind == "compiled" else str(sources(own / "source"))
                tested(python, own, package, kind, variables)
                shutil.rmtree(own)
                print(f"Python {version}: the tests of the codec pass on the {kind} one", flush=True)


if __name__ == "__main__":
    main()
