"""Rows of the status table: what is read, what is written, on which condition."""

from __future__ import annotations

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from tablestore import BatchWriteRowRequest, Condition, Row, TableInBatchWriteRowItem, UpdateRowItem
from tablestore.encoder import OTSProtoBufferEncoder
from tablestore.metadata import LogicalOperator

from streamclient.base.kept_formats import FORMAT_COLUMN
from streamclient.core import leases as rule
from streamclient.core.leases import LeaseWrite
from streamclient.core.write_rules import WriteKind, apply_write, permits
from streamclient.model import Lease, Pause, PendingCheckpoint, Progress, RecordOrder
from streamclient.records import SequenceInfo
from streamclient.wire import schema
from streamclient.worker.lease.lease_batches import batch_message
from streamclient.worker.lease.lease_rows import (
    COLUMN_TYPES,
    UnreadableRow,
    format_parents,
    own_problems,
    parse_parents,
    parse_row,
    row_item,
    written_columns,
)
from streamclient.worker.lease.own_columns import OWN_COLUMNS

LEASE = Lease("s1", "stream", owner="a", counter=7, stealer="b", checkpoint="token", parent_shard_ids={"p2", "p1"})
KEY = [("StreamId", "stream"), ("StatusType", "LeaseKey"), ("StatusValue", "s1")]
CELLS = {
    "LeaseCounter": 7,
    "LeaseOwner": "a",
    "LeaseStealer": "b",
    "Checkpoint": "token",
    "ParentShardIds": "p1\np2\n",
}
PENDING = PendingCheckpoint("next", b"tx-7", 12, 3, SequenceInfo(1, 20, 3))
PAUSE = Pause("r1", "ann", "weekly ünd more", 1_700_000_000_000_000)
OWN_CELLS = {
    "PendingCheckpoint": "next",
    "PendingState": bytearray(b"tx-7"),
    "PendingRecords": 12,
    "PendingEpoch": 3,
    "PendingBeside": "token",
    "PendingLast": "1/20/3 next",
    "Pause": '{"by": "ann", "reason": "weekly ünd more", "request_id": "r1", "until_micros": 1700000000000000}',
    "PauseTaken": "r1 a",
    "RecordOrders": (
        '[{"at_micros": 1, "by": "ann", "parking_directory": "", "parking_table": "parked", "reason": "ünd", '
        '"record_ids": ["r3", "r5"], "request_id": "o1", "until_micros": 2}]'
    ),
    "ProgressMicros": 5,
    "ProgressRecords": 100,
    "ProgressBytes": 2000,
}
ORDER = RecordOrder("o1", "ann", "ünd", 1, 2, ("r3", "r5"), "parked")
FULL = evolve(LEASE, pending=PENDING, pause=PAUSE, pause_taken="r1 a", progress=Progress(5, 100, 2000), orders=(ORDER,))
WRITES = {
    WriteKind.CREATE: rule.create(LEASE),
    WriteKind.RENEW: rule.renew(LEASE),
    WriteKind.TAKE: rule.take(LEASE, "c"),
    WriteKind.STEAL: rule.steal(LEASE, "c"),
    WriteKind.TRANSFER: rule.transfer(LEASE, "c"),
    WriteKind.CHECKPOINT: rule.checkpoint(LEASE, "next"),
    WriteKind.PREPARE: rule.prepare(LEASE, PENDING),
    WriteKind.TAKE_PAUSE: rule.take_pause(FULL),
    WriteKind.LEAVE_PAUSE: rule.leave_pause(FULL),
    WriteKind.SET_PAUSE: rule.set_pause(FULL, None),
    WriteKind.SET_ORDERS: rule.set_orders(LEASE, (ORDER,)),
    WriteKind.END_ORDERS: rule.end_orders(FULL, ()),
    WriteKind.REWIND: rule.rewind(FULL, "earlier"),
    WriteKind.RELEASE: rule.release(FULL),
    WriteKind.DELETE: rule.delete(LEASE),
}


def row(**changes: object) -> Row:
    """The row of LEASE as the SDK reads it; ``None`` removes a column."""
    cells = {**CELLS, **changes}
    return Row(list(KEY), [(name, value, 1_700_000_000_000) for name, value in cells.items() if value is not None])


