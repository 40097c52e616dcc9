"""Exchanges of finished leases for unfinished ones: work becomes even, counts stay so, and then nothing moves."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from balancing_fleet import DURATION_SECONDS, Fleet
from holdings_driver import Driver, row, scanned, writes
from hypothesis import given, settings
from hypothesis import strategies as st

from streamclient.core import events, leases
from streamclient.core.leases import LeaseWrite
from streamclient.core.plan.beside_java import missing_moves
from streamclient.core.write_rules import WriteKind, WriteOutcome

QUIET_ROUNDS = 60
"""Three lease durations. Whatever a worker remembers of others is forgotten after one, and with stale views a worker
acts in every other round only, by chance: then 30 rounds without a move were seen before the next one came."""
ROUNDS_MAX = 200
"""Within 70 a thousand fleets were quiet; a chance that decides against somebody for long is no failure."""

Round = Callable[[Fleet], None]
IN_TURN, ON_SAME_VIEW, ON_STALE_VIEWS = Fleet.round_in_turn, Fleet.round_on_same_view, Fleet.round_on_stale_views


def spread(numbers: list[int]) -> int:
    return max(numbers) - min(numbers)


def state(fleet: Fleet) -> list[tuple[str, str]]:
    return [(lease.owner, lease.stealer) for lease in fleet.table.values()]


def run_until_quiet(fleet: Fleet, play: Round) -> None:
    """Play rounds until nothing moved for long; fails if that takes too long."""
    quiet = 0
    for _ in range(ROUNDS_MAX + QUIET_ROUNDS):
        before = state(fleet)
        play(fleet)
        quiet = quiet + 1 if state(fleet) == before else 0
        if quiet == QUIET_ROUNDS:
            return
    raise AssertionError(f"still moving: {state(fleet)}")


# --- one pass --------------------------------------------------------------------------------------------------------


def test_worked_example_of_the_documentation() -> None:
    fleet = Fleet("AAAA", "BBB", workers="AB")
    first = fleet.plan("B")
    assert [move.row.owner for move in first.marks] == ["A"]
    assert [gift.receiver for gift in first.transfers] == ["A"]
    run_until_quiet(fleet, IN_TURN)

    assert (sorted(fleet.counts()), fleet.unread()) == ([3, 4], [2, 2])


PASSES: dict[str, tuple[Fleet, str, int, list[str]]] = {
    "a swap marks at most a third of the difference": (Fleet("A" * 14, "B" * 10 + "C", workers="ABC"), "B", 5, []),
    "between even counts one is marked, and the next prepared": (
        Fleet("A" * 12, "B" * 12, workers="AB"),
        "B",
        1,
        ["A"],
    ),
    "nothing is swapped for a difference of one": (Fleet("AAB", "B", workers="AB"), "B", 0, []),
    "a worker without finished leases swaps nothing": (Fleet("AAAAABBB", "C", workers="ABC"), "B", 0, []),
    # A Java worker in its place would be short by two, and steal in its turn; it gets the finished lease first.
    "no swap asks a worker below the target": (Fleet("AAA", "BBBB", workers="AB"), "B", 0, ["A"]),
    "a worker above the target gives finished leases to the short one": (
        Fleet("AB", "A" * 6, workers="AB"),
        "A",
        0,
        ["B"] * 3,
    ),
    "a worker with less work gets no finished leases": (Fleet("AAAAA", "AAAAB", workers="AB"), "A", 0, []),
    "a worker with less work asks for unfinished leases": (Fleet("AAAAA", "AAAAB", workers="AB"), "B", 2, []),
}


@pytest.mark.parametrize(("fleet", "worker", "marks", "receivers"), PASSES.values(), ids=PASSES)
def test_one_pass_of_one_worker(fleet: Fleet, worker: str, marks: int, receivers: list[str]) -> None:
    plan = fleet.plan(worker)
    assert (len(plan.marks), [gift.receiver for gift in plan.transfers]) == (marks, receivers)


def test_finished_lease_follows_when_the_unfinished_one_arrives_and_not_before() -> None:
    """If the owner died meanwhile, nothing was given for nothing."""
    fleet = Fleet("AA", "BB", workers="AB")
    fleet.follow("B", fleet.plan("B"))
    fleet.scan("B")
    assert fleet.plan("B").transfers == ()
    fleet.serve("A")
    fleet.scan("B")
    arrived = fleet.plan("B")

    assert len(arrived.takes) == 1
    assert [gift.receiver for gift in arrived.transfers] == ["A"]


def test_lease_that_did_not_arrive_yet_is_not_paid_for_to_a_third_worker() -> None:
    marked = 0
    for seed in range(10):
        fleet = Fleet("AAAC", "BBBC", workers="ABC", seed=seed)
        fleet.follow("B", fleet.plan("B"))
        fleet.scan("B")
        marked += any(lease.stealer == "B" for lease in fleet.table.values())

        assert [gift.receiver for gift in fleet.plan("B").transfers if gift.receiver == "C"] == []
    assert marked > 1


def test_worker_that_was_asked_for_a_lease_counts_as_before_until_it_hands_it_over() -> None:
    """The gift goes to the worker that is really short."""
    plans = [Fleet("AAAC", "BBBBC", workers="ABC", seed=seed).plan("B") for seed in range(10)]
    swapping = [plan for plan in plans if plan.marks]
    assert len(swapping) > 1

    assert [[gift.receiver for gift in plan.transfers] for plan in swapping] == [["C"]] * len(swapping)


def test_last_lease_is_not_given_away() -> None:
    """A worker without leases is seen by nobody, and the target would change."""
    plans = [Fleet("AA", "BCCCC", workers="ABC", seed=seed).plan("B") for seed in range(10)]
    assert [plan.transfers for plan in plans] == [()] * 10


def test_child_that_waits_for_its_parents_is_not_swapped() -> None:
    fleet = Fleet("AAAA", "BBBB", workers="AB")
    parents = {"u00", "u01"}
    for key in ("u02", "u03"):
        fleet.table[key] = row(key, "A", 2, parent_shard_ids=parents)
    fleet.scan("B")

    assert {move.row.lease_key for _ in range(10) for move in fleet.plan("B").marks} <= parents


def test_worker_is_not_asked_for_a_lease_before_it_has_the_one_that_was_handed_to_it() -> None:
    """Java counts a lease in transit for nobody: the owner would be short, and steal in its turn."""
    fleet = Fleet("AAAB", "CCC", workers="ABC")
    assert len(fleet.plan("B").marks) == 1
    fleet.table["u00"] = row("u00", "A", 3, stealer="A")
    fleet.scan("B")

    assert fleet.plan("B").marks == ()


def test_finished_leases_go_to_no_worker_that_gave_no_sign_of_life_lately() -> None:
    fleet = Fleet("AB", "AAAAAA", workers="AB")
    view = fleet.views["A"]
    fleet.now += DURATION_SECONDS + 1
    for lease in [lease for lease in fleet.table.values() if lease.owner == "A"]:
        fleet.write("A", leases.renew(lease))
    view.note(row("u01", "B", 3, stealer="B"), fleet.now)

    assert fleet.plan("A").transfers == ()


def test_finished_leases_go_to_no_worker_that_is_stopping() -> None:
    fleet = Fleet("ABBCC", "AAAAAA", workers="ABC")
    fleet.table["u01"] = row("u01", "C", 3, stealer="C")
    fleet.scan("A")

    assert {gift.receiver for gift in fleet.plan("A").transfers} == {"C"}


def test_worker_that_joins_late_gets_unfinished_leases_even_if_finished_ones_fill_its_share() -> None:
    """The free rows are all finished, and enough for everybody's count to be even."""
    fleet = Fleet("AAABBB", "", workers="ABC")
    fleet.table |= {f"f{n}": row(f"f{n}", checkpoint="SHARD_END") for n in range(3)}
    run_until_quiet(fleet, IN_TURN)

    assert (fleet.counts(), fleet.unread()) == ([3, 3, 3], [2, 2, 2])


