"""Orders to take records out of a shard: the choice of the records, the plan of an order, and its withdrawal.

An order does not move the checkpoint. The shard's owner obeys an order while it goes on reading, so no
pause is needed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from streamclient.base.kept_formats import parse_json
from streamclient.base.reasons import Cause, counted
from streamclient.base.times import utc_text
from streamclient.core import leases as rule
from streamclient.errors import ConfigurationError, TrimmedDataException
from streamclient.model import Lease, RecordOrder
from streamclient.operate.facts import FleetFacts
from streamclient.operate.liveness import Liveness, is_pause_on, life, living_workers
from streamclient.operate.next_records import find_record, read_head, read_next
from streamclient.operate.plans import ChangePlan, PlannedWrite, Refusal, lease_of, order_words
from streamclient.records import StreamRecord
from streamclient.tablestore.stream_api import StreamApi
from streamclient.worker.lease.audit_rows import DONE, END_NUMBER, AuditRecord
from streamclient.worker.parking.parked_frames import key_text, sequence_of
from streamclient.worker.parking.parked_frames import record_id as id_of

MOST_RECORDS_ORDERED = 200
"""The largest number of records that all orders in a lease row name together. Their ids take 12 KiB, which every worker
reads with each scan. A shard with more bad records than that has a fault that is not in single records, for example in
its processor. Orders about records do not mend such a fault."""


def named_record(streams: StreamApi, lease: Lease, record_id: str) -> StreamRecord | str:
    """Return the record with the id ``record_id``, or the reason why it cannot be taken out.

    Raises:
        ConfigurationError: ``record_id`` is not the id of a record.
    """
    try:
        record = find_record(streams, lease.stream_id, lease.lease_key, record_id)
    except ValueError as error:
        raise ConfigurationError(str(error)) from error
    if record is None:
        return f"it has no record {record_id}, or the stream no longer keeps it"
    try:
        following = read_head(streams, lease.stream_id, lease.lease_key, lease.checkpoint).record
    except TrimmedDataException:
        return record  # the checkpoint is before all records that the stream still has
    if following is None or following.sequence_info > record.sequence_info:
        return f"record {record_id} was passed: the checkpoint is after it"
    return record


def next_records(streams: StreamApi, lease: Lease, count: int, halted: str) -> Sequence[StreamRecord] | str:
    """Return the next ``count`` records of a shard, or the reason why they cannot be taken out.

    The records begin at ``halted``, the record at which the shard stopped. If ``halted`` is empty, they begin at the
    checkpoint.
    """
    if halted and isinstance(problem := named_record(streams, lease, halted), str):
        return problem
    try:
        records = read_next(streams, lease.stream_id, lease.lease_key, lease.checkpoint, count, first_id=halted)
    except TrimmedDataException:
        return "the records after its checkpoint are past the stream's retention; rewind the shard to the oldest record"
    if len(records) < count:
        follow, were = "follows" if len(records) == 1 else "follow", "was" if count == 1 else "were"
        return f"only {counted(len(records), 'record')} {follow}, and {count} {were} named"
    return records


def record_note(record: StreamRecord) -> str:
    """Return a sentence that names a record by its id, type, key and time."""
    written = utc_text(record.sequence_info.timestamp_micros)
    return f"record {id_of(record)}: {record.record_type.value} of {key_text(record.primary_key)}, written {written}"


def plan_record_order(
    facts: FleetFacts, stood_still: Collection[str], *, shard_id: str, order: RecordOrder, problem: str
) -> ChangePlan:
    """Plan to add ``order`` to a shard's lease, so that its owner takes the order's records out.

    Every later owner obeys the order, too. The change leaves the checkpoint as it is.

    ``problem`` is the reason why the records cannot be taken out; it is empty if they can.
    """
    lease = lease_of(facts, shard_id)
    if isinstance(lease, Refusal):
        return ChangePlan(refusals=(lease,))
    if any(standing.request_id == order.request_id for standing in lease.orders):
        return ChangePlan()  # the lease row already has the order
    named = sum(len(standing.record_ids) for standing in lease.orders)
    same = [
        each for each in lease.orders if each.is_skip == order.is_skip and {*order.record_ids} <= {*each.record_ids}
    ]
    reason = ""
    if lease.is_finished:
        reason = "it is finished: no worker reads its records any more"
    elif any(each.cause is Cause.PAUSED_BY_PROGRAM for each in facts.owner_reasons(shard_id)):
        reason = "its worker's own program paused it: have the program call `resume` first"
    elif problem:
        reason = problem
    elif same:
        reason = f"{same[0].by} ordered that already: {order_words(same[0])}, until {utc_text(same[0].until_micros)}"
    elif named + len(order.record_ids) > MOST_RECORDS_ORDERED:
        reason = (
            f"its row would name {named + len(order.record_ids)} records, and {MOST_RECORDS_ORDERED} is the most; "
            "order fewer, or wait until the standing orders are obeyed"
        )
    else:
        reason = _why_ignored(facts, lease)
    if reason:
        return ChangePlan(refusals=(Refusal(shard_id=shard_id, reason=reason),))
    change = PlannedWrite(write=rule.set_orders(lease, (*lease.orders, order)), effect=order_words(order))
    return ChangePlan(changes=(change,), notes=_order_notes(facts, lease, order))


def _why_ignored(facts: FleetFacts, lease: Lease) -> str:
    """Return why an order about records would be ignored; an empty text if a worker will obey the order.

    If the owner lives, the owner must obey orders. Otherwise at least one living worker must obey orders, unless no
    worker lives.
    """
    living = living_workers(facts)
    obeying = [name for name in living if name in facts.workers and facts.workers[name].info.obeys_orders]
    hand_over = f"move the shard to one that does: {', '.join(obeying)}" if obeying else "start one that does"
    owner = lease.owner
    if owner and life(facts, owner) in (Liveness.LIVING, Liveness.SILENT):
        session = facts.workers.get(owner)
        if session is None:
            what = f"its owner {owner} has no session row: it is a Java worker or an older one"
            return f"{what}, and does not obey orders about records; stop it, or {hand_over}"
        if not session.info.obeys_orders:
            version = f", of version {session.info.version}," if session.info.version else ""
            return f"its owner {owner}{version} does not obey orders about records; update it, or {hand_over}"
    elif living and not obeying:
        return f"none of the living workers ({', '.join(living)}) obeys orders about records; {hand_over}"
    return ""


def _order_notes(facts: FleetFacts, lease: Lease, order: RecordOrder) -> tuple[str, ...]:
    """Return notes for the operator: which workers obey the order, which do not, and when."""
    notes = []
    if is_pause_on(lease.pause, facts.now_micros):
        notes.append(
            f"the shard is paused by {lease.pause.by if lease.pause else ''}: "
            "the order is obeyed once the shard is resumed"
        )
    living = living_workers(facts)
    if not living:
        notes.append("no worker lives: the first one that takes the shard obeys the order")
    deaf = [name for name in living if not (name in facts.workers and facts.workers[name].info.obeys_orders)]
    if deaf:
        notes.append(f"worker {', '.join(deaf)} does not obey the order if it takes the shard before the order is done")
    if not order.is_skip:
        notes.append("a worker with a parking store of its own parks there instead")
    return tuple(notes)


# --- withdrawal ------------------------------------------------------------------------------------------------------


def chosen_order(lease: Lease, order_id: str) -> RecordOrder | None:
    """Return the lease's order ``order_id``, or its only order if ``order_id`` is empty; ``None`` if no order fits."""
    named = [order for order in lease.orders if order_id in ("", order.request_id)]
    return named[0] if len(named) == 1 else None