def conditions(write: LeaseWrite) -> dict[str, tuple[object, bool]]:
    """Compared columns with value and pass-if-missing; the value is ``None`` for a column that must be missing."""
    condition = row_item(write).condition.get_column_condition()
    parts = [condition] if not hasattr(condition, "sub_conditions") else condition.sub_conditions
    absent = [part.sub_conditions[0] for part in parts if hasattr(part, "sub_conditions")]
    present = [part for part in parts if not hasattr(part, "sub_conditions")]
    assert all(part.get_latest_version_only() for part in (*present, *absent))
    assert all(part.get_column_value() == "" and not part.get_pass_if_missing() for part in absent)
    return {
        **{part.get_column_name(): (part.get_column_value(), part.get_pass_if_missing()) for part in present},
        **{part.get_column_name(): (None, False) for part in absent},
    }


def test_a_row_is_read_as_the_lease_it_holds() -> None:
    assert parse_row(row()) == LEASE


def test_columns_of_our_own_are_read_beside_the_five() -> None:
    lease = parse_row(row(**OWN_CELLS))
    assert lease == FULL
    assert lease.pending is not None
    assert lease.pending.last == SequenceInfo(1, 20, 3)
    assert own_problems(row(**OWN_CELLS)) == ""


@pytest.mark.parametrize("told", [None, 7, "", "1/20/3 elsewhere", "1/20 next", "1/20/x next"])
def test_a_last_record_that_is_missing_or_of_another_batch_hides_nothing_of_what_was_prepared(told: object) -> None:
    """Workers that do not know the column prepare without it, and leave it as it is."""
    lease = parse_row(row(**{**OWN_CELLS, "PendingLast": told}))
    assert lease.pending == PENDING
    assert lease.pending.last is None


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        ({"PendingState": None}, "column PendingState is missing"),
        ({"PendingRecords": True}, "column PendingRecords holds True, which is not of type int"),
        ({"PendingCheckpoint": ""}, "column PendingCheckpoint is empty"),
        ({"Pause": "tomorrow"}, "column Pause holds 'tomorrow', which is not a JSON object"),
        ({"Pause": '{"request_id": 7}'}, "Pause member request_id holds 7, which is not of type str"),
        ({"PauseTaken": 1}, "column PauseTaken holds 1, which is not of type str"),
        ({"RecordOrders": "{}"}, "column RecordOrders holds '{}', which is not a JSON list of objects"),
        (
            {"RecordOrders": '[{"by": 7, "request_id": "o1"}]'},
            "RecordOrders member by holds 7, which is not of type str",
        ),
        ({"ProgressBytes": "x"}, "column ProgressBytes holds 'x', which is not of type int"),
    ],
)
def test_a_column_of_our_own_that_cannot_be_read_is_named_and_taken_for_absent(
    damage: dict[str, object], named: str
) -> None:
    damaged = row(**{**OWN_CELLS, **damage})
    parsed = parse_row(damaged)

    assert isinstance(parsed, Lease)
    assert evolve(parsed, pending=None, pause=None, pause_taken="", progress=None, orders=()) == LEASE
    assert own_problems(damaged) == named


@settings(deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(sorted(OWN_COLUMNS - {FORMAT_COLUMN})),
        st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.floats() | st.binary(max_size=3),
    )
)
def test_no_content_of_our_own_columns_makes_a_lease_unreadable(cells: dict[str, object]) -> None:
    assert isinstance(parse_row(row(**cells)), Lease)


def test_what_was_prepared_counts_only_beside_its_checkpoint() -> None:
    """A Java owner moves the checkpoint and leaves our columns."""
    parsed = parse_row(row(**{**OWN_CELLS, "Checkpoint": "further"}))
    assert parsed == evolve(FULL, checkpoint="further", pending=None)


def test_columns_of_others_are_ignored() -> None:
    assert parse_row(row(Epoch=3, Load=0.5)) == LEASE


@pytest.mark.parametrize(
    ("found", "missing"),
    [
        (row(LeaseOwner=None, Checkpoint=None), "LeaseOwner"),
        (Row(list(KEY), []), "LeaseCounter"),
        (row(Checkpoint=None, **OWN_CELLS), "Checkpoint"),
    ],
    ids=["fewer than five columns", "no column", "columns of our own, which make up for none"],
)
def test_a_row_with_too_few_columns_is_a_remnant(found: Row, missing: str) -> None:
    """Our create may replace such a row, at which a Java worker's scans fail."""
    parsed = parse_row(found)
    assert isinstance(parsed, UnreadableRow)
    assert (parsed.lease_key, parsed.missing_column) == ("s1", missing)


