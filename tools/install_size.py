"""``python -m tools.install_size EXTRAS...``: the number of packages and megabytes in an installation of this checkout.

The program prints one line for an installation without extras, and one for each argument; ``server,cli`` stands for one
installation with both extras. Each is made in a temporary environment. This needs a package index.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BYTES_PER_MEGABYTE = 1_000_000


def install(extras: str, place: Path) -> Path:
    """Install this checkout with ``extras`` into a new environment at ``place``; return its folder of packages."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
    wanted = f"{ROOT}[{extras}]" if extras else str(ROOT)
    pip = [sys.executable, "-m", "pip", "--python", str(place / "bin" / "python"), "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--quiet", "--no-compile", wanted], check=True)
    (packages,) = place.glob("lib/python*/site-packages")
    return packages


def packages_in(folder: Path) -> list[str]:
    """Return the sorted names of the packages in ``folder``, streamclient included."""
    return sorted(each.metadata["Name"].lower() for each in distributions(path=[str(folder)]))


def bytes_in(folder: Path) -> int:
    """Return the size in bytes of all files below ``folder``."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def lines(wanted: list[str]) -> Iterator[str]:
    """Install each combination of extras, and yield a line with its size."""
    for extras in ["", *wanted]:
        with tempfile.TemporaryDirectory(prefix="install-size-") as place:
            folder = install(extras, Path(place) / "venv")
            names, size = packages_in(folder), bytes_in(folder) / BYTES_PER_MEGABYTE
        yield f"{extras or 'base':<40} {len(names):>4} packages {size:>7.1f} MB"


if __name__ == "__main__":
    for line in lines(sys.argv[1:]):
        print(line, flush=True)
