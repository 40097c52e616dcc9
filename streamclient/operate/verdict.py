"""The verdict about a fleet: whether the fleet is well, and its troubles, worst first. Pure.

Laws:

* A trouble names the shards that have to make progress first. Shards that wait for these are counted, not named.
* Shards with the same cause form one trouble. They have the same situation, and the same words apart from numbers and
  quoted parts.
* A fleet is well if every shard makes progress, no shard is near the loss of records, and no worker is unwell.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from typing import Literal, TypedDict

from attrs import frozen

from streamclient.base.reasons import Cause, common_words, text_of
from streamclient.base.times import MICROS_PER_SECOND, SECONDS_PER_HOUR, duration, utc_text
from streamclient.operate import situations
from streamclient.operate.cases import Explanation
from streamclient.operate.explanation import explain
from streamclient.operate.facts import FleetFacts
from streamclient.operate.liveness import Liveness, last_beat_micros, life, parked_records, seconds_to_loss
from streamclient.operate.situations import Situation

NEAR_LOSS_SHARE = 0.25
"""A shard is near loss if less than this share of the retention is left for its next unread record. The share is 6
hours of a day, so that an operator who sleeps can still act."""

MOST_SHARDS_OF_COMMAND = 5
"""The largest number of shards that a trouble's command names. A line with more shards would be unreadable."""

Kind = Literal["lost", "stuck", "waits", "worker", "parked", "unreadable"]


class Urgency(IntEnum):
    """The urgency of a trouble: how soon it needs a person. The most urgent one comes first."""

    LOSS = 0
    """Records are lost or will be soon, or the fleet could not be read."""
    STUCK = 1
    """The trouble does not end without an action of an operator."""
    FAILING = 2
    """A worker repeats a failing call. The trouble ends when its cause is mended."""
    SLOW = 3
    """A call takes long, or a lease is about to expire."""
    TOLD = 4
    """An operator or program wanted this state, or the state ends without an action of an operator."""


class Trouble(TypedDict):
    """One trouble of a fleet. Times are microseconds since 1970 by the service's clock; unknown values are ``None``."""

    kind: Kind
    urgency: str
    """The name of the ``Urgency`` in lower case."""
    fleet: str
    """The name of the fleet's data table."""
    shard: str | None
    """The shard of this trouble that is nearest to loss; ``None`` if the trouble concerns no shard."""
    shards: list[str]
    """All shards that have to make progress first, sorted by their time to loss."""
    worker: str | None
    """The name of the worker, if the trouble concerns exactly one worker; otherwise ``None``."""
    situation: str
    first_line: str
    advice: str
    command: str
    """A command line that ends the trouble; empty if there is no such command. The advice says when to use it."""
    since_micros: int | None
    """The time at which the trouble began. For most shards it is the time of the last checkpoint or, if later, of the
    next unread record. In some situations it is the time of the pause, of the last change of owner, or of the last
    heartbeat."""
    since_is_seen: bool
    """True if ``since_micros`` is the time of the first reading that showed the trouble. The trouble may be older."""
    waiting_shards: int
    """The number of further shards that wait for ``shards``."""
    records_waiting: int | None
    """Always ``None``, because the service does not tell how many records wait."""
    seconds_to_loss: float | None


class FleetVerdict(TypedDict):
    """The state of a fleet in one sentence, and its troubles."""

    is_well: bool
    sentence: str
    troubles: list[Trouble]
    """The troubles, worst first. A fleet that is well may have troubles that need no person."""
    last_trouble: Trouble | None
    """The worst trouble of the last reading in which the fleet was not well, if it is well now. ``None`` if there was
    no such reading, or if the fleet is not well now."""
    complete_since_micros: int
    """The time of the first reading. Troubles that ended before this time are not known."""


