"""The document of a history: against its types, against the trace, and small enough for a page."""

from __future__ import annotations

import json
import types
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

import pytest

from streamclient.testing import Faults, StreamSimulation
from streamclient.testing.history import LawBroken
from streamclient.testing.simulation.drawing import Size, draw_plan
from streamclient.testing.simulation.fleet_history import TOLD_BY_THE_ROW, fleet_history
from streamclient.testing.simulation.history_document import (
    Event,
    HistoryDocument,
    chosen_events,
    records_of,
)
from streamclient.testing.simulation.kernel import Entry
from streamclient.testing.simulation.runner import HistoryVerdict, play_plan, run_plan
from streamclient.testing.simulation.simulated_faults import Do
from streamclient.testing.simulation.trials.trial import Trial
from streamclient.testing.simulation.trials.trial_history import FAULTS, trial_history
from streamclient.testing.simulation.trials.trial_settings import TrialSettings
from streamclient.testing.simulation.world import SimulatedWorld
from tests.simulation.mutations import MUTATIONS
from tests.simulation.test_stream_simulation import SMALL, Sink, Stubborn

Played = tuple[SimulatedWorld, HistoryVerdict, HistoryDocument]


def played(seed: int, size: Size | None = None) -> Played:
    world, verdict = play_plan(draw_plan(seed, size))
    assert isinstance(world, SimulatedWorld)
    return world, verdict, fleet_history(world, verdict)


@pytest.fixture(scope="module")
def nine() -> Played:
    """Seed 9: splits, kills, freezes, and workers of both clients."""
    return played(9)


def fits(value: object, kind: Any) -> bool:
    """Return whether a value of JSON has a type of a document."""
    origin, inner = get_origin(kind), get_args(kind)
    if is_typeddict(kind):
        hints = get_type_hints(kind)
        return isinstance(value, dict) and value.keys() == hints.keys() and all(fits(value[n], hints[n]) for n in hints)
    if origin is Literal:
        return value in inner
    if origin in (Union, types.UnionType):
        return any(fits(value, each) for each in inner)
    if origin is list:
        return isinstance(value, list) and all(fits(each, inner[0]) for each in value)
    if origin is tuple:
        return isinstance(value, list) and len(value) == len(inner) and all(map(fits, value, inner))
    number = (int, float) if kind is float else kind
    return isinstance(value, number) and not isinstance(value, bool)


def as_read(document: HistoryDocument) -> Any:
    return json.loads(json.dumps(document))


# --- fleets ----------------------------------------------------------------------------------------------------------


def test_a_document_has_the_declared_types(nine: Played) -> None:
    document = as_read(nine[2])

    assert fits(document, HistoryDocument)
    assert not fits({**document, "seconds": "510"}, HistoryDocument)
    assert not fits({**document, "more": 1}, HistoryDocument)


@pytest.mark.slow
def test_the_document_tells_the_digest_of_the_command_and_does_not_change_the_history(nine: Played) -> None:
    assert nine[2]["digest"] == run_plan(draw_plan(9)).digest


def test_every_entry_of_the_trace_is_an_event_but_for_answers_that_a_row_tells(nine: Played) -> None:
    world, _, document = nine
    expected = [entry for entry in world.trace.entries if entry[2] != TOLD_BY_THE_ROW]
    events = document["events"]

    assert document["events_left_out"] == 0
    assert [(who, shard) for _, who, _, shard, _ in events] == [(who, shard) for _, who, _, shard, _ in expected]
    assert [event[0] for event in events] == pytest.approx([entry[0] for entry in expected], abs=0.006)
    assert {kind for _, _, kind, _, _ in events} == {"fault", "owner", "trouble", "position"}


