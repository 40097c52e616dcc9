"""Rules of fault injection: which requests a rule harms. Pure, without a server."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamclient.server.fault_json import rule_from_json, rule_to_json
from streamclient.server.fault_rules import (
    MAX_RULES,
    NO_HARM,
    Cut,
    Fail,
    FailRows,
    FaultBook,
    FaultRule,
    Harm,
    LateAnswer,
    Latency,
    LoseAnswer,
)

BUSY = Fail("OTSServerBusy")


def struck(rule: FaultRule, requests: int, operation: str = "PutRow", tables: tuple[str, ...] = ("t",)) -> list[int]:
    book = FaultBook()
    book.add(rule)
    return [index for index in range(requests) if book.harm(operation, tables) != NO_HARM]


def test_without_rules_nothing_is_harmed() -> None:
    assert FaultBook().harm("PutRow", ("t",)) == NO_HARM


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (FaultRule("PutRow", BUSY), [0, 1, 2, 3, 4, 5, 6, 7]),
        (FaultRule("PutRow", BUSY, times=2), [0, 1]),
        (FaultRule("PutRow", BUSY, after=3), [3, 4, 5, 6, 7]),
        (FaultRule("PutRow", BUSY, every=3), [0, 3, 6]),
        (FaultRule("PutRow", BUSY, after=1, every=3, times=2), [1, 4]),
        (FaultRule("*", BUSY, probability=1), [0, 1, 2, 3, 4, 5, 6, 7]),
    ],
)
def test_a_rule_strikes_on_its_schedule(rule: FaultRule, expected: list[int]) -> None:
    assert struck(rule, 8) == expected


def test_requests_that_do_not_match_are_not_counted() -> None:
    book = FaultBook()
    book.add(FaultRule("PutRow", BUSY, after=1, times=1))
    asked = ["PutRow", "GetRow", "GetRow", "PutRow", "PutRow"]

    harmed = [book.harm(operation, ("t",)) != NO_HARM for operation in asked]

    assert harmed == [False, False, False, True, False]
    assert [(status.seen, status.struck) for status in book.rules()] == [(3, 1)]


@pytest.mark.parametrize(
    ("pattern", "table", "operation", "tables", "matches"),
    [
        ("*", None, "ListTable", (), True),
        ("*Row", None, "BatchWriteRow", ("t",), True),
        ("Get*", None, "PutRow", ("t",), False),
        ("getrow", None, "GetRow", ("t",), False),
        ("*", "orders", "GetRow", ("orders",), True),
        ("*", "orders", "GetRow", ("status",), False),
        ("*", "order*", "BatchWriteRow", ("status", "orders"), True),
        ("*", "*", "ListTable", (), False),
    ],
)
def test_a_rule_matches_by_patterns(
    pattern: str, table: str | None, operation: str, tables: tuple[str, ...], matches: bool
) -> None:
    assert FaultRule(pattern, BUSY, table=table).matches(operation, tables) is matches


def test_row_failures_concern_batches_only() -> None:
    rule = FaultRule("*", FailRows(rows=(0,)))

    assert rule.matches("BatchWriteRow", ("t",))
    assert rule.matches("BatchGetRow", ("t",))
    assert not rule.matches("PutRow", ("t",))


def test_latencies_add_up_and_the_first_other_fault_decides() -> None:
    book = FaultBook()
    for action in (Latency(1.0), Latency(0.5), BUSY, Cut(), Latency(4.0)):
        book.add(FaultRule("*", action))

    assert book.harm("PutRow", ("t",)) == Harm(1.5, BUSY)
    assert [status.struck for status in book.rules()] == [1, 1, 1, 0, 0]


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 2**32), probability=st.floats(0.05, 0.95))
def test_equal_seeds_strike_equal_requests(seed: int, probability: float) -> None:
    rule = FaultRule("*", BUSY, probability=probability, seed=seed)

    assert struck(rule, 50) == struck(rule, 50)


def test_probability_is_about_that_share_of_the_requests() -> None:
    assert 200 < len(struck(FaultRule("*", BUSY, probability=0.25, seed=7), 1000)) < 300


def test_a_removed_rule_harms_nothing() -> None:
    book = FaultBook()
    first, second = book.add(FaultRule("*", BUSY)), book.add(FaultRule("*", Cut()))

    assert book.remove(first)
    assert not book.remove(first)
    assert book.harm("PutRow", ()) == Harm(0.0, Cut())
    assert book.clear() == 1
    assert book.harm("PutRow", ()) == NO_HARM
    assert book.add(FaultRule("*", BUSY)) > second


def test_the_number_of_rules_is_bounded() -> None:
    book = FaultBook()
    for _ in range(MAX_RULES):
        book.add(FaultRule("*", BUSY))

    with pytest.raises(ValueError, match="clear them first"):
        book.add(FaultRule("*", BUSY))


@pytest.mark.parametrize(
    ("action", "harmed"),
    [(FailRows(rows=(1, 4)), [1, 4]), (FailRows(every=3), [2, 5]), (FailRows(rows=(0,), every=4), [0, 3])],
)
def test_failing_rows_are_counted_over_the_batch(action: FailRows, harmed: list[int]) -> None:
    assert [position for position in range(7) if action.harms(position)] == harmed


@pytest.mark.parametrize(
    "make",
    [
        lambda: FaultRule("", BUSY),
        lambda: FaultRule("*", "cut"),  # type: ignore[arg-type]
        lambda: FaultRule("*", BUSY, times=0),
        lambda: FaultRule("*", BUSY, after=-1),
        lambda: FaultRule("*", BUSY, every=0),
        lambda: FaultRule("*", BUSY, probability=0.0),
        lambda: FaultRule("*", BUSY, probability=1.5),
        lambda: FaultRule("*", BUSY, table=""),
        lambda: Latency(-1),
        lambda: Latency(float("nan")),
        lambda: Latency(1e9),
        lambda: LateAnswer("soon"),  # type: ignore[arg-type]
        lambda: Fail(""),
        lambda: Fail("OTSServerBusy", http_status=200),
        FailRows,
        lambda: FailRows(rows=(-1,)),
        lambda: FailRows(every=0),
    ],
)
def test_a_rule_that_cannot_work_is_refused(make: Any) -> None:
    with pytest.raises(ValueError, match=r"not|needs"):
        make()


actions = st.one_of(
    st.builds(Latency, st.floats(0, 3600)),
    st.builds(Fail, st.text(min_size=1), st.none() | st.text(min_size=1), st.none() | st.integers(400, 599)),
    st.builds(Cut),
    st.builds(LoseAnswer, st.floats(0, 3600)),
    st.builds(LateAnswer, st.floats(0, 3600)),
    st.builds(FailRows, st.lists(st.integers(0, 200), min_size=1), st.none() | st.integers(1, 9)),
)
rules = st.builds(
    FaultRule,
    st.text(min_size=1),
    actions,
    table=st.none() | st.text(min_size=1),
    times=st.none() | st.integers(1, 99),
    after=st.integers(0, 99),
    every=st.integers(1, 99),
    probability=st.none() | st.floats(0.01, 1),
    seed=st.integers(),
)


@settings(deadline=None, max_examples=100)
@given(rules)
def test_a_rule_survives_the_way_through_json(rule: FaultRule) -> None:
    assert rule_from_json(rule_to_json(rule)) == rule


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({}, "action must be an object"),
        ({"action": {"kind": "explode"}}, "action kind must be one of latency, fail"),
        ({"action": {"kind": "latency"}}, "action latency needs seconds"),
        ({"action": {"kind": "cut", "seconds": 1}}, "action cut has no seconds"),
        ({"action": {"kind": "cut"}, "time": 3}, "fault rule has no time"),
        ({"action": {"kind": "fail-rows", "rows": 3}}, "rows must be row positions"),
    ],
)
def test_json_that_is_no_rule_is_refused_by_name(content: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        rule_from_json(content)


def test_the_operation_of_a_json_rule_defaults_to_all() -> None:
    assert rule_from_json({"action": {"kind": "cut"}}) == FaultRule("*", Cut())
