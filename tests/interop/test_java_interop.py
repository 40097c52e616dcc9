"""Java and Python workers on one status table: the official Java stream client, unmodified, in its own process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from java_worker import JavaUnavailable, build
from mixed_fleet import Event, Scene, counter_jumps, overlaps, spans, without_lease

from streamclient.server import LocalTablestore
from streamclient.testing.deliveries import judge, read_history

pytestmark = [pytest.mark.interop, pytest.mark.slow]

FOUR_SHARDS = ("250", "500", "750")
SIX_SHARDS = ("160", "330", "500", "660", "830")


@pytest.fixture(scope="module")
def class_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    try:
        return build(tmp_path_factory.mktemp("java"))
    except JavaUnavailable as reason:
        pytest.skip(f"the Java stream client is out of reach: {reason}")


@pytest.fixture
def local() -> Iterator[LocalTablestore]:
    with LocalTablestore() as server:
        yield server


def scene_of(local: LocalTablestore, class_path: str, directory: Path, split_points: tuple[str, ...]) -> Scene:
    return Scene(local, class_path, directory, split_points)


def delivered(scene: Scene, worker: str) -> list[Event]:
    return [event for event in scene.workers[worker].events if event["event"] == "records"]


def records_of(scene: Scene, worker: str) -> int:
    return sum(len(event["records"]) for event in delivered(scene, worker))


def check_rules(scene: Scene) -> None:
    """What must hold of every fleet, however its leases moved."""
    changes = scene.row_changes()
    verdict = judge(read_history(scene.api, scene.stream_id), scene.deliveries())
    processed = spans(scene.events())

    assert verdict.lost == []
    assert verdict.out_of_order == []
    assert verdict.children_before_parents == []
    assert overlaps(processed) == []
    assert without_lease(processed, changes) == []
    assert counter_jumps(changes) == []


def test_each_side_continues_where_the_other_stopped(local: LocalTablestore, class_path: str, tmp_path: Path) -> None:
    """Checkpoints are exchanged without repeating a record, over a split and in both directions."""
    scene = scene_of(local, class_path, tmp_path, FOUR_SHARDS)
    try:
        scene.start_java("java-1")
        scene.write(20)
        scene.wait_until("Java reads everything", scene.caught_up)
        local.split("changes", scene.owned("java-1")[0].lease_key)
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
    finally:
        scene.close()


def test_java_and_python_workers_share_a_stream(local: LocalTablestore, class_path: str, tmp_path: Path) -> None:
    """Workers of both sides join, steal from each other, hand over and leave, while shards split under load."""
    scene = scene_of(local, class_path, tmp_path, SIX_SHARDS)
    try:
        scene.start_writing()
        scene.start_java("java-1")
        scene.wait_until("one Java worker holds every shard", lambda: len(scene.owned("java-1")) == 6)

        scene.start_python("python-1")
        scene.wait_until("Python steals its half from Java", lambda: len(scene.owned("python-1")) == 3)

        scene.start_java("java-2")
        scene.wait_until("Java steals its third", lambda: len(scene.owned("java-2")) == 2)

        local.split("changes", scene.owned("java-1")[0].lease_key)
        local.split("changes", scene.owned("python-1")[0].lease_key)
        scene.wait_until("both parents end", lambda: finished(scene) == 2)

        scene.stop("python-1")
        assert scene.owned("python-1") == []
        scene.wait_until("Java holds what Python handed over", lambda: live_of(scene, "java-1", "java-2") == 8)

        scene.start_python("python-2")
        scene.wait_until("the new Python worker gets its share", lambda: len(scene.owned("python-2")) >= 2)

        scene.stop("java-1")
        scene.wait_until("others take what Java left", lambda: live_of(scene, "java-2", "python-2") == 8)
        scene.stop_writing()
        scene.wait_until("everything is read", scene.caught_up)
        for name in ("java-2", "python-2"):
            scene.stop(name)

        assert all(records_of(scene, name) > 0 for name in scene.workers)
        check_rules(scene)
        check_hand_overs(scene)
    finally:
        scene.close()


def finished(scene: Scene) -> int:
    return sum(lease.is_finished for lease in scene.leases.list_leases())


def live_of(scene: Scene, *workers: str) -> int:
    return sum(len(scene.owned(worker)) for worker in workers)


def check_hand_overs(scene: Scene) -> None:
    """Leases were transferred in every direction, and every one that Python was given, it took up."""
    moves = [change.hand_over for change in scene.row_changes() if change.hand_over is not None]
    directions = {(old.split("-")[0], new.split("-")[0]) for old, new in moves}

    assert ("java", "python") in directions
    assert ("python", "java") in directions
