"""Compaction and maintenance by the clock beside writers: no row lost or doubled."""

from __future__ import annotations

import threading
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction

from streamclient.cli.main import main
from streamclient.destinations import Day, DeltaDestination
from streamclient.destinations.delta import maintenance
from streamclient.destinations.delta.maintenance import (
    Cleaning,
    Compaction,
    Maintenance,
    check_compacting_version,
    compact,
)
from streamclient.destinations.proof.verification import Flaw, Proof, verify
from streamclient.errors import ConfigurationError, StreamClientException
from streamclient.testing.contracts.destination_contract import batch, change, rows_for, store, stored_numbers
from tests.destinations.delta_tables import TABLE_COMMITS, age, filled
from tests.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.slow


def test_of_two_compactions_at_once_one_is_refused(tmp_path: Path) -> None:
    """The gate before another version of delta-rs is allowed: some accept both, and every row is there twice."""
    filled(tmp_path / "table")
    one, two = DeltaTable(str(tmp_path / "table")), DeltaTable(str(tmp_path / "table"))
    one.optimize.compact()
    with pytest.raises(CommitFailedError):
        two.optimize.compact()

    assert stored_numbers(DeltaDestination(str(tmp_path / "table"))) == list(range(TABLE_COMMITS))


def test_compactions_by_several_threads_beside_writers_keep_every_row_once(tmp_path: Path) -> None:
    destination, _ = filled(tmp_path / "table")
    start = threading.Barrier(4)
    results: list[Compaction] = []
    errors: list[BaseException] = []

    def guarded(work: object) -> None:
        try:
            start.wait(PATIENCE_SECONDS)
            work()  # type: ignore[operator]
        except BaseException as error:
            errors.append(error)

    def compacting() -> None:
        own = destination.another()
        results.extend(compact(own) for _ in range(5))

    def writing(base: int) -> None:
        own, last = destination.another(), None
        for number in range(15):
            last = store(own, last, [change(base + number)], shard=f"shard-{base}")

    works = [compacting, compacting, lambda: writing(1_000), lambda: writing(2_000)]
    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)

    assert errors == []
    assert any(result.files_after < result.files_before for result in results)
    wanted = [*range(TABLE_COMMITS), *range(1_000, 1_015), *range(2_000, 2_015)]
    assert stored_numbers(destination) == wanted
    assert verify(destination, with_rows=True).findings == []


def test_a_commit_that_was_under_way_during_a_compaction_goes_in(tmp_path: Path) -> None:
    destination, last = filled(tmp_path / "table", partition_by=Day())
    commit = batch(last, [change(77)])
    rows = rows_for(destination, [change(77)], commit)
    result = compact(destination.another())
    destination.commit(rows, [commit])

    assert (result.files_before, result.files_after) == (TABLE_COMMITS, 1)
    assert stored_numbers(destination) == [*range(TABLE_COMMITS), 77]


@pytest.mark.parametrize("version", ["1.6.4", "1.6.5", "1.6.6", "1.7.0", "2.0.0", "1.6.0", "1.6.4rc1", "weird"])
def test_versions_that_may_double_rows_do_not_compact(version: str) -> None:
    with pytest.raises(ConfigurationError, match="doubles all rows"):
        check_compacting_version(version)


@pytest.mark.parametrize("version", ["1.6.1", "1.6.2", "1.6.3"])
def test_versions_that_were_seen_to_refuse_compact(version: str) -> None:
    check_compacting_version(version)


