"""What is past costs nothing: it leaves memory and file, and no request walks over it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from server_state_driver import (
    HOUR_SECONDS,
    TRIMMED,
    Disk,
    Driver,
    delete_all,
    delete_one,
    put,
    stream_driver,
    table_driver,
)

from streamclient.server import expiry, stored_rows
from streamclient.server.admin_changes import PutRow, PutSetting
from streamclient.server.keys import encode_key
from streamclient.server.stored_rows import make_row
from streamclient.server.stored_streams import StreamDefinition, number_of, shard_id_for
from streamclient.wire import schema
from streamclient.wire.plainbuffer import Cell, KeyBound, Row, encode_row

DAY_SECONDS = 24 * HOUR_SECONDS


def steps_of(action: Callable[[], object]) -> int:
    """Calls and jumps of Python code in one action: a measure that no busy machine changes."""
    count = 0

    def watch(frame: Any, event: str, argument: Any) -> Any:
        nonlocal count
        count += 1
        frame.f_trace_lines = True
        return watch

    sys.settrace(watch)
    try:
        action()
    finally:
        sys.settrace(None)
    return count


def tunnel_request(driver: Driver, verb: str, **fields: Any) -> Callable[[], bytes]:
    """A request that is ready to be sent, so that neither its making nor reading its answer counts."""
    body = schema.TUNNEL_OPERATIONS[f"tunnel/{verb}"].request(**fields).SerializeToString()
    return lambda: driver.engine.execute(f"tunnel/{verb}", body)


def with_closed_shards(count: int) -> Driver:
    """A stream that was split and merged so often; one shard is open."""
    driver = stream_driver()
    for _ in range(count // 3):
        lower, upper = driver.engine.split_shard("t", at=["m"])
        driver.engine.merge_shards("t", lower, upper)
    return driver


# --- shards


def costs(driver: Driver) -> dict[str, int]:
    stream_id = driver.stream_id()
    newest = driver.engine.shards("t")[-1].shard_id
    iterator = driver.call("GetShardIterator", stream_id=stream_id, shard_id=newest).shard_iterator
    driver.put("a")
    return {
        "PutRow": steps_of(lambda: driver.put("a")),
        "GetShardIterator": steps_of(lambda: driver.call("GetShardIterator", stream_id=stream_id, shard_id=newest)),
        "GetStreamRecord": steps_of(lambda: driver.page(iterator)),
        "DescribeStream": steps_of(
            lambda: driver.call("DescribeStream", stream_id=stream_id, inclusive_start_shard_id=newest, shard_limit=1)
        ),
    }


def test_closed_shards_cost_no_request_anything() -> None:
    few, many = costs(with_closed_shards(30)), costs(with_closed_shards(900))

    assert {name: cost < few[name] * 1.2 + 50 for name, cost in many.items()} == dict.fromkeys(few, True), (few, many)


def test_shards_that_left_the_listing_are_not_stepped_over() -> None:
    def cost(closed: int, hours: int) -> int:
        driver = with_closed_shards(closed)
        stream_id = driver.stream_id()
        driver.engine.advance_clock(hours * HOUR_SECONDS)
        listed = driver.describe_shards(stream_id)
        assert [shard.shard_id for shard in listed] == [driver.engine.shards("t")[-1].shard_id]
        return steps_of(lambda: driver.call("DescribeStream", stream_id=stream_id))

    assert cost(900, hours=25) == cost(30, hours=25) == cost(30, hours=49)


def test_a_shard_whose_records_are_gone_leaves_the_listing_when_it_closes(disk: Disk) -> None:
    driver = disk.with_stream()
    stream_id = driver.stream_id()
    driver.put("a")
    driver.engine.trim("t")
    (parent,) = driver.describe_shards(stream_id)
    driver.engine.split_shard("t", at=["b"])
    children = driver.describe_shards(stream_id)

    assert [shard.parent_id for shard in children] == [parent.shard_id] * 2
    again = disk.opened()
    assert again.describe_shards(stream_id) == children


def test_polling_all_shards_costs_each_call_the_same() -> None:
    def poll_cost(shards: int) -> int:
        driver = stream_driver()
        for number in range(1, shards):
            driver.engine.split_shard("t", at=[f"{number:05}"])
        iterator = driver.call(
            "GetShardIterator", stream_id=driver.stream_id(), shard_id=driver.engine.shards("t")[0].shard_id
        ).shard_iterator
        return steps_of(lambda: driver.page(iterator))

    assert poll_cost(300) < poll_cost(10) * 1.2 + 50


def test_a_closed_shard_is_forgotten_one_retention_after_it_left_the_listing(disk: Disk) -> None:
    driver = disk.with_stream()
    stream_id = driver.stream_id()
    driver.put("a")
    _, tip = driver.page(driver.only_iterator())
    driver.engine.split_shard("t", at=["b"])
    parent, *children = driver.describe_shards(stream_id)
    driver.engine.advance_clock(25 * HOUR_SECONDS)
    assert driver.page(tip) == ((), None)

    driver.engine.advance_clock(25 * HOUR_SECONDS)

    assert driver.describe_shards(stream_id) == children
    assert driver.refusal("GetStreamRecord", shard_iterator=tip) == TRIMMED
    assert driver.refusal("GetShardIterator", stream_id=stream_id, shard_id=parent.shard_id) == TRIMMED
    paged = driver.call("DescribeStream", stream_id=stream_id, inclusive_start_shard_id=parent.shard_id)
    assert list(paged.shards) == children
    assert disk.rows("shards") == 2
    again = disk.opened()
    assert again.describe_shards(stream_id) == children
    assert again.refusal("GetShardIterator", stream_id=stream_id, shard_id=parent.shard_id) == TRIMMED


def test_a_shard_id_tells_its_number_to_its_stream_only() -> None:
    definition, other = (
        StreamDefinition(stream_id, 1, 1, "t", 1_700_000_000_000_000, 24) for stream_id in ("t_1", "u_1")
    )
    ids = [shard_id_for(definition, number) for number in (1, 77, 2**32 - 1)]

    assert [number_of(definition, shard_id) for shard_id in ids] == [1, 77, 2**32 - 1]
    assert [number_of(other, shard_id) for shard_id in ids] == [None] * 3
    assert number_of(definition, "nonsense_1700000000000000") is None
    assert number_of(definition, ids[0].replace("_17", "_18")) is None


def test_dropping_records_one_by_one_does_not_move_all_others() -> None:
    driver = stream_driver()
    for _ in range(200):
        driver.put("a")
    shard = next(iter(driver.engine._state.streams.values())).shards
    (only,) = shard.values()
    before = only.page(0, 1_000, 10**9).elements
    for keep in range(199, -1, -1):
        driver.engine.trim("t", keep_last=keep)
        assert only.page(only.first_position, 1_000, 10**9).elements == before[200 - keep :]
        assert (only.first_position, only.next_position, only.record_count) == (200 - keep, 200, keep)
        assert only.position_at(0) == only.first_position
    assert (len(only._elements), len(only._timestamps), len(only._sizes)) == (0, 0, 0)


# --- rows


def test_expired_rows_leave_memory_and_file(disk: Disk) -> None:
    driver = disk.with_table(options={"max_versions": 5, "time_to_live": DAY_SECONDS})
    for number in range(3_000):
        driver.put(f"{number}", put("x", 1))
    driver.clock.advance(DAY_SECONDS / 2)
    driver.put("young", put("x", 1))
    driver.update("7", put("x", 2))
    driver.engine.advance_clock(DAY_SECONDS / 2 + 60)

    rows = driver.engine._state.tables["t"].rows
    assert len(rows) == 2
    assert driver.table() == {"young": {"x": 1}, "7": {"x": 2}}
    assert disk.rows("rows") == 2
    again = disk.opened()
    assert again.table() == {"young": {"x": 1}, "7": {"x": 2}}
    assert len(again.versions("7", "x")) == 1


def test_rows_expire_with_requests_that_are_not_about_them() -> None:
    driver = table_driver(options={"time_to_live": DAY_SECONDS})
    for number in range(2_500):
        driver.put(f"{number}", put("x", 1))
    driver.clock.advance(DAY_SECONDS + 60)
    rows = driver.engine._state.tables["t"].rows
    left = []
    for _ in range(4):
        driver.call("ListTable")
        left.append(len(rows))

    assert left == [1_500, 500, 0, 0], "each request lets go of so many, so that none has to wait for all"


def test_a_time_to_live_that_is_set_later_counts_for_older_rows() -> None:
    driver = table_driver()
    driver.put("a", put("x", 1))
    driver.call("UpdateTable", table_name="t", table_options=schema.TableOptions(time_to_live=DAY_SECONDS))
    driver.engine.advance_clock(DAY_SECONDS + 60)

    assert len(driver.engine._state.tables["t"].rows) == 0


def test_a_row_written_again_and_again_is_awaited_once() -> None:
    driver = table_driver(options={"time_to_live": DAY_SECONDS})
    for _ in range(100):
        driver.put("a", put("x", 1))
    (awaited,) = driver.engine._state._expiry._tables.values()

    assert len(awaited.heap) == 1


# --- versions of one column


def many_versions(count: int) -> bytes:
    now = 1_700_000_000_000
    cells = tuple(Cell("c", number, timestamp_millis=now + number) for number in range(count))
    return encode_row(Row((("pk", "a"),), cells))


@pytest.mark.parametrize("operation", ["PutRow", "UpdateRow"])
def test_many_versions_of_one_column_cost_each_the_same(operation: str) -> None:
    def cost(count: int) -> float:
        return steps_of(lambda: with_versions(count, operation)) / count

    assert cost(2_000) < cost(200) * 1.5


def with_versions(count: int, operation: str) -> Driver:
    driver = table_driver(options={"max_versions": 2**31 - 1})
    field = "row" if operation == "PutRow" else "row_change"
    fields = {"table_name": "t", "condition": schema.Condition(row_existence=0), field: many_versions(count)}
    driver.call(operation, **fields)
    return driver


@pytest.mark.parametrize("operation", ["PutRow", "UpdateRow"])
def test_reading_the_newest_of_many_versions_looks_at_no_other(operation: str) -> None:
    def cost(count: int) -> int:
        driver = with_versions(count, operation)
        driver.get_row("a", max_versions=1)  # the first read of a row may take it apart
        return steps_of(lambda: driver.get_row("a", max_versions=1))

    assert cost(2_000) < cost(20) + 50


@pytest.mark.parametrize("operation", ["PutRow", "UpdateRow"])
@pytest.mark.parametrize("is_range", [False, True], ids=["all", "by time"])
def test_many_versions_that_are_read_cost_each_the_same(operation: str, is_range: bool) -> None:
    now = 1_700_000_000_000
    fields = {"time_range": schema.TimeRange(start_time=now, end_time=now + 10**6)} if is_range else {}

    def cost(count: int) -> float:
        driver = with_versions(count, operation)
        request = schema.GetRowRequest(table_name="t", primary_key=encode_row(Row((("pk", "a"),))), **fields)
        if not is_range:
            request.max_versions = 2**31 - 1
        body = request.SerializeToString()
        return steps_of(lambda: driver.engine.execute("GetRow", body)) / count

    assert cost(2_000) < cost(200) * 1.5


@pytest.mark.parametrize("is_wide", [True, False], ids=["columns", "versions"])
def test_an_update_looks_at_what_it_changes_and_at_no_other_column(is_wide: bool) -> None:
    def cost(count: int) -> int:
        driver = table_driver(options={"max_versions": 1 if is_wide else 2**31 - 1})
        now = 1_700_000_000_000
        for number in range(count):
            driver.update("a", put(f"{number}", 1) if is_wide else put("0", 1, now + number))
        return steps_of(lambda: driver.update("a", put("0", 2)))

    assert cost(500) < cost(10) + 50


@pytest.mark.parametrize("changes", [1, 2, 3])
def test_changes_of_a_column_look_at_few_of_its_versions(changes: int) -> None:
    """A batch of 200 such updates took a minute, while nobody else was answered."""

    def cost(count: int) -> int:
        driver = table_driver(options={"max_versions": 2**31 - 1})
        now = 1_700_000_000_000
        driver.update("a", *(put("x", 1, now + number) for number in range(count)))
        return steps_of(lambda: driver.update("a", *(delete_one("x", now + number) for number in range(changes))))

    assert cost(2_000) < cost(20) + 100 * changes


def test_a_large_row_is_not_decoded_for_each_update_after_a_restart(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_rows, "_MOST_AS_BYTES", 2)
    driver = disk.with_table()
    driver.update("a", *(put(name, "v") for name in "xy"))
    driver.update("b", *(put(name, "v") for name in "xyz"))
    driver = disk.opened()
    rows = [driver.engine._state.tables["t"].rows.get(encode_key([key])) for key in "ab"]

    assert [row.columns is row.columns for row in rows] == [False, True]
    assert [driver.get(key) for key in "ab"] == [{"x": "v", "y": "v"}, {"x": "v", "y": "v", "z": "v"}]


changes = st.tuples(st.sampled_from("ab"), st.integers(0, 4), st.sampled_from(["", "x", "all", None]))


@given(st.lists(st.lists(changes, min_size=1), max_size=4), st.integers(1, 4))
def test_a_row_that_was_updated_is_as_large_as_one_that_was_made(
    updates: list[list[tuple[str, int, Any]]], most: int
) -> None:
    """Also after the number of versions that the table keeps was lowered."""
    driver = table_driver(options={"max_versions": most})
    for number, update in enumerate(updates):
        if number == len(updates) - 1:
            driver.call("UpdateTable", table_name="t", table_options=schema.TableOptions(max_versions=2))
        driver.update("a", *(one_change(*change) for change in update))
    row = driver.engine._state.tables["t"].rows.get(encode_key(["a"]))
    if row is not None:
        made = make_row(("pk",), row.key, row.columns, row.written_millis)
        facts = ("size_bytes", "version_count", "oldest_millis", "is_single")
        assert [getattr(row, fact) for fact in facts] == [getattr(made, fact) for fact in facts]


def one_change(name: str, number: int, value: str | None) -> Cell:
    stamp = 1_700_000_000_000 + number
    if value == "all":
        return delete_all(name)
    return delete_one(name, stamp) if value is None else put(name, value, stamp)


# --- tunnels


def consumed(driver: Driver) -> tuple[str, str]:
    """A tunnel whose channels of closed shards are over; its id and that of its client."""
    tunnel = schema.Tunnel(table_name="t", tunnel_name="n", tunnel_type=2)
    tunnel.stream_tunnel_config.flag = 1
    tunnel_id = driver.call("tunnel/create", tunnel=tunnel).tunnel_id
    client_id = driver.call("tunnel/connect", tunnel_id=tunnel_id).client_id
    while open_shards := [
        channel.channel_id
        for channel in driver.call("tunnel/heartbeat", tunnel_id=tunnel_id, client_id=client_id).channels
    ]:
        live = driver.engine._state.tunnels[tunnel_id].live
        ended = [
            each for each in open_shards if not driver.engine._state.streams[driver.stream_id()].shards[each].is_open
        ]
        if not ended:
            assert len(live) == len(open_shards)
            break
        for channel_id in ended:
            driver.call(
                "tunnel/checkpoint",
                tunnel_id=tunnel_id,
                client_id=client_id,
                channel_id=channel_id,
                checkpoint="finished",
                sequence_number=1,
            )
    return tunnel_id, client_id


def test_channels_that_are_over_cost_no_request_anything() -> None:
    def cost(closed: int) -> dict[str, int]:
        driver = with_closed_shards(closed)
        tunnel_id, client_id = consumed(driver)
        (channel,) = driver.engine._state.tunnels[tunnel_id].live
        ids = {"tunnel_id": tunnel_id, "client_id": client_id, "channel_id": channel}
        token = driver.call("tunnel/getcheckpoint", **ids).checkpoint
        requests: dict[str, dict[str, Any]] = {
            "describe": {"table_name": "t", "tunnel_name": "n"},
            "list": {"table_name": "t"},
            "getrpo": {"tunnel_id": tunnel_id},
            "getrpobyoffset": {"tunnel_id": tunnel_id},
            "heartbeat": {"tunnel_id": tunnel_id, "client_id": client_id},
            "getcheckpoint": ids,
            "readrecords": {**ids, "token": token},
            "checkpoint": {**ids, "checkpoint": token, "sequence_number": 1},
        }
        return {verb: steps_of(tunnel_request(driver, verb, **fields)) for verb, fields in requests.items()}

    few, many = cost(30), cost(300)
    assert {name: value < few[name] * 1.2 + 50 for name, value in many.items()} == dict.fromkeys(few, True), (few, many)


def test_a_session_that_ends_costs_the_channels_that_it_held() -> None:
    def cost(others: int) -> int:
        driver = stream_driver()
        for number in range(1, others):
            driver.engine.split_shard("t", at=[f"{number:05}"])
        tunnel_id, _ = consumed(driver)
        idle = driver.call("tunnel/connect", tunnel_id=tunnel_id).client_id
        return steps_of(tunnel_request(driver, "shutdown", tunnel_id=tunnel_id, client_id=idle))

    few, many = cost(3), cost(100)
    assert many < few * 1.2 + 50, (few, many)


def test_a_request_writes_down_only_the_parts_of_a_tunnel_that_it_changed(disk: Disk) -> None:
    driver = disk.with_stream()
    for number in range(1, 30):
        driver.engine.split_shard("t", at=[f"{number:05}"])
    tunnel_id, client_id = consumed(driver)
    channel_id = next(iter(driver.engine._state.tunnels[tunnel_id].live))
    written: list[list[str]] = []
    storage: Any = driver.engine._storage
    commit = storage.commit
    storage.commit = lambda changes: (written.append([type(each).__name__ for each in changes]), commit(changes))
    ids = {"tunnel_id": tunnel_id, "client_id": client_id, "channel_id": channel_id}
    token = driver.call("tunnel/getcheckpoint", **ids).checkpoint
    driver.call("tunnel/heartbeat", tunnel_id=tunnel_id, client_id=client_id)
    driver.call("tunnel/checkpoint", **ids, checkpoint=token, sequence_number=1)

    assert written == [["PutTunnelPart", "PutSetting"]]
    driver.call("tunnel/checkpoint", **ids, checkpoint=token, sequence_number=1)
    assert len(written) == 1


def test_channels_of_forgotten_shards_leave_memory_and_file_and_still_count(disk: Disk) -> None:
    driver = disk.with_stream()
    driver.put("a")
    driver.engine.split_shard("t", at=["m"])
    tunnel_id, _ = consumed(driver)
    before = rows_in_tunnels(driver)
    driver.engine.advance_clock(49 * HOUR_SECONDS)
    driver.call("tunnel/getrpo", tunnel_id=tunnel_id)

    assert before == 3
    assert rows_in_tunnels(driver) == 2
    assert not driver.engine._state.tunnels[tunnel_id].is_expired
    again = disk.opened()
    assert set(again.engine._state.tunnels[tunnel_id].channels) == set(driver.engine._state.tunnels[tunnel_id].channels)


def rows_in_tunnels(driver: Driver) -> int:
    (tunnel,) = driver.engine._state.tunnels.values()
    return len(tunnel.channels)


def test_an_advanced_clock_leaves_no_expired_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many rows were written again, so their first entries are outdated."""
    monkeypatch.setattr(expiry, "ROWS_AT_ONCE", 3)
    driver = table_driver(options={"time_to_live": DAY_SECONDS})
    driver.put_each("abcdefgh", put("x", 1))
    driver.clock.advance(HOUR_SECONDS)
    driver.put_each("stuvwxyz", put("x", 1))
    driver.clock.advance(11 * HOUR_SECONDS)
    driver.put_each("abcdefgh", put("x", 2))
    rows = driver.engine._state.tables["t"].rows

    driver.engine.advance_clock(14 * HOUR_SECONDS)

    assert len(rows) == 8
    driver.engine.advance_clock(12 * HOUR_SECONDS)
    assert len(rows) == 0


