"""Writing to a destination, making it, and comparing it with its source, over HTTP."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from attrs import evolve
from tablestore import PK_AUTO_INCR, CapacityUnit, OTSClient, ReservedThroughput, TableMeta, TableOptions

from streamclient.copying import target_table
from streamclient.copying.differences import DifferenceKind, compare_rows, compare_tables
from streamclient.copying.table_writer import DestinationWriter, RefusedRowError, RowChange, changes_of
from streamclient.copying.target_table import WIDEST_DEVIATION_SECONDS, prepare_destination
from streamclient.errors import ConfigurationError, StreamClientError
from streamclient.records import ColumnOperation, RecordColumn, RecordType, StreamRecord
from streamclient.server import Fail, FailRows, FaultRule, LocalTablestore
from streamclient.tablestore import TablestoreStreamApi
from streamclient.tablestore.signed_calls import SignedCalls
from streamclient.wire import schema

OLD = 1_000_000_000_000
"""A version of the year 2001, far outside of the usual deviation."""


@pytest.fixture
def local() -> Iterator[LocalTablestore]:
    with LocalTablestore() as running:
        yield running


def make(client: OTSClient, name: str, **options: Any) -> None:
    settings = {"max_time_deviation": WIDEST_DEVIATION_SECONDS, **options}
    capacity = ReservedThroughput(CapacityUnit(0, 0))
    TablestoreStreamApi(client).create_table(TableMeta(name, [("id", "INTEGER")]), TableOptions(**settings), capacity)


def change(kind: RecordType, key: tuple[tuple[str, Any], ...], columns: tuple[RecordColumn, ...] = ()) -> RowChange:
    return changes_of([StreamRecord(kind, key, columns)])[0]


def put(number: int, *values: Any) -> RowChange:
    columns = tuple(
        RecordColumn(f"c{place}", ColumnOperation.PUT, value, OLD + place) for place, value in enumerate(values)
    )
    return change(RecordType.PUT, (("id", number),), columns)


def update(number: int, *columns: RecordColumn) -> RowChange:
    return change(RecordType.UPDATE, (("id", number),), columns)


def delete(number: int) -> RowChange:
    return change(RecordType.DELETE, (("id", number),))


def writer(local: LocalTablestore, table: str = "to", **options: Any) -> DestinationWriter:
    return DestinationWriter(SignedCalls(local.client()), table, 200, **options)


def columns(client: OTSClient, number: int, table: str = "to") -> dict[str, Any] | None:
    _, row, _ = client.get_row(table, [("id", number)], max_version=1)
    return None if row is None else {name: (value, version) for name, value, version in row.attribute_columns}


class Kept:
    """Keeps refused rows in memory."""

    def __init__(self) -> None:
        self.rows: list[tuple[RowChange, StreamClientError]] = []

    def take(self, change: RowChange, error: StreamClientError) -> None:
        self.rows.append((change, error))


def test_every_kind_of_change_is_written_with_the_versions_of_the_source(local: LocalTablestore) -> None:
    client = local.client()
    make(client, "to", max_version=3)
    remove_one = RecordColumn("c1", ColumnOperation.DELETE_ONE_VERSION, None, OLD + 1)
    remove_all = RecordColumn("c2", ColumnOperation.DELETE_ALL_VERSION)
    writer(local).write(
        [
            put(1, "a", True, 2.5),
            put(2, b"b"),
            update(1, remove_one, remove_all, RecordColumn("new", ColumnOperation.PUT, 7, OLD)),
            put(3),
            delete(2),
        ]
    )

    assert columns(client, 1) == {"c0": ("a", OLD), "new": (7, OLD)}
    assert columns(client, 2) is None
    assert columns(client, 3) == {}


def test_two_changes_of_one_key_are_written_in_order(local: LocalTablestore) -> None:
    client = local.client()
    make(client, "to")
    writer(local).write([put(1, number) for number in range(20)])

    assert columns(client, 1) == {"c0": (19, OLD)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("numbers", "rows"),
    [
        ([7] * 500, 1),
        (list(range(1_000)), 1_000),
        ([number // 2 for number in range(1_000)], 500),
        ([*range(200), 0, 199], 200),
    ],
    ids=["one key", "different keys", "pairs", "a full batch and two repeated keys"],
)
def test_every_change_is_written_whatever_is_repeated(local: LocalTablestore, numbers: list[int], rows: int) -> None:
    """Values differ, so that a change that is only counted and not written would be seen."""
    client = local.client()
    make(client, "to")
    made = writer(local)
    made.write([put(number, place) for place, number in enumerate(numbers)])
    latest = {number: place for place, number in enumerate(numbers)}

    assert made.counts.rows == len(numbers)
    assert len(latest) == rows
    assert all(columns(client, number) == {"c0": (place, OLD)} for number, place in latest.items())


def test_rows_that_failed_for_a_passing_reason_are_written_again_alone(local: LocalTablestore) -> None:
    client = local.client()
    make(client, "to")
    local.add_fault(FaultRule("BatchWriteRow", FailRows(every=3), times=2))
    made = writer(local)
    made.write([put(number, number) for number in range(30)])

    assert all(columns(client, number) == {"c0": (number, OLD)} for number in range(30))
    assert made.counts.rows == 30
    assert made.counts.retried_rows > 0


def test_row_that_is_refused_for_good_ends_the_writing_and_is_named(local: LocalTablestore) -> None:
    make(local.client(), "to")

    with pytest.raises(RefusedRowError, match=r"refuses put of row \{'id': 2\}"):
        writer(local).write([put(1, 1), put(2, "x" * (3 * 1024 * 1024)), put(3, 3)])


def test_refused_rows_may_be_kept_while_the_others_go_on(local: LocalTablestore) -> None:
    client = local.client()
    make(client, "to")
    kept = Kept()
    made = writer(local, poison=kept.take)
    made.write([put(1, 1), put(2, "x" * (2 * 1024 * 1024 + 1)), put(3, 3)])

    assert [change.key for change, _ in kept.rows] == [(("id", 2),)]
    assert made.counts.refused_rows == 1
    assert columns(client, 3) == {"c0": (3, OLD)}


def aging(local: LocalTablestore, kept: Kept) -> tuple[DestinationWriter, int]:
    """A writer to a table with a time to live of a day, and a version that is an hour old."""
    client = local.client()
    make(client, "from", time_to_live=86_400)
    prepared = prepare_destination(client, "from", client, "to")
    made = writer(local, poison=kept.take, time_to_live_millis=prepared.time_to_live_millis)
    return made, time.time_ns() // 1_000_000 - 3_600_000


def test_cells_that_have_expired_are_left_out_and_the_others_are_written_in_order(local: LocalTablestore) -> None:
    client, kept = local.client(), Kept()
    made, young = aging(local, kept)
    old, new = (RecordColumn(name, ColumnOperation.PUT, 1, at) for name, at in (("old", OLD), ("new", young)))
    remove, later = (RecordColumn("new", ColumnOperation.DELETE_ALL_VERSION), evolve(new, value=2))
    keys = [(("id", number),) for number in range(7)]
    made.write([change(RecordType.PUT, keys[number], (new,)) for number in (0, 1, 2, 3)])
    made.write(
        [
            change(RecordType.PUT, keys[0], (old, later)),  # one cell lives
            change(RecordType.PUT, keys[1], (old,)),  # nothing lives, so the row has expired
            change(RecordType.UPDATE, keys[2], (old,)),  # the row lives by another cell
            change(RecordType.UPDATE, keys[3], (remove, old)),
            change(RecordType.UPDATE, keys[4], (old,)),  # the row expired before it was copied
            change(RecordType.PUT, keys[5], (old,)),
            change(RecordType.PUT, keys[6], (new,)),
            change(RecordType.UPDATE, keys[5], (new,)),
        ]
    )

    assert [columns(client, number) for number in range(7)] == [
        {"new": (2, young)},
        None,
        {"new": (1, young)},
        {},
        None,
        {"new": (1, young)},
        {"new": (1, young)},
    ]
    assert (kept.rows, made.counts.refused_rows) == ([], 0)


def test_cells_that_expire_soon_are_left_out_too_if_the_clock_of_the_service_is_ahead(local: LocalTablestore) -> None:
    client, kept = local.client(), Kept()
    made, young = aging(local, kept)
    local.advance_clock(30.0)
    soon = time.time_ns() // 1_000_000 - 86_400_000 + 15_000
    cells = [RecordColumn(name, ColumnOperation.PUT, 1, at) for name, at in (("soon", soon), ("new", young))]
    made.write([change(RecordType.PUT, (("id", 1),), tuple(cells))])

    assert columns(client, 1) == {"new": (1, young)}
    assert kept.rows == []


def test_a_row_that_is_refused_also_without_its_expired_cells_is_kept_with_them(local: LocalTablestore) -> None:
    client, kept = local.client(), Kept()
    made, young = aging(local, kept)
    large = RecordColumn("large", ColumnOperation.PUT, "x" * (2 * 1024 * 1024 + 1), young)
    old = RecordColumn("old", ColumnOperation.PUT, 1, OLD)
    rows = [change(RecordType.PUT, (("id", number),), cells) for number, cells in enumerate([(large, old), (large,)])]
    made.write(rows)

    assert [change.columns for change, _ in kept.rows] == [(large, old), (large,)]
    assert [columns(client, number) for number in (0, 1)] == [None, None]
    with pytest.raises(RefusedRowError, match=r"refuses put of row \{'id': 0\}"):
        evolve(made, poison=None).write(rows)


def test_a_row_without_its_expired_cells_is_written_until_the_destination_takes_it(local: LocalTablestore) -> None:
    client, kept = local.client(), Kept()
    made, young = aging(local, kept)
    cells = [RecordColumn(name, ColumnOperation.PUT, 1, at) for name, at in (("old", OLD), ("new", young))]
    local.add_fault(FaultRule("BatchWriteRow", FailRows(every=1), after=1, times=1))
    made.write([change(RecordType.PUT, (("id", 1),), tuple(cells))])

    assert columns(client, 1) == {"new": (1, young)}
    assert made.counts.retried_rows == 1


def test_the_time_to_live_is_that_of_the_destination(local: LocalTablestore) -> None:
    client = local.client()
    make(client, "from", time_to_live=86_400)
    make(client, "longer", time_to_live=2 * 86_400)
    make(client, "for_ever")
    found = [prepare_destination(client, "from", client, name) for name in ("to", "longer", "for_ever", "to")]

    assert [each.time_to_live_millis for each in found] == [86_400_000, 2 * 86_400_000, None, 86_400_000]


def test_waiting_for_a_destination_ends_with_the_stop(local: LocalTablestore) -> None:
    make(local.client(), "to")
    stop = threading.Event()
    stop.set()
    local.add_fault(FaultRule("BatchWriteRow", FailRows(every=1)))

    with pytest.raises(StreamClientError, match="OTSServerBusy"):
        writer(local, stop=stop).write([put(1, 1)])


# --- the destination -----------------------------------------------------------------------------------------------


def test_destination_is_made_like_the_source_with_the_widest_version_offset(local: LocalTablestore) -> None:
    client = local.client()
    make(client, "from", max_time_deviation=86_400, max_version=4)

    assert prepare_destination(client, "from", client, "to").was_made

    made = TablestoreStreamApi(client).describe_table("to")
    assert made.definition.primary_key == TablestoreStreamApi(client).describe_table("from").definition.primary_key
    assert made.options.max_versions == 4
    assert made.options.max_time_deviation_seconds == WIDEST_DEVIATION_SECONDS
    assert not prepare_destination(client, "from", client, "to").was_made


def test_a_destination_that_another_process_makes_at_the_same_time_is_checked_and_used(
    local: LocalTablestore, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = local.client()
    make(client, "from")
    describe = target_table._describe

    def quicker(api: TablestoreStreamApi, table: str) -> Any:
        found = describe(api, table)
        if table == "to" and found is None:
            make(client, table)
        return found

    monkeypatch.setattr(target_table, "_describe", quicker)

    assert not prepare_destination(client, "from", client, "to").was_made


def test_destination_that_would_lose_rows_is_refused_with_every_reason(local: LocalTablestore) -> None:
    client = local.client()
    make(client, "from", max_version=2)
    make(client, "to", max_time_deviation=86_400, time_to_live=86_400)

    with pytest.raises(ConfigurationError) as caught:
        prepare_destination(client, "from", client, "to")

    lines = [line.strip() for line in str(caught.value).splitlines()[1:]]
    assert [line.split(" ")[1] for line in lines] == ["takes", "keeps", "keeps"]


def test_updates_that_the_source_allowed_earlier_are_written(local: LocalTablestore) -> None:
    client = local.client()
    make(client, "from", allow_update=False)

    assert prepare_destination(client, "from", client, "to").was_made
    assert not prepare_destination(client, "from", client, "to").was_made
    writer(local).write([put(1, 1), update(1, RecordColumn("c1", ColumnOperation.PUT, 2, OLD))])
    assert columns(client, 1) == {"c0": (1, OLD), "c1": (2, OLD)}


def test_destination_that_forbids_updates_is_used_once_it_is_changed_as_the_error_says(local: LocalTablestore) -> None:
    """Earlier versions made such a table for a source that forbids updates."""
    client = local.client()
    for table in ("from", "to"):
        make(client, table, allow_update=False)

    with pytest.raises(ConfigurationError, match="forbids updates; set allow_update to true by UpdateTable"):
        prepare_destination(client, "from", client, "to")
    client.update_table("to", TableOptions(max_time_deviation=WIDEST_DEVIATION_SECONDS, allow_update=True))
    assert not prepare_destination(client, "from", client, "to").was_made


def test_destination_that_makes_versions_itself_is_refused(local: LocalTablestore) -> None:
    client = local.client()
    make(client, "from")
    request = schema.CreateTableRequest()
    request.table_meta.table_name = "to"
    request.table_meta.primary_key.add(name="id", type=1)
    request.reserved_throughput.capacity_unit.CopyFrom(schema.CapacityUnit(read=0, write=0))
    request.table_options.CopyFrom(
        schema.TableOptions(
            time_to_live=-1,
            max_versions=1,
            deviation_cell_version_in_sec=WIDEST_DEVIATION_SECONDS,
            update_full_row=True,
        )
    )
    SignedCalls(client).ask("CreateTable", request, is_repeatable=False)  # the SDK has no such option

    with pytest.raises(ConfigurationError, match=r"makes the versions of cells itself.*without update_full_row"):
        prepare_destination(client, "from", client, "to")


def test_new_destination_is_awaited_while_the_service_does_not_know_it(local: LocalTablestore) -> None:
    client = local.client()
    make(client, "from")
    local.add_fault(FaultRule("GetRow", Fail("OTSObjectNotExist"), table="to", times=2))

    assert prepare_destination(client, "from", client, "to").was_made
    assert local.faults()[0].struck == 2
    writer(local).write([put(1, 1)])
    assert columns(client, 1) == {"c0": (1, OLD)}


def test_destination_with_another_key_is_refused(local: LocalTablestore) -> None:
    client = local.client()
    make(client, "from")
    TablestoreStreamApi(client).create_table(
        TableMeta("to", [("id", "STRING")]),
        TableOptions(max_time_deviation=WIDEST_DEVIATION_SECONDS),
        ReservedThroughput(CapacityUnit(0, 0)),
    )

    with pytest.raises(ConfigurationError, match=r"its key is \(id STRING\), expected \(id INTEGER\)"):
        prepare_destination(client, "from", client, "to")


def test_generated_key_column_is_copied_as_a_value_into_a_table_that_generates_none(local: LocalTablestore) -> None:
    client = local.client()
    key = [("owner", "STRING"), ("id", "INTEGER", PK_AUTO_INCR)]
    for name in ("from", "generates"):
        TablestoreStreamApi(client).create_table(
            TableMeta(name, key),
            TableOptions(max_time_deviation=WIDEST_DEVIATION_SECONDS),
            ReservedThroughput(CapacityUnit(0, 0)),
        )

    assert prepare_destination(client, "from", client, "to").was_made
    assert TablestoreStreamApi(client).describe_table("to").auto_increment_key is None
    row = change(RecordType.PUT, (("owner", "a"), ("id", 17)))
    writer(local).write([row])
    assert client.get_row("to", [("owner", "a"), ("id", 17)])[1] is not None
    with pytest.raises(ConfigurationError, match="its key column 'id' is generated and takes no values"):
        prepare_destination(client, "from", client, "generates")
    with pytest.raises(RefusedRowError):
        writer(local, "generates").write([row])


# --- comparing -----------------------------------------------------------------------------------------------------


def test_equal_tables_have_no_differences(local: LocalTablestore) -> None:
    client = local.client()
    for table in ("from", "to"):
        make(client, table)
        writer(local, table).write([put(number, number) for number in range(50)])

    assert list(compare_tables(client, "from", client, "to")) == []


def test_each_difference_is_named(local: LocalTablestore) -> None:
    client = local.client()
    for table in ("from", "to"):
        make(client, table)
    writer(local, "from").write([put(1, 1), put(2, 2), put(4, 4), put(5, "same")])
    writer(local, "to").write([put(0, 0), put(1, 9), put(4, 4, 4), put(5, "same"), put(6, 6)])

    found = list(compare_tables(client, "from", client, "to"))

    assert [(each.kind, each.key, each.column) for each in found] == [
        (DifferenceKind.EXTRA, (0,), ""),
        (DifferenceKind.COLUMN, (1,), "c0"),
        (DifferenceKind.MISSING, (2,), ""),
        (DifferenceKind.COLUMN, (4,), "c1"),
        (DifferenceKind.EXTRA, (6,), ""),
    ]
    assert str(found[1]) == f"row (1) column 'c0': source 1@{OLD}, destination 9@{OLD}"
    assert str(found[2]) == "row (2) is missing in the destination"


def test_values_of_different_types_are_different_though_they_are_equal_in_python(local: LocalTablestore) -> None:
    client = local.client()
    pairs = [(1, True), (1, 1.0), (0, False), (0.0, -0.0), ("a", bytearray(b"a")), (2.5, 2.5), (True, True)]
    for side, table in enumerate(("from", "to")):
        make(client, table)
        writer(local, table).write([put(number, pair[side]) for number, pair in enumerate(pairs)])

    found = [str(each).partition("source ")[2] for each in compare_tables(client, "from", client, "to")]

    assert found == [
        f"1@{OLD}, destination True@{OLD}",
        f"1@{OLD}, destination 1.0@{OLD}",
        f"0@{OLD}, destination False@{OLD}",
        f"0.0@{OLD}, destination -0.0@{OLD}",
        f"'a'@{OLD}, destination b'a'@{OLD}",
    ]


def test_tables_of_different_keys_are_not_compared(local: LocalTablestore) -> None:
    client = local.client()
    make(client, "from")
    capacity = ReservedThroughput(CapacityUnit(0, 0))
    TablestoreStreamApi(client).create_table(TableMeta("other", [("id", "STRING")]), TableOptions(), capacity)

    with pytest.raises(ConfigurationError, match=r"'from' is \(id INTEGER\), the key of the .* 'other' \(id STR"):
        list(compare_tables(client, "from", client, "other"))


def test_a_table_that_is_not_there_is_named_with_its_side(local: LocalTablestore) -> None:
    client = local.client()
    make(client, "from")

    with pytest.raises(StreamClientError, match="the destination has no table 'to'"):
        list(compare_tables(client, "from", client, "to"))
    with pytest.raises(StreamClientError, match="the source has no table 'nothing'"):
        list(compare_tables(client, "nothing", client, "from"))
    with pytest.raises(StreamClientError, match="the source has no table 'nothing'"):
        prepare_destination(client, "nothing", client, "to")
    assert client.list_table() == ("from",)


def test_a_comparison_goes_on_with_every_row_of_either_table() -> None:
    """A long stretch that only the destination has is not silent, either."""
    here, there = ([((key,), {}) for key in keys] for keys in ((5, 6), (1, 2, 3, 6, 7, 8)))
    told: list[int] = []
    moments = [(each.key, tuple(told)) for each in compare_rows(iter(here), iter(there), told.append)]

    assert told == [1, 2, 3, 4, 5, 6, 7]
    assert [(key, seen[-1]) for key, seen in moments] == [
        ((1,), 1),
        ((2,), 2),
        ((3,), 3),
        ((5,), 4),
        ((7,), 6),
        ((8,), 7),
    ]
