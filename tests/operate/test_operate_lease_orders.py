"""Orders as functions: the command and any other caller give the very same one, and may agree to its plan first."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from attrs import evolve
from operate_facts import ago, facts, row, worker
from operate_scene import STATUS, TABLE, Owner, Scene, read_shard

from streamclient.cli.options import operator_name
from streamclient.core import leases as rule
from streamclient.core.worker_info import WorkerInfo
from streamclient.errors import ConfigurationError
from streamclient.model import Pause
from streamclient.operate import plans
from streamclient.operate.collection import FleetReader
from streamclient.operate.facts import FleetFacts, RowFacts
from streamclient.operate.lease_orders import (
    LeaseSelection,
    RecordChoice,
    command_text,
    move_order,
    park_order,
    pause_order,
    release_order,
    resume_order,
    typed_command,
)
from streamclient.operate.operator_documents import plan_document, report_document
from streamclient.operate.operator_orders import (
    Order,
    OrderExecutor,
    OrderReport,
    OrderStatus,
    PlanChangedError,
    order_digest,
)
from streamclient.operate.plans import ChangePlan
from streamclient.operate.site import Site
from streamclient.worker.parking.parked_frames import record_id
from tests.patience import until

WHO = "ann@ops (console)"


def site(scene: Scene) -> Site:
    return Site(scene.client, TABLE, STATUS, lease_seconds=scene.lease_seconds)


def executor(scene: Scene) -> OrderExecutor:
    here = site(scene)
    return OrderExecutor(here, FleetReader(here), WHO)


def planned(scene: Scene, order: Order) -> OrderReport:
    return executor(scene).carry_out(order, dry_run=True)


# --- the command gives the same order ------------------------------------------------------------------------------


def first_record(scene: Scene) -> str:
    return record_id(scene.streams.get_stream_record(scene.iterator(after=6)).records[0])


ORDERS: dict[str, tuple[Callable[[Scene, str], Order], Callable[[Scene, str], Sequence[str]]]] = {
    "pause": (
        lambda scene, shard: pause_order(
            site(scene), LeaseSelection(shards=(shard,)), by=WHO, reason="disk full", lasting="15m"
        ),
        lambda scene, shard: ["pause", shard, "--for", "15m", "--reason", "disk full"],
    ),
    "pause a worker": (
        lambda scene, shard: pause_order(site(scene), LeaseSelection(worker="w1"), by=WHO, reason="r"),
        lambda scene, shard: ["pause", "--worker", "w1", "--reason", "r"],
    ),
    "resume": (
        lambda scene, shard: resume_order(LeaseSelection(every=True)),
        lambda scene, shard: ["resume", "--all"],
    ),
    "move": (lambda scene, shard: move_order(shard, "w2"), lambda scene, shard: ["move", shard, "--to", "w2"]),
    "release": (
        lambda scene, shard: release_order(shard, vouched=True, pause="1m", reason="gone"),
        lambda scene, shard: ["release", shard, "--pause", "1m", "--force", "--reason", "gone"],
    ),
    "park": (
        lambda scene, shard: park_order(
            site(scene),
            RecordChoice(shard_id=shard, record=first_record(scene), parking_table="parked"),
            by=WHO,
            yes=False,
        ),
        lambda scene, shard: ["park", shard, "--record", first_record(scene), "--parking-table", "parked"],
    ),
    "skip": (
        lambda scene, shard: park_order(site(scene), RecordChoice(shard_id=shard, count=2), by=WHO, yes=False),
        lambda scene, shard: ["skip", shard, "--records", "2"],
    ),
}


def without_drawn(value: Any) -> Any:
    """A document without ids and times that each command draws anew, and without the operator's name."""
    if isinstance(value, list):
        return [without_drawn(each) for each in value]
    if isinstance(value, dict):
        drawn = {"request_id", "at_micros", "until_micros", "by"}
        return {name: without_drawn(each) for name, each in value.items() if name not in drawn}
    return re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME", value) if isinstance(value, str) else value