@pytest.mark.parametrize(
    ("cells", "problem"),
    [
        ({"Checkpoint": None, "Extra": "x"}, "it lacks column Checkpoint"),
        ({"Checkpoint": ""}, "column Checkpoint is empty"),
        ({"LeaseCounter": "7"}, "LeaseCounter"),
        ({"LeaseCounter": True}, "LeaseCounter"),
        ({"LeaseOwner": 1}, "LeaseOwner"),
        ({"Checkpoint": bytearray(b"x")}, "Checkpoint"),
        ({"LeaseStealer": 0.5}, "LeaseStealer"),
    ],
    ids=["extra columns make up for none", "empty", "text", "boolean", "number", "binary", "double"],
)
def test_a_row_that_is_no_lease_is_unreadable(cells: dict[str, object], problem: str) -> None:
    """It fails every scan of a Java worker; here it is named and left out."""
    parsed = parse_row(row(**cells))

    assert isinstance(parsed, UnreadableRow)
    assert problem in parsed.problem
    assert parsed.missing_column is None


def test_every_problem_of_a_row_is_named() -> None:
    parsed = parse_row(row(LeaseCounter="7", LeaseOwner=None, Extra=1))

    assert isinstance(parsed, UnreadableRow)
    assert "LeaseCounter" in parsed.problem
    assert "LeaseOwner" in parsed.problem


@pytest.mark.parametrize(
    ("text", "parents"),
    [("", set()), ("p\n", {"p"}), ("p1\np2\n", {"p1", "p2"}), ("p1\np2", {"p1", "p2"}), ("\n\np\n\n", {"p"})],
)
def test_parents_are_one_per_line(text: str, parents: set[str]) -> None:
    assert parse_parents(text) == parents


def test_two_parents_are_written_with_a_line_feed_each() -> None:
    assert format_parents({"p2", "p1"}) == "p1\np2\n"
    assert format_parents(()) == ""


@settings(deadline=None)
@given(st.frozensets(st.text(min_size=1).filter(lambda text: "\n" not in text), max_size=3))
def test_parents_survive_the_cell(parents: frozenset[str]) -> None:
    assert parse_parents(format_parents(parents)) == parents


def test_create_stores_all_five_columns_where_no_row_is() -> None:
    item = row_item(WRITES[WriteKind.CREATE])

    assert item.type == "put"
    assert dict(item.row.attribute_columns) == CELLS
    assert item.condition.get_row_existence_expectation() == "EXPECT_NOT_EXIST"
    assert item.condition.get_column_condition() is None


@pytest.mark.parametrize(
    ("kind", "columns"),
    [
        (WriteKind.RENEW, {"LeaseCounter": 8}),
        (WriteKind.TAKE, {"LeaseCounter": 8, "LeaseOwner": "c", "LeaseStealer": ""}),
        (WriteKind.STEAL, {"LeaseStealer": "c"}),
        (WriteKind.TRANSFER, {"LeaseCounter": 8, "LeaseOwner": "c", "LeaseStealer": "c"}),
        (WriteKind.CHECKPOINT, {"LeaseCounter": 8, "Checkpoint": "next"}),
    ],
)
def test_an_operation_writes_only_its_own_columns(kind: WriteKind, columns: dict[str, object]) -> None:
    item = row_item(WRITES[kind])

    assert item.type == "update"
    assert item.row.attribute_columns == {"PUT": list(columns.items())}
    assert item.condition.get_row_existence_expectation() == "EXPECT_EXIST"


@pytest.mark.parametrize(
    ("write", "put", "removed"),
    [
        (
            rule.prepare(LEASE, PENDING),
            {
                "LeaseCounter",
                "PendingCheckpoint",
                "PendingState",
                "PendingRecords",
                "PendingEpoch",
                "PendingBeside",
                "PendingLast",
            },
            set(),
        ),
        (
            rule.checkpoint(FULL, "next", Progress(6, 101, 2020)),
            {"LeaseCounter", "Checkpoint", "ProgressMicros", "ProgressRecords", "ProgressBytes"},
            {"PendingCheckpoint", "PendingState", "PendingRecords", "PendingEpoch", "PendingBeside", "PendingLast"},
        ),
        (rule.checkpoint(LEASE, "next"), {"LeaseCounter", "Checkpoint"}, set()),
        (rule.take_pause(FULL), {"LeaseCounter", "PauseTaken"}, set()),
        (rule.leave_pause(FULL), {"LeaseCounter"}, {"PauseTaken"}),
        (rule.set_pause(LEASE, PAUSE), {"Pause"}, set()),
        (rule.set_pause(FULL, None), set(), {"Pause", "PauseTaken"}),
        (rule.set_orders(LEASE, (ORDER,)), {"RecordOrders"}, set()),
        (rule.end_orders(FULL, ()), {"LeaseCounter"}, {"RecordOrders"}),
        (rule.release(FULL), {"LeaseCounter", "LeaseOwner", "LeaseStealer"}, set()),
    ],
)
def test_columns_of_our_own_come_and_go_with_the_write_that_names_them(
    write: LeaseWrite, put: set[str], removed: set[str]
) -> None:
    changes = row_item(write).row.attribute_columns
    assert {name for name, _ in changes["PUT"]} == put
    assert set(changes.get("DELETE_ALL", [])) == removed


