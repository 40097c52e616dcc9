"""Replications as real processes: killed, resumed, and compared; and what the command says."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from streamclient.copying.replication import Replication
from streamclient.copying.replication_settings import parse_settings
from streamclient.errors import ConfigurationError
from streamclient.server import Fail, FaultRule, LocalTablestore
from tests.patience import PATIENCE_SECONDS
from tests.replicate.drill import command, configuration, drill, make_source
from tests.tunnel.tunnel_server import LOST


@pytest.mark.slow
@pytest.mark.parametrize(("source", "processes"), [("tunnel", 1), pytest.param("stream", 2, marks=pytest.mark.long)])
def test_killed_and_resumed_replication_ends_without_a_difference(source: str, processes: int, tmp_path: Path) -> None:
    result = drill(12_000, 2, 1, tmp_path, source_kind=source, processes=processes)

    assert result.differences == 0
    assert result.compared > 10_000
    assert result.changes > 20


@pytest.mark.slow
def test_first_run_copies_in_the_run_that_made_the_tunnel_and_a_second_goes_on(tmp_path: Path) -> None:
    with LocalTablestore() as source, LocalTablestore() as destination:
        make_source(source.client(), 300)
        config = tmp_path / "copy.json"
        config.write_text(json.dumps(configuration(source, destination, endTime="2020-01-01 00:00:00")))
        first = subprocess.run(
            command(str(config), "--poll-seconds", "0.2"), capture_output=True, text=True, check=True
        )
        again = subprocess.run(
            command(str(config), "--poll-seconds", "0.2"), capture_output=True, text=True, check=True
        )

    assert "endTime is past: changes after it are not copied, but full data is read as it is now" in first.stdout
    assert "made destination table 'orders_copy'" in first.stdout
    assert "replication complete: 300 rows written, 0 refused" in first.stdout
    assert "going on with tunnel 'copy'" in again.stdout
    assert "replication complete: 0 rows written, 0 refused" in again.stdout


def test_bad_configuration_is_named_before_any_effect(tmp_path: Path) -> None:
    config = tmp_path / "copy.json"
    config.write_text(json.dumps({"ots-reader": {"tableName": 5}, "ots-writer": {}}))
    ended = subprocess.run(command(str(config)), capture_output=True, text=True, check=False)

    assert ended.returncode == 2
    assert "ots-reader.tableName must be a non-empty string, not 5" in ended.stderr


@pytest.mark.slow
def test_programs_may_check_the_configuration_and_read_the_end_as_json(tmp_path: Path) -> None:
    with LocalTablestore() as source, LocalTablestore() as destination:
        make_source(source.client(), 300)
        config = tmp_path / "copy.json"
        config.write_text(json.dumps(configuration(source, destination, endTime="2020-01-01 00:00:00")))
        checked = subprocess.run(command(str(config), "--check"), capture_output=True, text=True, check=False)
        valid = subprocess.run(command(str(config), "--check", "--json"), capture_output=True, text=True, check=False)
        tables = destination.client().list_table()
        ended = subprocess.run(
            command(str(config), "--json", "--poll-seconds", "0.2"), capture_output=True, text=True, check=False
        )

    assert (checked.returncode, checked.stdout, list(tables)) == (0, "the configuration is valid\n", [])
    assert (valid.returncode, valid.stdout) == (0, '{"valid": true}\n')
    assert ended.returncode == 0
    assert ended.stdout == '{"complete": true, "rows": 300, "refused_rows": 0, "error": null}\n'
    page = Path(__file__).resolve().parents[2] / "docs" / "replicate.md"
    assert ended.stdout in page.read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("option", "counts"),
    [("--json", {"complete": False, "rows": 0, "refused_rows": 0}), ("--verify", {"rows": 0, "differences": 0})],
)
def test_a_program_is_told_as_json_why_nothing_could_be_done(
    option: str, counts: dict[str, object], tmp_path: Path
) -> None:
    with LocalTablestore() as source, LocalTablestore() as destination:
        config = tmp_path / "copy.json"
        config.write_text(json.dumps(configuration(source, destination)))
        ended = subprocess.run(
            command(str(config), "--json", option),
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_SECONDS,
        )

    told = json.loads(ended.stdout)
    error = told.pop("error")
    assert (ended.returncode, told) == (1, counts)
    assert "OTSObjectNotExist" in error
    assert error in ended.stderr.replace("\n  ", " ")


@pytest.mark.slow
@pytest.mark.parametrize("reader", [{}, {"source": "stream", "statusTableName": "progress"}], ids=["tunnel", "stream"])
def test_row_that_is_refused_for_good_ends_the_replication_and_is_named(reader: dict[str, str], tmp_path: Path) -> None:
    with LocalTablestore() as source, LocalTablestore() as destination:
        make_source(source.client(), 20)
        destination.add_fault(FaultRule("BatchWriteRow", Fail("OTSParameterInvalid")))
        config = tmp_path / "copy.json"
        config.write_text(json.dumps(configuration(source, destination, **reader)))
        ended = subprocess.run(
            command(str(config), "--poll-seconds", "0.2"),
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_SECONDS,
        )

    assert ended.returncode == 1
    assert "streamclient replicate: ended: table 'orders_copy' refuses put of row {'id': 0}" in ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "fail",
    [Fail("OTSTunnelServerUnavailable", LOST, 400), Fail("OTSTunnelExpired"), Fail("OTSTrimmedDataAccess")],
    ids=["wrapped", "expired", "bare"],
)
def test_a_lost_log_ends_a_replication_from_a_tunnel_and_is_named(fail: Fail, tmp_path: Path) -> None:
    """Reads alone are answered so; heartbeats are not."""
    with LocalTablestore() as source, LocalTablestore() as destination:
        make_source(source.client(), 20)
        source.add_fault(FaultRule("tunnel/readrecords", fail))
        config = tmp_path / "copy.json"
        config.write_text(json.dumps(configuration(source, destination)))
        ended = subprocess.run(
            command(str(config), "--poll-seconds", "0.2"),
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_SECONDS,
        )

    code = "OTSTunnelExpired" if fail.code == "OTSTunnelExpired" else "OTSTrimmedDataAccess"
    assert ended.returncode == 1
    assert "streamclient replicate: ended: " in ended.stderr
    assert ended.stderr.count(code) == 1, "it is said once"


def test_a_file_for_refused_rows_that_cannot_be_written_is_named_before_any_effect(tmp_path: Path) -> None:
    with LocalTablestore() as source, LocalTablestore() as destination:
        make_source(source.client(), 1)
        document = configuration(source, destination, endTime="2020-01-01 00:00:00")
        missing = tmp_path / "nothing" / "refused"
        document["ots-writer"] |= {"onPoisonRow": "skip", "poisonFile": str(missing)}
        with pytest.raises(ConfigurationError, match=r"ots-writer\.poisonFile: .*refused cannot be written"):
            Replication(parse_settings(document, {}), print, print).run()
        tables = destination.client().list_table()

    assert list(tables) == []


@pytest.mark.slow
def test_verify_names_differences_and_fails(tmp_path: Path) -> None:
    with LocalTablestore() as source, LocalTablestore() as destination:
        make_source(source.client(), 5)
        config = tmp_path / "copy.json"
        config.write_text(json.dumps(configuration(source, destination, endTime="2020-01-01 00:00:00")))
        subprocess.run(command(str(config), "--poll-seconds", "0.2"), capture_output=True, check=True)
        equal = subprocess.run(command(str(config), "--verify"), capture_output=True, text=True, check=False)
        destination.client().delete_row("orders_copy", [("id", 3)], None)
        ended = subprocess.run(command(str(config), "--verify"), capture_output=True, text=True, check=False)

    assert (equal.returncode, equal.stdout) == (0, "compared 5 rows: no differences\n")
    assert ended.returncode == 3
    assert ended.stdout == "row (3) is missing in the destination\ncompared 5 rows: 1 difference\n"
    assert "comparing  0 rows  no differences so far" in ended.stderr, "it is not silent before the first page"
