"""Keeping lease rows in line with the stream's shards, and saving own rows that vanished."""

from __future__ import annotations

from attrs import evolve

from streamclient.core import leases
from streamclient.core.events import ResolveAndCreate, Severity, ShardsListed, SyncDue
from streamclient.core.shards import NewLease, SyncPlan, has_its_parents, index_shards, plan_shard_sync
from streamclient.core.situation import Situation
from streamclient.core.tenancies import lose, send, settle_restless
from streamclient.core.tenancy import HeldLease
from streamclient.records import readable_position


def sync_due(situation: Situation, event: SyncDue) -> None:
    """List the shards, if that is this worker's task.

    In a fleet whose workers all have sessions one of them does it for all. The others do so in turn, in case that one
    cannot, and whenever they need a list themselves.
    """
    presence = situation.presence
    if situation.is_stopping:
        return
    if presence.is_uniform and not presence.is_leader:
        workers = len(presence.roster.others) + 1
        interval = situation.config.sync_shard_interval_millis / 1_000
        if situation.now - situation.listed_at < (workers - 0.5) * interval:
            return
    situation.wants_listing = True


def shards_listed(situation: Situation, event: ShardsListed) -> None:
    """Take in a complete listing. An empty one says nothing: no stream has no shards."""
    situation.is_listing = False
    situation.listed_at = situation.now
    if event.shards:
        situation.previous_listing, situation.listing = situation.listing, index_shards(event.shards)
        situation.view.forget_vanished(situation.listing)
        situation.is_sync_planned = False
        situation.compared = {key: number for key, number in situation.compared.items() if key in situation.listing}
        situation.begun_late.intersection_update(situation.listing)
        _forget_gone(situation)
        plan_sync(situation)
        for held in list(situation.held.values()):
            if held.is_absent:
                _save_vanished(situation, held)
    settle_restless(situation)
    situation.wants_listing = False


def _forget_gone(situation: Situation) -> None:
    """What is remembered of shards that have neither a place in the stream nor a row: a worker may live for years."""
    listing, rows = situation.listing or {}, situation.view.rows
    situation.released = {key: None for key in situation.released if key in listing or key in rows}
    reported = situation.reported
    situation.reported = {each: None for each in reported if not each[0] or each[0] in listing or each[0] in rows}


def plan_sync(situation: Situation) -> None:
    """Create and delete rows after a listing; waits for the first scan, and does nothing while stopping."""
    if situation.is_sync_planned or situation.is_stopping or not situation.view.scans or situation.listing is None:
        return
    situation.is_sync_planned = True
    presence = situation.presence
    is_first = situation.view.live_workers(situation.now)[0] == situation.worker_id
    plan = plan_shard_sync(
        situation.listing,
        situation.view.rows,
        situation.start,
        now=situation.now,
        previous=situation.previous_listing,
        absent_since=situation.absent_since,
        vanished=situation.view.vanished,
        deletes_rows=presence.is_leader if presence.is_uniform else is_first,
    )
    situation.absent_since = dict(plan.absent_since)
    situation.missing = {new.lease.lease_key: new for new in plan.creates if not _is_held(situation, new)}
    create_missing(situation)
    if plan.deletes and presence.is_uniform and not situation.is_row_scan_fresh:
        # Owners move their counters all the time, and this worker's last scan may be minutes old.
        situation.is_sync_planned, situation.wants_scan = False, True
    else:
        _delete(situation, plan)


def create_missing(situation: Situation) -> None:
    """Create the rows whose listed parents have rows by now; the others follow when those were accepted.

    A child's row must never exist before its parent's: a worker of another kind would read the child at once.
    """
    if situation.is_stopping or situation.listing is None:
        return
    rows = situation.view.rows
    for key, new in list(situation.missing.items()):
        if key in rows:
            del situation.missing[key]
        elif key not in situation.flights and has_its_parents(situation.listing[key], situation.listing, rows):
            del situation.missing[key]
            _create(situation, new)


def creation_answered(situation: Situation) -> None:
    """Go on creating; after the last row, scan at once, so that new rows are taken without waiting for the interval."""
    create_missing(situation)
    if situation.creating:
        return
    situation.wants_scan = True
    if situation.has_created:
        situation.has_created = False
        situation.presence.wake_all()


def _create(situation: Situation, new: NewLease) -> None:
    """Create a row, at the latest record only if its parents begin there, too, by this worker's hand.

    Others may have created them since the plan was made, from an earlier place: what is between would be skipped.
    """
    write = leases.create(new.lease)
    is_latest = situation.start.initial_position.kind == "latest"
    parents = {parent for parent in new.lease.parent_shard_ids if parent in situation.view.rows}
    if new.timestamp_micros is None or (is_latest and parents - situation.begun_late):
        send(situation, write)
    else:
        situation.launch(write)
        situation.emit(ResolveAndCreate(new.lease, new.timestamp_micros))


def _is_held(situation: Situation, new: NewLease) -> bool:
    return new.lease.lease_key in situation.held


def _delete(situation: Situation, plan: SyncPlan) -> None:
    for row in plan.losses:
        where = readable_position(row.checkpoint)
        text = f"left the stream before it was read to its end; unread records are lost after checkpoint {where}"
        situation.report_once(Severity.ERROR, row.lease_key, "data loss", text)
    for row in plan.deletes:
        if row.lease_key not in situation.flights:
            held = situation.held.get(row.lease_key)
            send(situation, leases.delete(row if held is None else held.lease))


def _save_vanished(situation: Situation, held: HeldLease) -> None:
    """Create a held lease's row again where it stood, if its shard still exists."""
    key = held.lease.lease_key
    if situation.listing is not None and key in situation.listing:
        situation.keep(evolve(held, is_absent=False, is_renewal_due=True))
        send(situation, leases.create(evolve(held.lease, stealer="", counter=held.lease.counter + 1)))
        return
    severity = Severity.INFO if held.lease.is_finished else Severity.ERROR
    lose(situation, key, severity, f"its lease row is gone and the stream does not list the shard: {held.lease}")