KINDS: dict[str, Callable[[Entry], bool]] = {
    "fault": lambda entry: entry[1] == "outside" or entry[2] in ("starts", "has stopped"),
    "position": lambda entry: entry[2] in ("checkpoint", "prepare"),
    "trouble": lambda entry: entry[2] in ("warning", "error", "lease_lost", "unknown", "rejected"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_event_has_the_kind_by_which_it_is_looked_for(kind: str, nine: Played) -> None:
    world, _, document = nine
    expected = [entry for entry in world.trace.entries if KINDS[kind](entry)]

    assert len([event for event in document["events"] if event[2] == kind]) == len(expected) > 0


def test_lives_are_those_of_the_plan_with_their_ends(nine: Played) -> None:
    world, _, document = nine
    starts = Counter(who for _, who, what, *_ in world.trace.entries if what == "starts")
    killed = [life for life in document["lives"] if life["manner"] == "killed"]

    assert Counter(life["label"] for life in document["lives"]) == starts
    assert len(killed) >= world.injected[Do.CRASH.value] > 0
    assert all(life["ended"] is not None and life["started"] <= life["ended"] for life in killed)
    assert sum(len(life["frozen"]) for life in document["lives"]) == world.injected[Do.FREEZE.value] > 0
    assert {life["client"] for life in document["lives"]} == {"python", "java"}


def test_shards_have_every_record_that_was_written(nine: Played) -> None:
    world, _, document = nine
    for entry in document["shards"]:
        shard = world.stream.shards[entry["shard"]]
        counts = Counter(shard.times)
        first = entry["first_write"]
        told = {document["writes"][first + place]: int(digit) for place, digit in enumerate(entry["records"])}
        assert {at: count for at, count in told.items() if count} == {round(at, 2): n for at, n in counts.items()}
        assert (entry["closed"] is None) == shard.is_open
    assert {parent for entry in document["shards"] for parent in entry["parents"]} == {
        entry["shard"] for entry in document["shards"] if entry["closed"] is not None
    }


def test_owners_and_positions_at_the_end_are_those_of_the_table(nine: Played) -> None:
    world, _, document = nine
    end = document["seconds"]
    owners = {shard: who for shard, who, _, to, how in document["spans"] if how == "owns" and to == end}
    stored = {shard: place for _, shard, place in document["checkpoints"]}

    assert owners == {key: row.owner for key, row in world.table.rows.items() if row.owner}
    for key, row in world.table.rows.items():
        assert stored[key] == (None if row.is_finished else int(row.checkpoint.split(":")[0]))


def test_spans_of_a_shard_have_one_owner_at_a_time_and_readers_live(nine: Played) -> None:
    spans = nine[2]["spans"]
    ends = {life["label"]: life["ended"] for life in nine[2]["lives"]}
    for shard in {span[0] for span in spans}:
        times = [time for span in spans if span[0] == shard and span[4] == "owns" for time in span[2:4]]
        assert times == sorted(times)
    readers = [span for span in spans if span[4] == "reads"]

    assert {what for _, _, what, *_ in nine[0].trace.entries if what == "starts to read"}
    assert len(readers) == nine[0].counts["started"]
    assert all(ends[label] is None or to <= ends[label] for _, label, _, to, _ in readers)


def test_a_split_names_the_shards_that_it_concerns(nine: Played) -> None:
    splits = [fault["text"] for fault in nine[2]["faults"] if fault["kind"] == "split"]

    assert any(text.startswith("split s0") and text.count(" s0") == 3 for text in splits)


def test_a_broken_law_stands_in_the_document_with_its_moment() -> None:
    (mutation,) = (each for each in MUTATIONS if each.name == "a checkpoint is answered before it is stored")
    with mutation.applied():
        _, verdict, document = played(0)
    violation = document["violation"]

    assert violation is not None
    assert verdict.violation is not None
    assert (violation["law"], violation["at"]) == ("answers are true", verdict.violation.at)
    assert violation["at"] == pytest.approx(document["seconds"], abs=0.01)
    assert document["calm"] is None


@pytest.mark.slow
def test_the_document_of_a_fleet_of_full_size_stays_small() -> None:
    document = played(9, Size.FULL)[2]

    assert len(document["shards"]) >= 200
    assert len({life["worker"] for life in document["lives"]}) >= 20
    assert len(json.dumps(document, separators=(",", ":"))) < 460_000  # the page itself has 40 kB


# --- trials ----------------------------------------------------------------------------------------------------------


def trial(make: Any = Sink, **more: Any) -> tuple[Trial, LawBroken | None]:
    kept: dict[str, list[int]] = {}
    settings = TrialSettings(make_processor=lambda: make(kept), **{**SMALL, **more})
    played = Trial(settings, 3)
    try:
        played.run()
    except LawBroken as failed:
        return played, failed
    return played, None


@pytest.mark.slow
def test_the_history_of_a_trial_has_the_same_form() -> None:
    played, failed = trial(faults=[Faults.crash(2), Faults.stop(), Faults.split(), Faults.merge()])
    document = trial_history(played, failed)

    assert fits(as_read(document), HistoryDocument)
    assert document["violation"] is None
    assert {fault["kind"] for fault in document["faults"]} <= {*FAULTS.values()}
    assert sum(map(int, "".join(shard["records"] for shard in document["shards"]))) == SMALL["records"]
    assert [life["manner"] for life in document["lives"]].count("killed") == 2
    assert {life["manner"] for life in document["lives"]} == {"killed", "stopped"}
    assert Counter(fault["kind"] for fault in document["faults"])["split"] == 1
    stored = {shard: place for _, shard, place in document["checkpoints"]}
    written = {shard["shard"]: sum(map(int, shard["records"])) for shard in document["shards"]}
    assert {shard: stored[shard] for shard in written} == {
        shard["shard"]: None if shard["closed"] is not None else written[shard["shard"]] for shard in document["shards"]
    }


@pytest.mark.slow
def test_the_keys_of_open_shards_of_a_trial_do_not_overlap() -> None:
    document = trial_history(*trial(faults=[Faults.split(4), Faults.merge(2)]))
    opened = sorted((shard["low"], shard["high"]) for shard in document["shards"] if shard["closed"] is None)

    assert len(opened) == SMALL["shards"] + 4 - 2
    assert all(left[1] <= right[0] for left, right in pairwise(opened))


@pytest.mark.slow
def test_a_failing_trial_tells_its_law_and_its_troubles() -> None:
    document = trial_history(*trial(Stubborn))

    assert document["violation"] is not None
    assert document["violation"]["law"] == "nothing is lost"
    assert any(kind == "trouble" and "the disk is full" in text for _, _, kind, _, text in document["events"])


@pytest.mark.slow
def test_a_simulation_keeps_the_history_of_a_seed_that_fails_and_of_no_other() -> None:
    histories: list[HistoryDocument] = []

    def keep(history: HistoryDocument) -> str:
        histories.append(history)
        return "its page: somewhere"

    simulation = StreamSimulation(keep_history=keep)
    simulation.run(lambda: Sink({}), **SMALL, seeds=1)
    with pytest.raises(AssertionError, match=r"--simulation-seed 1 -s\nits page: somewhere$"):
        simulation.run(lambda: Stubborn({}), **SMALL, seeds=[1])

    assert [history["seed"] for history in histories] == [1]


# --- choosing --------------------------------------------------------------------------------------------------------


def test_of_too_many_events_the_most_important_kinds_stay_then_the_last() -> None:
    events: list[Event] = [(0.0, "w", "position", "", ""), (1.0, "w", "owner", "", ""), (2.0, "w", "trouble", "", "")]
    events += [(3.0, "w", "owner", "", ""), (4.0, "w", "fault", "", ""), (5.0, "w", "position", "", "")]

    assert [event[0] for event in chosen_events(events, 3)] == [2.0, 3.0, 4.0]
    assert chosen_events(events, 6) == events


def test_records_are_digits_from_the_first_write_on() -> None:
    assert records_of([2.0, 2.0, 5.0], {1.0: 0, 2.0: 1, 4.0: 2, 5.0: 3, 6.0: 4}) == (1, "201")
    assert records_of([], {1.0: 0}) == (0, "")