def test_create_stores_columns_of_our_own_too() -> None:
    """A vanished row comes back with everything that it had."""
    assert dict(row_item(rule.create(FULL)).row.attribute_columns) == {**CELLS, **OWN_CELLS}


def test_take_writes_a_checkpoint_only_to_restore_it() -> None:
    assert written_columns(rule.take(LEASE, "c", checkpoint="restored"))["Checkpoint"] == "restored"
    assert "Checkpoint" not in written_columns(rule.take(LEASE, "c"))


@pytest.mark.parametrize(
    "kind",
    [
        WriteKind.TAKE,
        WriteKind.TRANSFER,
        WriteKind.CHECKPOINT,
        WriteKind.PREPARE,
        WriteKind.TAKE_PAUSE,
        WriteKind.LEAVE_PAUSE,
        WriteKind.RELEASE,
    ],
)
def test_owners_writes_compare_counter_and_owner(kind: WriteKind) -> None:
    assert conditions(WRITES[kind]) == {"LeaseCounter": (7, False), "LeaseOwner": ("a", False)}


BOTH = {"LeaseOwner": ("a", False), "LeaseStealer": ("b", False)}


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (WriteKind.RENEW, {"LeaseCounter": (7, False), **BOTH}),
        (WriteKind.REWIND, {"LeaseCounter": (7, False), **BOTH}),
        (WriteKind.SET_PAUSE, {"LeaseOwner": ("a", False)}),
        (WriteKind.SET_ORDERS, {"LeaseOwner": ("a", False), "RecordOrders": (None, False)}),
        (
            WriteKind.END_ORDERS,
            {
                "LeaseCounter": (7, False),
                "LeaseOwner": ("a", False),
                "RecordOrders": (OWN_CELLS["RecordOrders"], False),
            },
        ),
        (WriteKind.STEAL, {"LeaseOwner": ("a", False), "LeaseStealer": ("", False)}),
    ],
    ids=[
        "a renewal",
        "a rewind",
        "a pause: no heartbeat of the owner fails",
        "the first orders: the column is missing",
        "the end of orders: none that came meanwhile is lost",
        "a mark, whatever the counter",
    ],
)
def test_other_writes_compare_what_they_must_not_miss(kind: WriteKind, expected: dict[str, object]) -> None:
    assert conditions(WRITES[kind]) == expected


def test_delete_accepts_an_absent_row_but_no_changed_one() -> None:
    assert row_item(WRITES[WriteKind.DELETE]).condition.get_row_existence_expectation() == "IGNORE"
    assert conditions(WRITES[WriteKind.DELETE]) == {"LeaseCounter": (7, True), "LeaseOwner": ("a", True)}


@pytest.mark.parametrize("kind", list(WriteKind))
def test_no_cell_carries_a_timestamp(kind: WriteKind) -> None:
    """Tools read the service's own stamp on LeaseCounter as the last heartbeat."""
    columns = row_item(WRITES[kind]).row.attribute_columns or []
    cells = columns.get("PUT", []) if isinstance(columns, dict) else columns
    assert all(len(cell) == 2 for cell in cells)


def test_create_replaces_a_remnant_only_while_it_is_one() -> None:
    item = row_item(WRITES[WriteKind.CREATE], remnant=UnreadableRow("s1", "", missing_column="LeaseOwner"))
    condition = item.condition.get_column_condition()
    (present,) = condition.sub_conditions

    assert item.condition.get_row_existence_expectation() == "EXPECT_EXIST"
    assert condition.get_combinator() == LogicalOperator.NOT
    assert (present.get_column_name(), present.get_column_value(), present.get_pass_if_missing()) == (
        "LeaseOwner",
        "",
        False,
    )


