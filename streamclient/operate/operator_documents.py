"""The documents that commands print with ``--json``: dictionaries whose members the documentation lists. Pure.

No later version removes a member. Times are microseconds since 1970, durations are seconds. An unknown value is
``null``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import asdict

from streamclient.base.kept_formats import parse_json
from streamclient.model import Lease, Shard
from streamclient.operate.cases import Explanation
from streamclient.operate.evidence import checkpoint_kind, evidence
from streamclient.operate.facts import FleetFacts, RowFacts, WorkerFacts
from streamclient.operate.liveness import is_lag_bound, lag_seconds, life, seconds_to_loss
from streamclient.operate.operator_orders import OrderReport
from streamclient.operate.plans import ChangePlan
from streamclient.operate.verdict import FleetVerdict
from streamclient.worker.lease.audit_rows import AuditRecord

Document = dict[str, Any]


def fleet_document(facts: FleetFacts) -> Document:
    """Return the members with which every document about a fleet begins."""
    return {
        "table": facts.stream.table_name,
        "status_table": facts.status_table_name,
        "stream": facts.stream.stream_id,
        "now_micros": facts.now_micros,
        "lease_duration_seconds": facts.lease_duration_seconds,
        "expiration_hours": facts.stream.expiration_hours,
    }


def lease_document(facts: FleetFacts, explanation: Explanation) -> Document:
    """Return the lease row of a shard, with the verdict about the shard, as a JSON object."""
    row = facts.rows.get(explanation.shard_id)
    return {
        **row_document(explanation.shard_id, row),
        "situation": explanation.situation.name,
        "moves": explanation.situation.moves,
        "heartbeat_seconds": None if row is None or not row.beat_micros else facts.age_seconds(row.beat_micros),
        "checkpoint_seconds": (
            None if row is None or not row.checkpoint_micros else facts.age_seconds(row.checkpoint_micros)
        ),
        "lag_seconds": lag_seconds(facts, explanation.shard_id),
        "lag_is_bound": is_lag_bound(facts, explanation.shard_id),
        "seconds_to_loss": seconds_to_loss(facts, explanation.shard_id),
    }


def row_document(shard_id: str, row: RowFacts | None) -> Document:
    """Return the content of a lease row. The columns of a missing or malformed row are ``null``."""
    lease = None if row is None else row.lease
    problem = "no lease row" if row is None else row.problem
    if lease is None:
        columns: Document = dict.fromkeys(
            (
                "owner",
                "stealer",
                "counter",
                "checkpoint",
                "checkpoint_kind",
                "parents",
                "pause",
                "orders",
                "progress",
                "pending",
            )
        )
        return {"shard": shard_id, **columns, "pause_acknowledged": False, "problem": problem}
    return {"shard": shard_id, **lease_columns(lease), "problem": ""}


def lease_columns(lease: Lease) -> Document:
    """Return the columns of a lease row as members of a document."""
    pending = None
    if lease.pending is not None:
        pending = {**asdict(lease.pending), "state": lease.pending.state.hex()}
    return {
        "owner": lease.owner,
        "stealer": lease.stealer,
        "counter": lease.counter,
        "checkpoint": lease.checkpoint,
        "checkpoint_kind": checkpoint_kind(lease.checkpoint),
        "parents": sorted(lease.parent_shard_ids),
        "pause": None if lease.pause is None else lease.pause.as_plain(),
        "pause_acknowledged": lease.is_paused_by_owner,
        "orders": [{**asdict(order), "record_ids": list(order.record_ids)} for order in lease.orders],
        "progress": None if lease.progress is None else asdict(lease.progress),
        "pending": pending,
    }


def worker_document(facts: FleetFacts, name: str) -> Document:
    """Return a worker's state, its numbers of leases and its session row, if it has one, as a JSON object."""
    worker = facts.workers.get(name)
    owned = facts.owned.get(name, [])
    return {
        "worker": name,
        "life": life(facts, name).value,
        "leases": len(owned),
        "unfinished": sum(not lease.is_finished for lease in owned),
        "session": None if worker is None else session_document(facts, worker),
    }


def session_document(facts: FleetFacts, worker: WorkerFacts) -> Document:
    """Return the content of a worker's session row as members of a document."""
    info = worker.info
    return {
        "state": worker.state,
        "beat_seconds": facts.age_seconds(worker.beat_micros),
        "host": info.host,
        "pid": info.pid,
        "process": worker.process.value,
        "version": info.version,
        "started_micros": info.started_micros,
        "lease_duration_millis": info.lease_duration_millis,
        "trouble": info.trouble,
        "pace": info.pace,
        "cost": None if info.cost is None else info.cost.to_document(),
        "shards": {key: trouble.to_document() for key, trouble in info.shards.items()},
        "left": list(info.left),
        "parked": info.parked,
        "parked_of": dict(info.parked_of),
        "set_aside": list(info.set_aside),
    }


def explanation_document(facts: FleetFacts, explanation: Explanation) -> Document:
    """Return the verdict about a shard, with its cause, the advice and the evidence, as a JSON object."""
    return {
        "shard": explanation.shard_id,
        "situation": explanation.situation.name,
        "moves": explanation.situation.moves,
        "first_line": explanation.first_line,
        "root": explanation.root,
        "advice": explanation.situation.advice,
        "evidence": evidence(facts, explanation.shard_id),
    }


def audit_document(record: AuditRecord) -> Document:
    """Return one audit row as a JSON object. The columns before and after the change are parsed."""
    return {
        "change": record.change_id,
        "at_micros": record.at_micros,
        "who": record.who,
        "command": record.command,
        "reason": record.reason,
        "shard": record.shard_id,
        "before": _parsed(record.before),
        "after": _parsed(record.after),
        "outcome": record.outcome,
    }


def report_document(command: str, report: OrderReport) -> Document:
    """Return the report of a command that changes leases: the changes that it made, or would make."""
    return {
        "command": command,
        "status": report.status.value,
        "change": report.change_id or None,
        **plan_document(report.plan, report.outcomes),
        "notes": [*report.plan.notes, *report.notes],
    }


def plan_document(plan: ChangePlan, outcomes: Any = None) -> Document:
    """Return the writes of a plan with the columns that they change, and the plan's refusals."""
    changes = []
    for change in plan.changes:
        write = change.write
        before, after = lease_columns(write.seen), lease_columns(write.result) if write.result is not None else {}
        names = [name for name in before if before[name] != after.get(name)]
        changes.append(
            {
                "shard": change.shard_id,
                "write": write.kind.value,
                "before": {name: before[name] for name in names},
                "after": {name: after.get(name) for name in names},
                "effect": change.effect,
                "outcome": (outcomes or {}).get(change.shard_id),
            }
        )
    refusals = [
        {"shard": refusal.shard_id, "reason": refusal.reason, "hindrance": refusal.hindrance.value}
        for refusal in plan.refusals
    ]
    return {"changes": changes, "refusals": refusals}


def shard_document(shard: Shard) -> Document:
    """Return the id of a shard and the sorted ids of its parents, as the stream lists them, as a JSON object."""
    return {"shard": shard.shard_id, "parents": sorted(shard.parent_shard_ids)}


def _parsed(text: str) -> Any:
    try:
        return parse_json(text)
    except ValueError:
        return text


def explanations_document(facts: FleetFacts, told: FleetVerdict, explanations: Sequence[Explanation]) -> Document:
    """Return the verdict about a fleet, with the given explanations of its shards, as a JSON object."""
    return {
        **fleet_document(facts),
        "verdict": told,
        "shards": [explanation_document(facts, explanation) for explanation in explanations],
    }
