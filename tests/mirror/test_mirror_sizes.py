"""What waits to be merged is bounded by its size, as large rows would not find room in memory, nor in a column."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from streamclient.copying import MergeLimits
from streamclient.copying.mirror_writer import MirrorWriter
from streamclient.records import StreamRecord
from streamclient.testing.contracts.destination_contract import change
from streamclient.wire import schema
from streamclient.wire.record_decoding import default_codec
from tests.mirror.test_mirror import RULE, beginning, state_of
from tests.patience import PATIENCE_SECONDS, until

LARGE = "x" * 300_000


def made(records: list[StreamRecord]) -> Any:
    return records


def read(records: list[StreamRecord]) -> Any:
    """As a worker delivers them: bytes, of which records are made later."""
    message = schema.GetStreamRecordResponse()
    for record in records:
        action, data, _ = default_codec().encode_record(record)
        message.stream_records.add(action_type=action, record=data)
    return default_codec().decode_page(bytes(message.SerializeToString())).records


@pytest.mark.parametrize("as_page", [made, read])
def test_one_merge_takes_about_as_much_as_the_limit_says_from_all_shards(as_page: Any) -> None:
    state = state_of()
    times = [0.0]
    limits = MergeLimits(max_mebibytes=1, max_age_seconds=1)
    writer = MirrorWriter(None, state, RULE, None, limits, clock=lambda: times[-1])  # type: ignore[arg-type]
    shards = [writer.begin(beginning(f"shard-{number}")) for number in (1, 2)]
    sizes: list[int] = []
    merge = state.merge

    def merged(keys: Any, fold: Any, commits: Any) -> None:
        sizes.append(keys.num_rows)
        merge(keys, fold, commits)

    state.merge = merged
    for number in range(6):
        for place, shard in enumerate(shards):
            writer.offer(shard, as_page([change(10 * place + number, text=LARGE)]), f"after {number}")
    times.append(2.0)  # both are due
    writer.start()
    for shard in shards:
        writer.flush(shard, is_end=False)
    writer.close()

    assert max(sizes) < 8, "less than two mebibytes"
    assert sum(sizes) == 12
    assert {row["id"] for table in state.rows() for row in table.to_pylist()} == {*range(6), *range(10, 16)}


def test_a_shard_whose_large_changes_wait_is_not_read_on() -> None:
    writer = MirrorWriter(None, state_of(), RULE, None, MergeLimits(max_mebibytes=1))  # type: ignore[arg-type]
    shard = writer.begin(beginning("shard-1"))
    offered = threading.Semaphore(0)

    def offer() -> None:
        for number in range(8):
            writer.offer(shard, [change(number, text=LARGE)], f"after {number}")
            offered.release()

    thread = threading.Thread(target=offer)
    thread.start()
    for _ in range(6):
        assert offered.acquire(timeout=PATIENCE_SECONDS)
    until(lambda: shard.waiting == 7, "more than twice the limit")
    assert not offered.acquire(blocking=False)
    writer.start()
    for _ in range(2):
        assert offered.acquire(timeout=PATIENCE_SECONDS)
    thread.join()
    writer.flush(shard, is_end=False)
    writer.close()
