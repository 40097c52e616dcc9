"""The pace of reading: intervals follow silences, kinds of shards share a ceiling, and pauses follow from intervals."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Mapping, Sequence
from statistics import median, quantiles
from typing import Any

import pytest
from attrs import define, field
from hypothesis import given, settings
from hypothesis import strategies as st

from streamclient import ClientConfig
from streamclient.base.position import Position
from streamclient.core.consumer.pauses import ConsumerBackoff, FollowUps
from streamclient.core.consumer.reading_pace import (
    ALIVE_SECONDS,
    EARLIEST_SHARE,
    LONELY_SECONDS,
    QUIET_READS_PER_SECOND,
    ShardPace,
    WorkerPace,
)
from streamclient.tablestore import RecordPage
from tests.placed_records import make_record

SHORTEST, LONGEST = 0.015, 0.9
EMPTY = RecordPage([], Position("i1"), may_more_record=False)
NEWS = RecordPage([make_record("k", 1)], Position("i1"), may_more_record=False)
READ_SECONDS = 0.004


@define
class Fleet:
    """Consumers of one worker on simulated time: each reads, and pauses as its machine would."""

    config: ClientConfig = field(factory=ClientConfig)
    dice: random.Random = field(factory=lambda: random.Random(3))
    reads: dict[str, list[float]] = field(factory=dict)
    delays: list[float] = field(factory=list)
    worker: WorkerPace = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.worker = WorkerPace(self.config)

    def run(self, arrivals: Mapping[str, Sequence[float]], until: float, start: float = 0.0) -> None:
        """Read each shard, whose records come at the given times, from ``start`` on."""
        table = self.worker.table()
        readers = {shard: ConsumerBackoff(self.config, self.dice, table.shard()) for shard in arrivals}
        left = {shard: sorted(moments) for shard, moments in arrivals.items()}
        due = [(start, shard) for shard in arrivals]
        heapq.heapify(due)
        while due[0][0] < until:
            now, shard = heapq.heappop(due)
            self.reads.setdefault(shard, []).append(now)
            readers[shard].read_begins(now)
            came = [moment for moment in left[shard] if moment <= now]
            left[shard] = left[shard][len(came) :]
            self.delays += [now + READ_SECONDS - moment for moment in came]
            page = NEWS if came else EMPTY
            readers[shard].read_succeeded(page, now + READ_SECONDS)
            pause = readers[shard].caught_up_pause(page, Position("i1"), now + READ_SECONDS)
            heapq.heappush(due, (now + READ_SECONDS + pause, shard))

    def count(self, since: float, until: float) -> int:
        """Reads of all shards in a time."""
        return sum(since <= moment < until for moments in self.reads.values() for moment in moments)


def poisson(rate: float, until: float, shards: int, dice: random.Random) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {f"s{number}": [] for number in range(shards)}
    now = 0.0
    while (now := now + dice.expovariate(rate)) < until:
        found[f"s{dice.randrange(shards)}"].append(now)
    return found


def silent(shard: ShardPace, seconds: float) -> float:
    """The interval of a shard that has found nothing for so long."""
    shard.nothing_came(0.0)
    return shard.interval(seconds)


# --- one shard -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("silence", "interval"), [(0.0, 0.015), (10.0, 0.015), (20.0, 0.03), (60.0, 0.09), (600.0, 0.9), (1e6, 0.9)]
)
def test_the_interval_grows_with_the_silence_of_the_table(silence: float, interval: float) -> None:
    assert silent(WorkerPace(ClientConfig()).table().shard(), silence) == pytest.approx(interval)


@pytest.mark.parametrize(
    ("hint", "moves", "is_followed_at_once"),
    [(True, False, True), (True, True, True), (None, True, True), (None, False, False), (False, True, False)],
)
def test_an_empty_page_is_followed_at_once_if_more_is_promised_or_the_service_skips(
    hint: bool | None, moves: bool, is_followed_at_once: bool
) -> None:
    """The end of a tunnel's channel moves with time: with the hint that nothing waits, that is no skipping."""
    backoff = ConsumerBackoff(ClientConfig(), random.Random(3), WorkerPace(ClientConfig()).table().shard())
    backoff.read_begins(0.0)
    page = RecordPage([], Position("i2" if moves else "i1"), may_more_record=hint)
    backoff.read_succeeded(page, 0.0)

    assert (backoff.caught_up_pause(page, Position("i1"), 0.0) == 0.0) is is_followed_at_once


# --- after pages with records ----------------------------------------------------------------------------------------