def test_workers_below_the_target_even_out_their_work_while_a_java_worker_sits_on_finished_leases() -> None:
    fleet = Fleet("AAAAAB", "J" * 12, workers="AB", javas="J")
    run_until_quiet(fleet, IN_TURN)
    assert fleet.unread() == [3, 3]


def test_if_more_workers_could_act_than_moves_are_missing_each_acts_by_chance() -> None:
    """All see the same at once; without that, ten workers would take ten leases from one that has two too many."""
    marked = 0
    for seed in range(50):
        fleet = Fleet("A" * 3 + "BCDEFGHIJK", "BCDEFGHIJKBCDEFGHIJKAAAAAAAAAAA"[:20], workers="ABCDEFGHIJK", seed=seed)
        marked += sum(len(fleet.plan(name).marks) for name in fleet.workers if name != "A")

    assert 0 < marked / 50 < 4


def test_if_more_workers_could_give_than_leases_are_missing_each_gives_by_chance() -> None:
    """One worker is short by two, ten have one to spare; two gifts would be enough."""
    given = 0
    for seed in range(50):
        fleet = Fleet("ABCDEFGHIJK", "A" + "BCDEFGHIJK" * 3, workers="ABCDEFGHIJK", seed=seed)
        given += sum(len(fleet.plan(name).transfers) for name in fleet.workers)

    assert 0 < given / 50 < 3


