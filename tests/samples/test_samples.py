"""Every sample runs from a wheel, in an empty folder, as ``streamclient sample`` tells, and prints what pages show."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from sample import PAGES, RUN_IT_WITH, as_told, shown_by

from streamclient.cli.main import main
from streamclient.cli.sample_command import EXTRAS, write_sample
from streamclient.server import LocalTablestore
from streamclient.testing.contracts.lease_manager_contract import check_lease_manager
from tests.docs.page_examples import FENCE, commands, matches, run_page
from tests.installed import ROOT, Installed
from tests.patience import PATIENCE_SECONDS

README = ROOT / "README.md"

ELSEWHERE = {
    "console",
    "http_service",
    "iterate_changes",
    "metrics",
    "shard_totals",
    "ship_orders",
    "spark_lake",
    "streaming_source",
    "typed_orders",
    "upsert_rows",
}
"""Samples with tests of their own: here, and beside the Spark of a process."""

VARYING = re.compile(r"\b(in |before: |prepared: |committed: |by )\d+(\.\d+)?(?= s\b|,|$| workers)", re.MULTILINE)
"""Times, and counts of what happens by chance."""


def programs() -> list[str]:
    """Every sample that is run, and not only imported."""
    files = sorted((ROOT / "samples").glob("*.py"))
    return [path.stem for path in files if '__name__ == "__main__"' in path.read_text()]


@pytest.mark.slow
@pytest.mark.parametrize("sample", sorted({*programs()} - ELSEWHERE))
def test_a_sample_prints_what_its_page_shows(sample: str, installed: Installed, tmp_path: Path) -> None:
    actual = as_told(installed, sample, tmp_path)

    assert matches(VARYING.sub(r"\1...", shown_by(sample)), actual), actual


def told() -> list[tuple[str, str]]:
    """Every writing of a sample on a page, but on that of the commands, which shows them on a narrow terminal."""
    pages = [page for page in PAGES if page.name != "commands.md"]
    return [each for page in pages for each in commands(page.read_text()) if each[0].startswith("streamclient sample ")]


@pytest.mark.parametrize(("command", "shown"), told(), ids=[command for command, _ in told()])
def test_what_a_page_shows_of_writing_a_sample(
    command: str, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    assert main(command.split()[1:]) == 0
    assert capsys.readouterr().out == shown


@pytest.mark.parametrize("directory", [Path(), Path("some where")])
def test_only_what_runs_is_told_how_to_run_and_from_where_it_is_found(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is not a program, nor a test, nor found by its name, is there to be imported."""
    monkeypatch.chdir(tmp_path)
    file = shlex.quote(str(directory / "SAMPLE.py"))
    there = "" if directory == Path() else f"cd {shlex.quote(str(directory))} && "
    ways = dict.fromkeys(programs(), f"python {file}") | {"demo": f"{there}python -m SAMPLE"}
    ways["print_changes"] = f"{there}streamclient run SAMPLE:PrintChanges --data-table TABLE --group printer"
    ways |= dict.fromkeys(["test_my_consumer", "test_my_processor"], f"pytest {file}")

    for path in (ROOT / "samples").glob("[a-z]*"):
        if path.suffix == ".py" or path.is_dir():
            assert main(["sample", path.stem, "--directory", str(directory), "--force"]) == 0
            last = capsys.readouterr().out.splitlines()[-1]
            way = ways.get(path.stem, "").replace("SAMPLE", path.stem)
            assert last == f"{RUN_IT_WITH}{way}" if way else last.startswith("wrote ")


@pytest.mark.slow
def test_the_console_sample_says_where_it_reads_on_in_words(
    installed: Installed, local: LocalTablestore, tmp_path: Path
) -> None:
    first = as_told(installed, "console", tmp_path, TABLESTORE_ENDPOINT=local.endpoint)
    second = installed.run("python written/console.py", tmp_path, TABLESTORE_ENDPOINT=local.endpoint)

    assert first.startswith("worker1 reads from TRIM_HORIZON\n")
    assert re.match(r"worker1 reads from iterator \d+/\d+\n", second), second
    assert first.count("record: ") == second.count("record: ") == 3


def ran(code: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("sample", ["console", "spark_lake"])
def test_a_sample_without_its_server_says_so_in_one_sentence(sample: str, tmp_path: Path) -> None:
    """With the command that starts one."""
    write_sample(sample, tmp_path)
    done = ran(
        f"import runpy; runpy.run_path('{sample}.py', run_name='__main__')",
        tmp_path,
        TABLESTORE_ENDPOINT="http://127.0.0.1:1",
    )

    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), done.stderr
    assert done.stderr.endswith("; start a local Tablestore with `streamclient server --port 1`\n")


