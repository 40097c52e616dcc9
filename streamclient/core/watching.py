"""What reads and answers about worker rows mean for leases: sessions begin and end, others are killed, calls come."""

from __future__ import annotations

from collections.abc import Mapping

from streamclient.core.events import (
    CheckpointOutcome,
    InfoChanged,
    RowsRead,
    Severity,
    SignalsRead,
    SignalsUnreadable,
    WakesSent,
    WorkerWriteAnswered,
)
from streamclient.core.session import News
from streamclient.core.situation import Situation
from streamclient.core.tenancies import lose, settle
from streamclient.model import BalanceBy

WORTH_A_WARNING = 4
"""Failures in a row after which reading worker rows is reported: with the pauses between them, several seconds."""

DISAGREEMENT = "balance_by differs"
MOST_NAMED = 10
"""Workers of each side that are named: enough to find the setting."""

OUSTED = "another process was started under its name; this one stays without leases"


def check_session(situation: Situation) -> None:
    """End every tenancy if the session is over: another worker may be told to take all of them from now on."""
    news = situation.presence.check_session(situation.now)
    if news is not News.NOTHING:
        _take(situation, news)


def do_what_is_due(situation: Situation, *, is_drained: bool) -> None:
    """Read signals, beat, call others, speak verdicts."""
    commands = situation.presence.commands(situation.now, is_scanning=situation.is_scanning, is_drained=is_drained)
    situation.commands.extend(commands)


def workers_scanned(situation: Situation, event: RowsRead) -> None:
    """Take in the rows of all workers, which were read after those of the leases."""
    presence = situation.presence
    if event.workers is None or not presence.keeps_rows:
        return
    news, wants_scan = presence.scanned(event.workers, situation.scan_asked_at, situation.now)
    _take(situation, news)
    situation.wants_scan = situation.wants_scan or wants_scan
    situation.view.note_killed(presence.roster.killed, situation.scan_asked_at, situation.now)
    _judge_uniformity(situation)
    _agree_on_balance(situation)
    _start_seen(situation)
    if presence.may_hold(situation.now) and not presence.is_announced:
        presence.is_announced = True
        presence.wake_all()


def signals_read(situation: Situation, event: SignalsRead) -> None:
    """Take in a few worker rows."""
    news, wants_scan = situation.presence.signals_read(event.workers, situation.now)
    _take(situation, news)
    situation.wants_scan = situation.wants_scan or wants_scan
    _start_seen(situation)


def signals_unreadable(situation: Situation, event: SignalsUnreadable) -> None:
    """Read them again after a pause."""
    failures = situation.presence.signals_unreadable(situation.now)
    if failures == WORTH_A_WARNING:
        text = f"worker rows cannot be read; no leases are taken without: {type(event.error).__name__}: {event.error}"
        situation.report(Severity.WARNING, "", text)


def worker_write_answered(situation: Situation, event: WorkerWriteAnswered) -> None:
    """Take in what became of a write of a worker row."""
    write, presence = event.write, situation.presence
    if write.worker_id == situation.worker_id:
        _take(situation, presence.own_write_answered(write, event.outcome, event.sent_at, situation.now))
        _start_seen(situation)
    elif presence.verdict_answered(write, event.outcome, situation.now):
        text = f"worker {write.worker_id} stood still for longer than the lease duration; its leases are free: {write}"
        situation.report(Severity.WARNING, "", text)
        situation.wants_scan = True


def wakes_sent(situation: Situation, event: WakesSent) -> None:
    """Take in what became of wakes."""
    situation.presence.wakes_sent(event.names, event.error, situation.now)


def info_changed(situation: Situation, event: InfoChanged) -> None:
    """Tell operators with the next beat."""
    situation.presence.session.info = event.info


def _start_seen(situation: Situation) -> None:
    """Go on with leases that waited for a look at the own row; those that need another one wait again."""
    waiting, situation.unseen = situation.unseen, set()
    for key in sorted(waiting):
        settle(situation, key)


def _judge_uniformity(situation: Situation) -> None:
    """See whether all whom the rows name know of sessions. If that has just ended, the others should see it soon."""
    presence, roster = situation.presence, situation.presence.roster
    was_uniform = presence.is_uniform
    names = situation.view.census.names
    presence.is_uniform = all(roster.has_session(name) or roster.is_over(name) for name in names)
    if was_uniform and not presence.is_uniform:
        strangers = sorted(name for name in names if not roster.has_session(name) and not roster.is_over(name))
        text = f"the fleet has workers without sessions, every worker scans for itself from now on: {strangers}"
        situation.report(Severity.INFO, "", text)
        presence.wake_all()


def _agree_on_balance(situation: Situation) -> None:
    """Make even what everybody makes even; workers that were told differently all count, and so all want the same.

    Otherwise each would move back what the other has moved, for ever.
    """
    own, roster = situation.config.balance_by, situation.presence.roster
    told = {situation.worker_id: own.value}
    for name in roster.staying_others:
        row = roster.row(name)
        if row is not None and row.balance_by:
            told[name] = row.balance_by
    if len(set(told.values())) == 1:
        situation.balance_by = own
        situation.forget_report("", DISAGREEMENT)
        return
    situation.balance_by = BalanceBy.COUNT
    sides = [f"{what!r} by {', '.join(_some(told, what))}" for what in sorted(set(told.values()))]
    text = f"the fleet disagrees on balance_by, so all count leases until it agrees: {'; '.join(sides)}"
    situation.report_once(Severity.WARNING, "", DISAGREEMENT, text)


def _some(told: Mapping[str, str], what: str) -> list[str]:
    names = sorted(name for name, value in told.items() if value == what)
    return names if len(names) <= MOST_NAMED else [*names[:MOST_NAMED], f"{len(names) - MOST_NAMED} more"]


def _take(situation: Situation, news: News) -> None:
    if news is News.BEGUN:
        situation.report(Severity.INFO, "", f"its session begins: {situation.presence.session.row}")
        situation.wants_scan = situation.wants_scan or not situation.is_scanning
    elif news is News.OVER:
        situation.report(Severity.WARNING, "", "its session is over, all that it held is lost; it begins another")
        _lose_everything(situation)
    elif news is News.OUSTED:
        situation.report(Severity.ERROR, "", f"{OUSTED}. Give every worker its own identifier, and stop this process")
        _lose_everything(situation)


def _lose_everything(situation: Situation) -> None:
    situation.presence.is_uniform = False
    for key in sorted(situation.held):
        text = f"its worker's session is over, reading stops: {situation.held[key].lease}"
        lose(situation, key, Severity.WARNING, text, in_doubt=CheckpointOutcome.UNKNOWN)
