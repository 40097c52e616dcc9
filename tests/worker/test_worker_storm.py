"""Everything at once, on virtual time, in an order of the dice: three workers, and nothing may be lost or reordered."""

from __future__ import annotations

from typing import Any

import pytest

from streamclient.core.write_rules import WriteKind
from streamclient.interfaces import ProcessRecordsInput
from streamclient.testing.history import Delivered, Fact, History, ReaderBegan
from tests.placed_records import make_record
from tests.rings import every
from tests.simulation.scene import FaultyLeases, RecordingProcessor
from tests.worker.stage import Stage

TURNS = 40


class Storm:
    """Writes, splits and merges; kills, stops and replaces workers; loses answers; lets processors fail."""

    def __init__(self, seed: int, **config: Any) -> None:
        self.world = Stage(
            "s0",
            "s1",
            seed=seed,
            **config,
            lease_duration_millis=10_000,
            renewer_interval_millis=3_000,
            taker_interval_millis=3_000,
        )
        self.dice = self.world.simulation.dice
        self.table = self.world.leases = FaultyLeases(self.world.stream.stream_id)
        self.world.journal.on_process = self.process
        self.written: dict[str, list[tuple[str, int]]] = {"s0": [], "s1": []}
        """As if each shard were one key, whose changes are counted."""
        self.accepted: list[Fact] = []
        self.parents: dict[str, set[str]] = {"s0": set(), "s1": set()}
        self.open = ["s0", "s1"]
        self.workers = 0
        self.fleet = {worker.worker.worker_identifier: worker for worker in (self.new_worker() for _ in range(3))}

    def new_worker(self):  # type: ignore[no-untyped-def]
        self.workers += 1
        return self.world.worker(f"w{self.workers}", max_records=3)

    def process(self, processor: RecordingProcessor, given: ProcessRecordsInput) -> None:
        if self.dice.random() < 0.05:
            raise ValueError("bad luck")
        shard, places = processor.shard_id, [record.sequence_info.timestamp_micros for record in given.records]
        began = ReaderBegan(processor, processor, shard)
        self.accepted += [began, Delivered(processor, shard, [shard] * len(places), places)]
        if self.dice.random() < 0.7:
            given.checkpointer.checkpoint()

    def write(self) -> None:
        for name in self.open:
            first = len(self.written[name]) + 1
            numbers = range(first, first + self.dice.randint(0, 5))
            self.world.stream.append(name, *(make_record(f"k{number}", number) for number in numbers))
            self.written[name] += [(name, number) for number in numbers]

    def split(self) -> None:
        parent = self.open.pop(self.dice.randrange(len(self.open)))
        count = len(self.written)
        self.world.stream.split(parent, f"s{count}", f"s{count + 1}")
        for child in (f"s{count}", f"s{count + 1}"):
            self.adopt(child, {parent})

    def merge(self) -> None:
        if len(self.open) > 1:
            first, second, child = self.open.pop(), self.open.pop(), f"s{len(self.written)}"
            self.world.stream.merge(first, second, child)
            self.adopt(child, {first, second})

    def adopt(self, child: str, parents: set[str]) -> None:
        self.parents[child] = parents
        self.open.append(child)
        self.written[child] = []

    def lose_an_answer(self) -> None:
        self.table.lose_answers_of = {self.dice.choice(list(WriteKind))}

    def replace(self) -> None:
        name = self.dice.choice(sorted(self.fleet))
        leaving = self.fleet.pop(name)
        self.dice.choice([leaving.kill, leaving.stop])()
        worker = self.new_worker()
        self.fleet[worker.worker.worker_identifier] = worker

    def run(self) -> None:
        calm = lambda: None  # noqa: E731
        choices = [self.split, self.merge, self.lose_an_answer, self.lose_an_answer, self.replace, *[calm] * 5]
        for _ in range(TURNS):
            self.world.advance(self.dice.choice([0.2, 1.0, 5.0]))
            self.write()
            self.dice.choice(choices)()
        for name in self.open:
            self.world.stream.close(name)
        self.world.until(self.is_finished, 2_000)

    def is_finished(self) -> bool:
        """Whether all that were written to are: a closed shard has a child, which is empty and open at the end."""
        finished = {row.lease_key for row in self.table.list_leases() if row.is_finished}
        return finished >= self.written.keys()


@pytest.mark.slow
@pytest.mark.parametrize("seed", every(2, range(12)))
def test_every_record_is_processed_in_order_whatever_happens(seed: int) -> None:
    storm = Storm(seed)
    storm.run()

    assert list(History(storm.parents, storm.written, storm.accepted).broken()) == []
    assert [worker.error for worker in storm.world.simulation.workers if worker.error] == []