@pytest.mark.parametrize("name", ORDERS)
def test_the_command_gives_the_order_that_the_function_makes(scene: Scene, name: str) -> None:
    shard = read_shard(scene, owner="w1")
    scene.put_worker("w1", info=WorkerInfo(obeys_orders=True))
    scene.put_worker("w2")
    make, words = ORDERS[name]
    order = make(scene, shard)
    document = scene.run("leases", *words(scene, shard), "--dry-run", "--json").document

    assert document["command"] == order.command
    pause_seconds = 60.0 if "--pause" in order.command else None
    report = executor(scene).carry_out(order, dry_run=True, pause_seconds=pause_seconds)
    assert without_drawn(report_document(order.command, report)) == without_drawn(document)
    typed = shlex.split(typed_command(order))
    assert typed[:2] == ["streamclient", "leases"]
    again = scene.run(*typed[1:], "--dry-run", "--json").document
    assert again["command"] == order.command, "the line may be copied"


def test_the_operator_who_is_named_stands_in_row_and_audit(scene: Scene, shard: str) -> None:
    order = pause_order(site(scene), LeaseSelection(shards=(shard,)), by=WHO, reason="disk full")
    report = executor(scene).carry_out(order)
    pause = scene.lease().pause
    (record,) = scene.audit()

    assert report.status is OrderStatus.DONE
    assert pause is not None
    assert (pause.by, pause.reason) == (WHO, "disk full")
    assert (record["who"], record["reason"], record["command"]) == (WHO, "disk full", f"pause {shard}")
    assert operator_name() != WHO


# --- what is refused before anything is read -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "given", [{}, {"shards": ("s",), "every": True}, {"worker": "w1", "every": True}, {"shards": (), "worker": None}]
)
def test_a_selection_is_one_of_three(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="name either shards, or --worker WORKER, or --all"):
        LeaseSelection(**given)


def test_a_pause_needs_a_reason_and_a_duration_that_is_one(scene: Scene) -> None:
    selection = LeaseSelection(every=True)

    with pytest.raises(ConfigurationError, match="--reason is needed"):
        pause_order(site(scene), selection, by=WHO, reason="")
    with pytest.raises(ConfigurationError, match="15 minutes"):
        pause_order(site(scene), selection, by=WHO, reason="r", lasting="15 minutes")
    with pytest.raises(ConfigurationError, match="201 is above 200"):
        RecordChoice(shard_id="s", count=201)


def test_a_command_is_quoted_and_has_no_other_options() -> None:
    options = {"--to": "w 2", "--all": False, "--force": True, "--access-key-secret": "secret", "--for": None}

    assert command_text("move", ["s 1"], options) == "move 's 1' --to 'w 2' --force"


# --- a plan that was agreed to -------------------------------------------------------------------------------------


def test_a_plan_stays_the_same_while_its_owner_beats(scene: Scene) -> None:
    shard = read_shard(scene, owner="w1")
    scene.put_worker("w2")
    with Owner(scene, "w1", shard):
        first = move_order(shard, "w2", reason="even")
        digest = order_digest(first, planned(scene, first).plan)
        seen = scene.lease().counter
        until(lambda: scene.lease().counter > seen)
        report = executor(scene).carry_out(move_order(shard, "w2", reason="even"), agreed=digest)

    assert report.status is OrderStatus.DONE
    assert scene.audit()[0]["outcome"] == "done"


@pytest.mark.parametrize("name", ORDERS)
def test_each_order_has_one_digest_however_often_it_is_made(scene: Scene, name: str) -> None:
    shard = read_shard(scene, owner="w1")
    scene.put_worker("w1", info=WorkerInfo(obeys_orders=True))
    scene.put_worker("w2")
    make, _ = ORDERS[name]
    digests = {order_digest(order, planned(scene, order).plan) for order in (make(scene, shard), make(scene, shard))}

    assert len(digests) == 1


