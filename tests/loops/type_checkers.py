"""What mypy and pyright say of the programs with loops, and of the public names of the package."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.wire.wheels import ROOT
from tools.structure import FACES

SAMPLES = (
    "iterate_changes",
    "upsert_rows",
    "http_service",
    "test_my_consumer",
    "ship_orders",
    "typed_orders",
    "shard_totals",
)
"""Samples with loops and handlers."""

FILES = [*(f"samples/{name}.py" for name in SAMPLES), "tests/loops/loop_program.py"]
PYRIGHT = Path("pyright", "node_modules", "pyright", "index.js")
"""Where the make target puts it, below the folder of what is built."""

OF_PYSPARK = "streamclient.spark.source.data_source."
"""Classes that derive from those of pyspark. While pyright verifies one package, it reads no other one that is not a
stub, typed or not, and a base class that it has not read counts as unknown in spite of ``--ignoreexternal``."""

NOT_AT_HAND = "not at hand"

Row = tuple[str, str, str]
"""What was asked, what came of it, and the problem, if there is one."""


def mypy_row() -> Row:
    """Mypy over the programs."""
    command = [sys.executable, "-m", "mypy", "--strict", "--explicit-package-bases", *FILES]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return "mypy --strict", f"ok, {len(FILES)} files", done.stdout[-3_000:] + done.stderr if done.returncode else ""


def pyright_row(pyright: list[str]) -> Row:
    """Pyright over the programs."""
    with tempfile.TemporaryDirectory() as folder:
        settings = {
            "typeCheckingMode": "strict",
            "include": [str(ROOT / name) for name in FILES],
            "exclude": [],
            "extraPaths": [str(ROOT)],
        }
        place = Path(folder, "pyrightconfig.json")
        place.write_text(json.dumps(settings))
        command = [*pyright, "--project", str(place), "--pythonpath", sys.executable]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return "pyright, strict", f"ok, {len(FILES)} files", done.stdout[-3_000:] + done.stderr if done.returncode else ""


def public_names() -> set[str]:
    """The full names of what the faces offer, each where it is defined."""
    found = set()
    for face in FACES:
        module = importlib.import_module(face)
        for name in module.__all__:
            value = getattr(module, name)
            home = getattr(value, "__module__", None)
            found.add(f"{home}.{value.__qualname__}" if home and hasattr(value, "__qualname__") else f"{face}.{name}")
    return {name for name in found if name.startswith("streamclient.") and not name.startswith(OF_PYSPARK)}


def is_public(name: str, public: set[str]) -> bool:
    """Whether a name is one of these, or a member of one."""
    while name:
        if name in public:
            return True
        name = name.rpartition(".")[0]
    return False


def verified(report: dict[str, Any], public: set[str]) -> tuple[int, list[str]]:
    """The number of public names, and what is not known or ambiguous among them and their members."""
    symbols = [each for each in report["typeCompleteness"]["symbols"] if is_public(each["name"], public)]
    wrong = [
        each for each in symbols if each["isExported"] and not (each["isTypeKnown"] and not each["isTypeAmbiguous"])
    ]
    lines = []
    for each in wrong:
        said = [one["message"].split("\n")[0] for one in each["diagnostics"]]
        lines.append(f"{each['name']}: {'; '.join(said)}")
    return sum(each["isExported"] for each in symbols), lines


def verify_row(pyright: list[str]) -> Row:
    """Whether the types of all public names are complete."""
    command = [*pyright, "--pythonpath", sys.executable, "--verifytypes", "streamclient", "--ignoreexternal"]
    with tempfile.TemporaryDirectory() as folder:  # where no package of that name is
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [*command, "--outputjson"], cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
    report = json.loads(done.stdout)
    count, wrong = verified(report, public_names())
    whole = 100 * report["typeCompleteness"]["completenessScore"]
    cell = f"100 % of {count} public names and members without pyspark's; {whole:.1f} % with all that is internal"
    return "pyright --verifytypes", cell, "\n".join(wrong[:100]) if wrong or not count else ""


def type_rows(built: Path) -> Iterator[Row]:
    """What the checkers say."""
    yield mypy_row()
    node = shutil.which("node")
    if node is None or not (built / PYRIGHT).exists():
        yield "pyright, strict", NOT_AT_HAND, ""
        yield "pyright --verifytypes", NOT_AT_HAND, ""
        return
    pyright = [node, str(built / PYRIGHT)]
    yield pyright_row(pyright)
    yield verify_row(pyright)