def ends_noted(records: Iterable[AuditRecord]) -> dict[str, str]:
    """Return in words how orders ended, as workers noted in ``records``. The keys are order ids.

    ``records`` are newest first.
    """
    found: dict[str, str] = {}
    for record in records:
        if _is_end(record):
            words = f"{record.outcome}, as worker {record.who} noted at {utc_text(record.at_micros)}"
            found.setdefault(record.change_id, words)
    return found


def orders_over(records: Sequence[AuditRecord]) -> dict[str, str]:
    """Return in words how orders ended or were withdrawn. The keys are order ids.

    ``records`` and the result are newest first.
    """
    ends, found = ends_noted(records), dict[str, str]()
    for record in records:
        if _is_end(record):
            found.setdefault(record.change_id, ends[record.change_id])
        elif record.outcome == DONE:
            for order_id in _ids_in(record.before) - _ids_in(record.after):
                by = f"withdrawn by {record.who} at {utc_text(record.at_micros)}"
                found.setdefault(order_id, ends.get(order_id, by))
    return found


def _is_end(record: AuditRecord) -> bool:
    return record.number == END_NUMBER and record.command.startswith("end of ")


def _ids_in(columns: str) -> set[str]:
    """Return the ids of the orders in ``columns``, the JSON text of lease columns in an audit row.

    Return an empty set if the text has no orders, or has them in an unknown form.
    """
    try:
        return {order["request_id"] for order in parse_json(columns)["orders"]}
    except (ValueError, TypeError, KeyError):
        return set()


