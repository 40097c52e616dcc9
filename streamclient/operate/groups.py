"""The document about a fleet with very many shards: counts by worker and lag, and the shards that stand still. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import TypedDict

from streamclient.operate.facts import Process
from streamclient.operate.operator_documents import Document
from streamclient.operate.overview import Overview, ShardLine, overview_document, shard_line_document
from streamclient.operate.verdict import FleetVerdict, Trouble

LAG_BOUNDS_SECONDS = (1.0, 10.0, 60.0, 600.0, 3_600.0)
"""The longest lag in seconds of each class in ``LAG_CLASSES``. The last two classes have no bound."""

LAG_CLASSES = ("up to 1 s", "up to 10 s", "up to 1 min", "up to 10 min", "up to 1 h", "over 1 h", "unknown")
"""The words for the classes of lag. A shard's lag is unknown until its next unread record was looked up."""

NOT_MOVING_SHOWN = 25
"""The largest number of shards without progress that a document lists. People would not read more, and the verdict has
the number of all such shards."""

WELL = "well"
"""The health of a worker that has no trouble."""


class WorkerGroup(TypedDict):
    """The unfinished shards of one worker, counted by their lag."""

    id: str
    """The worker's name; empty for the shards without an owner."""
    health: str
    """The health as ``top`` shows it: ``well``, the worker's trouble, ``unknown`` or ``no session row``. Empty for the
    shards without an owner."""
    counts: list[int]
    """The number of shards in each class of ``lag_classes``, in the order of the classes."""
    shards: int
    """The number of unfinished shards in this group."""
    moving: int
    """The number of unfinished shards in this group that make progress."""


class Groups(TypedDict):
    """Counts of a fleet's shards, which replace the list of shards in a document."""

    lag_classes: list[str]
    """The words for the classes of lag, from the shortest lag to the longest. The last word is for unknown lags."""
    workers: list[WorkerGroup]
    """One group for each worker, by name; then one group for the shards without an owner, if there are any."""
    not_moving: list[Document]
    """At most ``NOT_MOVING_SHOWN`` shards that make no progress, nearest to loss first. Each has the form that
    ``top --json`` prints, with the shard's id also as ``id``."""
    not_moving_more: int
    """The number of shards without progress that ``not_moving`` leaves out."""


def groups(view: Overview) -> Groups:
    """Return counts of the unfinished shards by worker, and the shards that make no progress."""
    workers = [_group(worker["worker"], health(worker), view) for worker in view.workers]
    if "" in view.lines_of:
        workers.append(_group("", "", view))
    still = [line for line in view.shards if not line.explanation.situation.moves]
    shown = still[:NOT_MOVING_SHOWN]
    return {
        "lag_classes": list(LAG_CLASSES),
        "workers": workers,
        "not_moving": [{"id": line.shard_id, **shard_line_document(line)} for line in shown],
        "not_moving_more": len(still) - len(shown),
    }


def _group(name: str, told: str, view: Overview) -> WorkerGroup:
    lines = view.lines_of.get(name, [])
    return {
        "id": name,
        "health": told,
        "counts": lag_counts(lines),
        "shards": len(lines),
        "moving": sum(line.explanation.situation.moves for line in lines),
    }


def lag_counts(lines: Sequence[ShardLine]) -> list[int]:
    """Return the number of shards in each class of ``LAG_CLASSES``."""
    counts = [0] * len(LAG_CLASSES)
    for line in lines:
        known = line.lag_seconds
        counts[-1 if known is None else bisect_left(LAG_BOUNDS_SECONDS, known)] += 1
    return counts


def groups_document(view: Overview) -> Document:
    """Return the document that ``top --json --groups`` prints: the screen with ``groups`` in place of ``shards``.

    The document's size does not grow with the number of shards. The verdict has only the worst troubles, each with only
    the shards nearest to loss; the sentences still count all shards. In the session of each worker, the members that
    would list shards are empty.
    """
    document = overview_document(view, has_shards=False)
    document["verdict"] = _short_verdict(view.verdict)
    document["workers"] = [_without_shards(worker) for worker in view.workers]
    return {**document, "groups": groups(view)}


def _short_verdict(told: FleetVerdict) -> FleetVerdict:
    last = told["last_trouble"]
    return {
        **told,
        "troubles": [_short_trouble(trouble) for trouble in told["troubles"][:NOT_MOVING_SHOWN]],
        "last_trouble": None if last is None else _short_trouble(last),
    }


def _short_trouble(trouble: Trouble) -> Trouble:
    return {**trouble, "shards": trouble["shards"][:NOT_MOVING_SHOWN]}


def _without_shards(worker: Document) -> Document:
    session = worker["session"]
    if session is None:
        return worker
    return {**worker, "session": {**session, "shards": {}, "left": [], "parked_of": {}, "set_aside": []}}


# --- workers -------------------------------------------------------------------------------------------------------


def health(worker: Document) -> str:
    """Return the health of a worker in words; ``worker`` is the result of ``worker_document``."""
    session = worker["session"]
    if session is None:
        return "no session row"
    if worker["life"] != "living" or stands_still(session):
        return "unknown"  # the last published trouble may be outdated
    return session["trouble"] or WELL


def stands_still(session: Document) -> bool:
    """Return whether this machine knows that the session's process gets no processor time, or no longer exists."""
    return session["process"] in (Process.STOPPED.value, Process.GONE.value)