def page_of(records: int, body_bytes: int = 0) -> RecordPage:
    """A page that hints at more, as the service does after every record."""
    one = make_record("k", 1)
    return RecordPage([one] * records, Position("i1"), may_more_record=True, body_bytes=body_bytes)


def small_pages_between_trials(trials: int, finds: Callable[[int], int]) -> list[int]:
    """The small pages that pass before each trial, whose read finds so many records."""
    follow_ups, passed = FollowUps(), []
    for number in range(trials):
        count = 0
        while not follow_ups.is_due(page_of(1)):
            count += 1
            follow_ups.read_succeeded(page_of(1))  # after a pause
        passed.append(count)
        follow_ups.read_succeeded(page_of(finds(number)))
    return passed


def test_reads_at_once_after_small_pages_become_rare_while_they_find_nothing() -> None:
    assert small_pages_between_trials(10, finds=lambda _: 0) == [0, 1, 2, 4, 8, 16, 32, 64, 64, 64]


def test_one_read_at_once_that_finds_records_restores_the_trust() -> None:
    assert small_pages_between_trials(7, finds=lambda number: number == 3) == [0, 1, 2, 4, 0, 1, 2]


@pytest.mark.parametrize(
    ("page", "is_large"),
    [(page_of(99), False), (page_of(100), True), (page_of(1, (1 << 16) - 1), False), (page_of(1, 1 << 16), True)],
)
def test_a_large_page_is_followed_at_once_whatever_small_ones_were(page: RecordPage, is_large: bool) -> None:
    follow_ups = FollowUps()
    assert follow_ups.is_due(page_of(1))
    follow_ups.read_succeeded(page_of(0))

    assert follow_ups.will_follow(page) is is_large
    assert follow_ups.is_due(page) is is_large


@pytest.mark.parametrize(("most", "records"), [(1, 1), (5, 5), (5, 6), (99, 99), (1_000, 100)])
def test_a_full_page_is_followed_at_once_however_few_records_a_read_may_return(most: int, records: int) -> None:
    follow_ups = FollowUps(full_page_records=most)
    follow_ups.is_due(page_of(0))
    follow_ups.read_succeeded(page_of(0))
    assert not follow_ups.will_follow(page_of(min(most, 100) - 1))

    assert follow_ups.is_due(page_of(records))


def test_a_read_after_a_large_page_that_finds_nothing_is_no_failed_trial() -> None:
    follow_ups = FollowUps()
    for _ in range(20):
        assert follow_ups.is_due(page_of(100))
        follow_ups.read_succeeded(page_of(0))

    assert follow_ups.is_due(page_of(1))


def test_a_silent_shard_of_a_table_with_traffic_is_read_eagerly_for_a_minute_and_then_ever_more_rarely() -> None:
    table = WorkerPace(ClientConfig()).table()
    busy, silent_one = table.shard(), table.shard()
    silent_one.nothing_came(0.0)
    found = []
    for now in (30.0, 60.0, 120.0, 3_600.0):
        busy.records_came(now)
        found.append(silent_one.interval(now))

    assert found == pytest.approx([SHORTEST, SHORTEST, 2 * SHORTEST, LONGEST])


def test_a_record_of_one_shard_makes_the_reading_of_all_eager_again_but_not_of_lonely_ones() -> None:
    table = WorkerPace(ClientConfig()).table()
    first, second = table.shard(), table.shard()
    second.nothing_came(0.0)
    first.nothing_came(0.0)
    assert second.interval(50.0) == pytest.approx(5 * SHORTEST)
    first.records_came(50.0)

    assert second.interval(50.0) == SHORTEST


def test_a_silence_begins_when_a_read_first_finds_nothing() -> None:
    """Also after a batch that took an hour to process."""
    shard = WorkerPace(ClientConfig()).table().shard()
    shard.nothing_came(0.0)
    shard.records_came(5.0)
    shard.nothing_came(3_600.0)

    assert shard.interval(3_605.0) == SHORTEST


def test_other_tables_of_the_worker_do_not_stir_a_table() -> None:
    worker = WorkerPace(ClientConfig())
    quiet, busy = worker.table().shard(), worker.table().shard()
    quiet.nothing_came(0.0)
    quiet.interval(0.0)
    busy.records_came(100.0)

    assert quiet.interval(100.0) == pytest.approx(10 * SHORTEST)


