"""Rules about an unfinished lease: each looks for one obstacle, such as a parent, a pause or a dead owner. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain

from streamclient.base.reasons import Cause, ReasonKind, text_of
from streamclient.base.times import duration, utc_text
from streamclient.core.worker_info import ShardTrouble
from streamclient.model import Lease
from streamclient.operate import situations
from streamclient.operate.cases import Case, Explanation, names_of
from streamclient.operate.facts import SILENT_SHARE, Process, RowFacts, WorkerFacts
from streamclient.operate.liveness import Liveness, is_pause_on, life
from streamclient.operate.row_rules import in_circle
from streamclient.operate.situations import Situation

LeaseRule = Callable[[Case, RowFacts, Lease], Explanation | None]
"""A rule: it returns a verdict, or ``None`` if it does not apply to the lease."""


def _waits_for_parent(case: Case, row: RowFacts, lease: Lease) -> Explanation | None:
    gate = case.facts.gates.of(lease)
    if gate.reason is None:
        return None
    circle = case.facts.circles.get(case.shard_id)
    if circle is not None:
        return in_circle(case, circle)
    for parent in sorted(case.facts.parents[case.shard_id]):
        blocking = _blocking(case, parent)
        if blocking is not None:
            return case.because_of(blocking, situations.WAITS_FOR_PARENT)
    return case.verdict(situations.WAITS_FOR_PARENT, f"waits: {text_of(gate.reason)}")


def _blocking(case: Case, ancestor: str) -> str | None:
    """Return ``ancestor`` if it is unfinished, otherwise one of its ancestors that is; ``None`` if all are finished.

    Leave out shards whose verdicts wait for the verdict about the shard of ``case``.
    """
    seen = {case.shard_id, *case.above}
    for shard_id in chain([ancestor], case.facts.tree.ancestors(ancestor)):
        lease = case.facts.lease(shard_id)
        is_listed = shard_id in (case.facts.stream.listing or {})
        unfinished = not lease.is_finished if lease is not None else is_listed or shard_id in case.facts.rows
        if unfinished and shard_id not in seen:
            return shard_id
    return None


def _paused(case: Case, row: RowFacts, lease: Lease) -> Explanation | None:
    pause = lease.pause
    if pause is None or not is_pause_on(pause, case.facts.now_micros):
        return None
    until = "" if pause.until_micros is None else f" until {utc_text(pause.until_micros)}"
    order = f"paused by {pause.by}{until}: {pause.reason}"
    is_read = lease.owner and life(case.facts, lease.owner) in (Liveness.LIVING, Liveness.SILENT)
    if lease.is_paused_by_owner or not is_read:
        return case.verdict(situations.PAUSED, f"is {order}")
    since = duration(case.facts.age_seconds(row.pause_micros))
    if case.session(lease.owner) is None:
        text = f"is to be {order}; but its owner {lease.owner} has no session row, so it does not know pauses"
        return case.verdict(situations.PAUSE_IGNORED, text)
    said = case.said(lease.owner)
    because = f": {said}" if said else ""
    text = f"is to be {order}; but its owner {lease.owner} has not stopped reading for {since}{because}"
    return case.verdict(situations.PAUSE_PENDING, text)


def _free(case: Case, row: RowFacts, lease: Lease) -> Explanation | None:
    if lease.owner:
        return None
    if not case.living:
        return case.verdict(situations.NO_WORKER, "has no owner, and no worker lives")
    takers = _takers(case)
    if not takers:
        return case.verdict(situations.LEFT_BY_PROCESSOR, _left_text(case.living))
    text = f"has no owner; it is free for the next scan of a worker (living: {names_of(takers)})"
    return case.verdict(situations.FREE, text + _unless_left(case, takers))


def _takers(case: Case) -> Sequence[str]:
    """Return the living workers that may take the shard."""
    left = case.facts.left_by.get(case.shard_id)
    return case.living if left is None else [name for name in case.living if name not in left]


def _unless_left(case: Case, takers: Sequence[str]) -> str:
    """Return words which say that each of the living workers ``takers`` may have left the shard; or an empty text.

    A worker never takes a shard that its processor has left. If its session row has no room for the names of all such
    shards, the worker may have left this shard, too. But if one of ``takers`` has no session row, or a row that names
    all shards that it left, this worker can take the shard. Then the text is empty.
    """
    sessions = (case.facts.workers.get(name) for name in takers)
    if not all(session is not None and session.info.left_unnamed for session in sessions):
        return ""
    names = names_of(takers)
    return f", unless its processor left it on worker {names}, whose session row has no room to name all such shards"


def _left_text(names: Sequence[str]) -> str:
    return (
        f"was given up by its processor on worker {names_of(names)} (mark_for_process_done), and no other worker lives"
    )


def _contested(case: Case, row: RowFacts, lease: Lease) -> Explanation | None:
    before, now = case.facts.earlier_workers.get(lease.owner), case.session(lease.owner)
    if before is None or now is None or before.nonce == now.nonce:
        return None
    processes = " and ".join(
        f"process {session.info.pid or '?'} on {session.info.host or 'an unnamed host'}" for session in (before, now)
    )
    text = f"is held by worker {lease.owner}, but two processes use that name: {processes}"
    return case.verdict(situations.NAME_CONTESTED, text)


def _not_picked_up(case: Case, row: RowFacts, lease: Lease) -> Explanation | None:
    if not lease.is_handed_over:
        return None
    since = duration(case.facts.age_seconds(row.owner_micros))
    text = f"was handed over to worker {lease.owner} {since} ago, and the worker has not picked it up"
    state = life(case.facts, lease.owner)
    if state is Liveness.DEAD:
        return case.verdict(situations.NOT_PICKED_UP, f"{text}: the worker is dead")
    if case.facts.age_seconds(row.owner_micros) <= case.facts.lease_duration_seconds * SILENT_SHARE:
        return case.verdict(situations.NEW_OWNER, f"is changing hands: handed over to worker {lease.owner} {since} ago")
    return case.verdict(situations.NOT_PICKED_UP, text)


def _owner_gone(case: Case, row: RowFacts, lease: Lease) -> Explanation | None:
    session, owner = case.session(lease.owner), lease.owner
    state = life(case.facts, owner)
    if session is not None and session.process is Process.STOPPED:
        text = f"is held by worker {owner}, whose process {session.info.pid} on this machine is stopped"
        return case.verdict(situations.OWNER_FROZEN, f"{text}, with its last heartbeat {case.silence(owner)} ago")
    if session is not None and _is_cut_off(case, session, state):
        text = (
            f"is held by worker {owner}, whose process {session.info.pid} on this machine runs, but does not reach the "
        )
        text += f"status table: its last heartbeat was {case.silence(owner)} ago"
        return case.verdict(situations.OWNER_CUT_OFF, text)
    if state is Liveness.DEAD or state is Liveness.UNSEEN:
        return _owner_dead(case, lease)
    is_process_gone = session is not None and session.process is Process.GONE
    if state is Liveness.SILENT or is_process_gone:
        cause = "whose process is gone" if is_process_gone else "which is silent"
        text = f"is held by worker {owner}, {cause} (last heartbeat {case.silence(owner)} ago)"
        return case.verdict(situations.OWNER_SILENT, f"{text}: its lease expires in {case.expires_in(owner)}")
    return None


def _is_cut_off(case: Case, session: WorkerFacts, state: Liveness) -> bool:
    """Return whether an owner's process runs without a heartbeat, and no other worker can take its shards now."""
    if session.process is not Process.RUNNING or session.state == "killed":
        return False
    return state is Liveness.SILENT or (state is Liveness.DEAD and not case.living)


