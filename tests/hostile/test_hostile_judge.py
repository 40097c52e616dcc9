"""The harness itself: the judge finds what must be found, the table is whole, and no answer of it is an honest one."""

from __future__ import annotations

import random
from collections.abc import Callable, Container, Iterable
from typing import Any

import pytest
from attrs import frozen

from streamclient.tablestore import TablestoreStreamApi
from streamclient.tablestore.signed_calls import SignedCalls
from streamclient.wire import schema
from tests.hostile import play
from tests.hostile.answers import PLAYS, Meeting, Wait
from tests.hostile.cases import chosen
from tests.hostile.consumers import TailConsumer
from tests.hostile.exchange import PageHistory, PageSeen, Request, Sealer
from tests.hostile.judge import LONGEST_TEXT, Act, Event, Journal, judge
from tests.hostile.scene import TABLE, Scene, SmallPages
from tests.hostile.table import (
    ANSWERS,
    CONNECTIONS,
    PLACES,
    RECORDS,
    TAIL,
    Answer,
    Case,
    Lasting,
    all_cases,
    singles,
)

WRITTEN = {1: [1, 3], 2: [2, 4]}


def given(life: str, *values: int) -> list[Event]:
    """Records of odd values have key 1, the others key 2."""
    return [Event(Act.DELIVERED, life, 2 - value % 2, value) for value in values]


STORED, SAID = Event(Act.STORED, "a"), Event(Act.SAID, text="the service does not answer")


@pytest.mark.parametrize(
    ("events", "law"),
    [
        (given("a", 1, 2, 3, 4), ""),
        ([*given("a", 1, 2), SAID, *given("b", 1, 2, 3, 4)], ""),
        ([*given("a", 1), STORED, *given("b", 2, 3, 4)], ""),
        (given("a", 1, 2, 3), "lost: value 4 of key 2"),
        (given("a", 1, 2, 3, 3, 4), "delivered twice: value 3 of key 1, to one processor"),
        ([*given("a", 1), STORED, SAID, *given("b", 1, 2, 3, 4)], "although it was stored"),
        ([*given("a", 1), *given("b", 1, 2, 3, 4)], "and nothing was said before"),
        ([SAID, *given("a", 1), *given("b", 1, 2, 3, 4)], "and nothing was said before"),
        (given("a", 3, 1, 2, 4), "out of order: value 1 of key 1 after 3"),
        ([*given("a", 3), *given("b", 1, 2, 4)], "out of order: value 1 of key 1 after 3 (all)"),
        (given("a", 1, 2, 3, 4, 5), "never written: value 5 of key 1"),
        ([*given("a", 1, 2, 3, 4), Event(Act.CRASHED, text="KeyError")], "crashed: KeyError"),
        ([*given("a", 1, 2, 3, 4), Event(Act.SAID, text=" ")], "badly said: nothing"),
        ([*given("a", 1, 2, 3, 4), Event(Act.ENDED, text="x" * (LONGEST_TEXT + 1))], "characters"),
        ([*given("a", 1, 2, 3, 4), Event(Act.SAID, text="\x1b[2J")], "control characters"),
        ([*given("a", 1, 2, 3, 4), Event(Act.SAID, text="Traceback (most recent call last)")], "a traceback"),
    ],
)
def test_the_judge_finds_each_law_that_is_broken_and_nothing_else(events: list[Event], law: str) -> None:
    found = judge(WRITTEN, events)

    assert (law in found[0]) if law else found == [], found


@frozen
class Changing:
    """A journal that hears something else than what was delivered, and of other events only some."""

    journal: Journal
    change: Callable[[int], list[int]]
    notes: Container[Act] = tuple(Act)

    def deliver(self, life: str, records: Iterable[tuple[int, int]]) -> None:
        self.journal.deliver(life, [(key, other) for key, value in records for other in self.change(value)])

    def note(self, act: Act, life: str = "", text: str = "") -> None:
        if act in self.notes:
            self.journal.note(act, life, text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.journal, name)


@pytest.mark.parametrize(
    ("change", "law"),
    [
        (lambda value: [] if value == 30 else [value], "lost: value 30"),
        (lambda value: [value, value] if value == 30 else [value], "delivered twice: value 30"),
        (lambda value: {30: [54], 54: [30]}.get(value, [value]), "out of order"),
    ],
    ids=["a loss", "a double", "a disorder"],
)
def test_a_consumer_that_breaks_a_law_is_found_out(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[int], list[int]], law: str
) -> None:
    """In a run from its beginning to its end; 30 and 54 are values of one key."""

    class Broken(TailConsumer):
        def prepare(self) -> None:
            self.journal = Changing(self.journal, change)  # type: ignore[assignment]

        @property
        def is_even(self) -> bool:
            return len(self.journal.events) >= self.scene.records - 1

    monkeypatch.setitem(play.CONSUMER_CLASSES, TAIL.name, Broken)
    found = play.play_honest(case_of("cut head")).findings

    assert any(law in text for text in found), found


