"""The evidence for the verdict about a shard: facts as lines of text for people. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from streamclient.base.reasons import counted
from streamclient.base.times import duration, utc_text
from streamclient.model import CheckpointPosition, Lease
from streamclient.operate.facts import FleetFacts, OperatorChange, RowFacts, WorkerFacts
from streamclient.operate.liveness import fleet_cost, is_lag_bound, lag_seconds, life, living_workers, seconds_to_loss
from streamclient.operate.plans import order_words


def evidence(facts: FleetFacts, shard_id: str) -> list[str]:
    """Return the facts about one shard, its owner, its parents and its children, as lines of text."""
    if facts.trouble:
        return [facts.trouble]
    row = facts.rows.get(shard_id)
    lines = [f"stream: {facts.stream.stream_id or 'off'} of table {facts.stream.table_name}"]
    if row is None:
        lines.append(f"lease: none in status table {facts.status_table_name}")
    elif row.lease is None:
        lines.append(f"lease: malformed: {row.problem}")
    else:
        lines += _lease_lines(facts, row, row.lease)
        lines += _head_lines(facts, shard_id)
    lines += _family_lines(facts, shard_id)
    lines += _change_lines(facts, facts.changes.get(shard_id))
    lines.append(f"living workers: {', '.join(living_workers(facts)) or 'none'}")
    lines += _cost_lines(facts)
    lines += _parked_lines(facts, shard_id)
    return lines


def checkpoint_kind(checkpoint: str) -> str:
    """Return the word for the kind of a checkpoint: ``oldest``, ``end`` or ``iterator``."""
    kinds = {CheckpointPosition.TRIM_HORIZON: "oldest", CheckpointPosition.SHARD_END: "end"}
    return kinds.get(checkpoint, "iterator")


def _lease_lines(facts: FleetFacts, row: RowFacts, lease: Lease) -> Iterator[str]:
    beat = f"counter {lease.counter} written {_ago(facts, row.beat_micros)}"
    yield f"lease: owner {lease.owner or 'none'}, {beat}, lease duration {duration(facts.lease_duration_seconds)}"
    if lease.stealer:
        yield f"stealer: {lease.stealer}, written {_ago(facts, row.stealer_micros)}"
    yield f"checkpoint: {checkpoint_kind(lease.checkpoint)}, written {_ago(facts, row.checkpoint_micros)}"
    if lease.progress is not None:
        records, size = counted(lease.progress.records, "record"), counted(lease.progress.bytes, "byte")
        yield f"progress: {records}, {size} up to the checkpoint"
    if lease.pending is not None:
        records = counted(lease.pending.records, "record")
        yield f"prepared: {records} after the checkpoint, by epoch {lease.pending.epoch}"
    if lease.pause is not None:
        until = "no end" if lease.pause.until_micros is None else f"ends {utc_text(lease.pause.until_micros)}"
        taken = "acknowledged by its owner" if lease.is_paused_by_owner else "not acknowledged by its owner"
        yield f"pause: by {lease.pause.by}, {until}, {taken}: {lease.pause.reason}"
    for order in lease.orders:
        until = utc_text(order.until_micros)
        yield f"order {order.request_id}: by {order.by}, {order_words(order)}, until {until}: {order.reason}"
    halted = facts.halted_record(lease.lease_key)
    if halted:
        yield f"stopped at record: {halted}"
    if lease.owner:
        yield _worker_line(facts, lease.owner, facts.workers.get(lease.owner))


def _worker_line(facts: FleetFacts, name: str, worker: WorkerFacts | None) -> str:
    if worker is None:
        return f"worker {name}: {life(facts, name).value} by the renewals of its leases; it has no session row"
    info = worker.info
    process = f", process {info.pid} on {info.host} ({worker.process.value})" if info.host else ""
    trouble = f", unwell: {info.trouble}" if info.trouble else ""
    pace = f", {info.pace}" if info.pace else ""
    beat = f"beat {_ago(facts, worker.beat_micros)}"
    return f"worker {name}: {worker.state}, {life(facts, name).value}, {beat}{process}{trouble}{pace}"


def _head_lines(facts: FleetFacts, shard_id: str) -> Iterator[str]:
    head, left = facts.head(shard_id), seconds_to_loss(facts, shard_id)
    if head is None:
        return
    if head.problem:
        yield f"next unread record: cannot be read: {head.problem}"
        lag = lag_seconds(facts, shard_id)
        if is_lag_bound(facts, shard_id) and lag is not None:
            loss = "" if left is None else f", and is deleted in {duration(left)} at the earliest"
            yield f"next unread record, by the checkpoint: is at most {duration(lag)} old{loss}"
    elif head.is_trimmed:
        yield "next unread record: past the stream's retention, lost"
    elif head.next_record_micros is None:
        yield "next unread record: none" + (", the shard is closed" if head.is_end else "")
    else:
        loss = "" if left is None else f", deleted in {duration(left)}"
        yield f"next unread record: written {_ago(facts, head.next_record_micros)}{loss}"


def _family_lines(facts: FleetFacts, shard_id: str) -> Iterator[str]:
    for parent in sorted(facts.parents.get(shard_id, ())):
        yield f"parent {parent}: {_standing(facts, parent)}"
    for child in facts.children.get(shard_id, ()):
        yield f"child {child}: {_standing(facts, child)}"


def _cost_lines(facts: FleetFacts) -> Iterator[str]:
    cost = fleet_cost(facts)
    if cost is not None:
        yield f"the fleet's cost per hour: {cost}"


def _parked_lines(facts: FleetFacts, shard_id: str) -> Iterator[str]:
    if facts.parked is not None and shard_id in facts.parked:
        yield f"keys with parked records: {facts.parked[shard_id]}; `streamclient parked list` names them"
    for name, worker in sorted(facts.workers.items()):
        if count := worker.info.parked_of.get(shard_id):
            yield f"parked: {count} since worker {name} started; `streamclient parked list` names the parked records"


def _change_lines(facts: FleetFacts, change: OperatorChange | None) -> Iterator[str]:
    if change is not None:
        ago = _ago(facts, change.at_micros)
        yield f"last change by an operator: {change.command}, by {change.who}, {ago}: {change.outcome}"


def _standing(facts: FleetFacts, shard_id: str) -> str:
    row = facts.rows.get(shard_id)
    if row is None:
        is_listed = shard_id in (facts.stream.listing or {})
        return "no lease row" + ("" if is_listed else ", and the stream no longer lists it")
    if row.lease is None:
        return f"malformed row: {row.problem}"
    owner = f", owner {row.lease.owner}" if row.lease.owner else ", no owner"
    return ("finished" if row.lease.is_finished else "not finished") + owner


def _ago(facts: FleetFacts, micros: int) -> str:
    return f"{duration(facts.age_seconds(micros))} ago" if micros else "at an unknown time"