def test_create_does_not_replace_a_malformed_row() -> None:
    item = row_item(WRITES[WriteKind.CREATE], remnant=UnreadableRow("s1", "broken"))
    assert item.condition.get_row_existence_expectation() == "EXPECT_NOT_EXIST"


NAMES = st.sampled_from(["", "a", "b"])
LEASES = st.builds(
    Lease,
    lease_key=st.just("s1"),
    stream_id=st.just("stream"),
    owner=NAMES,
    counter=st.integers(0, 3),
    stealer=NAMES,
    checkpoint=st.just("x"),
    parent_shard_ids=st.just(frozenset()),
    pending=st.sampled_from([None, PENDING]),
    pause=st.sampled_from([None, PAUSE]),
    pause_taken=st.sampled_from(["", "r1 a"]),
    progress=st.sampled_from([None, Progress(1, 2, 3)]),
    orders=st.sampled_from([(), (ORDER,), (ORDER, ORDER)]),
)
MAKERS = st.sampled_from(
    [
        rule.renew,
        lambda seen: rule.take(seen, "c"),
        lambda seen: rule.take(seen, "c", checkpoint="z"),
        lambda seen: rule.transfer(seen, "c"),
        lambda seen: rule.checkpoint(seen, "z"),
        lambda seen: rule.checkpoint(seen, "z", Progress(4, 5, 6)),
        lambda seen: rule.prepare(seen, PendingCheckpoint("z", b"", 0, 0)),
        lambda seen: rule.take_pause(evolve(seen, pause=PAUSE)),
        rule.leave_pause,
        lambda seen: rule.set_pause(seen, PAUSE),
        lambda seen: rule.set_pause(seen, None),
        lambda seen: rule.set_orders(seen, (*seen.orders, ORDER)),
        lambda seen: rule.end_orders(seen, seen.orders[1:]),
        lambda seen: rule.rewind(seen, "z"),
        rule.release,
        lambda seen: rule.restore(seen, FULL),
        lambda seen: rule.steal(seen, "c") if seen.owner else rule.renew(seen),
    ]
)


@settings(deadline=None)
@given(LEASES, LEASES, MAKERS)
def test_columns_and_conditions_say_what_the_rule_says(stored: Lease, seen: Lease, make: object) -> None:
    """The condition permits what ``permits`` permits; the columns make the row that ``apply_write`` makes.

    Whoever saw the counter and the owner saw what is pending, too: both change with the counter.
    """
    write = make(evolve(seen, pending=stored.pending))  # type: ignore[operator]
    cells = stored_cells(stored)
    met = all(cells[name] == value for name, (value, _) in conditions(write).items())

    assert met == permits(stored, write)
    if met:
        after = {name: value for name, value in {**cells, **written_columns(write)}.items() if value is not None}
        assert parse_row(Row(list(KEY), [(name, value, 0) for name, value in after.items()])) == apply_write(
            stored, write
        )


def stored_cells(lease: Lease) -> dict[str, object]:
    return written_columns(rule.create(lease))


def test_the_five_columns_are_those_of_the_java_client() -> None:
    assert list(COLUMN_TYPES) == ["LeaseCounter", "LeaseOwner", "LeaseStealer", "Checkpoint", "ParentShardIds"]


def decoded(body: bytes) -> object:
    return schema.parse(schema.BatchWriteRowRequest, body)


def as_the_sdk_encodes(request: BatchWriteRowRequest) -> object:
    encoded = OTSProtoBufferEncoder("utf8").encode_request("BatchWriteRow", request)
    return decoded(encoded.SerializeToString())


@settings(deadline=None)
@given(st.lists(st.tuples(LEASES, MAKERS), max_size=4))
def test_batches_are_what_the_sdk_would_send(seen: list[tuple[Lease, object]]) -> None:
    """Byte for byte in rows, values and conditions, of every kind of write; also of a worker that is woken."""
    missing = UnreadableRow("s1", "few columns", missing_column="LeaseCounter")
    items = [row_item(make(lease)) for lease, make in seen]  # type: ignore[operator]
    items += [row_item(write) for write in WRITES.values()]
    items += [row_item(WRITES[WriteKind.CREATE], remnant=missing)]
    items += [UpdateRowItem(Row(list(KEY), {"INCREMENT": [("wake", 1)]}), Condition("EXPECT_EXIST"))]
    request = BatchWriteRowRequest()
    request.add(TableInBatchWriteRowItem("status", items))

    assert decoded(batch_message(request)) == as_the_sdk_encodes(request)
