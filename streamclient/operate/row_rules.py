"""Rules about the service, the stream and the lease row. They are applied before all rules about owners. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from streamclient.operate import situations
from streamclient.operate.cases import Case, Explanation, names_of
from streamclient.operate.situations import Situation

Rule = Callable[[Case], Explanation | None]
"""A rule: it returns a verdict, or ``None`` if it does not apply. If the shard has no lease row, or a row that cannot
be read as a lease, at least one rule applies."""


def _service(case: Case) -> Explanation | None:
    facts = case.facts
    if facts.problem:
        subject, problem, code = f"status table {facts.status_table_name}", facts.problem, facts.problem_code
    elif facts.stream.problem:
        subject = f"the stream of table {facts.stream.table_name}"
        problem, code = facts.stream.problem, facts.stream.problem_code
    else:
        return None
    if code == "missing" and facts.problem:
        return case.verdict(situations.NO_STATUS_TABLE, f"has no lease: {subject} does not exist")
    situation, says = _SERVICE_PROBLEMS.get(code, (situations.UNREACHABLE, "cannot be read"))
    return case.verdict(situation, f"cannot be judged: {subject} {says}: {problem}")


_SERVICE_PROBLEMS: Mapping[str, tuple[Situation, str]] = {
    "misfit": (situations.NOT_A_STATUS_TABLE, "holds no leases"),
    "missing": (situations.NO_DATA_TABLE, "cannot be read"),
    "refused": (situations.REFUSED, "is refused"),
    "throttled": (situations.THROTTLED, "is throttled"),
    "clock": (situations.CLOCK_WRONG, "cannot be read"),
}


def _stream(case: Case) -> Explanation | None:
    facts, stream = case.facts, case.facts.stream
    if stream.stream_id is None:
        return case.verdict(situations.STREAM_OFF, f"cannot be read: the stream of table {stream.table_name} is off")
    is_former = case.shard_id in facts.former_rows and not case.is_listed
    if is_former or (facts.former_stream_id and not facts.rows):
        return case.verdict(
            situations.STREAM_REPLACED,
            f"is not read: table {stream.table_name} has the new stream {stream.stream_id}, and the leases belong "
            f"to the former stream {facts.former_stream_id}",
        )
    return None


def _row(case: Case) -> Explanation | None:
    row = case.row
    if row is None:
        return _absent(case)
    if row.lease is None:
        if row.is_of_unknown_version:
            return case.verdict(situations.UNKNOWN_FORMAT, f"is left out by workers of this version: {row.problem}")
        return case.verdict(situations.MALFORMED_ROW, f"is left out by all workers: {row.why_unreadable}")
    if row.lease.is_finished:
        children = case.facts.children.get(case.shard_id)
        after = f"; its children are {', '.join(children)}" if children else ""
        return case.verdict(situations.FINISHED, f"is finished: everything in it was processed{after}")
    if case.facts.stream.listing is not None and not case.is_listed:
        return case.verdict(situations.LEFT_STREAM, "has left the stream unread: its records are past retention")
    return None


def _absent(case: Case) -> Explanation:
    facts, listing = case.facts, case.facts.stream.listing or {}
    shard = listing.get(case.shard_id)
    if shard is None:
        return case.verdict(situations.UNKNOWN_SHARD, f"is unknown to stream {facts.stream.stream_id} and its leases")
    circle = facts.circles.get(case.shard_id)
    if circle is not None:
        return in_circle(case, circle)
    for parent in sorted(shard.parent_shard_ids - {case.shard_id}):
        if parent in listing and parent not in facts.rows and parent not in case.above:
            return case.because_of(parent, situations.PARENT_HAS_NO_ROW)
    if not case.living:
        return case.verdict(situations.NO_WORKER, "has no lease row, and no worker lives that could create it")
    names = names_of(case.living)
    return case.verdict(situations.NO_ROW, f"has no lease row yet: a worker creates it soon (living: {names})")


def in_circle(case: Case, circle: Sequence[str]) -> Explanation:
    """Return the verdict about a shard that is its own ancestor; ``circle`` has all shards of the cycle."""
    text = f"is never read: the stream lists {', '.join(circle)} as each other's parents"
    return case.verdict(situations.PARENT_CIRCLE, text)


ROW_RULES: tuple[Rule, ...] = (_service, _stream, _row)
