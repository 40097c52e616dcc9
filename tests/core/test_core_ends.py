"""How a worker tells that a shard has ended, names circles, and how many rows it looks at to create them."""

from __future__ import annotations

import math
from typing import Any

import pytest
from holdings_driver import Driver, only, row

from streamclient.base.reasons import Cause
from streamclient.core import events
from streamclient.core.shard_tree import ShardTree
from streamclient.model import Pause, Shard

A, B = Shard("a"), Shard("b")
CHILD = Shard("c", "a")


def test_rows_of_a_long_history_are_created_with_a_look_at_each_and_at_its_children(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = [0]
    may_begin = ShardTree.may_begin

    def counted(*given: Any) -> bool:
        looks[0] += 1
        return may_begin(*given)

    monkeypatch.setattr(ShardTree, "may_begin", counted)
    splits = 300
    shards = [Shard("s0")]
    for number in range(splits):
        shards += [Shard(f"s{2 * number + child}", f"s{number}") for child in (1, 2)]
    driver = Driver()
    driver.scan()
    driver.settle(driver.list_shards(*shards))

    assert driver.table.keys() == {shard.shard_id for shard in shards}
    assert len(shards) <= looks[0] <= 4 * len(shards)


# --- the worker ------------------------------------------------------------------------------------------------------


def asks(driver: Driver, key: str = "a", read_at: float = math.inf) -> list[events.Command]:
    return driver.send(events.EndRead(key, driver.holdings.held[key].identifier, read_at))


def told(commands: list[events.Command]) -> list[tuple[str, bool]]:
    return [(each.lease_key, each.is_shown) for each in only(commands, events.AnswerEnd)]


def test_a_listing_that_shows_a_child_answers_without_a_call(driver: Driver) -> None:
    driver.list_shards(A, CHILD)
    commands = asks(driver)

    assert told(commands) == [("a", True)]
    assert only(commands, events.ListShards) == []


def test_a_page_whose_read_began_before_the_end_was_known_is_read_again(driver: Driver) -> None:
    driver.list_shards(A, CHILD)
    (early,) = only(asks(driver, read_at=driver.now - 0.001), events.AnswerEnd)
    (late,) = only(asks(driver, read_at=driver.now), events.AnswerEnd)

    assert (early.is_shown, early.since_read) == (True, True)
    assert (late.is_shown, late.since_read) == (True, False)


def test_ends_that_come_during_a_listing_share_the_next_one() -> None:
    driver = Driver(row("a", checkpoint="i1"), row("b", checkpoint="i1"))
    driver.hold()
    assert len(only(asks(driver), events.ListShards)) == 1
    assert only(asks(driver, "b"), events.ListShards) == []
    first = driver.list_shards(A, B)
    assert told(first) == [("a", False)]
    assert len(only(first, events.ListShards)) == 1, "b asked after that had begun"
    second = driver.list_shards(A, B, CHILD)

    assert told(second) == [("a", True), ("b", False)], "a hears of it although it has its answer"
    assert only(second, events.ListShards) == []


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (events.Answered(events.ListShards(), error=OSError("reset")), "could not be read (OSError: reset)"),
        (events.Answered(events.ListShards(), events.ShardList(())), "shows no child of it"),
        (events.Answered(events.ListShards(), events.ShardList((A, B))), "shows no child of it"),
    ],
)
def test_nothing_is_believed_without_a_listing_that_shows_it(driver: Driver, answer: Any, why: str) -> None:
    asks(driver)
    (said,) = only(driver.send(answer), events.AnswerEnd)

    assert not said.is_shown
    assert why in said.detail


@pytest.mark.parametrize("asks_first", [True, False])
def test_what_the_program_accepts_is_believed(driver: Driver, asks_first: bool) -> None:
    if asks_first:
        asks(driver)
        driver.list_shards(A, B)
    commands = driver.send(events.EndAccepted("a"))

    assert told(commands if asks_first else asks(driver)) == [("a", True)]


@pytest.mark.parametrize("is_order", [False, True], ids=["the program", "an operator"])
def test_a_page_whose_read_began_before_the_end_was_accepted_is_read_again(driver: Driver, is_order: bool) -> None:
    """It may have been cut. The shard may have got more records afterwards, before it ended and that was accepted."""
    asks(driver, read_at=driver.now)  # its listing is under way
    driver.now += 1.0
    if is_order:
        order = Pause("o", "ann", "closed", 2_000_000_000, accepts_end=True)
        driver.table["a"] = row("a", "me", driver.table["a"].counter, checkpoint="i1", pause=order)
        driver.send(events.TakeDue())
        scan = events.Scan(tuple(driver.table.values()), wall_micros=2_000_000_000)
        commands = driver.send(events.Answered(events.ReadRows(), scan))
    else:
        commands = driver.send(events.EndAccepted("a"))
    answers = only(commands, events.AnswerEnd)
    accepted_at = driver.now
    driver.now += 1.0
    answers += only(asks(driver, read_at=accepted_at - 0.001), events.AnswerEnd)
    answers += only(asks(driver, read_at=accepted_at), events.AnswerEnd)

    assert [(answer.is_shown, answer.since_read) for answer in answers] == [(True, True), (True, True), (True, False)]


@pytest.mark.parametrize(("age_seconds", "is_accepted"), [(0, True), (600, True), (1_200, False)])
def test_an_operators_order_counts_for_a_while(driver: Driver, age_seconds: int, is_accepted: bool) -> None:
    asks(driver)
    driver.list_shards(A, B)
    order = Pause("o", "ann", "closed", 2_000_000_000 - age_seconds * 1_000_000, accepts_end=True)
    driver.table["a"] = row("a", "me", driver.table["a"].counter, checkpoint="i1", pause=order)
    driver.send(events.TakeDue())
    rows = tuple(driver.table.values())
    commands = driver.send(events.Answered(events.ReadRows(), events.Scan(rows, wall_micros=2_000_000_000)))

    assert told(commands) == ([("a", True)] if is_accepted else [])
    assert driver.said("a") == "", "it holds nothing"


def test_a_finished_shard_whose_children_are_listed_asks_for_no_listing(driver: Driver) -> None:
    driver.list_shards(A, CHILD)
    assert only(driver.settle(driver.checkpoint("a", "SHARD_END")), events.ListShards) == []


def test_shards_in_a_circle_are_named() -> None:
    driver = Driver(row("a", parent_shard_ids=frozenset("b")), row("b", parent_shard_ids=frozenset("a")))
    driver.hold()
    commands = driver.list_shards(Shard("a", "b"), Shard("b", "a"), Shard("c"))

    assert list(driver.holdings.circles) == [("a", "b")]
    assert driver.holdings.held["a"].reason is not None
    assert driver.holdings.held["a"].reason.cause is Cause.PARENT_CIRCLE
    assert "are each other's parents" in only(commands, events.Report)[0].text