def _owner_dead(case: Case, lease: Lease) -> Explanation:
    dead = f"has a dead owner: worker {lease.owner} gave its last heartbeat {case.silence(lease.owner)} ago"
    if life(case.facts, lease.owner) is Liveness.UNSEEN:
        dead = f"has a dead owner: worker {lease.owner} has gone"
    if not case.living:
        return case.verdict(situations.OWNER_DEAD_ALONE, f"{dead}, and no other worker lives")
    takers = _takers(case)
    if not takers:
        return case.verdict(situations.LEFT_BY_PROCESSOR, _left_text(case.living))
    text = f"{dead}; another worker takes it (living: {names_of(case.living)})"
    return case.verdict(situations.OWNER_DEAD, text + _unless_left(case, takers))


def _given_up(case: Case, row: RowFacts, lease: Lease) -> Explanation | None:
    """Judge a lease that its living owner does not renew."""
    age = case.facts.age_seconds(row.beat_micros)
    if case.session(lease.owner) is None or age <= case.facts.lease_duration_seconds * SILENT_SHARE:
        return None
    if lease.owner in case.facts.left_by.get(case.shard_id, ()):
        others = [name for name in case.living if name != lease.owner]
        if not others:
            return case.verdict(situations.LEFT_BY_PROCESSOR, _left_text([lease.owner]))
    said = case.said(lease.owner)
    because = f": {said}" if said else ""
    text = f"is given up by worker {lease.owner}, which lives but has not renewed this lease for {duration(age)}"
    return case.verdict(situations.GIVEN_UP, text + because)


def _not_handed_over(case: Case, row: RowFacts, lease: Lease) -> Explanation | None:
    if not lease.is_marked:
        return None
    age = case.facts.age_seconds(row.stealer_micros)
    said = case.said(lease.owner)
    because = f": {said}" if said else ""
    if age <= case.facts.lease_duration_seconds * SILENT_SHARE:
        text = f"is changing hands: worker {lease.stealer} asked worker {lease.owner} for it {duration(age)} ago"
        return case.verdict(situations.NEW_OWNER, text)
    text = f"is wanted by worker {lease.stealer}, but worker {lease.owner} has not handed it over for {duration(age)}"
    return case.verdict(situations.NOT_HANDED_OVER, text + because)


