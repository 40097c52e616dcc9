"""Java and Python workers on one status table: the official Java stream client, unmodified, in its own process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest
from client_process import ClientUnavailable
from java_worker import build
from mixed_fleet import Event, RowChange, Scene, counter_jumps, overlaps, spans, without_lease

from streamclient.core import leases as rule
from streamclient.core.write_rules import WriteOutcome
from streamclient.model import Pause, PendingCheckpoint
from streamclient.server import LocalTablestore
from streamclient.testing.deliveries import judge, read_history

pytestmark = [pytest.mark.interop, pytest.mark.slow]

FOUR_SHARDS = ("250", "500", "750")
SIX_SHARDS = ("160", "330", "500", "660", "830")


@pytest.fixture(scope="module")
def class_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    try:
        return build(tmp_path_factory.mktemp("java"))
    except ClientUnavailable as reason:
        pytest.skip(f"the Java stream client is out of reach: {reason}")


@pytest.fixture
def local() -> Iterator[LocalTablestore]:
    with LocalTablestore() as server:
        yield server


@pytest.fixture
def scene(request: pytest.FixtureRequest, local: LocalTablestore, class_path: str, tmp_path: Path) -> Iterator[Scene]:
    """Of four shards, or as many as the parameter splits."""
    with closing(Scene(local, class_path, tmp_path, getattr(request, "param", FOUR_SHARDS))) as made:
        yield made


def delivered(scene: Scene, worker: str) -> list[Event]:
    return [event for event in scene.workers[worker].events if event["event"] == "records"]


def records_of(scene: Scene, worker: str) -> int:
    return sum(len(event["records"]) for event in delivered(scene, worker))


def check_rules(scene: Scene) -> None:
    """What must hold of every fleet, however its leases moved."""
    changes = scene.row_changes()
    verdict = judge(read_history(scene.api, scene.stream_id), scene.deliveries())
    processed = spans(scene.events())

    assert verdict.problems == []
    assert overlaps(processed) == []
    assert without_lease(processed, changes) == []
    assert counter_jumps(changes) == []


def test_each_side_continues_where_the_other_stopped(scene: Scene) -> None:
    """Checkpoints are exchanged without repeating a record, over a split and in both directions."""
    scene.start_java("java-1")
    scene.write(20)
    scene.wait_until("Java reads everything", scene.caught_up)
    scene.local.split("changes", scene.owned("java-1")[0].lease_key)
    scene.write(20)
    scene.wait_until("Java reads the children", scene.caught_up)
    first = len(scene.deliveries())
    assert {lease.owner for lease in scene.leases.list_leases()} == {"java-1"}
    assert sum(lease.is_finished for lease in scene.leases.list_leases()) == 1

    scene.stop("java-1")
    scene.start_python("python-1")
    scene.write(20)
    scene.wait_until("Python continues", scene.caught_up)
    assert first > 0
    assert records_of(scene, "java-1") == 800
    assert records_of(scene, "python-1") == 400

    scene.stop("python-1")
    scene.start_java("java-2")
    scene.write(20)
    scene.wait_until("Java continues", scene.caught_up)
    scene.stop("java-2")
    assert records_of(scene, "java-2") == 400
    check_rules(scene)


def test_java_works_beside_columns_and_rows_of_our_own(scene: Scene) -> None:
    """It reads on although a shard is paused, keeps our columns, and voids what was prepared; we obey the pause."""
    scene.start_java("java-1")
    scene.write(20)
    scene.wait_until("Java reads everything", scene.caught_up)
    scene.stop("java-1")
    pause = Pause("r1", "ann", "maintenance")
    for lease in scene.leases.list_leases():
        prepared = rule.prepare(lease, PendingCheckpoint("never-committed", b"tx", 3, 1))
        paused = rule.set_pause(lease, pause)
        assert {answer.outcome for answer in scene.leases.write_many([prepared, paused])} == {WriteOutcome.ACCEPTED}
        assert scene.leases.draw_epoch(lease.lease_key) == 1

    scene.start_java("java-2")
    scene.write(20)
    scene.wait_until("Java reads on", scene.caught_up)
    scene.stop("java-2")
    assert {(lease.pause, lease.pending) for lease in scene.leases.list_leases()} == {(pause, None)}

    scene.start_python("python-1")
    scene.wait_until("Python obeys", lambda: all(lease.is_paused_by_owner for lease in scene.leases.list_leases()))
    scene.write(20)
    for lease in scene.leases.list_leases():
        scene.leases.write_many([rule.set_pause(lease, None)])
    scene.wait_until("Python reads on", scene.caught_up)
    scene.stop("python-1")

    assert records_of(scene, "python-1") == 400
    assert judge(read_history(scene.api, scene.stream_id), scene.deliveries()).lost == ()


@pytest.mark.parametrize("scene", [SIX_SHARDS], indirect=True, ids=["six shards"])
def test_java_and_python_workers_share_a_stream(scene: Scene) -> None:
    """Workers of both sides join, steal from each other, hand over and leave, while shards split under load."""
    scene.start_writing()
    scene.start_java("java-1")
    scene.wait_until("one Java worker holds every shard", lambda: len(scene.owned("java-1")) == 6)

    scene.start_python("python-1")
    scene.wait_until("Python steals its half from Java", lambda: len(scene.owned("python-1")) == 3)

    scene.start_java("java-2")
    three = ("java-1", "python-1", "java-2")
    scene.wait_until("Java steals from both", lambda: [len(scene.owned(name)) for name in three] == [2, 2, 2])

    scene.local.merge("changes", *neighbours_of_both_sides(scene))
    scene.local.split("changes", open_shard_of(scene, "java"))
    scene.local.split("changes", open_shard_of(scene, "python"))
    scene.wait_until("all parents end", lambda: finished(scene) == 4)

    scene.stop("python-1")
    assert kept_by(scene, "python-1") == []
    scene.wait_until("Java holds what Python handed over", lambda: live_of(scene, "java-1", "java-2") == 7)

    scene.start_python("python-2")
    scene.wait_until("the new Python worker gets its share", lambda: len(scene.owned("python-2")) >= 2)

    scene.stop("java-1")
    scene.wait_until("others take what Java left", lambda: live_of(scene, "java-2", "python-2") == 7)
    scene.stop_writing()
    scene.wait_until("everything is read", scene.caught_up)
    for name in ("java-2", "python-2"):
        scene.stop(name)

    assert all(records_of(scene, name) > 0 for name in scene.workers)
    check_rules(scene)
    check_hand_overs(scene)


def kept_by(scene: Scene, worker: str) -> list[str]:
    """Leases that a worker did not give away; a Java worker may answer an earlier request of it when it has gone."""
    leases = [lease for lease in scene.leases.list_leases() if lease.owner == worker]
    return [str(lease) for lease in leases if not lease.is_handed_over]


def finished(scene: Scene) -> int:
    return sum(lease.is_finished for lease in scene.leases.list_leases())


def live_of(scene: Scene, *workers: str) -> int:
    return sum(len(scene.owned(worker)) for worker in workers)


def open_shards(scene: Scene) -> list[tuple[str, str]]:
    """Open shards in the order of their keys, each with the side that holds it; shards without a lease are left out."""
    owners = {lease.lease_key: lease.owner.split("-")[0] for lease in scene.leases.list_leases()}
    shards = [shard.shard_id for shard in scene.local.shards("changes") if shard.is_open]
    return [(shard, owners[shard]) for shard in shards if shard in owners]


def neighbours_of_both_sides(scene: Scene) -> tuple[str, str]:
    """Two adjacent open shards, one read by Java and one by Python, so that their child waits for both."""
    shards = open_shards(scene)
    return next((left, right) for (left, one), (right, other) in pairwise(shards) if one != other)


def open_shard_of(scene: Scene, side: str) -> str:
    return next(shard for shard, owner in open_shards(scene) if owner == side)


def check_hand_overs(scene: Scene) -> None:
    """Leases were stolen and transferred in every direction."""
    changes = scene.row_changes()
    moves = {sides(change.hand_over) for change in changes if change.hand_over is not None}
    marks = {sides(change.mark) for change in changes if change.mark is not None}

    assert {("java", "python"), ("python", "java"), ("java", "java")} <= moves
    assert {("java", "python"), ("python", "java")} <= marks
    assert [str(change) for change in changes if is_lost_by_python(change)] == []


def is_lost_by_python(change: RowChange) -> bool:
    """Whether a Python worker's lease went to another worker without being handed over: by expiry, say."""
    before, after = change.before, change.after
    if before is None or after is None or after.owner in ("", before.owner):
        return False
    return before.owner.startswith("python") and not before.is_handed_over and change.hand_over is None


def sides(names: tuple[str, str]) -> tuple[str, str]:
    """(old owner, new owner) or (owner, stealer), as languages."""
    return names[0].split("-")[0], names[1].split("-")[0]