URGENCIES: dict[Situation, Urgency] = {
    situations.POSITION_TRIMMED: Urgency.LOSS,
    situations.LEFT_STREAM: Urgency.LOSS,
    situations.STREAM_REPLACED: Urgency.LOSS,
    situations.PROCESSOR_FAILS: Urgency.FAILING,
    situations.PARKING_FAILS: Urgency.FAILING,
    situations.READING_FAILS: Urgency.FAILING,
    situations.END_NOT_STORED: Urgency.FAILING,
    situations.END_NOT_SHOWN: Urgency.FAILING,
    situations.NO_PROGRESS: Urgency.FAILING,
    situations.WAITS_FOR_TABLE: Urgency.FAILING,
    situations.OWNER_UNWELL: Urgency.FAILING,
    situations.OWNER_SILENT: Urgency.SLOW,
    situations.NOT_PICKED_UP: Urgency.SLOW,
    situations.NOT_HANDED_OVER: Urgency.SLOW,
    situations.GIVEN_UP: Urgency.SLOW,
    situations.USER_CODE_RUNS: Urgency.SLOW,
    situations.OLD_PROCESSOR_RUNS: Urgency.SLOW,
    situations.WAITS_FOR_THREAD: Urgency.SLOW,
    situations.NO_CHECKPOINT: Urgency.SLOW,
    situations.PAUSE_PENDING: Urgency.SLOW,
    situations.OWNER_SAYS: Urgency.SLOW,
    situations.PAUSED: Urgency.TOLD,
    situations.PAUSED_BY_PROGRAM: Urgency.TOLD,
    situations.FREE: Urgency.TOLD,
    situations.NO_ROW: Urgency.TOLD,
    situations.OWNER_DEAD: Urgency.TOLD,
}
"""The urgency of situations in which a shard makes no progress. Such a situation that is missing here has the urgency
``STUCK``."""

_BY_PAUSE = frozenset({situations.PAUSED, situations.PAUSE_PENDING, situations.PAUSE_IGNORED})
_BY_BEAT = frozenset(
    {
        situations.OWNER_SILENT,
        situations.OWNER_FROZEN,
        situations.OWNER_CUT_OFF,
        situations.OWNER_DEAD,
        situations.OWNER_DEAD_ALONE,
    }
)
_BY_OWNER = frozenset({situations.NO_WORKER, situations.FREE, situations.NOT_PICKED_UP})

_KINDS: dict[Urgency, Kind] = {Urgency.LOSS: "lost", Urgency.STUCK: "stuck", Urgency.FAILING: "stuck"}
"""The kind of a trouble of shards, by its urgency. For any other urgency the kind is ``waits``."""

_FOLLOWING = frozenset({Cause.NEXT_TRY, Cause.PRESENT_TRY, Cause.STRATEGY_ASKED})
"""The causes that only say when and how a failed call is repeated."""


def verdict(facts: FleetFacts, explanations: Iterable[Explanation], before: FleetVerdict | None = None) -> FleetVerdict:
    """Return the verdict about a fleet, given the explanation of each of its shards.

    Args:
        facts: the facts from which the explanations were made.
        explanations: the explanations of all shards, in any order; finished shards do not count.
        before: the verdict of the last reading, for a caller that reads the fleet repeatedly.
    """
    shards = [each for each in explanations if not each.situation.is_finished]
    troubles = [_unreadable(facts)] if facts.unreadable else [*_of_shards(facts, shards), *_of_workers(facts, shards)]
    troubles.sort(key=lambda trouble: (Urgency[trouble["urgency"].upper()], _or_forever(trouble["seconds_to_loss"])))
    if before is not None:
        troubles = [_seen(trouble, before, facts.now_micros) for trouble in troubles]
    is_well = not facts.unreadable and all(each.situation.moves for each in shards)
    is_well = is_well and all(trouble["urgency"] == Urgency.TOLD.name.lower() for trouble in troubles)
    return {
        "is_well": is_well,
        "sentence": _sentence(facts, troubles, len(shards), is_well=is_well),
        "troubles": troubles,
        "last_trouble": None if before is None or not is_well else _last(before),
        "complete_since_micros": facts.now_micros if before is None else before["complete_since_micros"],
    }


