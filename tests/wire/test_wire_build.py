"""How the compiled codec is built, and that the package does without it; and that the fuzzing finds what it seeks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fuzz import Judge, PutJudge
from wire_pages import compiled

from tests.installed import Installed
from tools.make_wheels import SOURCES, compile_codec, compilers

ROOT = Path(__file__).resolve().parents[2]


def built_without_a_compiler(directory: Path) -> Path:
    """The package as ``setup.py build`` leaves it, from a copy of the sources."""
    for name in SOURCES:
        shutil.copy(ROOT / name, directory / name)
    ignored = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(ROOT / "streamclient", directory / "streamclient", ignore=ignored)
    command = [sys.executable, "setup.py", "-q", "build", "--build-lib", "lib"]
    environment = {**os.environ, "CC": "/no/such/compiler"}
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return directory / "lib"


PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
import streamclient.records
from streamclient.wire.record_decoding import default_codec
assert streamclient.records.__file__.startswith(sys.argv[1]), streamclient.records.__file__
print(streamclient.records.NATIVE is not None, default_codec().decode_page(b"").records)
"""


def seen_in(library: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", SWITCH)}
    command = [sys.executable, "-c", PROGRAM, str(library)]
    done = subprocess.run(command, cwd=library, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


SWITCH = "STREAMCLIENT_PURE_PYTHON"


@pytest.mark.slow
def test_without_a_compiler_the_package_builds_and_its_codec_in_python_serves(tmp_path: Path) -> None:
    library = built_without_a_compiler(tmp_path)

    assert list(library.rglob("*.so")) == []
    assert seen_in(library) == "False ()"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which(os.environ.get("CC", "cc")) is None, reason="no C compiler here")
def test_with_a_compiler_the_package_holds_the_codec_for_every_python_from_the_oldest_on(installed: Installed) -> None:
    (library,) = installed.directory.glob("lib/python*/site-packages")

    assert [one.name for one in library.rglob("*.so")] == ["_native.abi3.so"]
    assert seen_in(library) == "True ()"


@pytest.mark.slow
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_the_codec_compiles_without_a_warning(compiler: str, tmp_path: Path) -> None:
    """As strict C11, so that it does wherever wheels are made."""
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler} here")

    compile_codec(dict(compilers(None))[compiler], tmp_path)


def test_what_needs_a_new_environment_includes_the_sources_of_the_codec() -> None:
    """Else a checkout would go on with the codec of yesterday."""
    script = (ROOT / "tools" / "setup-environment").read_text()

    assert "streamclient/wire/native/*.[ch]" in script
    assert list((ROOT / "streamclient/wire/native").glob("*.c"))


def judge_seeds(judge: Any, count: int, **options: bool) -> None:
    for seed in range(count):
        judge.judge(seed, **options)


@compiled
@pytest.mark.slow
def test_pages_of_the_fuzzer_are_read_alike_by_both_codecs() -> None:
    judge = Judge()
    for seed in range(1500):
        judge.judge(seed, with_columns=seed % 4 == 0)

    assert judge.read > 100, "pages that are only ever refused would show little"
    assert judge.columns_read > 100
    assert judge.values_read > 10


@compiled
def test_puts_of_the_fuzzer_are_read_as_python_reads_them_and_damaged_ones_do_no_harm() -> None:
    judge = PutJudge()
    judge_seeds(judge, 600)

    assert judge.read > 100, "puts that are only ever left to Python would show little"
    assert judge.damaged_read > 100


@compiled
def test_the_fuzzer_finds_a_put_that_is_read_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that forgets a version does not pass."""
    judge = PutJudge()
    read_parts = judge.puts.read_parts
    monkeypatch.setattr(judge.puts, "read_parts", lambda form: (read_parts(form)[0], {}))

    with pytest.raises(AssertionError, match=", put: "):
        judge_seeds(judge, 50)


@compiled
def test_the_fuzzer_finds_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    """A codec that swallows the last record of a page does not pass."""
    judge = Judge()
    decode_page = judge.native.decode_page

    class Short:
        def __init__(self, page: Any) -> None:
            self.records = page.records[:-1]
            self.next_shard_iterator, self.may_more_record = page.next_shard_iterator, page.may_more_record

    monkeypatch.setattr(judge.native, "decode_page", lambda data: Short(decode_page(data)))

    with pytest.raises(AssertionError, match="decode_page"):
        judge_seeds(judge, 200, with_columns=False)
