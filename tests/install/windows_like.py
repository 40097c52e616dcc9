"""A program that runs as if Python had only what it has on Windows: ``python windows_like.py (-m MODULE | FILE) ...``.

What Windows lacks is read off typeshed, which mypy brings. The package and the program that runs see modules without
these names, and ``sys.platform`` and ``os.name`` of Windows. The standard library and other packages, which know
Windows themselves, see everything.
"""

from __future__ import annotations

import ast
import builtins
import errno
import fcntl
import os
import runpy
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

FARTHEST = 1 << 40
"""A place in a file that every file system here can name. Windows names all that have 63 bits."""


def lseek(descriptor: int, position: int, how: int) -> int:
    return os.lseek(descriptor, min(position, FARTHEST), how)


def opened(path: str | os.PathLike[str], *arguments: Any, **named: Any) -> int:
    if os.path.isdir(path):
        raise PermissionError(errno.EACCES, "a directory cannot be opened on Windows", os.fspath(path))
    return os.open(path, *arguments, **named)


def kill(pid: int, number: int) -> None:
    if number == 0:
        raise KeyboardInterrupt("signal 0 is Ctrl-C on Windows")
    os.kill(pid, number)


SAID: Mapping[str, Mapping[str, Any]] = {
    "sys": {"platform": "win32"},
    "os": {"name": "nt", "lseek": lseek, "open": opened, "kill": kill},
}
"""What these modules have that is otherwise on Windows."""


@cache
def stubs() -> Path:
    spec = find_spec("mypy")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "typeshed" / "stdlib"


def names_on(platform: str, module: str) -> set[str]:
    """The names that a module of the standard library has on a platform; none if it has no stub."""
    for path in (stubs() / f"{module.replace('.', '/')}.pyi", stubs() / module.replace(".", "/") / "__init__.pyi"):
        if path.exists():
            return set(_names(ast.parse(path.read_text(encoding="utf-8")).body, platform))
    return set()


def _names(body: Sequence[ast.stmt], platform: str) -> Iterator[str]:
    known = {"sys": types.SimpleNamespace(platform=platform, version_info=sys.version_info)}
    for node in body:
        match node:
            case ast.If():
                try:
                    holds = eval(compile(ast.Expression(node.test), "stub", "eval"), known)
                except NameError:  # TYPE_CHECKING
                    continue
                yield from _names(node.body if holds else node.orelse, platform)
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case ast.Assign(targets=[ast.Name(id=name)]):
                yield name
            case ast.ImportFrom(names=names):
                # What a stub passes on.
                yield from (each.name for each in names if each.name in {"*", each.asname})


@cache
def missing_in(module: str) -> frozenset[str]:
    """The names that the module has here and not on Windows."""
    return frozenset(names_on("linux", module) - names_on("win32", module))


@cache
def is_missing(module: str) -> bool:
    """Whether Windows has no such module: its stub defines nothing there."""
    here, there = names_on("linux", module), names_on("win32", module)
    return bool(here - there) and all(name.startswith("_") for name in there)


class LikeOnWindows(types.ModuleType):
    """A module without what Windows lacks."""

    def __init__(self, module: types.ModuleType) -> None:
        super().__init__(module.__name__)
        self.__dict__["_module"] = module

    def __getattr__(self, name: str) -> Any:
        module = self.__dict__["_module"]
        if name in missing_in(module.__name__):
            raise AttributeError(f"module {module.__name__!r} has no attribute {name!r} on Windows")
        return SAID.get(module.__name__, {}).get(name, getattr(module, name))

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self.__dict__["_module"], name, value)


def msvcrt() -> types.ModuleType:
    """Locks as Windows has them, by those of this system."""
    module = types.ModuleType("msvcrt")

    def locking(descriptor: int, mode: int, size: int) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_UN if mode == 0 else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise OSError(errno.EACCES, "locked") from error

    vars(module).update(LK_UNLCK=0, LK_NBLCK=2, locking=locking)
    return module


@cache
def like_on_windows(module: types.ModuleType) -> types.ModuleType:
    name = module.__name__
    return LikeOnWindows(module) if missing_in(name) or name in SAID else module


def pretend(program: Path) -> None:
    """Let the package, and modules in the folder of the program, import only what Windows has."""
    real_import, fake = builtins.__import__, msvcrt()

    def is_ours(importer: Mapping[str, Any] | None) -> bool:
        name, file = (importer or {}).get("__name__", ""), (importer or {}).get("__file__") or ""
        return name.partition(".")[0] == "streamclient" or (bool(file) and Path(file).parent == program)

    def importing(
        name: str,
        globals: Mapping[str, Any] | None = None,  # noqa: A002
        locals: Mapping[str, Any] | None = None,  # noqa: A002
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> Any:
        if level or not is_ours(globals) or name.partition(".")[0] not in sys.stdlib_module_names:
            return real_import(name, globals, locals, fromlist or (), level)
        if name == "msvcrt":
            return fake
        if is_missing(name):
            raise ModuleNotFoundError(f"No module named {name!r} on Windows", name=name)
        return like_on_windows(real_import(name, globals, locals, fromlist or (), level))

    builtins.__import__ = importing  # type: ignore[assignment]


def main() -> None:
    arguments = sys.argv[1:]
    sys.path[0] = ""
    pretend(Path.cwd())
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        runpy.run_path(os.path.abspath(arguments[0]), run_name="__main__")


if __name__ == "__main__":
    main()