def records_passed(streams: StreamApi, lease: Lease, order: RecordOrder) -> int | None:
    """Return the number of an order's records that are before the checkpoint.

    ``None`` if the records at the checkpoint are past the stream's retention.
    """
    if lease.is_finished:
        return len(order.record_ids)
    try:
        following = read_head(streams, lease.stream_id, lease.lease_key, lease.checkpoint).record
    except TrimmedDataException:
        return None
    if following is None:
        return len(order.record_ids)
    return sum(sequence_of(record_id) < following.sequence_info for record_id in order.record_ids)


def plan_withdrawal(
    facts: FleetFacts,
    stood_still: Collection[str],
    *,
    shard_id: str,
    order_id: str,
    over: Mapping[str, str],
    passed: int | None = None,
) -> ChangePlan:
    """Plan to remove an order from the lease row of a shard. Records that the order took out stay taken out.

    Args:
        facts: the fleet.
        stood_still: not used; every planner has this parameter.
        shard_id: the shard.
        order_id: the id of the order; empty for the only order of the shard.
        over: how orders ended, in the words of ``orders_over``. The keys are order ids.
        passed: the number of the order's records that are before the checkpoint, if that is known.
    """
    lease = lease_of(facts, shard_id)
    if isinstance(lease, Refusal):
        return ChangePlan(refusals=(lease,))
    order = chosen_order(lease, order_id)
    if order is None:
        return ChangePlan(refusals=(Refusal(shard_id=shard_id, reason=_no_such_order(lease, order_id, over)),))
    left = tuple(standing for standing in lease.orders if standing.request_id != order.request_id)
    effect = f"{_named_order(order)} is withdrawn"
    change = PlannedWrite(write=rule.set_orders(lease, left), effect=effect)
    return ChangePlan(changes=(change,), notes=_withdrawal_notes(facts, lease, order, over, passed))


def _named_order(order: RecordOrder) -> str:
    return f"order {order.request_id} by {order.by} ({order_words(order)})"


def _no_such_order(lease: Lease, order_id: str, over: Mapping[str, str]) -> str:
    """Return why the order ``order_id`` cannot be withdrawn: it is over or unknown, or the choice is not clear."""
    standing = f"its orders: {', '.join(map(_named_order, lease.orders))}" if lease.orders else ""
    if not order_id and lease.orders:
        return f"it has {len(lease.orders)} orders, name one with --order ID; {standing}"
    if order_id in over:
        reason = f"order {order_id} stands no longer: {over[order_id]}"
    elif order_id:
        reason = f"order {order_id} does not stand: it never did, or it ended meanwhile; see `leases audit`"
    else:
        last = next((f"; order {each}: {words}" for each, words in over.items()), "")
        reason = f"no order about its records stands{last}"
    return f"{reason}; {standing}" if standing else reason


def _withdrawal_notes(
    facts: FleetFacts, lease: Lease, order: RecordOrder, over: Mapping[str, str], passed: int | None
) -> tuple[str, ...]:
    """Return notes for the operator: which effects of the order stay, and how long the owner still obeys it."""
    taken_out, notes = "skipped" if order.is_skip else "parked", []
    if order.request_id in over:
        notes.append(f"order {order.request_id} has ended already: {over[order.request_id]}")
    elif passed:
        are = f"{passed} of its {len(order.record_ids)} records {'is' if passed == 1 else 'are'}"
        notes.append(f"{are} before the checkpoint; a record that was {taken_out} stays taken out")
    is_read = lease.owner and not (lease.is_finished or lease.is_paused_by_owner)
    if is_read and life(facts, lease.owner) in (Liveness.LIVING, Liveness.SILENT):
        notes.append(
            f"worker {lease.owner} obeys the order until its next scan; records that it has {taken_out} until then "
            "stay taken out, and `leases audit` will say how many"
        )
    return tuple(notes)