@pytest.mark.parametrize(
    ("sample", "library", "extras"),
    [
        ("spark_lake", "pyspark", "spark,delta"),
        ("streaming_source", "pyspark", "spark,server"),
        ("metrics", "prometheus_client", "prometheus,server"),
        ("upsert_rows", "psycopg", "postgres"),
        ("demo", "pyspark", "spark,delta,server"),
        ("demo", "deltalake", "spark,delta,server"),
        ("demo.look", "deltalake", "spark,delta"),
    ],
)
def test_a_sample_without_its_library_says_in_one_sentence_what_to_install(
    sample: str, library: str, extras: str, tmp_path: Path
) -> None:
    write_sample(sample.partition(".")[0], tmp_path)
    hidden = f"import runpy, sys; sys.path.insert(0, ''); sys.modules['{library}'] = None; "
    done = ran(f"{hidden}runpy.run_module('{sample}', run_name='__main__', alter_sys=True)", tmp_path)

    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), done.stderr
    assert library in done.stderr
    assert f'pip install ".[{extras}]"' in done.stderr


def test_what_a_sample_needs_besides_is_said_when_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("streamclient.cli.sample_command.find_spec", lambda name: None)

    assert main(["sample", "upsert_rows", "--directory", str(tmp_path)]) == 0
    assert 'it needs psycopg: run  pip install ".[postgres]"  in a checkout' in capsys.readouterr().out
    assert main(["sample", "mirror_table", "--directory", str(tmp_path)]) == 0
    needed = 'it needs aiohttp and deltalake and pyarrow and re2: run  pip install ".[delta,server]"  in a checkout'
    assert needed in capsys.readouterr().out


def unguarded(sample: Path) -> set[str]:
    """The libraries of extras that a sample imports without saying what to install if they are missing."""
    tree = ast.parse(sample.read_text())
    guards = [node for node in ast.walk(tree) if isinstance(node, ast.Try)]
    guarded = {inner for guard in guards if "pip install" in ast.unparse(guard) for inner in ast.walk(guard)}
    plain = [node for node in ast.walk(tree) if node not in guarded]
    names = [each.name for node in plain if isinstance(node, ast.Import) for each in node.names]
    names += [node.module or "" for node in plain if isinstance(node, ast.ImportFrom)]
    return {library for name in names for library in [name.partition(".")[0]] if library in EXTRAS}


def test_no_sample_imports_a_library_of_an_extra_without_a_word_for_its_absence() -> None:
    """Tests are run by pytest, and the modules of the demo are imported by its program, which says it."""
    folder = ROOT / "samples"
    found = {path.relative_to(folder).as_posix(): unguarded(path) for path in folder.rglob("*.py")}

    assert {name: libraries for name, libraries in found.items() if libraries} == {
        "demo/comparison.py": {"deltalake"},
        "demo/worker.py": {"pyspark"},
        "test_my_processor.py": {"pytest"},
    }


def test_programs_of_this_environment_are_told_by_path_where_a_shell_would_find_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """So is the one that a shell would not find at all: the environment need not be activated."""
    other = tmp_path / "python"
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    for number, path in enumerate([str(tmp_path), ""]):
        monkeypatch.setenv("PATH", path)

        assert main(["sample", "console", "--directory", str(tmp_path / str(number))]) == 0
        assert f"run it with: {Path(sys.executable).with_name('python')} " in capsys.readouterr().out


def test_the_readme_shows_the_console_sample_itself() -> None:
    shown = next(body for language, body in FENCE.findall(README.read_text()) if "class RecordProcessor(" in body)

    assert shown.strip() in (ROOT / "samples" / "console.py").read_text()


@pytest.mark.slow
def test_the_consumer_of_the_readme_prints_what_the_sample_prints(
    local: LocalTablestore, capsys: pytest.CaptureFixture[str]
) -> None:
    from samples.console import make_table_with_stream, write_three_changes

    client = local.client()
    make_table_with_stream(client)
    write_three_changes(client)
    run_page(README)["run"](client)

    assert matches(shown_by("console"), capsys.readouterr().out)


@pytest.mark.slow
def test_metrics_sample_shows_what_prometheus_reads(installed: Installed, tmp_path: Path) -> None:
    lines = as_told(installed, "metrics", tmp_path).splitlines()

    found = {line.split("{")[0]: float(line.split()[-1]) for line in lines}
    assert found["streamclient_records_processed_total"] == 100
    assert (found["streamclient_lag_seconds"], found["streamclient_unhealthy"]) == (0, 0)


@pytest.mark.slow
def test_sample_lease_manager_keeps_the_contract(tmp_path: Path) -> None:
    from samples.lease_manager import SqliteLeaseManager

    made: list[SqliteLeaseManager] = []

    def make(stream_id: str) -> SqliteLeaseManager:
        manager = SqliteLeaseManager(tmp_path / f"{len(made)}.sqlite")
        manager.create_lease_table_if_not_exists()
        made.append(manager)
        return manager

    check_lease_manager(make)
    for manager in made:
        manager.close()