def test_a_pause_counts_from_the_beginning_of_the_read_and_leaves_some_room_after_a_slow_one() -> None:
    backoff = ConsumerBackoff(ClientConfig(), random.Random(1), WorkerPace(ClientConfig()).table().shard())
    pauses = []
    for seconds in (0.0, 0.01, 1.0):
        backoff.read_begins(5.0)
        pauses.append(backoff.caught_up_pause(NEWS, Position("i0"), 5.0 + seconds))

    assert pauses[0] == pytest.approx(0.0147, abs=0.0004)
    assert pauses[1] == pytest.approx(0.0047, abs=0.0004)
    assert pauses[2] == pytest.approx(SHORTEST / 4)


# --- the ceiling ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("settings", "ceiling"), [({}, 400), ({"worker_idle_time_millis": 5}, 1_200)])
def test_the_ceiling_is_as_documented(settings: dict[str, int], ceiling: int) -> None:
    assert ClientConfig(**settings).reads_ceiling == ceiling
    assert ClientConfig(**settings, max_reads_per_second=7).reads_ceiling == 7
    assert ClientConfig(worker_idle_time_millis=1_000).reads_ceiling == 400


def test_four_busy_shards_are_below_the_ceiling_and_a_thousand_share_it() -> None:
    for shards, interval in ((4, SHORTEST), (1_000, 1_000 / (EARLIEST_SHARE * 400))):
        table = WorkerPace(ClientConfig()).table()
        readers = [table.shard() for _ in range(shards)]
        for reader in readers:
            reader.interval(0.0)
        assert readers[0].interval(0.0) == pytest.approx(interval, rel=0.001)


def test_no_quiet_shard_is_read_more_often_than_a_busy_one() -> None:
    """Five hundred busy shards are read every second and a half; one that has just become quiet is, too."""
    table = WorkerPace(ClientConfig()).table()
    busy = [table.shard() for _ in range(500)]
    for shard in busy:
        shard.interval(0.0)
    quiet = table.shard()
    quiet.nothing_came(0.0)
    table.stir(61.0)

    assert SHORTEST < 1.0 < quiet.interval(61.0) == pytest.approx(busy[0].interval(61.0), rel=0.1)


def test_a_shard_that_works_fails_or_ends_leaves_its_reads_to_others() -> None:
    worker = WorkerPace(ClientConfig(max_reads_per_second=100))
    table = worker.table()
    readers = [table.shard() for _ in range(3)]
    for reader in readers:
        reader.interval(0.0)
    assert worker.eager_stretch > 2
    readers[0].records_came(1.0)
    readers[1].rest()

    assert worker.eager_stretch == 1.0
    readers[2].rest()
    assert (table.eager_rate, table.quiet_rate) == (0, 0)


def test_tables_of_one_worker_share_its_ceiling_until_they_are_closed() -> None:
    worker = WorkerPace(ClientConfig(max_reads_per_second=100))
    first, second = worker.table(), worker.table()
    first.shard().interval(0.0)
    alone = worker.eager_stretch
    second.shard().interval(0.0)
    assert (alone, worker.eager_stretch) == (1.0, pytest.approx(1.48, abs=0.01))
    first.close()

    assert worker.eager_stretch == 1.0


def test_a_worker_says_by_how_much_its_reads_are_held_back() -> None:
    worker = WorkerPace(ClientConfig())
    table = worker.table()
    assert worker.report() == ""
    for _ in range(8):
        table.shard().interval(0.0)
    assert worker.report() == (
        "reads are at their ceiling of 400 a second: each shard with traffic is read every 22 ms instead of 15 ms"
    )
    for _ in range(1_000):
        silent(table.shard(), 3_600.0)
    assert worker.report().endswith(
        "quiet shards share 200 reads a second: their pauses are 6.2 times as long, up to 5.6 s"
    )


# --- fleets --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [1.0, 10.0, 100.0])
def test_records_wait_no_longer_than_with_reads_every_20_ms_whatever_their_rate(rate: float) -> None:
    """Four shards with random keys; the waits include the read."""
    fleet, seconds = Fleet(), 300.0 / rate**0.5
    fleet.run(poisson(rate, seconds, 4, random.Random(5)), seconds)

    assert median(fleet.delays) <= 0.013
    assert quantiles(fleet.delays, n=100)[-1] <= 0.020


def test_one_setting_halves_that() -> None:
    fleet = Fleet(ClientConfig(worker_idle_time_millis=5))
    fleet.run(poisson(10.0, 60.0, 4, random.Random(5)), 60.0)

    assert median(fleet.delays) <= 0.007
    assert quantiles(fleet.delays, n=100)[-1] <= 0.010


def test_the_first_record_after_ten_minutes_of_silence_comes_within_a_second() -> None:
    fleet = Fleet()
    fleet.run({"a": [700.3], "b": []}, 702.0)

    assert fleet.delays[0] <= LONGEST + READ_SECONDS + 1e-9


