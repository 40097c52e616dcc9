"""``streamclient sample``: list the samples that come with the package, or write one into a directory."""

from __future__ import annotations

import argparse
import ast
import re
import shlex
import shutil
import sys
from collections.abc import Iterable
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from streamclient.base.extras import PACKAGES
from streamclient.cli.terminal.commands import EXIT_DONE, CommandFailed, runs
from streamclient.cli.terminal.layout import Column
from streamclient.cli.terminal.output import print_json, print_table, print_text, width_of
from streamclient.errors import ConfigurationError

if TYPE_CHECKING:
    from importlib.abc import Traversable

COLUMNS = (Column("SAMPLE"), Column("SHOWS"))

EXTRAS = {
    "deltalake": "delta",
    "prometheus_client": "prometheus",
    "psycopg": "postgres",
    "pyspark": "spark",
    "pytest": "dev",
    "streamclient.destinations.DeltaDestination": "delta",
    "streamclient.metrics.PrometheusMetrics": "prometheus",
    "streamclient.server.LocalTablestore": "server",
    "streamclient.spark.local_session": "spark",
}
"""The extra of each library that samples import, and of each public name of this package that needs an extra."""

PLACE: Traversable = files("streamclient") / "samples"
"""The folder of samples. It is a link in a checkout, and a real folder in an installed package or a zip archive."""

_HOME = re.compile(r"\bsamples[./](\w+)")
"""The pattern of the prefix by which samples in the folder refer to each other. The command removes the prefix, because
it writes all samples into one directory."""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand ``sample``."""
    text = "write a sample program into this directory, or list them"
    parser = commands.add_parser("sample", help=text, description=f"{text.capitalize()}.")
    parser.add_argument("name", nargs="?", help="the sample; without a name all are listed")
    parser.add_argument("--directory", type=Path, default=Path(), metavar="DIR", help="directory for the sample")
    parser.add_argument("--force", action="store_true", help="overwrite existing files")
    parser.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print one JSON document")
    runs(parser, run)


def run(arguments: argparse.Namespace) -> int:
    """List the samples, or write one sample; return the exit code."""
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
    missing = _missing(written)
    if missing:
        libraries, extras = sorted(missing), sorted(set(missing.values()))
        install = f'pip install ".[{",".join(extras)}]"'
        print_text(f"it needs {' and '.join(libraries)}: run  {install}  in a checkout of this package")
    command = _how_to_run(name, arguments.directory)
    if command is not None:
        print_text(f"run it with: {command}")
    return EXIT_DONE


def _list(*, as_json: bool) -> int:
    samples = {name: _HOME.sub(r"\1", _first_line(_main_of(sample))) for name, sample in sorted(_samples().items())}
    if as_json:
        print_json({"samples": [{"name": name, "shows": text} for name, text in samples.items()]})
    elif width_of(sys.stdout) is not None:  # on a terminal, a long description is folded below its name
        print_text(*(line for name, text in samples.items() for line in (name, f"  {text}")))
    else:
        print_table(COLUMNS, list(samples.items()), "no samples")
    return EXIT_DONE


def write_sample(name: str, directory: Path, *, force: bool = False) -> list[Path]:
    """Write a sample, and the samples that it needs, into ``directory``; return the paths of the written files.

    The directory is created if it does not exist.

    Raises:
        ConfigurationError: the sample is unknown, or a file exists already and ``force`` is false.
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
    """Return the file or folder of each sample, by sample name."""
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


def _missing(written: Iterable[Path]) -> dict[str, str]:
    """Return the libraries that the written programs need and that are not installed, each with its extra."""
    imported: set[str] = set()
    for path in written:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported.update(each.name.partition(".")[0] for each in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module is not None:
                imported.add(node.module.partition(".")[0])
                imported.update(f"{node.module}.{each.name}" for each in node.names)
    needed: dict[str, str] = {}
    for name in sorted(imported & EXTRAS.keys()):
        extra = EXTRAS[name]
        libraries = PACKAGES[extra] if name.startswith("streamclient.") else (name,)
        needed |= {library: needed.get(library, extra) for library in libraries if find_spec(library) is None}
    return needed


def _typed(program: str) -> str:
    """Return the word by which a shell runs a program of this Python environment.

    The word is the program's name, or its path if the shell would find another program under the name.
    """
    own, found = Path(sys.executable).with_name(program), shutil.which(program)
    if (found is not None and Path(found).parent.resolve() == own.parent.resolve()) or not own.exists():
        return program
    return shlex.quote(str(own))


def _how_to_run(name: str, directory: Path) -> str | None:
    """Return the shell command that runs a sample; ``None`` for a module that other samples import."""
    sample = _samples()[name]
    file = shlex.quote(str(directory / f"{name}.py"))
    if name.startswith("test_"):
        return f"{_typed('pytest')} {file}"
    if sample.is_file() and '__name__ == "__main__"' in _main_of(sample):
        return f"{_typed('python')} {file}"
    # All other samples run by their module names, which are found in the directory where the command runs.
    enter = "" if directory == Path() else f"cd {shlex.quote(str(directory))} && "
    if sample.is_dir():
        return f"{enter}{_typed('python')} -m {name}"
    if name == "print_changes":
        # The command names its own group, because another program's status table may say that all changes are read.
        return f"{enter}{_typed('streamclient')} run print_changes:PrintChanges --data-table TABLE --group printer"
    return None
