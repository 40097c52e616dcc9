"""``python -m tests.mirror.pythons``: mirrors that are made under one Python and go on under each of the others.

Text keys have letters of every version of Unicode that these Pythons know, and of later ones. The mirrors are in
PostgreSQL and Delta, their histories in Iceberg. Each step changes every row somehow, then another Python goes on, and
takes over a table of PostgreSQL whose digests an earlier version has made under the Python before. After each step a
mirror has each key once, and equals the table. Each Python gets an environment below ``build/pythons``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import define, field
from tablestore import OTSClient, Row

from streamclient.server import LocalTablestore
from tests.destinations.postgres_server import PostgresServer
from tests.patience import PATIENCE_SECONDS
from tests.stage import IGNORE, make_table
from tests.wire.wheels import ROOT, VERSIONS, pythons

TABLE = "orders"
LETTERS = {
    "1.1": "a\u00e4\u6f22",
    "13": "\u08be\U0001fad6\U00030000",
    "14": "\u20c0\U0001fae0\U0001df00",
    "15": "\u0cf3\U0001fae8\U00031350",
    "15.1": "\u2ffc\U0002ebf0",
    "16": "\u0897\u1c89\ua7cb",
}
"""By the version of Unicode that brought them."""

ALL_LETTERS = "".join(LETTERS.values())
FORMS = ("{}", "x{}", "{}'\"\\", "{}\0y")
HEADER = ("Python", "Unicode", "letters known", "PostgreSQL", "Delta", "Iceberg", "taken over")


@define
class Source:
    """The table, and what it must hold."""

    client: OTSClient
    rows: dict[str, int] = field(factory=dict)
    changes: int = 0

    def put(self, key: str, value: int) -> None:
        self.client.put_row(TABLE, Row([("k", key)], [("v", value), ("note", key)]), IGNORE)
        self.rows[key] = value
        self.changes += 1

    def update(self, key: str, value: int) -> None:
        self.client.update_row(TABLE, Row([("k", key)], {"PUT": [("v", value)]}), IGNORE)
        self.rows[key] = value
        self.changes += 1

    def delete(self, key: str) -> None:
        self.client.delete_row(TABLE, Row([("k", key)]), IGNORE)
        self.rows.pop(key, None)
        self.changes += 1

    def change(self, step: int) -> None:
        """Put keys that are new, and put, update, delete, or delete and put again those that are there."""
        for place, key in enumerate(sorted(self.rows)):
            value, kind = 1_000 * step + place, (place + step) % 5
            if kind == 0:
                self.put(key, value)
            elif kind == 1:
                self.update(key, value)
            elif kind == 2:
                self.delete(key)
            elif kind == 3:
                self.delete(key)
                self.put(key, value)
        for place, letter in enumerate(ALL_LETTERS):
            for form in FORMS:
                self.put(form.format(f"{letter}{step}"), -1_000 * step - place)


def environment_of(version: str, python: str, extras: str = "delta,iceberg,postgres") -> str:
    """Make an environment, if it is not there yet; its program."""
    place = Path("build", "pythons", version)
    command = [str(ROOT / "tools" / "setup-environment"), extras]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "VENV": str(place), "PYTHON": python}, check=True)
    return str(ROOT / place / "bin" / "python")


def wrong_rows(expected: Mapping[str, int], found: Iterable[Sequence[Any]]) -> list[str]:
    """What is wrong with rows, each a key and a value."""
    values: dict[str, list[int]] = {key: [] for key in expected}
    for key, value in found:
        values.setdefault(key, []).append(value)
    return [
        f"the key {key!r} has the values {several}, expected {[expected[key]] if key in expected else []}"
        for key, several in values.items()
        if several != [expected.get(key)]
    ]


@define
class PythonsDrill:
    """A table, its mirrors, and what Pythons found in them."""

    directory: Path
    job: dict[str, Any]
    source: Source
    problems: list[str] = field(factory=list)
    lines: list[tuple[str, ...]] = field(factory=lambda: [HEADER])

    def run(self, programs: list[str]) -> None:
        """One step for each Python, and one more for the first."""
        last, former = len(programs), ""
        for step, program in enumerate([*programs, programs[0]]):
            self.source.change(step)
            following = f"former_{step + 1}" if step < last else ""
            self.step(step, program, self.job | {"former": former, "next_former": following})
            former = following

    def step(self, step: int, program: str, job: dict[str, Any]) -> None:
        """Let one Python go on; note what is wrong then."""
        asked, answered, log = (self.directory / f"{step}.{name}" for name in ("job", "answer", "log"))
        asked.write_text(json.dumps(job))
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        command = [program, "-m", "tests.mirror.python_step", str(asked), str(answered)]
        with log.open("wb") as file:
            done = subprocess.run(
                command, cwd=ROOT, env=environment, stdout=file, stderr=file, check=False, timeout=2 * PATIENCE_SECONDS
            )
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{log.read_text()[-5_000:]}")
        answer = json.loads(answered.read_text())
        cells = [self.checked(step, answer, name) for name in ("postgres", "delta")]
        changes = [self.checked_history(step, answer, name) for name in ("postgres", "delta")]
        taken_over = self.checked_digests(step, answer)
        if "next_former" in answer:
            self.checked(step, answer, "next_former")
        letters = f"{answer['known']} of {len(ALL_LETTERS)}"
        self.lines.append((answer["python"], answer["unicode"], letters, *cells, " + ".join(changes), taken_over))

    def checked(self, step: int, answer: dict[str, Any], name: str) -> str:
        """The cell of a mirror, each of whose keys must be there once and with the value of the table."""
        found = answer[name]
        wrong = [*found["differences"], *wrong_rows(self.source.rows, found["rows"])]
        return self.noted(step, answer, name, wrong, f"{len(found['rows'])} rows equal")

    def checked_history(self, step: int, answer: dict[str, Any], name: str) -> str:
        found = answer[name]
        return self.noted(step, answer, f"history of {name}", found["findings"], f"{found['changes']} changes")

    def checked_digests(self, step: int, answer: dict[str, Any]) -> str:
        """The cell of the table whose digests were those of an earlier version."""
        if "former" not in answer:
            return "-"
        expected = [{"_key": True}, {"_key_digest": True}]
        digests = answer["former"]["digests"]
        if digests != expected:
            self.problems.append(f"step {step}: expected columns of digests {expected}, found {digests}")
        return self.checked(step, answer, "former")

    def noted(self, step: int, answer: dict[str, Any], name: str, wrong: list[str], right: str) -> str:
        self.problems += [f"step {step}, Python {answer['python']}, {name}: {one}" for one in wrong]
        return f"{len(wrong)} WRONG" if wrong else right


def drill(programs: list[str], directory: Path) -> PythonsDrill:
    """Run all steps; the drill that was done."""
    with LocalTablestore() as server, PostgresServer() as postgres:
        source = Source(server.client())
        make_table(source.client, TABLE, [("k", "STRING")])
        job = {
            "endpoint": server.endpoint,
            "instance": server.instance,
            "access_key_id": server.access_key_id,
            "access_key_secret": server.access_key_secret,
            "table": TABLE,
            "conninfo": postgres.conninfo,
            "directory": str(directory),
            "letters": ALL_LETTERS,
        }
        done = PythonsDrill(directory, job, source)
        done.run(programs)
    return done


def shown(lines: Sequence[Sequence[str]]) -> str:
    """Lines of cells as a table."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def main() -> int:
    """The command line."""
    argparse.ArgumentParser(prog="python -m tests.mirror.pythons", description=__doc__.split("\n")[0]).parse_args()
    found = dict(pythons())
    missing = [version for version in VERSIONS if version not in found]
    if missing:
        print(f"not at hand: Python {', '.join(missing)}", flush=True)
    if len(found) < 2:
        print(f"at least two of Python {', '.join(VERSIONS)} are needed, on the path or from pyenv", file=sys.stderr)
        return 2
    programs = [environment_of(version, python) for version, python in found.items()]
    with tempfile.TemporaryDirectory(prefix="streamclient-pythons-") as name:
        done = drill(programs, Path(name))
    print(shown(done.lines))
    print("\n".join(done.problems[:100]), end="\n" if done.problems else "", file=sys.stderr)
    right = f"mirror pythons: ok: {len(programs)} Pythons, {done.source.changes} changes, {len(done.source.rows)} rows"
    print(f"mirror pythons: {len(done.problems)} WRONG" if done.problems else right)
    return 1 if done.problems else 0


if __name__ == "__main__":
    sys.exit(main())