# --- fleets ----------------------------------------------------------------------------------------------------------

NAMES = "ABCD"
owners = st.lists(st.sampled_from(NAMES), max_size=12)
seeds = st.integers(0, 10_000)


def fleet_of(unread: list[str], finished: list[str], seed: int, javas: str = "") -> Fleet:
    """Everybody has a finished lease at least, since a worker without any lease is seen by nobody."""
    workers = NAMES[: len(NAMES) - len(javas)]
    return Fleet(unread, [*NAMES, *finished], workers=workers, javas=NAMES[len(workers) :], seed=seed)


@pytest.mark.slow
@settings(deadline=None, max_examples=25)
@pytest.mark.parametrize("play", [IN_TURN, ON_SAME_VIEW, ON_STALE_VIEWS])
@given(owners, owners, seeds)
def test_counts_and_work_become_even_and_then_nothing_moves(
    play: Round, unread: list[str], finished: list[str], seed: int
) -> None:
    fleet = fleet_of(unread, finished, seed)
    run_until_quiet(fleet, play)

    assert spread(fleet.counts()) <= 1
    assert spread(fleet.unread()) <= 1


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(owners, owners, seeds)
def test_no_more_unfinished_leases_move_than_it_takes(unread: list[str], finished: list[str], seed: int) -> None:
    """Each move makes work or counts more even; two more are allowed for what was decided at the same time."""
    fleet = fleet_of(unread, finished, seed)
    needed = missing_moves(fleet.unread()) + missing_moves(fleet.counts())
    run_until_quiet(fleet, IN_TURN)

    assert fleet.unread_moves() <= needed + 2


@pytest.mark.slow
@settings(deadline=None, max_examples=25)
@pytest.mark.parametrize("play", [IN_TURN, ON_SAME_VIEW, ON_STALE_VIEWS])
@pytest.mark.parametrize("javas", ["D", "CD"])
@given(owners, owners, seeds)
def test_work_becomes_even_beside_java_workers_and_then_nothing_moves(
    javas: str, play: Round, unread: list[str], finished: list[str], seed: int
) -> None:
    fleet = fleet_of(unread, finished, seed, javas)
    run_until_quiet(fleet, play)
    assert spread(fleet.unread()) <= 1


