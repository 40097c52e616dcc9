"""The package as its users have it: a wheel in an environment of its own, with nothing of the checkout in sight."""

from __future__ import annotations

import os
import re
import shutil
import site
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.patience import PATIENCE_SECONDS

ROOT = Path(__file__).resolve().parents[1]
PARTS = (
    "streamclient",
    "samples",
    "pyspark_tablestore.py",
    "setup.cfg",
    "setup.py",
    "pyproject.toml",
    "README.md",
    "LICENSE",
)


class Installed:
    """A virtual environment of its own with the wheel, which sees the dependencies that are installed here."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.bin = directory / "bin"

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TABLESTORE_"))}
        return {**kept, "PATH": f"{self.bin}:{kept.get('PATH', '')}"}

    def run(self, command: str, folder: Path, *, logs: bool = False, **variables: str) -> str:
        """A line of a shell; what it printed. Only what logs may print anything on standard error."""
        done = subprocess.run(
            ["bash", "-c", command],
            capture_output=True,
            text=True,
            cwd=folder,
            env={**self.environment, **variables},
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        printed = f"$ {command}\n{done.stdout}{done.stderr}"
        assert done.returncode == 0, printed
        assert logs or not done.stderr, printed
        return done.stdout

    def run_script(self, script: Path, *arguments: str, folder: Path) -> None:
        """A program, isolated: it finds what is installed, and nothing beside itself."""
        done = subprocess.run(
            [str(self.bin / "python"), "-I", str(script), *arguments],
            capture_output=True,
            text=True,
            cwd=folder,
            env=self.environment,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{script.name} {' '.join(arguments)}\n{done.stdout}{done.stderr}"

    @contextmanager
    def serving(self, folder: Path) -> Iterator[str]:
        """``streamclient server``, on any free port."""
        process = subprocess.Popen(
            [str(self.bin / "streamclient"), "server", "--port", "0"],
            stdout=subprocess.PIPE,
            text=True,
            cwd=folder,
            env=self.environment,
        )
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert re.fullmatch(r"listening on http://127\.0\.0\.1:\d+\n", line), line
            yield line.removeprefix("listening on ").strip()
        finally:
            process.kill()
            process.communicate(timeout=PATIENCE_SECONDS)


def copy_of_the_checkout(place: Path) -> Path:
    """What an installation needs of it, as it is right after a clone."""
    source = place / "source"
    source.mkdir()
    for part in PARTS:
        if (ROOT / part).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.so")
            shutil.copytree(ROOT / part, source / part, symlinks=True, ignore=ignored)
        else:
            shutil.copy(ROOT / part, source / part)
    return source


def install(place: Path, source: Path | None = None) -> Installed:
    """The wheel as pip builds it from a clean copy of the checkout, or from `source`, in a fresh environment."""
    source = source or copy_of_the_checkout(place)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", str(place), str(source)], check=True)
    (wheel,) = place.glob("*.whl")
    venv = place / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(venv), "platbase": str(venv)}))
    # What is imported is compiled then; most of it never is.
    install = ["--python", str(venv / "bin" / "python"), "install", "--quiet", "--no-deps", "--no-compile", str(wheel)]
    subprocess.run([*pip, *install], check=True)
    # Dependencies, not the checkout: only site-packages, behind the environment's own.
    (packages / "dependencies.pth").write_text("\n".join(site.getsitepackages()))
    return Installed(venv)
