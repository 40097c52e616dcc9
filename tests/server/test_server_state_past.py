"""What is past costs nothing: it leaves memory and file, and no request walks over it."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from server_state_driver import HOUR_SECONDS, Driver, put

from streamclient.server.storage import open_storage
from streamclient.server.storage_sqlite import DATABASE_FILE
from streamclient.server.streams import StreamDefinition, number_of, shard_id_for
from streamclient.wire import schema
from streamclient.wire.plainbuffer import Cell, Row, encode_row

DAY_SECONDS = 24 * HOUR_SECONDS
TRIMMED = (404, "OTSTrimmedDataAccess", "Requested stream data is already trimmed or does not exist.")


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


def rows_in(directory: Path, table: str) -> int:
    database = sqlite3.connect(directory / DATABASE_FILE)
    try:
        (count,) = database.execute(f"SELECT count(*) FROM {table}").fetchone()
    finally:
        database.close()
    return int(count)


def tunnel_call(driver: Driver, verb: str, **fields: Any) -> Any:
    messages = schema.TUNNEL_OPERATIONS[f"tunnel/{verb}"]
    body = messages.request(**fields).SerializeToString()
    return schema.parse(messages.response, driver.engine.execute(f"tunnel/{verb}", body))


def with_closed_shards(count: int) -> Driver:
    """A stream that was split and merged so often; one shard is open."""
    driver = Driver()
    driver.create_with_stream()
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
        "GetShardIterator": steps_of(
            lambda: driver.call("GetShardIterator", stream_id=stream_id, shard_id=newest),
        ),
        "GetStreamRecord": steps_of(lambda: driver.page(iterator)),
        "DescribeStream": steps_of(
            lambda: driver.call("DescribeStream", stream_id=stream_id, inclusive_start_shard_id=newest, shard_limit=1)
        ),
    }


def test_closed_shards_cost_no_request_anything() -> None:
    few, many = costs(with_closed_shards(30)), costs(with_closed_shards(900))

    assert {name: cost < few[name] * 1.2 + 50 for name, cost in many.items()} == dict.fromkeys(few, True), (few, many)


def test_polling_all_shards_costs_each_call_the_same() -> None:
    def poll_cost(shards: int) -> int:
        driver = Driver()
        driver.create_with_stream()
        for number in range(1, shards):
            driver.engine.split_shard("t", at=[f"{number:05}"])
        iterator = driver.call(
            "GetShardIterator", stream_id=driver.stream_id(), shard_id=driver.engine.shards("t")[0].shard_id
        ).shard_iterator
        return steps_of(lambda: driver.page(iterator))

    assert poll_cost(300) < poll_cost(10) * 1.2 + 50


def test_a_closed_shard_is_forgotten_one_retention_after_it_left_the_listing(tmp_path: Path) -> None:
    driver = Driver(open_storage(tmp_path))
    stream_id = driver.create_with_stream()
    driver.put("a")
    _, tip = driver.page(driver.only_iterator())
    driver.engine.split_shard("t", at=["b"])
    parent, *children = driver.describe_shards(stream_id)
    driver.engine.advance_clock(25 * HOUR_SECONDS)
    assert tip is not None
    assert driver.page(tip) == ((), None)

    driver.engine.advance_clock(25 * HOUR_SECONDS)

    assert driver.describe_shards(stream_id) == children
    assert driver.refusal("GetStreamRecord", shard_iterator=tip) == TRIMMED
    assert driver.refusal("GetShardIterator", stream_id=stream_id, shard_id=parent.shard_id) == TRIMMED
    paged = driver.call("DescribeStream", stream_id=stream_id, inclusive_start_shard_id=parent.shard_id)
    assert list(paged.shards) == children
    driver.engine.close()
    assert rows_in(tmp_path, "shards") == 2
    again = Driver(open_storage(tmp_path))
    again.wall.micros = driver.wall.micros
    assert again.describe_shards(stream_id) == children
    assert again.refusal("GetShardIterator", stream_id=stream_id, shard_id=parent.shard_id) == TRIMMED
    again.engine.close()


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
    driver = Driver()
    driver.create_with_stream()
    for _ in range(200):
        driver.put("a")
    shard = next(iter(driver.engine._state.streams.values())).shards
    (only,) = shard.values()
    before = only.page(0, 1_000, 10**9)
    for keep in range(199, -1, -1):
        driver.engine.trim("t", keep_last=keep)
        assert only.page(only.first_position, 1_000, 10**9) == before[200 - keep :]
        assert (only.first_position, only.next_position, only.record_count) == (200 - keep, 200, keep)
        assert only.position_at(0) == only.first_position
    assert len(only._records) == 0


# --- rows


def test_expired_rows_leave_memory_and_file(tmp_path: Path) -> None:
    driver = Driver(open_storage(tmp_path))
    driver.create(options={"max_versions": 5, "time_to_live": DAY_SECONDS})
    for number in range(3_000):
        driver.put(f"{number}", put("x", 1))
    driver.clock.advance(DAY_SECONDS / 2)
    driver.put("young", put("x", 1))
    driver.update("7", put("x", 2))
    driver.engine.advance_clock(DAY_SECONDS / 2 + 60)

    rows = driver.engine._state.tables["t"].rows
    assert len(rows) == 2
    assert driver.table() == {"young": {"x": 1}, "7": {"x": 2}}
    driver.engine.close()
    assert rows_in(tmp_path, "rows") == 2
    again = Driver(open_storage(tmp_path))
    again.wall.micros = driver.wall.micros
    assert again.table() == {"young": {"x": 1}, "7": {"x": 2}}
    assert len(again.versions("7", "x")) == 1
    again.engine.close()


def test_rows_expire_with_requests_that_are_not_about_them() -> None:
    driver = Driver()
    driver.create(options={"time_to_live": DAY_SECONDS})
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
    driver = Driver()
    driver.create()
    driver.put("a", put("x", 1))
    driver.call("UpdateTable", table_name="t", table_options=schema.TableOptions(time_to_live=DAY_SECONDS))
    driver.engine.advance_clock(DAY_SECONDS + 60)

    assert len(driver.engine._state.tables["t"].rows) == 0


def test_a_row_written_again_and_again_is_awaited_once() -> None:
    driver = Driver()
    driver.create(options={"time_to_live": DAY_SECONDS})
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
        driver = Driver()
        driver.create(options={"max_versions": 2**31 - 1})
        condition = schema.Condition(row_existence=0)
        field = "row" if operation == "PutRow" else "row_change"
        fields = {"table_name": "t", "condition": condition, field: many_versions(count)}
        return steps_of(lambda: driver.call(operation, **fields)) / count

    assert cost(2_000) < cost(200) * 1.5


# --- tunnels


def consumed(driver: Driver) -> tuple[str, str]:
    """A tunnel whose channels of closed shards are over; its id and that of its client."""
    tunnel = schema.Tunnel(table_name="t", tunnel_name="n", tunnel_type=2)
    tunnel.stream_tunnel_config.flag = 1
    tunnel_id = tunnel_call(driver, "create", tunnel=tunnel).tunnel_id
    client_id = tunnel_call(driver, "connect", tunnel_id=tunnel_id).client_id
    while open_shards := [
        channel.channel_id
        for channel in tunnel_call(driver, "heartbeat", tunnel_id=tunnel_id, client_id=client_id).channels
    ]:
        live = driver.engine._state.tunnels[tunnel_id].live
        ended = [
            each for each in open_shards if not driver.engine._state.streams[driver.stream_id()].shards[each].is_open
        ]
        if not ended:
            assert len(live) == len(open_shards)
            break
        for channel_id in ended:
            tunnel_call(
                driver,
                "checkpoint",
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
        token = tunnel_call(driver, "getcheckpoint", **ids).checkpoint
        return {
            "heartbeat": steps_of(lambda: tunnel_call(driver, "heartbeat", tunnel_id=tunnel_id, client_id=client_id)),
            "getcheckpoint": steps_of(lambda: tunnel_call(driver, "getcheckpoint", **ids)),
            "readrecords": steps_of(lambda: tunnel_call(driver, "readrecords", **ids, token=token)),
            "checkpoint": steps_of(
                lambda: tunnel_call(driver, "checkpoint", **ids, checkpoint=token, sequence_number=1)
            ),
        }

    few, many = cost(30), cost(300)
    assert {name: value < few[name] * 1.2 + 50 for name, value in many.items()} == dict.fromkeys(few, True), (few, many)


def test_a_request_writes_down_only_the_parts_of_a_tunnel_that_it_changed(tmp_path: Path) -> None:
    driver = Driver(open_storage(tmp_path))
    driver.create_with_stream()
    for number in range(1, 30):
        driver.engine.split_shard("t", at=[f"{number:05}"])
    tunnel_id, client_id = consumed(driver)
    channel_id = next(iter(driver.engine._state.tunnels[tunnel_id].live))
    written: list[list[str]] = []
    storage: Any = driver.engine._storage
    commit = storage.commit
    storage.commit = lambda changes: (written.append([type(each).__name__ for each in changes]), commit(changes))
    ids = {"tunnel_id": tunnel_id, "client_id": client_id, "channel_id": channel_id}
    token = tunnel_call(driver, "getcheckpoint", **ids).checkpoint
    tunnel_call(driver, "heartbeat", tunnel_id=tunnel_id, client_id=client_id)
    tunnel_call(driver, "checkpoint", **ids, checkpoint=token, sequence_number=1)

    assert written == [["PutTunnelPart", "PutSetting"]]
    driver.engine.close()


def test_channels_of_forgotten_shards_leave_memory_and_file_and_still_count(tmp_path: Path) -> None:
    driver = Driver(open_storage(tmp_path))
    driver.create_with_stream()
    driver.put("a")
    driver.engine.split_shard("t", at=["m"])
    tunnel_id, _ = consumed(driver)
    before = rows_in_tunnels(driver)
    driver.engine.advance_clock(49 * HOUR_SECONDS)
    tunnel_call(driver, "getrpo", tunnel_id=tunnel_id)

    assert before == 3
    assert rows_in_tunnels(driver) == 2
    assert not driver.engine._state.tunnels[tunnel_id].is_expired
    driver.engine.close()
    again = Driver(open_storage(tmp_path))
    assert set(again.engine._state.tunnels[tunnel_id].channels) == set(driver.engine._state.tunnels[tunnel_id].channels)
    again.engine.close()


def rows_in_tunnels(driver: Driver) -> int:
    (tunnel,) = driver.engine._state.tunnels.values()
    return len(tunnel.channels)
