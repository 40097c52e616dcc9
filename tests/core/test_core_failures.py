"""From a failed page to the record at fault: what is delivered, in which order, and how often."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamclient.config import FailurePolicy
from streamclient.core.consumer.page import PagePlan, Remedy, remedy
from streamclient.core.consumer.parked import AFTER_PARKED, ParkedKeys, ParkedShare, first_generations
from streamclient.core.consumer.pauses import retry_pause_millis
from streamclient.core.shard_tree import ShardTree
from streamclient.errors import ConfigurationError
from streamclient.model import OnFailure, ParkedKey, ParkedRecord
from streamclient.records import PrimaryKey, StreamRecord
from streamclient.worker.parking import MemoryParkingStore
from tests.placed_records import make_record

STORE = MemoryParkingStore()


def parking(retries: int = 0, **settings_: object) -> FailurePolicy:
    return FailurePolicy(retries=retries, then=OnFailure.PARK, parking=STORE, **settings_)  # type: ignore[arg-type]


class Run:
    """Takes a page through the plan, as the consumer does, with a processor that fails as it is told."""

    def __init__(self, size: int, policy: FailurePolicy, fails: Callable[[tuple[int, ...]], bool]) -> None:
        self.calls: list[tuple[int, ...]] = []
        self.dealt_with: list[int] = []
        self.parked: dict[int, int] = {}
        self.end: Remedy | None = None
        plan = PagePlan.of(range(size))
        while not plan.is_done and self.end is None:
            span = plan.next
            self.calls.append(tuple(span.indices))
            if not fails(tuple(span.indices)):
                self.dealt_with += span.indices
                plan = plan.accepted()
                continue
            plan = plan.failed()
            following = remedy(plan.next, policy, plan.next.tries <= policy.retries)
            if following is Remedy.CUT:
                plan = plan.cut()
            elif following is Remedy.PARK:
                self.dealt_with += plan.next.indices
                self.parked.update(dict.fromkeys(plan.next.indices, plan.next.attempts))
                plan = plan.without(plan.next.indices)
            elif following is not Remedy.RETRY:
                self.end = following


def bad(*indices: int) -> Callable[[tuple[int, ...]], bool]:
    return lambda batch: any(index in batch for index in indices)


def test_a_good_page_is_one_call() -> None:
    run = Run(100, parking(3), bad())
    assert run.calls == [tuple(range(100))]
    assert run.parked == {}


def test_one_bad_record_of_eight_is_found_by_halves() -> None:
    """The page, then its halves; the half behind one that passed must hold it, so it is cut without being tried."""
    run = Run(8, parking(), bad(6))
    assert run.calls == [tuple(range(8)), (0, 1, 2, 3), (4, 5), (6,), (7,)]
    assert run.parked == {6: 2}


def test_the_page_and_the_single_record_are_retried_and_nothing_between() -> None:
    run = Run(4, parking(2), bad(0))
    assert run.calls == [(0, 1, 2, 3)] * 3 + [(0, 1)] + [(0,)] * 3 + [(1,), (2, 3)]
    assert run.parked == {0: 7}


def test_a_single_record_is_not_retried_twice_over() -> None:
    assert Run(1, parking(3), bad(0)).calls == [(0,)] * 4


def test_without_bisection_the_whole_page_is_decided_about() -> None:
    assert Run(5, parking(1, bisect=False), bad(3)).parked == dict.fromkeys(range(5), 2)


def test_a_restart_never_cuts() -> None:
    """No part of the page would be kept."""
    run = Run(5, FailurePolicy(retries=1), bad(3))
    assert run.calls == [tuple(range(5))] * 2
    assert run.end is Remedy.RESTART


def test_stopping_names_the_record_and_delivers_what_comes_before() -> None:
    run = Run(8, FailurePolicy(retries=0, then=OnFailure.STOP_SHARD), bad(5))

    assert run.end is Remedy.STOP
    assert run.dealt_with == [0, 1, 2, 3, 4]
    assert run.calls[-1] == (5,)


def test_an_empty_batch_can_only_be_decided_about() -> None:
    """No record of it could be parked."""
    assert Run(0, parking(), lambda batch: True).calls == [()]
    assert Run(0, parking(), lambda batch: True).end is Remedy.RESTART
    stop = FailurePolicy(retries=0, then=OnFailure.STOP_SHARD)
    assert Run(0, stop, lambda batch: True).end is Remedy.STOP
    assert Run(0, FailurePolicy(retries=1), lambda batch: True).end is Remedy.RESTART


def test_a_failure_that_only_whole_pages_have_parks_nothing() -> None:
    """Such as a transaction that is too large."""
    run = Run(64, parking(), lambda batch: len(batch) > 16)
    assert run.parked == {}
    assert run.dealt_with == list(range(64))


def test_an_outage_that_ends_in_the_middle_parks_only_what_it_hit() -> None:
    calls = iter(range(1_000))
    run = Run(16, parking(), lambda batch: next(calls) < 4)

    assert run.parked == {}
    assert run.dealt_with == list(range(16))


@given(
    st.integers(1, 200),
    st.integers(0, 3),
    st.booleans(),
    st.randoms(use_true_random=False),
    st.floats(0, 0.7),
)
def test_every_record_is_dealt_with_once_and_in_order(
    size: int, retries: int, bisect: bool, dice: object, share: float
) -> None:
    """Whatever fails, also without any pattern: accepted or parked, once, in the order of the page."""
    run = Run(size, parking(retries, bisect=bisect), lambda batch: dice.random() < share)  # type: ignore[attr-defined]
    assert run.dealt_with == list(range(size))


@given(st.integers(1, 5_000), st.integers(0, 4), st.data())
def test_one_bad_record_costs_few_calls(size: int, retries: int, data: st.DataObject) -> None:
    """At most two calls per halving, and the retries of the page and of the record."""
    run = Run(size, parking(retries), bad(data.draw(st.integers(0, size - 1))))
    halvings = math.ceil(math.log2(size))

    assert len(run.calls) <= 1 + 2 * halvings + 2 * retries
    assert len(run.parked) == 1


@given(st.integers(1, 2_000), st.sets(st.integers(0, 1_999), max_size=8))
def test_some_bad_records_cost_as_much_each(size: int, indices: set[int]) -> None:
    wrong = {index for index in indices if index < size}
    run = Run(size, parking(), bad(*wrong))
    halvings = math.ceil(math.log2(size))

    assert set(run.parked) == wrong
    assert len(run.calls) <= 1 + len(wrong) * (2 * halvings + 1)


@given(st.integers(1, 300), st.sets(st.integers(0, 299), max_size=5))
def test_only_a_record_that_failed_alone_is_parked(size: int, indices: set[int]) -> None:
    run = Run(size, parking(1), bad(*indices))
    for index in run.parked:
        assert run.calls.count((index,)) == 2


@given(st.integers(1, 100), st.sets(st.integers(0, 99)), st.integers(0, 6))
def test_taking_records_out_keeps_the_rest_in_order(size: int, taken: set[int], cuts: int) -> None:
    """As for later records of a parked key, wherever the page has been cut so far."""
    plan = PagePlan.of(range(size))
    for _ in range(cuts):
        if len(plan.next.indices) > 1:
            plan = plan.failed().cut()

    assert tuple(plan.without(taken).indices) == tuple(index for index in range(size) if index not in taken)


def test_pauses_double_up_to_the_longest() -> None:
    policy = FailurePolicy(retries=5, first_pause_millis=100, longest_pause_millis=500)
    plan = PagePlan.of(range(3))
    pauses = []
    for _ in range(4):
        plan = plan.failed()
        pauses.append(retry_pause_millis(plan.next, policy))

    assert pauses == [100, 200, 400, 500]


def test_the_share_is_taken_of_the_latest_records() -> None:
    share = ParkedShare(parking(most_parked_share=0.1, share_window_records=20))
    share.parked(2)
    assert (share.allows(0), share.allows(1), share.count) == (True, False, 2)
    share.accepted(18)
    assert share.allows(1) is False
    share.accepted(1)
    assert (share.allows(1), share.allows(2)) == (True, False)
    share.accepted(1)
    assert (share.allows(2), share.count) == (True, 0)


@settings(max_examples=60)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 30)), max_size=60))
def test_no_window_ever_holds_more_than_the_share(steps: list[tuple[bool, int]]) -> None:
    policy = parking(most_parked_share=0.2, share_window_records=50)
    share, history = ParkedShare(policy), list[bool]()
    for is_parked, count in steps:
        if is_parked and share.allows(count):
            share.parked(count)
        elif not is_parked:
            share.accepted(count)
        else:
            continue
        history += [is_parked] * count
        assert share.count == sum(history[-50:])

    assert all(sum(history[start : start + 50]) <= 10 for start in range(len(history)))


@pytest.mark.parametrize(
    ("settings_", "message"),
    [
        ({"then": OnFailure.PARK}, "PARK needs an IParkingStore"),
        ({"parking": STORE}, "then=RESTART does not go with parking=<MemoryParkingStore, 0 parked>"),
        ({"then": "PARC"}, "not 'PARC'; did you mean PARK?"),
        ({"then": OnFailure.PARK, "parking": "directory"}, "parking must be an IParkingStore or None, not 'directory'"),
        ({"retries": -1}, "retries must be a whole number of at least 0, not -1"),
        ({"most_parked_share": 0}, "most_parked_share must be a number above 0 and up to 1, not 0"),
        ({"most_parked_share": 0.01, "share_window_records": 50}, "less than one record"),
        ({"first_pause_millis": 10, "longest_pause_millis": 5}, "longest_pause_millis=5 must not be below"),
    ],
)
def test_a_policy_that_cannot_work_is_refused(settings_: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        FailurePolicy(**settings_)  # type: ignore[arg-type]


# --- parked keys of several shards ------------------------------------------------------------------------------------

KEY: PrimaryKey = (("id", "k"),)


def number_of(record: StreamRecord) -> str:
    return f"{record.sequence_info.timestamp_micros:04d}"


def place(shard_id: str, generation: int, first: int = 0) -> ParkedKey:
    return ParkedKey(KEY, shard_id, f"{first:04d}", generation)


def tree_of(**parents: str) -> ShardTree:
    return ShardTree({key: frozenset(named.split()) for key, named in parents.items()})


FAMILY = tree_of(root="", middle="root", side="root", leaf="middle side2", side2="side")


@pytest.mark.parametrize(
    ("shard", "places", "generation", "waits"),
    [
        ("middle", [], 1, False),
        ("middle", [place("root", 1)], 2, True),
        ("leaf", [place("root", 1)], 4, True),
        ("root", [place("leaf", 1)], -2, False),
        ("middle", [place("leaf", 1)], 0, False),
        ("middle", [place("root", -2), place("leaf", 1)], -1, True),
        ("middle", [place("middle", 7, 5), place("leaf", 9)], 7, False),
        ("middle", [place("middle", 7, 1), place("leaf", 9)], 7, True),
        ("middle", [place("middle", 7, 1), place("middle", 7, 5)], 7, True),
        ("middle", [place("middle", 7, 5), place("middle", 7, 1)], 7, True),
        ("leaf", [place("gone", 1)], 5, True),
        ("middle", [place("gone", 1), place("leaf", 2)], 1, True),
    ],
)
def test_a_record_waits_for_its_shard_and_ancestors_and_its_generation_is_between_theirs_and_the_descendants(
    shard: str, places: list[ParkedKey], generation: int, waits: bool
) -> None:
    """Without a free number, as earlier versions left none, a record has the number of its ancestor.

    A shard has two places after an upgrade: records of earlier versions name no fleet.
    """
    record = make_record("k", 3)
    keys = ParkedKeys(parking(), shard, number_of, lambda: FAMILY)
    keys.answered(places, 0.0)

    assert keys.generation(KEY) == generation
    assert first_generations(places, shard, [record], number_of, FAMILY) == [generation]
    assert bool(keys.after_parked([record], [0])) is waits


@st.composite
def lines(draw: st.DrawFn) -> tuple[ShardTree, int]:
    """The shards ``s0``, ``s1`` and so on of one key, and shards of other keys that make longer ways between them."""
    count = draw(st.integers(2, 5))
    parents = {"s0": frozenset[str]()}
    for number in range(1, count):
        named = {f"s{number - 1}"}
        if draw(st.booleans()):
            before = draw(st.sampled_from(["", *(f"s{older}" for older in range(number))]))
            for step in range(draw(st.integers(1, 3))):
                parents[f"t{number}{step}"] = frozenset({before} - {""})
                before = f"t{number}{step}"
            named.add(before)
        parents[f"s{number}"] = frozenset(named)
    return ShardTree(parents), count


class Readings:
    """Reads the records of one key in the shards of a line, as consumers do that park."""

    RECORDS = 2
    """The records in each shard. Their ids do not tell in which order the shards are."""

    def __init__(self, tree: ShardTree, count: int) -> None:
        self.tree, self.count = tree, count
        self.store = MemoryParkingStore()

    def parked(self) -> list[tuple[int, int]]:
        """The shard and number of each parked record, in the order of a replay."""
        found = sorted(self.store.parked(), key=lambda each: (each.generation, each.record_id))
        return [(int(each.shard_id[1:]), each.index) for each in found]

    def read(self, shards: range, failing: frozenset[tuple[int, int]]) -> None:
        for shard, number in ((shard, number) for shard in shards for number in range(self.RECORDS)):
            record = make_record("k", 10 * (self.count - shard) + number)
            keys = ParkedKeys(parking(), f"s{shard}", number_of, lambda: self.tree)
            keys.answered(self.store.parked_keys("stream"), 0.0)
            waits = bool(keys.after_parked([record], [0]))
            assert waits is any(earlier <= (shard, number) for earlier in self.parked())
            if waits or (shard, number) in failing:
                self.park(record, shard, number, keys.generation(KEY))

    def park(self, record: StreamRecord, shard: int, number: int, generation: int) -> None:
        where = ("stream", f"s{shard}", record, "", number, generation)
        self.store.park([ParkedRecord(number_of(record), *where, AFTER_PARKED.error, "", 0, 0)])

    def remove(self, count: int) -> None:
        """Remove the first ``count`` records of a replay."""
        gone = self.parked()[:count]
        self.store.remove([each for each in self.store.parked() if (int(each.shard_id[1:]), each.index) in gone])


@settings(max_examples=200, deadline=None)
@given(lines(), st.data())
def test_whatever_is_rewound_a_replay_gives_the_records_of_a_key_in_their_order(
    line: tuple[ShardTree, int], data: st.DataObject
) -> None:
    readings, oldest = Readings(*line), 0
    places = [(shard, number) for shard in range(readings.count) for number in range(readings.RECORDS)]
    readings.read(range(readings.count), data.draw(st.frozensets(st.sampled_from(places[-2:]), max_size=1)))
    for _ in range(data.draw(st.integers(1, 5))):
        if data.draw(st.booleans()):
            readings.remove(data.draw(st.integers(0, len(readings.parked()))))
        oldest = data.draw(st.integers(oldest, readings.count - 1))
        gone = {f"s{shard}" for shard in range(oldest)}
        readings.tree = ShardTree({key: named for key, named in readings.tree.parents.items() if key not in gone})
        first = data.draw(st.integers(oldest, readings.count - 1))
        last = data.draw(st.integers(first, readings.count - 1))
        readings.read(range(first, last + 1), data.draw(st.frozensets(st.sampled_from(places), max_size=2)))

        assert readings.parked() == sorted(readings.parked())
