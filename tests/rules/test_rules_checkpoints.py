"""Rules about checkpoints: what may be stored, and what storing does not do."""

from __future__ import annotations

import pytest
from rules_scene import Scene, Writer

from streamclient import ConfigurationError, ProcessRecordsInput, ShutdownInput

pytestmark = pytest.mark.slow


def test_a_checkpoint_never_moves_where_reading_goes_on(scene: Scene) -> None:
    """A pipeline that is always two batches behind gets each batch once, and its last position is what it stored."""
    waiting: list[str] = []
    stored: list[str] = []

    def process(writer: Writer, given: ProcessRecordsInput) -> None:
        waiting.append(given.checkpointer.largest_permitted_checkpoint_value)
        if len(waiting) > 2:
            stored.append(waiting.pop(0))
            given.checkpointer.checkpoint(stored[-1])

    def say_nothing(writer: Writer, given: ShutdownInput) -> None:
        """The worker ends with two batches still in the pipeline."""

    scene.diary.on_process, scene.diary.on_shutdown = process, say_nothing
    written = [f"a{number:02}" for number in range(20)]
    scene.write(*written)
    with scene.worker(max_records=4):
        scene.until(lambda: len(scene.diary.accepted()) >= 20)
        scene.scans_pass(3)

    assert scene.diary.delivered() == written
    assert len(stored) == 3
    assert scene.lease(scene.root).checkpoint == stored[-1]

    with scene.worker(max_records=4):
        scene.until(lambda: len(scene.diary.accepted()) >= 28)
    assert scene.diary.delivered()[20:] == written[12:]


def test_only_positions_of_the_shard_itself_are_stored(scene: Scene) -> None:
    """A sequence number, JSON, another shard's iterator, an older position: refused by name, and the row stays."""
    left, right = scene.split(scene.root, "m")
    foreign = scene.stream_api.get_shard_iterator(scene.stream_id, right)
    older: list[str] = []
    refused: list[str] = []
    rows: list[str] = []

    def process(writer: Writer, given: ProcessRecordsInput) -> None:
        if writer.shard_id == left:
            before = scene.lease(left).checkpoint
            for value in [foreign, "1500000000000000", '{"offset": 7}', "", "LATEST", *older]:
                try:
                    given.checkpointer.checkpoint(value)
                except ConfigurationError:
                    refused.append(value)
            rows.append(scene.lease(left).checkpoint)
            assert rows[-1] == before
            older.append(before)
        given.checkpointer.checkpoint()

    scene.diary.on_process = process
    with scene.working(max_records=1):
        scene.write("a1")
        scene.until(lambda: scene.diary.accepted(left) == ["a1"])
        scene.write("a2")
        scene.until(lambda: scene.diary.accepted(left) == ["a1", "a2"])

    assert refused[:5] == [foreign, "1500000000000000", '{"offset": 7}', "", "LATEST"]
    assert refused[5:] == [*refused[:5], "TRIM_HORIZON"]
    assert scene.diary.delivered(left) == ["a1", "a2"]