def _owner_says(case: Case, row: RowFacts, lease: Lease) -> Explanation | None:
    session = case.session(lease.owner)
    if session is None:
        return None
    trouble = case.trouble(lease.owner)
    if trouble.reason:
        text = f"does not move on worker {lease.owner}: {trouble.reason}"
        return case.verdict(situation_of(trouble), text, cause=trouble.reason)
    if session.info.trouble:
        text = f"is held by worker {lease.owner}, which is unwell: {session.info.trouble}"
        return case.verdict(situations.OWNER_UNWELL, text, cause=f"its owner is unwell: {session.info.trouble}")
    return None


SITUATIONS: Mapping[Cause, Situation] = {
    Cause.PAUSED_BY_PROGRAM: situations.PAUSED_BY_PROGRAM,
    Cause.FAILING_RECORD: situations.RECORD_FAILS,
    Cause.PARKED_SHARE: situations.PARKED_TOO_MANY,
    Cause.LOSS: situations.POSITION_TRIMMED,
    Cause.FINDING_LOSS: situations.POSITION_TRIMMED,
    Cause.END_NOT_SHOWN: situations.END_NOT_SHOWN,
    Cause.NO_PROGRESS: situations.NO_PROGRESS,
    Cause.PARENT_CIRCLE: situations.PARENT_CIRCLE,
    Cause.END_NOT_STORED: situations.END_NOT_STORED,
    Cause.PREVIOUS_PROCESSOR: situations.OLD_PROCESSOR_RUNS,
    Cause.CALL_QUEUED: situations.WAITS_FOR_THREAD,
    Cause.PARKING_QUEUED: situations.WAITS_FOR_THREAD,
    Cause.READ_QUEUED: situations.WAITS_FOR_THREAD,
    Cause.EPOCH: situations.WAITS_FOR_TABLE,
    Cause.LOOK: situations.WAITS_FOR_TABLE,
    Cause.PARENT_ROW_MISSING: situations.WAITS_FOR_TABLE,
    Cause.ROW_GONE: situations.WAITS_FOR_TABLE,
    Cause.HAND_OVER_IN_DOUBT: situations.WAITS_FOR_TABLE,
    Cause.LEAVING_PAUSE: situations.WAITS_FOR_TABLE,
    Cause.PREVIOUS_CHECKPOINT: situations.WAITS_FOR_TABLE,
    Cause.ASKED_FOR: situations.OWNER_SAYS,
    Cause.GIVEN_AWAY: situations.OWNER_SAYS,
    Cause.STALLED: situations.OWNER_SAYS,
    Cause.LEASE_LOST: situations.OWNER_SAYS,
    Cause.WORKER_FAILED: situations.OWNER_SAYS,
    Cause.WORKER_ENDED: situations.OWNER_SAYS,
    Cause.CLOSING: situations.OWNER_SAYS,
    Cause.TURN: situations.OWNER_SAYS,
    Cause.CHANNEL_GIVEN_UP: situations.OWNER_SAYS,
    Cause.PROCESSOR_FAILED: situations.PROCESSOR_FAILS,
    Cause.RESTART_MARKED: situations.PROCESSOR_FAILS,
    Cause.PARKING_FAILED: situations.PARKING_FAILS,
    Cause.PARKING_RUNS: situations.PARKING_FAILS,
    Cause.READING_FAILED: situations.READING_FAILS,
    Cause.READ_RUNS: situations.READING_FAILS,
    Cause.CHECKPOINT: situations.WAITS_FOR_TABLE,
    Cause.CALL_RUNS: situations.USER_CODE_RUNS,
    Cause.BATCH_OUT: situations.USER_CODE_RUNS,
    Cause.BATCH_WAITS: situations.USER_CODE_RUNS,
    Cause.PAUSED: situations.PAUSED,
    Cause.PARENT: situations.WAITS_FOR_PARENT,
    Cause.FINISHED: situations.FINISHED,
}
"""The situation for each cause that a worker names, except causes that only follow from another cause. If a worker
names several causes, the cause that comes first here decides, because it has to end first."""

KINDS: Mapping[str, Situation] = {
    ReasonKind.USER_CODE.value: situations.USER_CODE_RUNS,
    ReasonKind.PROCESSOR.value: situations.PROCESSOR_FAILS,
    ReasonKind.PARKING.value: situations.PARKING_FAILS,
    ReasonKind.READING.value: situations.READING_FAILS,
    ReasonKind.CHECKPOINT.value: situations.WAITS_FOR_TABLE,
}
"""The situation for each kind of reason. It is used for workers of another version, which name unknown causes."""


def situation_of(trouble: ShardTrouble) -> Situation:
    """Return the situation for ``trouble``: by its causes or, if all causes are unknown, by its kind.

    The trouble's sentence is not searched for words, because it quotes exceptions of user code.
    """
    causes = {reason.cause for reason in trouble.reasons}
    named = (situation for cause, situation in SITUATIONS.items() if cause in causes)
    return next(named, KINDS.get(trouble.kind, situations.OWNER_SAYS))


LEASE_RULES: tuple[LeaseRule, ...] = (
    _waits_for_parent,
    _paused,
    _free,
    _contested,
    _not_picked_up,
    _owner_gone,
    _given_up,
    _not_handed_over,
    _owner_says,
)
"""The rules in the order of the laws in ``explanation``. The first rule that returns a verdict decides."""