def test_a_compaction_that_changes_the_number_of_rows_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As seen with versions that accept two at once, which are not installed here: the counts are set."""
    destination, _ = filled(tmp_path / "table")
    counts = iter([10, 20])
    monkeypatch.setattr(maintenance, "_row_count", lambda handle: next(counts))
    with pytest.raises(StreamClientException, match=r"10 rows into 20 .*as version 11: .*restore\(10\)") as raised:
        compact(destination)

    (made,) = DeltaTable(str(tmp_path / "table")).file_uris()
    assert f"out of the log: {made}. Then" in str(raised.value)


def test_what_a_doubled_compaction_added_is_taken_out_and_later_commits_stay(tmp_path: Path) -> None:
    """As the error advises. The rows are doubled by hand: versions of delta-rs that do so are not installed."""
    destination, last = filled(tmp_path / "table")
    handle = destination.handle()
    again = tmp_path / "table" / "doubled.parquet"
    again.write_bytes(Path(handle.file_uris()[0].removeprefix("file://")).read_bytes())
    added = [AddAction("doubled.parquet", again.stat().st_size, {}, 0, True, '{"numRecords":1}')]
    handle.create_write_transaction(added, "append", handle.schema())
    last = store(destination, last, [change(77)])
    assert {one.flaw for one in verify(destination, with_rows=True).findings} == {Flaw.ROWS_REPEATED}
    again.rename(tmp_path / "elsewhere")
    DeltaTable(str(tmp_path / "table")).repair()

    assert verify(destination, with_rows=True, checkpoints={"shard-1": last.end}).findings == []
    assert DeltaDestination(str(tmp_path / "table")).last_commits(["shard-1"]) == {"shard-1": last}
    assert stored_numbers(destination) == [*range(TABLE_COMMITS), 77]


def test_a_table_is_maintained_and_proved_by_whoever_does_not_know_how_it_is_divided(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    filled(tmp_path / "table", partition_by=Day())
    (tmp_path / "table" / "_day=1970-01-01" / "part-of-a-refused-commit.parquet").write_bytes(b"")
    age(tmp_path / "table", 40)
    words = ["--compact", "now", "--clean", "now", "--verify", "now", "--rows", "--once"]

    assert main(["maintain", str(tmp_path / "table"), *words]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("clean: 1 file and ")
    assert main(["verify", str(tmp_path / "table"), "--rows"]) == 0


def test_maintenance_runs_by_cron_and_tells_what_it_did(tmp_path: Path) -> None:
    destination, _ = filled(tmp_path / "table")
    heard: dict[str, object] = {}
    all_heard = threading.Event()

    def hear(name: str, result: object) -> None:
        heard[name] = result
        if len(heard) == 3:
            all_heard.set()

    maintenance = Maintenance(
        destination, compact="0 * * * *", clean="30 3 * * *", verify="0 4 * * sun", verify_rows=True, heard=hear
    )
    with maintenance:
        for name in ("compact", "clean", "verify"):
            planned = maintenance.scheduler.get_job(name)
            assert planned.next_run_time > datetime.now(timezone.utc)
            planned.modify(next_run_time=datetime.now(timezone.utc))
        assert all_heard.wait(PATIENCE_SECONDS)

    assert heard["compact"] == Compaction(TABLE_COMMITS, 1)
    assert isinstance(heard["clean"], Cleaning)
    proof = heard["verify"]
    assert isinstance(proof, Proof)
    assert (proof.is_whole, proof.rows) == (True, TABLE_COMMITS)


def test_what_is_planned_is_told_before_it_comes(tmp_path: Path) -> None:
    store(DeltaDestination(str(tmp_path / "t")), None, [change(1)])
    before = datetime.now(timezone.utc)
    with Maintenance(DeltaDestination(str(tmp_path / "t")), compact="0 * * * *", verify="30 4 1 1 *") as maintenance:
        due = maintenance.next_runs()
        after = datetime.now(timezone.utc)

    assert set(due) == {"compact", "verify"}
    assert before < due["compact"] <= after + timedelta(hours=1)
    assert (due["verify"].month, due["verify"].day, due["verify"].hour, due["verify"].minute) == (1, 1, 4, 30)


def test_a_run_that_fails_is_told_and_does_not_stop_the_others(tmp_path: Path) -> None:
    heard: list[tuple[str, object]] = []
    done = threading.Event()

    def hear(name: str, result: object) -> None:
        heard.append((name, result))
        done.set()

    maintenance = Maintenance(
        DeltaDestination(str(tmp_path / "none")), verify="0 4 * * *", compact="0 * * * *", heard=hear
    )
    with maintenance:
        for name in ("compact", "verify"):
            done.clear()
            maintenance.scheduler.get_job(name).modify(next_run_time=datetime.now(timezone.utc))
            assert done.wait(PATIENCE_SECONDS)

    assert [name for name, _ in heard] == ["compact", "verify"]
    assert isinstance(heard[0][1], StreamClientException)
    assert isinstance(heard[1][1], Proof)


def test_an_expression_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="five fields"):
        Maintenance(DeltaDestination(str(tmp_path / "t")), compact="hourly")


def test_command_compacts_and_proves_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    filled(tmp_path / "table")
    code = main(["maintain", str(tmp_path / "table"), "--compact", "0 * * * *", "--verify", "now", "--rows", "--once"])

    assert (code, capsys.readouterr().out.splitlines()) == (
        0,
        [
            f"compact: {TABLE_COMMITS} files are now 1",
            "verify: 1 shard, 10 commits, 10 records, 10 rows read: each record once",
        ],
    )


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "nothing to do: name at least one of --compact"),
        (["--clean", "daily"], "must be a cron expression of five fields"),
        (["--clean", "0 0 * * *", "--keep-hours", "0", "--once"], "keep_hours must be a whole number from 1"),
    ],
)
def test_command_refuses_what_it_cannot_do(
    words: list[str], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["maintain", str(tmp_path / "table"), *words])

    assert code == 2
    assert text in " ".join(capsys.readouterr().err.split())