@pytest.mark.slow
@settings(deadline=None, max_examples=30)
@given(st.integers(1, 4), st.integers(1, 4), seeds)
def test_swaps_do_not_make_a_java_worker_steal(java_leases: int, extra: int, seed: int) -> None:
    """Counts are even; all unfinished leases are Java's, so whatever moves, moves by swaps."""
    fleet = Fleet(
        "J" * java_leases, "A" * java_leases + "B" * (java_leases - extra % 2), workers="AB", javas="J", seed=seed
    )
    for _ in range(ROUNDS_MAX):
        fleet.round_in_turn()
        if fleet.java_marks:
            break

    assert fleet.java_marks == 0
    assert spread(fleet.counts()) <= 1


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6))
def test_missing_moves_is_what_it_takes_to_make_numbers_even(numbers: list[int]) -> None:
    values, moves = list(numbers), 0
    while spread(values) > 1:
        values[values.index(max(values))] -= 1
        values[values.index(min(values))] += 1
        moves += 1

    assert missing_moves(numbers) == moves


# --- in Holdings -----------------------------------------------------------------------------------------------------


def driver_of(finished: int, unread: int) -> Driver:
    """Holds finished leases and reads nothing; its neighbour is alive and reads all the rest."""
    own = (row(f"f{number}", "me", 1, checkpoint="SHARD_END") for number in range(finished))
    driver = Driver(*own, *(row(f"u{number}", "other", 1) for number in range(unread)))
    driver.hold()
    wait(driver)
    return driver


def wait(driver: Driver) -> None:
    """Until the next scan; everybody renews."""
    driver.now += 6
    driver.others_renew()
    driver.settle(driver.renew())


def moves(driver: Driver) -> list[LeaseWrite]:
    """What the next scan makes it send."""
    return writes(driver.scan())


def test_gift_is_an_ordinary_transfer() -> None:
    driver = driver_of(finished=4, unread=1)
    (write,) = moves(driver)
    driver.answer(write)

    assert driver.table[write.lease_key] == row(write.lease_key, "other", 4, stealer="other", checkpoint="SHARD_END")
    assert write.lease_key not in driver.holdings.held


def test_gift_of_unknown_fate_that_was_not_applied_stays_and_is_given_later() -> None:
    driver = driver_of(finished=4, unread=1)
    (write,) = moves(driver)
    driver.answer(write, WriteOutcome.UNCERTAIN)
    assert moves(driver) == []
    driver.settle(driver.read_back(write.lease_key))
    assert len(driver.holdings.held) == 4
    wait(driver)

    assert [(write.kind, write.result and write.result.owner) for write in moves(driver)] == [
        (WriteKind.TRANSFER, "other")
    ]


def test_gift_waits_for_the_write_that_is_under_way() -> None:
    driver = driver_of(finished=4, unread=1)
    driver.now += 6
    driver.others_renew()
    assert len(writes(driver.renew())) == 4

    assert moves(driver) == []


def test_gift_and_take_of_a_swap_go_out_together_the_gift_first() -> None:
    """No scan of a Java worker shall find this one with more than its share."""
    driver = driver_of(finished=2, unread=2)
    (mark,) = moves(driver)
    assert mark.kind is WriteKind.STEAL
    driver.answer(mark)
    driver.land(leases.transfer(driver.table[mark.lease_key], "me"))
    wait(driver)

    assert [write.kind for write in moves(driver)] == [WriteKind.TRANSFER, WriteKind.TAKE]


def test_gift_waits_for_the_pause_after_failures() -> None:
    driver = driver_of(finished=4, unread=1)
    (write,) = moves(driver)
    for _ in range(2):
        driver.answer(write, WriteOutcome.UNCERTAIN)
        (write, *_) = writes(driver.read_back(write.lease_key)) or [write]

    assert moves(driver) == []


def test_only_a_scan_that_was_due_exchanges_leases() -> None:
    """Other scans come in bursts; what a pass may move at most is meant per interval."""
    driver = driver_of(finished=4, unread=1)
    assert writes(driver.send(scanned(tuple(driver.table.values())))) == []
    assert len(moves(driver)) == 1


def test_stopping_worker_exchanges_nothing() -> None:
    driver = driver_of(finished=2, unread=2)
    driver.send(events.StopRequested())
    assert [write for write in moves(driver) if write.kind is WriteKind.STEAL] == []