def test_a_lease_that_moves_after_the_plan_is_left_alone(scene: Scene, shard: str) -> None:
    def order() -> Order:
        return pause_order(site(scene), LeaseSelection(shards=(shard,)), by=WHO, reason="r")

    first = order()
    digest = order_digest(first, planned(scene, first).plan)
    scene.send(rule.take(scene.lease(), "w1"))
    before = scene.cells()

    with pytest.raises(PlanChangedError, match=f"the plan of `pause {shard}` is not the one that was agreed to"):
        executor(scene).carry_out(order(), agreed=digest)
    assert scene.cells() == before, "no audit row either"
    anew = order()
    assert executor(scene).carry_out(anew, agreed=order_digest(anew, planned(scene, anew).plan)).status is (
        OrderStatus.DONE
    )


def test_an_agreement_with_one_shard_is_none_with_more(scene: Scene, shard: str) -> None:
    order = resume_order(LeaseSelection(every=True))
    assert executor(scene).carry_out(pause_order(site(scene), LeaseSelection(every=True), by=WHO, reason="r"))
    digest = order_digest(order, planned(scene, order).plan)
    scene.put_lease("another", pause=Pause("r9", "bob@ops", "later"))

    with pytest.raises(PlanChangedError):
        executor(scene).carry_out(order, agreed=digest)
    assert scene.lease().pause is not None


PAUSE = Pause("r1", WHO, "disk full", ago(-60))


def digest_of(row_facts: RowFacts, *, pause: Pause = PAUSE, command: str = "pause s", reason: str = "r") -> str:
    made = facts(row_facts, workers=[worker("w1"), worker("w2")])
    order = Order(
        command=command, reason=reason, prepare=lambda found: partial(plans.plan_resume, shard_ids=[]), change_id="c1"
    )
    return order_digest(order, plans.plan_pause(made, (), shard_ids=[row_facts.shard_id], pause=pause))


def test_what_is_drawn_anew_does_not_count_and_all_else_does() -> None:
    first = digest_of(row("s", "w1"))
    taken = Pause("r0", "bob@ops", "before", ago(-10))

    assert digest_of(row("s", "w1", counter=99, beat=7, moved=3, checkpoint="it-9")) == first
    assert digest_of(row("s", "w1"), pause=evolve(PAUSE, request_id="r2", until_micros=ago(-999))) == first
    others = {
        "owner": digest_of(row("s", "w2")),
        "shard": digest_of(row("t", "w1")),
        "a pause that stands": digest_of(row("s", "w1", pause=taken)),
        "another pause that stands": digest_of(row("s", "w1", pause=evolve(taken, request_id="r7"))),
        "by whom": digest_of(row("s", "w1"), pause=evolve(PAUSE, by="bob@ops")),
        "the command": digest_of(row("s", "w1"), command="pause s --for 1d"),
        "the reason": digest_of(row("s", "w1"), reason="other"),
    }
    assert len({first, *others.values()}) == len(others) + 1, others
    acknowledged = digest_of(row("s", "w1", pause=taken, taken=True))
    assert acknowledged == others["a pause that stands"], "the owner acknowledges whenever it likes"


def test_the_digest_is_of_the_writes_that_a_document_shows() -> None:
    made: FleetFacts = facts(row("s", "w1"), workers=[worker("w1"), worker("w2")])
    plan: ChangePlan = plans.plan_move(made, (), shard_id="s", receiver="w2")
    order = move_order("s", "w2")

    assert plan_document(plan)["changes"][0]["after"] == {"stealer": "w2"}
    assert order_digest(order, plan) != order_digest(order, ChangePlan())
    assert order_digest(order, plan) == order_digest(move_order("s", "w2"), plan)


def test_the_counter_of_a_row_does_not_count() -> None:
    """Other writes of the row move it; a write that compares it is planned anew when it is sent."""

    def digest(counter: int) -> str:
        plan = plans.plan_release(facts(row("s", "w1", beat=99, counter=counter)), ("s",), shard_id="s")
        assert [change.write.kind.value for change in plan.changes] == ["release"]
        return order_digest(release_order("s"), plan)

    assert digest(7) == digest(9)
