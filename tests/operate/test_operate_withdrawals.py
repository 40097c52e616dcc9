"""``leases withdraw``, with real workers over HTTP: what it writes, says and refuses, and what stays taken out."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from operate_scene import STATUS, Ran, Scene
from stuck_workers import working
from test_operate_records import STOP, Strict, goes_on, halts, ids, outcomes, take_out

from streamclient.cli.options import operator_name
from streamclient.core import leases as rule
from streamclient.core.events import NoteOrder
from streamclient.model import RecordOrder
from streamclient.operate.order_plans import ends_noted, orders_over
from streamclient.worker.lease.audit_rows import DONE, END_NUMBER, AuditRecord, put_note
from streamclient.worker.parking import FileParkingStore
from tests.patience import until

pytestmark = pytest.mark.slow
FAR = 10**16
STAYS = "records after the stored checkpoint may still be delivered"


def withdraw(scene: Scene, *words: str) -> Ran:
    return scene.run("leases", "withdraw", scene.shard, "--reason", "the wrong record", *words)


def ordered(scene: Scene, *numbers: int, name: str = "o1", table: str = "") -> RecordOrder:
    """Put an order for these records into the row, beside those that stand there."""
    named = ids(scene)
    order = RecordOrder(name, "ann@ops", "bad data", 1, FAR, tuple(named[number] for number in numbers), table)
    scene.send(rule.set_orders(scene.lease(), (*scene.lease().orders, order)))
    return order


def free(scene: Scene, records: int = 4) -> None:
    scene.write(records)
    scene.put_lease(scene.shard)


# --- what it does ----------------------------------------------------------------------------------------------------


def test_an_order_is_withdrawn_before_a_record_was_taken_out(quick: Scene, caplog: pytest.LogCaptureFixture) -> None:
    seen: list[int] = []
    quick.write(8)
    caplog.set_level(logging.INFO, "streamclient")
    with working(quick, lambda: Strict({2}, seen), failure_policy=STOP, max_records=2):
        halts(quick)
        assert take_out(quick, "skip", "--record", ids(quick)[6], "--yes").code == 0
        (order,) = quick.lease().orders
        until(lambda: f"ordered by {operator_name()} to skip" in caplog.text, "the worker sees the order")
        ran = withdraw(quick, "--yes")
        assert (ran.code, ran.err) == (0, ""), ran
        assert f"order {order.request_id} by {operator_name()} (one record dropped and never delivered)" in ran.out
        assert "worker w1 obeys the order until its next scan; records that it has skipped until then stay" in ran.out
        until(lambda: outcomes(quick)[0] == ("w1", "end", "withdrawn before this worker skipped a record"))
        assert take_out(quick, "skip", "--yes", "--record", ids(quick)[2]).code == 0
        goes_on(quick, seen, 0, 1, 3, 4, 5, 6, 7)

    assert 2 not in seen
    assert outcomes(quick)[2:4] == [
        ("w1", "end", "withdrawn before this worker skipped a record"),
        (operator_name(), "withdraw", DONE),
    ]


def test_what_was_taken_out_before_an_order_was_withdrawn_stays_so_and_is_said(quick: Scene) -> None:
    seen: list[int] = []
    free(quick, 8)
    ordered(quick, 1, 6)
    with working(quick, lambda: Strict({2}, seen), failure_policy=STOP, max_records=2):
        halts(quick)
        ran = withdraw(quick, "--yes")
        assert ran.code == 0, ran
        assert "note: 1 of its 2 records is before the checkpoint; a record that was skipped stays taken out" in ran.out
        told = f"withdrawn after this worker skipped 1 of 2 records; {STAYS}"
        until(lambda: outcomes(quick)[0] == ("w1", "end", told), lambda: outcomes(quick))
        assert take_out(quick, "skip", "--record", ids(quick)[2], "--yes").code == 0
        goes_on(quick, seen, 0, 3, 4, 5, 6, 7)

    assert 1 not in seen


def test_a_record_that_was_parked_before_its_order_was_withdrawn_stays_parked(quick: Scene, tmp_path: Any) -> None:
    seen: list[int] = []
    free(quick, 8)
    named = ids(quick)
    order = RecordOrder("o1", "ann@ops", "", 1, FAR, (named[1], named[6]), parking_directory=str(tmp_path))
    quick.send(rule.set_orders(quick.lease(), (order,)))
    with working(quick, lambda: Strict({2}, seen), failure_policy=STOP, max_records=2):
        halts(quick)
        assert withdraw(quick, "--yes").code == 0
        told = f"withdrawn after this worker parked 1 of 2 records; {STAYS}"
        until(lambda: outcomes(quick)[0] == ("w1", "end", told), lambda: outcomes(quick))
        assert take_out(quick, "skip", "--record", named[2], "--yes").code == 0
        goes_on(quick, seen, 0, 3, 4, 5, 6, 7)

    assert [parked.record_id for parked in FileParkingStore(tmp_path).parked()] == [named[1]]


def test_a_dry_run_withdraws_nothing_with_or_without_its_option(scene: Scene) -> None:
    free(scene)
    order = ordered(scene, 1, 2)
    before = scene.cells()
    without, dry = withdraw(scene), withdraw(scene, "--dry-run")

    assert (without.code, without.err) == (0, "this is a dry run; add --yes to withdraw the order\n")
    assert (dry.code, dry.err) == (0, "")
    assert without.out == dry.out
    assert "set orders: orders=[skip 2 by ann@ops] -> orders=[]" in dry.out
    assert dry.out.endswith("dry run: nothing was written\n")
    assert scene.cells() == before
    assert scene.lease().orders == (order,)


def test_of_several_orders_one_is_named(scene: Scene) -> None:
    free(scene)
    first, second = ordered(scene, 1), ordered(scene, 2, name="o2", table="parked")
    unnamed = withdraw(scene, "--yes")

    assert unnamed.code == 1
    assert "refused: it has 2 orders, name one with --order ID; its orders: " in unnamed.out
    assert "order o1 by ann@ops (one record dropped and never delivered), order o2 by ann@ops (one re" in unnamed.out
    assert scene.lease().orders == (first, second)
    assert withdraw(scene, "--order", "o1", "--yes").code == 0
    assert scene.lease().orders == (second,)
    (record, *_) = scene.audit()
    assert record["command"].endswith("--order o1 --yes")
    assert (record["outcome"], record["reason"]) == (DONE, "the wrong record")
    assert [each["request_id"] for each in record["before"]["orders"]] == ["o1", "o2"]
    assert [each["request_id"] for each in record["after"]["orders"]] == ["o2"]


# --- after its end, and beside it ------------------------------------------------------------------------------------


def note(scene: Scene, order: RecordOrder, outcome: str = "skipped one record") -> None:
    """The owner notes the end of an order in the audit."""
    put_note(scene.client, STATUS, scene.stream_id, NoteOrder(scene.shard, order, "w1", outcome, 2))


def test_an_order_that_ended_is_refused_by_name(quick: Scene) -> None:
    seen: list[int] = []
    quick.write(4)
    with working(quick, lambda: Strict({2}, seen), failure_policy=STOP):
        halts(quick)
        assert take_out(quick, "skip", "--record", ids(quick)[2], "--yes").code == 0
        goes_on(quick, seen, 0, 1, 3)
    (order_id,) = [each["change"] for each in quick.audit() if each["command"].startswith("skip")]
    named, unnamed = withdraw(quick, "--order", order_id, "--yes"), withdraw(quick, "--yes")

    assert (named.code, unnamed.code) == (1, 1)
    assert f"refused: order {order_id} stands no longer: skipped one record, as worker w1 noted at " in named.out
    assert f"refused: no order about its records stands; order {order_id}: skipped one record, as worker" in unnamed.out


def test_an_order_that_was_withdrawn_or_never_stood_is_refused_by_name(scene: Scene) -> None:
    free(scene)
    assert "refused: no order about its records stands\n" in withdraw(scene, "--yes").out
    ordered(scene, 1)
    assert "order other does not stand: it never did, or" in withdraw(scene, "--order", "other", "--yes").out
    assert withdraw(scene, "--yes").code == 0

    again = withdraw(scene, "--order", "o1", "--yes")
    assert again.code == 1
    assert f"order o1 stands no longer: withdrawn by {operator_name()} at " in again.out


def test_an_order_whose_end_is_noted_and_that_still_stands_is_withdrawn(scene: Scene) -> None:
    """As after the death of its owner between the two, which the next owner would obey again after a rewind."""
    free(scene)
    note(scene, ordered(scene, 1))
    ran = withdraw(scene, "--yes")

    assert ran.code == 0, ran
    assert "note: order o1 has ended already: skipped one record, as worker w1 noted at " in ran.out
    assert scene.lease().orders == ()


@pytest.mark.parametrize("is_removed", [False, True])
def test_the_owner_notes_the_end_between_the_plan_and_the_write(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, is_removed: bool
) -> None:
    free(scene)
    order, set_orders, meddled = ordered(scene, 1), rule.set_orders, []

    def meddle(seen: Any, orders: Any) -> Any:
        write = set_orders(seen, orders)
        if not meddled:
            meddled.append(write)
            note(scene, order)
            if is_removed:
                scene.send(rule.end_orders(scene.lease(), ()))
        return write

    monkeypatch.setattr(rule, "set_orders", meddle)
    ran = withdraw(scene, "--yes")

    assert ran.code == (1 if is_removed else 0), ran
    assert "note: order o1 ended meanwhile: skipped one record, as worker w1 noted at " in ran.out
    assert ("not changed: order o1 does not stand: it never did, or it ended meanwhile" in ran.out) is is_removed
    assert scene.lease().orders == ()


# --- the audit, by itself --------------------------------------------------------------------------------------------


def record(number: int = 0, command: str = "withdraw s", *, before: str = "null", after: str = "null") -> AuditRecord:
    return AuditRecord(
        at_micros=1,
        change_id="c1",
        number=number,
        who="ann",
        command=command,
        shard_id="s",
        before=before,
        after=after,
        outcome=DONE,
    )


@pytest.mark.parametrize("before", ["", "null", "[]", "{", '{"orders": 1}', '{"orders": [1]}', '{"orders": [{}]}'])
def test_rows_of_the_audit_that_tell_no_orders_are_left_out(before: str) -> None:
    assert orders_over([record(before=before)]) == {}
    assert ends_noted([record(before=before)]) == {}


def test_the_newest_end_counts_and_says_more_than_the_withdrawal() -> None:
    went = record(before='{"orders": [{"request_id": "c1"}]}', after='{"orders": []}')
    end = record(END_NUMBER, "end of skip")

    assert orders_over([went]) == {"c1": "withdrawn by ann at 1970-01-01T00:00:00.000Z"}
    assert orders_over([went, end]) == {"c1": "done, as worker ann noted at 1970-01-01T00:00:00.000Z"}
