"""What happens to a Delta table besides its writers: power losses, places that are none, settings that cannot work."""

from __future__ import annotations

import resource
from pathlib import Path

import pyarrow as pa
import pytest
from delta_tables import filled

from streamclient.destinations import DeltaDestination, Key
from streamclient.destinations.delta.delta_log import ENTRY_BYTES_MAX, read_files
from streamclient.destinations.delta.maintenance import Maintenance, clean, compact
from streamclient.destinations.proof.verification import Flaw, verify
from streamclient.errors import ConfigurationError, DependencyException, StreamClientException
from streamclient.model import CheckpointPosition
from streamclient.testing.contracts.destination_contract import (
    batch,
    change,
    rows_for,
    store,
)


def entry(table: Path, version: int) -> Path:
    return table / "_delta_log" / f"{version:020}.json"


def test_the_end_of_a_shard_without_changes_is_stored_in_a_table_that_is_divided_by_key(tmp_path: Path) -> None:
    """Its rows have no column of the source; without that commit its children would never be read."""
    destination = DeltaDestination(str(tmp_path / "t"), partition_by=Key("id"))
    first = store(destination, None, [])
    second = store(destination, first, [change(1)])
    last = store(destination, second, [], end=CheckpointPosition.SHARD_END)

    assert destination.last_commits(["shard-1"]) == {"shard-1": last}
    assert verify(destination, with_rows=True).rows == 1


@pytest.mark.slow
def test_an_entry_that_a_power_loss_has_emptied_is_named_and_does_not_stop_others(tmp_path: Path) -> None:
    """The last one: the table is there without it, and its writer ends elsewhere than its checkpoint."""
    destination, last = filled(tmp_path / "t")
    other = store(destination, None, [change(50)], shard="shard-2")
    lost = store(destination, last, [change(51)])
    entry(tmp_path / "t", destination.handle().version()).write_bytes(b"")
    reopened = DeltaDestination(str(tmp_path / "t"))
    with pytest.raises(StreamClientException, match="does not follow the shard's last stored commit"):
        store(reopened, lost, [change(52)])
    store(reopened, other, [change(53)], shard="shard-2")

    assert reopened.last_commits(["shard-1"]) == {"shard-1": last}
    (finding,) = verify(reopened, with_rows=True).findings
    assert (finding.flaw, "entry 12 is empty" in finding.text) == (Flaw.UNREADABLE, True)


def reserved_bytes() -> int:
    """Addresses that this process has reserved."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="nothing here says what a process has reserved")
def test_looking_for_entries_that_are_not_there_reserves_no_memory(tmp_path: Path) -> None:
    """A process that reserved more than the machine has could start no child by a fork."""
    location = DeltaDestination(str(tmp_path)).location
    read_files(location, range(8))
    before = reserved_bytes()
    found = read_files(location, range(100))

    assert found == {}
    assert reserved_bytes() - before < 100 * ENTRY_BYTES_MAX / 4


@pytest.mark.slow
def test_an_emptied_entry_among_others_is_a_hole(tmp_path: Path) -> None:
    _, last = filled(tmp_path / "t")
    entry(tmp_path / "t", 4).write_bytes(b"")
    reopened = DeltaDestination(str(tmp_path / "t"))
    store(reopened, last, [change(60)])

    assert [one.flaw for one in verify(reopened).findings] == [Flaw.UNREADABLE, Flaw.HOLE]


UNKEPT = [
    (pa.struct([]), "struct without fields"),
    (pa.list_(pa.struct([])), "struct without fields"),
    (pa.map_(pa.string(), pa.struct([("a", pa.int64()), ("A", pa.int64())])), "do not distinguish its fields 'a', 'A'"),
    (pa.struct([("a", pa.int64()), ("a", pa.int64())]), "do not distinguish its fields 'a', 'a'"),
    (pa.decimal128(5, -2), "do not keep decimal128"),
]


@pytest.mark.parametrize(("kind", "named"), UNKEPT, ids=str)
def test_a_type_that_no_table_keeps_is_refused_before_there_is_one(
    kind: pa.DataType, named: str, tmp_path: Path
) -> None:
    destination = DeltaDestination(str(tmp_path / "t"))
    commit = batch(None, [change(1)])
    rows = rows_for(destination, [change(1)], commit).append_column("x", pa.nulls(1, kind))
    with pytest.raises(ConfigurationError, match=named):
        destination.commit(rows, [commit])

    assert not (tmp_path / "t" / "_delta_log").exists()


@pytest.mark.parametrize("below", ["", "lake/orders"])
def test_a_place_that_is_a_file_or_below_one_is_refused(below: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("nothing of a table")
    with pytest.raises(ConfigurationError, match="file is a file, and a table is a directory"):
        DeltaDestination(str(tmp_path / "file" / below))


@pytest.mark.parametrize("url", ["s3://", "s3:///orders", "s3:/orders", "gs:orders", "oss:///orders"])
def test_an_address_without_a_bucket_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="names no bucket"):
        DeltaDestination(url, storage_options={"opendal.endpoint": "http://127.0.0.1"})


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    with pytest.raises(DependencyException, match="cannot be written to"):
        DeltaDestination(str(tmp_path / ("x" * 300))).probe()


@pytest.mark.parametrize("hours", [0, -1, 1.5, "24", 10**7, 10**30, True])
def test_hours_that_no_clean_up_can_keep_are_refused_before_the_first_one(hours: object, tmp_path: Path) -> None:
    destination = DeltaDestination(str(tmp_path / "t"))
    with pytest.raises(ConfigurationError, match="keep_hours must be a whole number"):
        Maintenance(destination, clean="30 3 * * *", keep_hours=hours)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="keep_hours must be a whole number"):
        clean(destination, keep_hours=hours)  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [0, -5, 1.5, "100"])
def test_a_size_that_no_file_can_have_is_refused(size: object, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="target_bytes must be"):
        compact(DeltaDestination(str(tmp_path / "t")), target_bytes=size)  # type: ignore[arg-type]