def trouble_lines(told: FleetVerdict, now_micros: int) -> list[str]:
    """Return the verdict as lines of text for people: its sentence, and each trouble with its age and its remedy."""
    lines = [told["sentence"]]
    for number, trouble in enumerate(told["troubles"]):
        if number or told["is_well"]:
            lines.append(f"also: {trouble['first_line']}")
        lines += [f"  {line}" for line in _details(trouble, now_micros)]
    return lines


def _details(trouble: Trouble, now_micros: int) -> Iterator[str]:
    since, left, waiting = trouble["since_micros"], trouble["seconds_to_loss"], trouble["waiting_shards"]
    parts = []
    if since is not None:
        seen = "seen since" if trouble["since_is_seen"] else "since"
        parts.append(f"{seen} {utc_text(since)}, {duration((now_micros - since) / MICROS_PER_SECOND)} ago")
    if left is not None:
        parts.append(f"records are deleted in {duration(left)} at the earliest" if left else "records are lost")
    if waiting:
        parts.append("1 more shard waits for it" if waiting == 1 else f"{waiting} more shards wait for it")
    if parts:
        yield "; ".join(parts)
    yield f"what to do: {trouble['advice']}"
    if trouble["command"]:
        yield f"command: {trouble['command']}"


# --- helpers -------------------------------------------------------------------------------------------------------


def _sentence(facts: FleetFacts, troubles: Sequence[Trouble], shards: int, *, is_well: bool) -> str:
    table = facts.stream.table_name
    if is_well:
        moving = "no shard is unfinished" if not shards else "1 shard moves" if shards == 1 else f"{shards} shards move"
        return f"{table}: all is well: {moving}."
    first = troubles[0]["first_line"]
    more = len(troubles) - 1
    others = "" if not more else f" And {more} more trouble{'' if more == 1 else 's'}."
    return f"{table}: {first[0].lower()}{first[1:]}{others}"


def _last(before: FleetVerdict) -> Trouble | None:
    return before["last_trouble"] if before["is_well"] or not before["troubles"] else before["troubles"][0]


def _seen(trouble: Trouble, before: FleetVerdict, now_micros: int) -> Trouble:
    """Return the trouble, with the time of the first reading that showed it as the time at which it began.

    ``before`` is the verdict of the previous reading. If the tables show when the trouble began, return the trouble
    unchanged.
    """
    if trouble["since_micros"] is not None:
        return trouble
    name = (trouble["situation"], trouble["shard"], trouble["worker"])
    for other in before["troubles"]:
        if (other["situation"], other["shard"], other["worker"]) == name:
            return {**trouble, "since_micros": other["since_micros"], "since_is_seen": other["since_is_seen"]}
    return {**trouble, "since_micros": now_micros, "since_is_seen": True}


def _unreadable(facts: FleetFacts) -> Trouble:
    situation = explain(facts, "").situation
    text = facts.unreadable
    first_line = f"{text[0].upper()}{text[1:]}."
    return _trouble(facts, "unreadable", Urgency.LOSS, situation, first_line)


def _trouble(facts: FleetFacts, kind: Kind, urgency: Urgency, situation: Situation, first_line: str) -> Trouble:
    """Return a trouble that names no shards."""
    return {
        "kind": kind,
        "urgency": urgency.name.lower(),
        "fleet": facts.stream.table_name,
        "shard": None,
        "shards": [],
        "worker": None,
        "situation": situation.name,
        "first_line": first_line,
        "advice": situation.advice,
        "command": "",
        "since_micros": None,
        "since_is_seen": False,
        "waiting_shards": 0,
        "records_waiting": None,
        "seconds_to_loss": None,
    }


# --- troubles of shards


