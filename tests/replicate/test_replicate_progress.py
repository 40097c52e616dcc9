"""How far a replication is: what was read of a stream, what is told of it, and who of an earlier run still lives."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from streamclient.base.processes import process_space, unique_name
from streamclient.copying import replication_sources
from streamclient.copying.replication_progress import Course, Snapshot
from streamclient.copying.replication_sources import read_up_to
from streamclient.model import CheckpointPosition, Lease, Shard
from streamclient.tunnel import (
    ChannelInfo,
    ChannelStatus,
    ChannelType,
    StreamTunnelConfig,
    TunnelDescription,
    TunnelInfo,
    TunnelStage,
    TunnelType,
)

END = 1_000


# --- which changes of a stream were read -----------------------------------------------------------------------------


def lease(key: str, *, is_finished: bool = False) -> Lease:
    return Lease(key, "stream", checkpoint=CheckpointPosition.SHARD_END if is_finished else "somewhere")


def up_to(leases: Iterable[Lease], listing: Iterable[Shard], **consumed: int) -> int | None:
    return read_up_to({each.lease_key: each for each in leases}, {shard.shard_id: shard for shard in listing}, consumed)


P, Q = Shard("p"), Shard("q")
LEFT, RIGHT = Shard("left", "p"), Shard("right", "p")
P_DONE = lease("p", is_finished=True)


def test_a_stream_is_read_as_far_as_its_slowest_shard() -> None:
    assert up_to([lease("p"), lease("q")], [P, Q], p=5, q=7) == 5


def test_children_without_rows_of_a_finished_parent_are_still_to_be_read() -> None:
    """Another shard is far ahead: what the children hold is not read for that."""
    assert up_to([P_DONE, lease("q")], [P, Q, LEFT, RIGHT], p=3, q=2_000) == 3
    assert up_to([P_DONE, lease("q"), lease("left")], [P, Q, LEFT, RIGHT], p=3, q=2_000, left=2_000) == 3


def test_a_finished_shard_without_listed_children_is_not_the_end() -> None:
    assert up_to([P_DONE, lease("q")], [P, Q], p=3, q=2_000) == 3


def test_a_shard_without_a_row_and_without_parents_is_still_to_be_read() -> None:
    assert up_to([lease("q")], [P, Q], q=2_000) == 0


def test_children_of_a_shard_that_is_being_read_come_later_than_all_it_has() -> None:
    assert up_to([lease("p"), lease("left")], [P, LEFT, RIGHT], p=2_000) == 2_000


def test_a_child_that_was_not_read_yet_is_as_far_as_its_finished_parents() -> None:
    merged = Shard("merged", "p", "q")
    leases = [P_DONE, lease("q", is_finished=True), lease("merged")]

    assert up_to(leases, [P, Q, merged], p=3, q=4) == 4
    assert up_to([P_DONE, lease("q"), lease("merged")], [P, Q, merged], p=3, q=2) == 2, "the other parent is read"


def test_finished_shards_that_left_the_listing_do_not_count() -> None:
    assert up_to([P_DONE, lease("q")], [Q], p=3, q=9) == 9
    assert up_to([P_DONE], [], p=3) is None


# --- which channels of a tunnel were read ----------------------------------------------------------------------------


def channel(status: ChannelStatus, micros: int) -> ChannelInfo:
    return ChannelInfo(f"{status.name}-{micros}", ChannelType.STREAM, status, "", micros, 0)


def described(*channels: ChannelInfo, config: StreamTunnelConfig | None = None) -> TunnelDescription:
    kind, stage = TunnelType.BASE_AND_STREAM, TunnelStage.PROCESS_STREAM
    return TunnelDescription(TunnelInfo("id", "name", kind, "t", "i", "s", stage, False, 1, config), channels, 0)


@pytest.mark.parametrize(
    ("channels", "is_past"),
    [
        ([], False),
        ([channel(ChannelStatus.OPEN, END + 1)], True),
        ([channel(ChannelStatus.OPEN, END)], False),
        ([channel(ChannelStatus.TERMINATED, 5), channel(ChannelStatus.OPEN, END + 1)], True),
        ([channel(ChannelStatus.TERMINATED, 5), channel(ChannelStatus.WAIT, 0)], False),
        ([channel(ChannelStatus.TERMINATED, 5)], False),
        ([channel(ChannelStatus.TERMINATED, END + 1)], True),
    ],
)
def test_finished_channels_alone_do_not_complete_a_tunnel(channels: list[ChannelInfo], is_past: bool) -> None:
    assert replication_sources._is_past(described(*channels), END) is is_past


def test_finished_channels_complete_a_tunnel_that_has_an_end_itself() -> None:
    ending = StreamTunnelConfig(end_micros=5)

    assert replication_sources._is_past(described(channel(ChannelStatus.TERMINATED, 4), config=ending), END)


# --- what is told ----------------------------------------------------------------------------------------------------

looks = st.lists(
    st.builds(
        Snapshot,
        stage=st.just("changes"),
        rows=st.just(0),
        rows_per_second=st.none(),
        channels_done=st.just(0),
        channels_total=st.just(0),
        created_micros=st.just(100),
        consumed_micros=st.integers(0, 3_000),
        now_micros=st.integers(1_000, 4_000),
    ),
    min_size=2,
    max_size=12,
)


def percent(line: str) -> int:
    found = re.search(r"(\d+)%", line)
    return -1 if found is None else int(found[1])


@given(looks, st.none() | st.integers(500, 3_500))
def test_the_share_never_falls(snapshots: list[Snapshot], end: int | None) -> None:
    course = Course()
    shares = [percent(course.line(evolve(each, end_micros=end))) for each in snapshots]

    assert shares == sorted(shares)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=2))
def test_new_channels_do_not_take_back_what_was_told_of_full_data(counts: list[tuple[int, int]]) -> None:
    course = Course()
    told = []
    for done, more in counts:
        look = Snapshot(
            stage="full data",
            rows=0,
            rows_per_second=None,
            channels_done=done,
            channels_total=done + more,
            created_micros=1,
            consumed_micros=0,
            now_micros=1,
        )
        told.append(percent(course.line(look)))

    assert told == sorted(told)


def test_the_share_is_that_of_the_time_up_to_the_end_time() -> None:
    look = Snapshot(
        stage="changes",
        rows=1,
        rows_per_second=None,
        channels_done=0,
        channels_total=0,
        created_micros=1,
        consumed_micros=501,
        now_micros=501,
        end_micros=1_001,
    )

    assert look.share == 0.5
    assert look.lag_seconds == 0


def test_a_scan_of_unknown_length_has_no_share() -> None:
    look = Snapshot(
        stage="full data",
        rows=7,
        rows_per_second=None,
        channels_done=0,
        channels_total=0,
        created_micros=1,
        consumed_micros=0,
        now_micros=2,
    )

    assert Course().line(look) == "full data  [????????????]  7 rows"


# --- who still lives -------------------------------------------------------------------------------------------------


def ended_process() -> int:
    """Id of a process that has ended."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


@pytest.mark.skipif(not process_space(), reason="only Linux says what process ids count in")
@pytest.mark.parametrize("rest", ["", "_7c9e6679-7425-40de-944b-e07fc1f90ae7", "-12"])
def test_only_a_session_whose_process_is_certainly_gone_is_dead(rest: str) -> None:
    here, gone = process_space(), ended_process()

    assert replication_sources._is_dead(f"replicate-{here}-host-{gone}-0a1b2c3d{rest}")
    assert not replication_sources._is_dead(f"replicate-{here}-host-{os.getpid()}-0a1b2c3d{rest}"), "it runs"
    assert not replication_sources._is_dead(f"replicate-{'0' * 12}-host-{gone}-0a1b2c3d{rest}"), (
        "another container of the host"
    )
    assert not replication_sources._is_dead(f"replicate-host-{gone}{rest}"), "it does not say where"


def test_names_of_processes_differ_even_where_host_and_process_id_are_the_same() -> None:
    names = {unique_name() for _ in range(100)}

    assert len(names) == 100
    assert all(f"-{os.getpid()}-" in name for name in names)