def test_an_hour_with_a_record_each_ten_minutes_costs_a_seventh_of_reading_every_20_ms() -> None:
    fleet = Fleet()
    fleet.run({"a": [600.0 * number for number in range(6)]}, 3_600.0)

    assert fleet.count(0, 3_600) < 3_600 / 0.02 / 7
    assert max(fleet.delays) <= 1.0


def test_a_thousand_quiet_shards_cost_two_hundred_reads_a_second_and_starve_no_busy_one() -> None:
    """Nor are they starved by four busy ones."""
    fleet = Fleet()
    quiet: dict[str, list[float]] = {f"q{number}": [] for number in range(1_000)}
    readers = fleet.worker.table()
    shards = [readers.shard() for _ in quiet]
    for shard in shards:
        silent(shard, 3_600.0)
    intervals = [shard.interval(3_601.0) for shard in shards]
    assert sum(1 / (EARLIEST_SHARE * interval) for interval in intervals) == pytest.approx(QUIET_READS_PER_SECOND)

    fleet.run(poisson(20.0, 20.0, 4, random.Random(1)), 20.0)
    assert median(fleet.delays) <= 0.02
    assert 150 <= fleet.count(5.0, 20.0) / 15.0 <= 200
    assert shards[0].interval(3_602.0) == pytest.approx(intervals[0], rel=0.01)


def test_shards_that_begin_together_do_not_stay_together() -> None:
    fleet = Fleet(ClientConfig(worker_idle_time_millis=500, max_idle_poll_interval_millis=500))
    fleet.run({f"s{number}": [] for number in range(50)}, 60.0)
    fullest = max(fleet.count(50.0 + 0.05 * part, 50.05 + 0.05 * part) for part in range(200))

    assert fullest <= 20


shards_of_all_kinds = st.lists(st.tuples(st.floats(0.0, 7_200.0), st.floats(0.0, 7_200.0)), min_size=1, max_size=40)
"""Silences of tables and of one shard in each."""


@settings(deadline=None)
@given(shards_of_all_kinds, st.integers(1, 500), st.integers(1, 1_000), st.integers(0, 5_000))
def test_no_shard_is_read_less_often_than_its_bound_nor_all_together_more_often_than_the_ceiling(
    silences: list[tuple[float, float]], ceiling: int, shortest: int, more: int
) -> None:
    config = ClientConfig(
        worker_idle_time_millis=shortest, max_idle_poll_interval_millis=shortest + more, max_reads_per_second=ceiling
    )
    worker, now = WorkerPace(config), 10_000.0
    shards = []
    for of_table, own in silences:
        table = worker.table()
        shard, other = table.shard(), table.shard()
        shard.nothing_came(now - own)
        other.records_came(now - of_table)
        shards.append((shard, of_table, own))
        shard.interval(now)
    intervals = [shard.interval(now) for shard, _, _ in shards]

    assert sum(1 / (EARLIEST_SHARE * interval) for interval in intervals) <= ceiling * 1.001
    share = min(QUIET_READS_PER_SECOND, ceiling / 2)
    stretch = max(1.0, len(shards) / (EARLIEST_SHARE * worker.shortest) / share)
    for interval, (_, of_table, own) in zip(intervals, shards, strict=True):
        silence = max(1.0, of_table / ALIVE_SECONDS, own / LONELY_SECONDS)
        bound = min(worker.longest, worker.shortest * silence)
        assert worker.shortest <= interval <= bound * stretch * 1.001


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 60), st.integers(5, 200), st.integers(0, 2**32), st.floats(0.1, 30.0))
def test_fleets_keep_their_ceiling_over_time(shards: int, ceiling: int, seed: int, rate: float) -> None:
    dice = random.Random(seed)
    fleet = Fleet(ClientConfig(max_reads_per_second=ceiling), dice)
    fleet.run(poisson(rate, 20.0, shards, dice), 20.0)

    assert fleet.count(5.0, 20.0) <= 15.0 * ceiling * 1.1 + 2 * shards


def test_a_rate_is_forgotten_exactly() -> None:
    """However often it changed: sums that drift would stretch the pauses of a worker that runs for months."""
    table, dice = WorkerPace(ClientConfig()).table(), random.Random(2)
    shards = [table.shard() for _ in range(10)]
    now = 0.0
    for _ in range(10_000):
        now += dice.random() * 10
        shard: Any = dice.choice(shards)
        dice.choice((shard.nothing_came, shard.interval, shard.records_came))(now)
    for shard in shards:
        shard.rest()

    assert (table.eager_rate, table.quiet_rate) == (0, 0)