@frozen
class _Troubled:
    """A shard in trouble that does not wait for another shard."""

    explanation: Explanation
    owner: str
    cause: str
    """The cause in words. Causes that only say how a failed call is repeated (``_FOLLOWING``) are left out."""
    urgency: Urgency
    seconds_to_loss: float | None

    @property
    def group(self) -> tuple[str, Urgency, str]:
        """The value that all shards of one trouble have in common: situation, urgency, and words of the cause."""
        found = self.explanation
        words = common_words(self.cause.replace(found.shard_id, "#"))
        # A cause that names a worker is a trouble of this worker only. Names of workers may differ only in numbers, and
        # ``words`` lack numbers. So the name is a part of the value.
        owner = self.owner if self.owner and self.owner in self.cause else ""
        return f"{found.situation.name} {owner}", self.urgency, words


def _to_loss(troubled: _Troubled) -> tuple[float, str]:
    return _or_forever(troubled.seconds_to_loss), troubled.explanation.shard_id


def _of_shards(facts: FleetFacts, explanations: Sequence[Explanation]) -> list[Trouble]:
    waiting: dict[str, int] = {}
    for each in explanations:
        if each.root != each.shard_id:
            waiting[each.root] = waiting.get(each.root, 0) + 1
    groups: dict[tuple[str, Urgency, str], list[_Troubled]] = {}
    for troubled in sorted(_roots(facts, explanations), key=_to_loss):
        groups.setdefault(troubled.group, []).append(troubled)
    return [_of_group(facts, group, waiting) for group in groups.values()]


def _roots(facts: FleetFacts, explanations: Sequence[Explanation]) -> Iterator[_Troubled]:
    """Yield the shards in trouble, without the shards that wait for another shard in trouble."""
    # Lease rows may name shards as each other's parents. Such shards wait for each other, and each is in trouble.
    last = {each.shard_id for each in explanations if not each.situation.moves and each.root == each.shard_id}
    for each in explanations:
        if each.root != each.shard_id and each.root in last:
            continue
        lease, left = facts.lease(each.shard_id), seconds_to_loss(facts, each.shard_id)
        is_near = left is not None and left < NEAR_LOSS_SHARE * facts.stream.expiration_hours * SECONDS_PER_HOUR
        if each.situation.moves and not is_near:
            continue
        urgency = Urgency.LOSS if is_near else URGENCIES.get(each.situation, Urgency.STUCK)
        owner = "" if lease is None else lease.owner
        yield _Troubled(each, owner, _cause(facts, each, owner), urgency, left)


def _cause(facts: FleetFacts, explanation: Explanation, owner: str) -> str:
    session = facts.workers.get(owner)
    said = None if session is None else session.info.shards.get(explanation.shard_id)
    if said is None or said.reason != explanation.cause:
        return explanation.cause
    return text_of(*(reason for reason in said.reasons if reason.cause not in _FOLLOWING)) or explanation.cause


def _of_group(facts: FleetFacts, group: Sequence[_Troubled], waiting: dict[str, int]) -> Trouble:
    first = group[0]
    found, shards = first.explanation, [each.explanation.shard_id for each in group]
    owners = {each.owner for each in group}
    worker = owners.pop() if len(owners) == 1 else ""
    since = [micros for each in group if (micros := _since_micros(facts, each)) is not None]
    return {
        **_trouble(facts, _KINDS.get(first.urgency, "waits"), first.urgency, found.situation, _first_line(group)),
        "shard": shards[0],
        "shards": shards,
        "worker": worker or None,
        "command": _command(facts, found.situation, shards, worker),
        "since_micros": min(since, default=None),
        "waiting_shards": sum(waiting.get(shard, 0) for shard in shards),
        "seconds_to_loss": first.seconds_to_loss,
    }


def _first_line(group: Sequence[_Troubled]) -> str:
    found = group[0].explanation
    if len(group) == 1:
        return found.first_line
    if found.situation.moves:
        return f"{len(group)} shards are near loss; shard {found.shard_id} {found.predicate}."
    if found.cause != found.predicate:
        return f"{len(group)} shards do not move: {found.cause}."
    return f"{len(group)} shards do not move; shard {found.shard_id} {found.predicate}."


