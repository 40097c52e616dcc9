"""What others want of held leases, as scans show it: marks and pauses; and what the worker's own program wants."""

from __future__ import annotations

from attrs import evolve

from streamclient.core.events import PauseRequested, ResumeRequested, Severity
from streamclient.core.situation import Situation
from streamclient.core.tenancies import settle, settle_all
from streamclient.core.tenancy import HeldLease
from streamclient.model import Lease


def notice_rows(situation: Situation) -> None:
    """Take over marks and pauses that the last scan showed: on rows of this tenancy, not newer than what is known.

    A write under way may have landed before the row was read, and be answered later than that.
    """
    scanned = situation.view.scanned
    for key, held in situation.held.items():
        row = scanned.get(key)
        if row is None or row.owner != situation.worker_id:
            continue
        flight = situation.flights.get(key)
        sent = flight.write.result if flight is not None else None
        newest = held.lease.counter if sent is None else max(held.lease.counter, sent.counter)
        if held.first_counter <= row.counter <= newest:
            noticed = _with_pause(situation, _with_mark(held, row), row)
            if noticed is not held:
                situation.keep(noticed)


def _with_mark(held: HeldLease, row: Lease) -> HeldLease:
    """A scan is older than the last heartbeat as a rule; a mark it shows stands nevertheless for this tenancy."""
    if not row.is_marked or held.lease.is_marked:
        return held
    return evolve(held, lease=evolve(held.lease, stealer=row.stealer))


def _with_pause(situation: Situation, held: HeldLease, row: Lease) -> HeldLease:
    """A pause comes and goes without moving the counter: a scan knows less than a row read after the scan began."""
    if row.pause == held.lease.pause or situation.scan_asked_at < held.pause_known_at:
        return held
    key, pause = held.lease.lease_key, row.pause
    text = f"the pause is over: {row}" if pause is None else f"paused by {pause.by}: {pause.reason}: {row}"
    situation.report(Severity.INFO, key, text)
    return evolve(held, lease=evolve(held.lease, pause=pause, pause_taken=row.pause_taken))


def pause_requested(situation: Situation, event: PauseRequested) -> None:
    """The worker's own program pauses one shard, held or not, or all that are held now or later."""
    situation.own_pauses[event.lease_key] = event.reason
    _settle_for(situation, event.lease_key)


def resume_requested(situation: Situation, event: ResumeRequested) -> None:
    """End the program's own pause of one shard, or of the whole worker; others stay."""
    situation.own_pauses.pop(event.lease_key, None)
    _settle_for(situation, event.lease_key)


def _settle_for(situation: Situation, lease_key: str | None) -> None:
    if lease_key is None:
        settle_all(situation)
    else:
        settle(situation, lease_key)
