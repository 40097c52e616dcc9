"""``streamclient sample``: the samples, which come with the package, as files of one's own."""

from __future__ import annotations

import argparse
import ast
import re
import shlex
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from streamclient.cli.terminal.commands import EXIT_DONE, CommandFailed, runs
from streamclient.cli.terminal.layout import Column
from streamclient.cli.terminal.output import print_json, print_table, print_text
from streamclient.errors import ConfigurationError

if TYPE_CHECKING:
    from importlib.abc import Traversable

COLUMNS = (Column("SAMPLE"), Column("SHOWS", least=20))

PLACE: Traversable = files("streamclient") / "samples"
"""In a checkout a link to the folder of that name; in an installed package the folder itself, also in a zip archive."""

_HOME = re.compile(r"\bsamples[./](\w+)")
"""How samples name each other, as modules and files, where they are kept. Written out, they lie beside each other."""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand."""
    text = "write a sample program into this directory, or list them"
    parser = commands.add_parser("sample", help=text, description=f"{text.capitalize()}.")
    parser.add_argument("name", nargs="?", help="which one; without a name they are listed")
    parser.add_argument("--directory", type=Path, default=Path(), metavar="DIR", help="write it there")
    parser.add_argument("--force", action="store_true", help="write over files that are there")
    parser.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print one JSON document")
    runs(parser, run)


def run(arguments: argparse.Namespace) -> int:
    """List the samples, or write one; the exit code."""
    if arguments.name is None:
        return _list(as_json=arguments.json)
    name = arguments.name.removesuffix(".py").removeprefix("samples/")
    try:
        written = write_sample(name, arguments.directory, force=arguments.force)
    except OSError as error:
        raise CommandFailed(f"cannot write {error.filename or arguments.directory}: {error.strerror}") from error
    if arguments.json:
        print_json({"sample": name, "files": [str(path) for path in written]})
        return EXIT_DONE
    for path in written:
        print_text(f"wrote {path}")
    command = _how_to_run(name, arguments.directory)
    if command is not None:
        print_text(f"run it with: {command}")
    return EXIT_DONE


def _list(*, as_json: bool) -> int:
    samples = {name: _first_line(_main_of(place)) for name, place in sorted(_samples().items())}
    if as_json:
        print_json({"samples": [{"name": name, "shows": text} for name, text in samples.items()]})
    else:
        print_table(COLUMNS, list(samples.items()), "no samples")
    return EXIT_DONE


def write_sample(name: str, directory: Path, *, force: bool = False) -> list[Path]:
    """Write a sample, and those that it needs, into a directory, which is made if it is missing.

    Raises:
        ConfigurationError: there is no such sample, or a file of this name is there already.
    """
    known = _samples()
    if name not in known:
        raise ConfigurationError(f"there is no sample {name!r}; there are {', '.join(sorted(known))}")
    texts: dict[Path, str] = {}
    wanted = [name]
    while wanted:
        for path, text in _files_of(known[wanted.pop()]):
            if path not in texts:
                texts[path] = _HOME.sub(r"\1", text)
                wanted += [other for other in _HOME.findall(text) if other in known]
    there = [str(directory / path) for path in texts if (directory / path).exists()]
    if there and not force:
        raise ConfigurationError(f"{', '.join(sorted(there))} is there already; --force writes over it")
    for path, text in texts.items():
        target = directory / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    return [directory / path for path in texts]


def _samples() -> dict[str, Traversable]:
    """Files and folders by name."""
    places = PLACE.iterdir()
    found = {place.name.removesuffix(".py"): place for place in places if not place.name.startswith(("_", "."))}
    return {name: place for name, place in found.items() if place.is_dir() or place.name.endswith(".py")}


def _files_of(place: Traversable) -> list[tuple[Path, str]]:
    parts = [place] if place.is_file() else [part for part in place.iterdir() if part.name.endswith(".py")]
    folder = Path() if place.is_file() else Path(place.name)
    return sorted((folder / part.name, part.read_text(encoding="utf-8")) for part in parts)


def _main_of(place: Traversable) -> str:
    return (place if place.is_file() else place.joinpath("__main__.py")).read_text(encoding="utf-8")


def _first_line(source: str) -> str:
    return (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0].replace("``", "")


def _how_to_run(name: str, directory: Path) -> str | None:
    """The line of a shell that runs it; None for what others import."""
    place = _samples()[name]
    file = shlex.quote(str(directory / f"{name}.py"))
    if name.startswith("test_"):
        return f"pytest {file}"
    if place.is_file() and '__name__ == "__main__"' in _main_of(place):
        return f"python {file}"
    # What follows is looked for by its name, in the folder in which the command runs.
    there = "" if directory == Path() else f"cd {shlex.quote(str(directory))} && "
    if place.is_dir():
        return f"{there}python -m {name}"
    if name == "print_changes":
        return f"{there}streamclient run print_changes:PrintChanges --data-table TABLE --status-table STATUS"
    return None
