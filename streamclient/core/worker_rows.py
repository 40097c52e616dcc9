"""The effects of worker rows on leases: sessions begin and end, other sessions are killed, and wakes arrive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from streamclient.base.reasons import described
from streamclient.core.events import (
    Answered,
    CheckpointOutcome,
    InfoChanged,
    ReadSignals,
    Severity,
    WakeWorkers,
    WriteWorker,
)
from streamclient.core.membership import WorkerRow
from streamclient.core.session import News
from streamclient.core.settle import lose, settle
from streamclient.core.worker_state import WorkerState
from streamclient.core.write_rules import WriteOutcome
from streamclient.model import BalanceBy

WORTH_A_WARNING = 4
"""The number of consecutive failed reads after which the log says that worker rows cannot be read. With the pauses
between the reads, these failures take several seconds."""

DISAGREEMENT = "balance_by differs"
MOST_NAMED = 10
"""The largest number of workers that are named for each setting when settings differ. A few names suffice to find the
wrong setting."""

OUSTED = "another process was started under its name; this one stays without leases"


def check_session(state: WorkerState) -> None:
    """Treat every lease as lost if the session is over, because another worker may take any of them now."""
    news = state.signals.check_session(state.now)
    if news is not News.NOTHING:
        _take(state, news)


def do_what_is_due(state: WorkerState, *, is_drained: bool) -> None:
    """Do the work that is due: read signals, send a beat, wake other workers, write verdicts."""
    commands = state.signals.commands(state.now, is_scanning=state.is_scanning, is_drained=is_drained)
    state.commands.extend(commands)


def workers_scanned(state: WorkerState, workers: Sequence[WorkerRow] | None) -> None:
    """Process the rows of all workers, which were read after the rows of the leases."""
    signals = state.signals
    if workers is None or not signals.keeps_rows:
        return
    news, wants_scan = signals.scanned(workers, state.scan_asked_at, state.now)
    _take(state, news)
    state.wants_scan = state.wants_scan or wants_scan
    state.view.note_killed(signals.peers.killed, state.scan_asked_at, state.now)
    _judge_uniformity(state)
    _agree_on_balance(state)
    _start_seen(state)
    if signals.may_hold(state.now) and not signals.is_announced:
        signals.is_announced = True
        signals.wake_all()


def signals_read(state: WorkerState, call: ReadSignals, answer: Answered[tuple[WorkerRow, ...]]) -> None:
    """Process the answer to a read of some worker rows. If the read failed, repeat it after a pause."""
    if answer.value is not None:
        news, wants_scan = state.signals.signals_read(answer.value, state.now)
        _take(state, news)
        state.wants_scan = state.wants_scan or wants_scan
        _start_seen(state)
    elif state.signals.signals_unreadable(state.now) == WORTH_A_WARNING:
        why = "no answer" if answer.error is None else described(answer.error)
        state.report(Severity.WARNING, "", f"worker rows cannot be read, and no leases are taken without them: {why}")


def worker_write_answered(state: WorkerState, call: WriteWorker, answer: Answered[WriteOutcome]) -> None:
    """Process the outcome of a write of a worker row, which may begin or end a session."""
    write, signals = call.write, state.signals
    outcome = answer.value or WriteOutcome.UNCERTAIN
    if write.worker_id == state.worker_id:
        _take(state, signals.own_write_answered(write, outcome, answer.sent_at, state.now))
        _start_seen(state)
    elif signals.verdict_answered(write, outcome, state.now):
        text = f"worker {write.worker_id} stood still for longer than the lease duration; its leases are free"
        state.report(Severity.WARNING, "", text)
        state.wants_scan = True


def wakes_sent(state: WorkerState, call: WakeWorkers, answer: Answered[None]) -> None:
    """Record whether waking other workers succeeded. After an error, it is unknown which of them were woken."""
    state.signals.wakes_sent(call.names, answer.error, state.now)


def info_changed(state: WorkerState, event: InfoChanged) -> None:
    """Let the next heartbeat store the worker's changed information for operators."""
    state.signals.session.info = event.info


def _start_seen(state: WorkerState) -> None:
    """Go on with leases that waited for a read of this worker's row. Leases that need another read go on waiting."""
    waiting, state.unseen = state.unseen, set()
    for key in sorted(waiting):
        settle(state, key)


def _judge_uniformity(state: WorkerState) -> None:
    """Check whether all workers that lease rows name have sessions. If that has just become false, wake all workers."""
    signals, peers = state.signals, state.signals.peers
    was_uniform = signals.is_uniform
    names = state.view.counts.names
    signals.is_uniform = all(peers.has_session(name) or peers.is_over(name) for name in names)
    if was_uniform and not signals.is_uniform:
        strangers = sorted(name for name in names if not peers.has_session(name) and not peers.is_over(name))
        text = f"the fleet has workers without sessions, every worker scans for itself from now on: {strangers}"
        state.report(Severity.INFO, "", text)
        signals.wake_all()


def _agree_on_balance(state: WorkerState) -> None:
    """Balance the quantity on which all workers agree. If their settings differ, balance the number of leases.

    If workers balanced different quantities, each would move back the leases that another one has moved, for ever.
    """
    own, peers = state.config.balance_by, state.signals.peers
    told = {state.worker_id: own.value}
    for name in peers.staying_others:
        row = peers.row(name)
        if row is not None and row.balance_by:
            told[name] = row.balance_by
    if len(set(told.values())) == 1:
        state.balance_by = own
        state.forget_report("", DISAGREEMENT)
        return
    state.balance_by = BalanceBy.COUNT
    sides = [f"{what!r} by {', '.join(_some(told, what))}" for what in sorted(set(told.values()))]
    text = f"the fleet disagrees on balance_by, so all workers balance by count until it agrees: {'; '.join(sides)}"
    state.report_once(Severity.WARNING, "", DISAGREEMENT, text)


def _some(told: Mapping[str, str], what: str) -> list[str]:
    names = sorted(name for name, value in told.items() if value == what)
    return names if len(names) <= MOST_NAMED else [*names[:MOST_NAMED], f"{len(names) - MOST_NAMED} more"]


def _take(state: WorkerState, news: News) -> None:
    if news is News.BEGUN:
        state.report(Severity.INFO, "", "its session begins")
        state.wants_scan = state.wants_scan or not state.is_scanning
    elif news is News.OVER:
        next_one = "" if state.is_stopping else "; it begins another"
        state.report(Severity.WARNING, "", f"its session is over and all its leases are lost{next_one}")
        state.lapses.note(state.now)
        _lose_everything(state)
    elif news is News.OUSTED:
        state.report(Severity.ERROR, "", f"{OUSTED}. Give every worker its own identifier, and stop this process")
        _lose_everything(state)


def _lose_everything(state: WorkerState) -> None:
    state.signals.is_uniform = False
    for key in sorted(state.held):
        text = f"its worker's session is over, reading stops: {state.held[key].lease}"
        lose(state, key, Severity.WARNING, text, in_doubt=CheckpointOutcome.UNKNOWN)