def _since_micros(facts: FleetFacts, troubled: _Troubled) -> int | None:
    """Return the time since which a shard has been in its situation, if the tables show this time."""
    shard_id, situation = troubled.explanation.shard_id, troubled.explanation.situation
    row, head = facts.rows.get(shard_id), facts.head(shard_id)
    if row is None or row.lease is None:
        return None
    if situation in _BY_PAUSE:
        return row.pause_micros or None
    if situation in _BY_BEAT:
        return last_beat_micros(facts, troubled.owner) or None
    if situation in _BY_OWNER:
        return row.owner_micros or None
    if situation is situations.NOT_HANDED_OVER:
        return row.stealer_micros or None
    unread = None if head is None else head.next_record_micros
    return max(row.checkpoint_micros, unread or 0) or None


def _command(facts: FleetFacts, situation: Situation, shards: Sequence[str], worker: str) -> str:
    """Return the command that ends a situation; empty if no command does, or if it would name too many shards."""
    session = facts.workers.get(worker)
    if situation is situations.OWNER_FROZEN and session is not None:
        return f"kill -CONT {session.info.pid}"
    if situation in (situations.PAUSED, situations.PAUSE_PENDING) and len(shards) <= MOST_SHARDS_OF_COMMAND:
        return f"streamclient leases resume {' '.join(map(shlex.quote, shards))}"
    if situation is situations.POSITION_TRIMMED and len(shards) == 1:
        return f"streamclient leases rewind {shlex.quote(shards[0])} --to oldest --pause"
    if situation is situations.END_NOT_SHOWN and len(shards) == 1:
        return f"streamclient leases accept-end {shlex.quote(shards[0])}"
    return ""


# --- troubles of workers


def _of_workers(facts: FleetFacts, explanations: Sequence[Explanation]) -> Iterator[Trouble]:
    """Yield the troubles of workers whose shards have no trouble, and the trouble that records are parked."""
    leases = ((each, facts.lease(each.shard_id)) for each in explanations if not each.situation.moves)
    told = {lease.owner for _, lease in leases if lease is not None}
    for name, session in sorted(facts.workers.items()):
        if name in told or session.state != "running":
            continue
        state = life(facts, name)
        if state is Liveness.LIVING and session.info.trouble:
            text = f"Worker {name} is unwell: {session.info.trouble}."
            told_of = _trouble(facts, "worker", Urgency.FAILING, situations.OWNER_UNWELL, text)
            yield {**told_of, "worker": name}
        elif state is Liveness.SILENT:
            ago = duration(facts.age_seconds(session.beat_micros))
            text = f"Worker {name} is silent: its last heartbeat was {ago} ago."
            told_of = _trouble(facts, "worker", Urgency.TOLD, situations.OWNER_SILENT, text)
            yield {**told_of, "worker": name, "since_micros": session.beat_micros}
    yield from _of_parked(facts)


def _of_parked(facts: FleetFacts) -> Iterator[Trouble]:
    line = parked_line(facts)
    if line:
        yield _trouble(facts, "parked", Urgency.TOLD, situations.RECORDS_PARKED, line)


def parked_line(facts: FleetFacts) -> str:
    """Return a sentence about parked records; empty if no record is parked.

    If the operator named a parking store, the sentence counts the keys with parked records in this store. Otherwise it
    counts the records that workers have parked.
    """
    if facts.parked is not None:
        keys = sum(facts.parked.values())
        return "" if not keys else "1 key has parked records." if keys == 1 else f"{keys} keys have parked records."
    counts = parked_records(facts)
    records = sum(counts.values())
    if not records:
        return ""
    by = ", ".join(f"worker {name}: {count}" for name, count in counts.items())
    what = (
        "1 record was parked since its worker" if records == 1 else f"{records} records were parked since the workers"
    )
    return f"{what} started ({by})."


def _or_forever(seconds: float | None) -> float:
    return float("inf") if seconds is None else seconds