def test_a_consumer_that_stands_still_and_says_nothing_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent(TailConsumer):
        def run(self) -> None:
            self.journal.deliver("a", [(0, 1)])
            self.stop_asked.wait()

    monkeypatch.setitem(play.CONSUMER_CLASSES, TAIL.name, Silent)
    found = play.play(case_of("cut head"), patience=0.1).findings

    assert "stall: and nothing is said" in found
    assert "the fault was never met" in found


def test_trouble_that_is_never_named_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    class Mute(TailConsumer):
        @property
        def trouble(self) -> str:
            return ""

        def run(self) -> None:
            self.journal = Changing(self.journal, lambda value: [value], notes=())  # type: ignore[assignment]
            super().run()

    monkeypatch.setitem(play.CONSUMER_CLASSES, TAIL.name, Mute)
    found = play.play(case_of("503", Lasting.UNTIL_NAMED), patience=0.5).findings

    # On a busy machine, this patience may end before other things that would come.
    assert "not named where people look: and nothing is said" in found


def case_of(answer: str, lasting: Lasting = Lasting.ONCE) -> Case:
    return Case(TAIL, RECORDS, named(answer), CONNECTIONS[0], lasting)


def named(answer: str) -> Answer:
    return next(one for one in ANSWERS if one.name == answer)


# --- the table --------------------------------------------------------------------------------------------------------


def test_each_answer_of_the_table_can_be_played() -> None:
    assert [answer.name for answer in ANSWERS] == list(PLAYS)


def test_pairs_are_all_shown_by_few_cases_and_the_seed_decides_which() -> None:
    cases = list(all_cases())
    few, same, other = (chosen(cases, seed) for seed in (1, 1, 2))

    assert few == same != other
    assert len(few) < len(cases) / 10
    for columns in [("answer", "place"), ("answer", "consumer"), ("place", "connection"), ("answer", "lasting")]:
        shown, all_of_them = (
            {tuple(getattr(case, column) for column in columns) for case in some} for some in (few, cases)
        )
        assert shown == all_of_them


def test_every_run_of_the_tests_plays_each_answer_and_each_place_of_each_consumer() -> None:
    cases, few = list(all_cases()), chosen(all_cases(), 1, singles)

    assert {case.answer for case in few} == set(ANSWERS)
    assert {case.place for case in few} == set(PLACES)
    assert {(case.consumer, case.place) for case in few} == {(case.consumer, case.place) for case in cases}


# --- the answers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", [one.name for one in ANSWERS])
def test_no_hostile_answer_is_the_honest_one(answer: str) -> None:
    """Each is played for the third page of a shard."""
    with SmallPages() as local:
        scene = Scene(local)
        scene.write_history()
        calls, history = SignedCalls(scene.client), PageHistory()
        api = TablestoreStreamApi(scene.client)
        stream = api.list_stream(TABLE)[0].stream_id
        pages = [page for shard in local.shards(TABLE)[:2] for page in pages_of(calls, api, stream, shard.shard_id)]
    for request, page in pages:
        history.note(page)
        last = request, page
    request, page = pages[2]
    sealer = Sealer(local.access_key_id, local.access_key_secret)
    reply = sealer.seal(request.operation, page.body)
    script = PLAYS[answer](Meeting(request, reply, page, history, sealer, random.Random(1)))
    assert last[1].list_id != page.list_id
    if answer == "page of another shard":  # the first shards were written side by side: none is older than the other
        script = PLAYS[answer](Meeting(last[0], reply, last[1], history, sealer, random.Random(1)))

    assert script is not None
    steps = first_of(script.steps)
    sent = b"".join(step for step in steps if isinstance(step, bytes))
    assert sent != reply.whole() or any(isinstance(step, Wait) for step in steps)
    assert page.body not in sent or answer in SAME_BODY


SAME_BODY = {"wrong digest", "chunk without end", "absurd chunk", "absurd length", "slow"}
"""Answers around an honest body."""


def first_of(steps: Any) -> list[bytes | Wait]:
    """As many as one needs to see."""
    return [step for step, _ in zip(steps, range(1_000), strict=False)]


def pages_of(calls: SignedCalls, api: TablestoreStreamApi, stream: str, shard: str) -> list[tuple[Request, PageSeen]]:
    found = []
    iterator = api.get_shard_iterator(stream, shard)
    while iterator:
        body = schema.GetStreamRecordRequest(shard_iterator=iterator).SerializeToString()
        request = Request("GetStreamRecord", body, is_kept=True)
        page = PageSeen.of(request, calls.call("GetStreamRecord", body, is_repeatable=True))
        assert page is not None
        found.append((request, page))
        iterator = page.following
    return found