# --- what a write leaves as it is


def test_a_generated_key_does_not_write_the_table_down_again(disk: Disk) -> None:
    """Its definition is as long as its columns and partitions are many."""
    driver = disk.opened()
    written: list[object] = []
    engine: Any = driver.engine
    commit = engine._storage.commit
    engine._storage.commit = lambda changes: (written.extend(changes), commit(changes))
    driver.create(key=(("pk", "STRING"), ("id", "INTEGER", "AUTO_INCREMENT")))
    written.clear()

    driver.put((("pk", "a"), ("id", KeyBound.AUTO_INCREMENT)))

    assert {type(change) for change in written} == {PutRow, PutSetting}


def test_a_page_inside_a_transaction_costs_what_it_holds() -> None:
    costs = []
    for count in (20, 400):
        driver = table_driver(key=(("pk", "STRING"), ("sk", "INTEGER")))
        whose = {"transaction_id": started(driver)}
        for number in range(count):
            row = encode_row(Row((("pk", "a"), ("sk", number)), (Cell("x", number),)))
            driver.call("PutRow", table_name="t", row=row, condition=schema.Condition(row_existence=0), **whose)
        for backward in (False, True):
            low, high = (("pk", "a"), ("sk", 5)), (("pk", "a"), ("sk", 9))
            bounds = (high, low) if backward else (low, high)
            driver.range_page(*bounds, backward=backward, **whose)  # what is made once in a process is made
            costs.append(steps_of(lambda: driver.range_page(*bounds, backward=backward, **whose)))  # noqa: B023

    assert costs[2:] == costs[:2]


def started(driver: Driver) -> str:
    key = encode_row(Row((("pk", "a"),)))
    return str(driver.call("StartLocalTransaction", table_name="t", key=key).transaction_id)
