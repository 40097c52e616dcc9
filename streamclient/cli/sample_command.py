"""``streamclient sample``: list the samples that come with the package, or write one into a directory."""

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
"""The folder of samples: a link to it in a checkout, the folder itself in an installed package or a zip archive."""

_HOME = re.compile(r"\bsamples[./](\w+)")
"""The prefix with which samples name each other in their folder. Samples that are written out are all in one directory,
and name each other without the prefix."""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand."""
    text = "write a sample program into this directory, or list them"
    parser = commands.add_parser("sample", help=text, description=f"{text.capitalize()}.")
    parser.add_argument("name", nargs="?", help="the sample; without a name all are listed")
    parser.add_argument("--directory", type=Path, default=Path(), metavar="DIR", help="write it into this directory")
    parser.add_argument("--force", action="store_true", help="overwrite existing files")
    parser.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print one JSON document")
    runs(parser, run)


def run(arguments: argparse.Namespace) -> int:
    """List the samples, or write one; return the exit code."""
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
    samples = {name: _first_line(_main_of(sample)) for name, sample in sorted(_samples().items())}
    if as_json:
        print_json({"samples": [{"name": name, "shows": text} for name, text in samples.items()]})
    else:
        print_table(COLUMNS, list(samples.items()), "no samples")
    return EXIT_DONE


def write_sample(name: str, directory: Path, *, force: bool = False) -> list[Path]:
    """Write a sample, and those that it needs, into ``directory``, which is created if it does not exist.

    Raises:
        ConfigurationError: the sample is unknown, or a file exists already.
    """
    known = _samples()
    if name not in known:
        raise ConfigurationError(f"the sample {name!r} is unknown; known: {', '.join(sorted(known))}")
    texts: dict[Path, str] = {}
    wanted = [name]
    while wanted:
        for path, text in _files_of(known[wanted.pop()]):
            if path not in texts:
                texts[path] = _HOME.sub(r"\1", text)
                wanted += [other for other in _HOME.findall(text) if other in known]
    existing = [str(directory / path) for path in texts if (directory / path).exists()]
    if existing and not force:
        raise ConfigurationError(f"{', '.join(sorted(existing))} exists already; --force overwrites it")
    for path, text in texts.items():
        target = directory / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    return [directory / path for path in texts]


def _samples() -> dict[str, Traversable]:
    """Return the files and folders of samples by name."""
    entries = PLACE.iterdir()
    named = {entry.name.removesuffix(".py"): entry for entry in entries if not entry.name.startswith(("_", "."))}
    return {name: entry for name, entry in named.items() if entry.is_dir() or entry.name.endswith(".py")}


def _files_of(sample: Traversable) -> list[tuple[Path, str]]:
    parts = [sample] if sample.is_file() else [part for part in sample.iterdir() if part.name.endswith(".py")]
    folder = Path() if sample.is_file() else Path(sample.name)
    return sorted((folder / part.name, part.read_text(encoding="utf-8")) for part in parts)


def _main_of(sample: Traversable) -> str:
    return (sample if sample.is_file() else sample.joinpath("__main__.py")).read_text(encoding="utf-8")


def _first_line(source: str) -> str:
    return (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0].replace("``", "")


def _how_to_run(name: str, directory: Path) -> str | None:
    """Return the shell command that runs a sample; ``None`` for a module that other samples import."""
    sample = _samples()[name]
    file = shlex.quote(str(directory / f"{name}.py"))
    if name.startswith("test_"):
        return f"pytest {file}"
    if sample.is_file() and '__name__ == "__main__"' in _main_of(sample):
        return f"python {file}"
    # The others are found by their module names, in the folder in which the command runs.
    enter = "" if directory == Path() else f"cd {shlex.quote(str(directory))} && "
    if sample.is_dir():
        return f"{enter}python -m {name}"
    if name == "print_changes":
        return f"{enter}streamclient run print_changes:PrintChanges --data-table TABLE --status-table STATUS"
    return None
