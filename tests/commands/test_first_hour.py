"""The first hour as the README has it: from a wheel, in an empty folder, with nothing of the checkout in sight."""

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

import pytest

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("streamclient", "samples", "setup.cfg", "setup.py", "pyproject.toml", "README.md", "LICENSE")
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PATIENCE_SECONDS = 300


class Installed:
    """A virtual environment of its own with the wheel, which sees the dependencies that are installed here."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.bin = directory / "bin"

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TABLESTORE_"))}
        return {**kept, "PATH": f"{self.bin}:{kept.get('PATH', '')}"}

    def run(self, command: str, folder: Path, **variables: str) -> str:
        """A line of a shell; what it printed."""
        done = subprocess.run(
            ["bash", "-c", command],
            capture_output=True,
            text=True,
            cwd=folder,
            env={**self.environment, **variables},
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, ""), f"$ {command}\n{done.stdout}{done.stderr}"
        return done.stdout

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
            process.communicate(timeout=60)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The wheel as pip builds it from a clean copy, in a fresh environment."""
    place = tmp_path_factory.mktemp("wheel")
    source = place / "source"
    source.mkdir()
    for part in PARTS:
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, source / part, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / part, source / part)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", str(place), str(source)], check=True)
    (wheel,) = place.glob("*.whl")
    venv = place / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(venv), "platbase": str(venv)}))
    subprocess.run(
        [*pip, "--python", str(venv / "bin" / "python"), "install", "--quiet", "--no-deps", str(wheel)], check=True
    )
    # Dependencies, not the checkout: only site-packages, behind the environment's own.
    (packages / "dependencies.pth").write_text("\n".join(site.getsitepackages()))
    return Installed(venv)


def console_lines(heading: str) -> list[tuple[str, str]]:
    """Commands below a heading of the README, each with what it shows."""
    section = (ROOT / "README.md").read_text().split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    found: list[tuple[str, str]] = []
    for block in BLOCK.findall(section):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, shown = part.partition("\n")
            found.append((command, shown))
    return found


def printed_as(expected: str, actual: str) -> bool:
    """Spaces between columns depend on the length of ids; ``...`` is anything."""
    expected, actual = (re.sub(r" +", " ", text).strip() for text in (expected, actual))
    pattern = ".*?".join(re.escape(part) for part in expected.split("..."))
    return re.fullmatch(pattern, actual, re.DOTALL) is not None


@pytest.mark.slow
def test_the_first_hour_of_the_readme_runs_as_printed_from_a_wheel(installed: Installed, tmp_path: Path) -> None:
    (server, listening), *commands = console_lines("The first hour")

    assert (server, listening) == ("streamclient server", "listening on http://127.0.0.1:8180\n")
    assert len(commands) >= 4
    with installed.serving(tmp_path) as endpoint:
        for command, shown in commands:
            actual = installed.run(command, tmp_path, TABLESTORE_ENDPOINT=endpoint)
            assert printed_as(shown, actual), f"$ {command}\n{actual}"


@pytest.mark.slow
def test_every_sample_is_written_by_the_installed_command_and_finds_what_it_imports(
    installed: Installed, tmp_path: Path
) -> None:
    names = [path.stem for path in (ROOT / "samples").glob("*.py") if path.stem != "__init__"]
    for name in [*names, "demo"]:
        folder = tmp_path / name
        folder.mkdir()
        installed.run(f"streamclient sample {name}", folder)
        assert "samples." not in "".join(path.read_text() for path in folder.rglob("*.py")).replace("samples/", "")
        module = "demo.__main__" if name == "demo" else name
        installed.run(f"python -c 'import {module}'", folder)


def test_no_page_needs_the_checkout_for_its_examples() -> None:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    guilty = [page.name for page in pages if re.search(r"^\s*(from|import) samples\b", page.read_text(), re.MULTILINE)]

    assert guilty == []
