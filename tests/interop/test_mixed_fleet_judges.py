"""The judges of a mixed fleet find what they look for."""

from __future__ import annotations

import time

from mixed_fleet import RowChange, Span, counter_jumps, overlaps, spans, without_lease

from streamclient.model import Lease
from streamclient.records import RecordType

HELD = Lease("s", "stream", owner="a", counter=7)


def change(before: Lease | None, after: Lease | None, at_micros: int = 0, put: bool = False) -> RowChange:
    return RowChange("s", at_micros, RecordType.PUT if put else RecordType.UPDATE, before, after)


def test_batches_of_one_shard_must_not_overlap() -> None:
    first, second, third = Span("a", "s", "1", 0, 10), Span("b", "s", "2", 9, 20), Span("c", "t", "3", 5, 15)

    assert len(overlaps([first, third, second])) == 1
    assert overlaps([first, third, Span("b", "s", "2", 10, 20)]) == []


def test_a_long_batch_overlaps_every_batch_inside_it() -> None:
    assert len(overlaps([Span("a", "s", "1", 0, 100), Span("b", "s", "2", 10, 20), Span("b", "s", "2", 30, 40)])) == 2


def test_a_batch_lasts_from_records_to_done() -> None:
    event = {"worker": "a", "shard": "s", "lease": "1"}
    events = [
        {**event, "event": "records", "nanos": 1},
        {**event, "event": "checkpoint", "nanos": 2},
        {**event, "event": "done", "nanos": 3},
        {**event, "event": "records", "nanos": 4},
    ]

    assert spans(events) == [Span("a", "s", "1", 1, 3)]


def test_an_owner_works_only_while_the_row_names_it() -> None:
    now_nanos = time.monotonic_ns()
    now_micros = time.time_ns() // 1000
    second = 1_000_000
    span = Span("a", "s", "1", now_nanos, now_nanos + 3 * second * 1000)
    taken = change(None, HELD, now_micros - second)
    stolen_inside = change(HELD, Lease("s", "stream", owner="b", counter=8), now_micros + second)
    stolen_before = change(HELD, Lease("s", "stream", owner="b", counter=8), now_micros - second // 2)
    handed_over_after = change(HELD, Lease("s", "stream", owner="b", counter=8), now_micros + 4 * second)

    assert without_lease([span], [taken, handed_over_after]) == []
    assert len(without_lease([span], [taken, stolen_inside])) == 1
    assert len(without_lease([span], [taken, stolen_before])) == 1


def test_only_marks_leave_the_counter_alone() -> None:
    marked = Lease("s", "stream", owner="a", counter=7, stealer="b")
    moved = Lease("s", "stream", owner="a", counter=8)
    jumped = Lease("s", "stream", owner="a", counter=9)
    still = Lease("s", "stream", owner="a", counter=7, checkpoint="x")

    assert counter_jumps([change(HELD, marked), change(HELD, moved), change(None, HELD), change(HELD, None)]) == []
    assert len(counter_jumps([change(HELD, jumped), change(HELD, still)])) == 2


def test_a_hand_over_names_both_workers() -> None:
    handed = Lease("s", "stream", owner="b", counter=8, stealer="b")
    taken = Lease("s", "stream", owner="b", counter=9)

    assert change(HELD, handed).hand_over == ("a", "b")
    assert change(handed, taken).hand_over is None
    assert change(HELD, Lease("s", "stream", owner="b", counter=8)).hand_over is None


def test_a_row_that_was_put_anew_is_taken_above_the_counter_that_it_had() -> None:
    anew, above, further = (Lease("s", "stream", owner=o, counter=c) for o, c in (("", 0), ("b", 8), ("b", 9)))
    reset = change(HELD, anew, put=True)

    assert counter_jumps([reset, change(anew, above)]) == []
    assert len(counter_jumps([reset, change(anew, further)])) == 1
    assert len(counter_jumps([change(anew, above)])) == 1
