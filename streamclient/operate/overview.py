"""The content of one screen about a fleet, as ``streamclient top`` shows it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from attrs import frozen

from streamclient.base.reasons import counted
from streamclient.base.times import MICROS_PER_SECOND, duration
from streamclient.core.costs import Cost
from streamclient.operate.cases import Explanation
from streamclient.operate.explanation import explanations
from streamclient.operate.facts import FleetFacts
from streamclient.operate.liveness import fleet_cost, is_lag_bound, lag_seconds, seconds_to_loss
from streamclient.operate.operator_documents import Document, fleet_document, worker_document
from streamclient.operate.verdict import FleetVerdict, verdict

FOREVER = float("inf")


@frozen(kw_only=True)
class ShardLine:
    """The line of the screen about one unfinished shard."""

    shard_id: str
    owner: str
    explanation: Explanation
    lag_seconds: float | None
    is_lag_bound: bool
    """True if lag and time to loss are only bounds, because the next unread record could not be read."""
    seconds_to_loss: float | None
    records_per_second: float | None
    """The records read per second since the previous screen. ``None`` on the first screen, or if the lease row stores
    no progress."""


@frozen(kw_only=True, slots=False)
class Overview:
    """The content of one screen about a fleet. A property about all shards or workers is computed only once."""

    facts: FleetFacts
    shards: tuple[ShardLine, ...]
    """The unfinished shards, nearest to loss first."""
    finished: int
    verdict: FleetVerdict

    @cached_property
    def lines_of(self) -> Mapping[str, list[ShardLine]]:
        """The unfinished shards by owner, nearest to loss first. Shards without an owner are under ``""``."""
        lines: dict[str, list[ShardLine]] = {}
        for line in self.shards:
            lines.setdefault(line.owner, []).append(line)
        return lines

    @property
    def moving(self) -> int:
        """The number of unfinished shards that make progress."""
        return sum(line.explanation.situation.moves for line in self.shards)

    @property
    def longest_lag_seconds(self) -> float | None:
        """The longest known lag of a shard, in seconds; ``None`` if no lag is known."""
        return max((line.lag_seconds for line in self.shards if line.lag_seconds is not None), default=None)

    @property
    def records_per_second(self) -> float | None:
        """The sum of the known rates of all shards; ``None`` if no rate is known."""
        return _sum_of_known(self.shards)

    @property
    def cost(self) -> Cost | None:
        """The fleet's cost per hour; ``None`` if no worker publishes its cost."""
        return fleet_cost(self.facts)

    def rate_of(self, worker: str) -> float | None:
        """Return the sum of the known rates of a worker's shards; ``None`` if no rate is known."""
        return _sum_of_known(self.lines_of.get(worker, []))

    @cached_property
    def workers(self) -> list[Document]:
        """The documents of all workers, sorted by name, including workers that own leases but have no session row."""
        names = sorted({*self.facts.beats, *self.facts.workers})
        return [{**worker_document(self.facts, name), "records_per_second": self.rate_of(name)} for name in names]


def overview(facts: FleetFacts, before: FleetFacts | None = None, told: FleetVerdict | None = None) -> Overview:
    """Return the screen for ``facts``.

    ``before`` has the facts of the previous screen; without them, no rates are known. ``told`` is the verdict of the
    previous screen.
    """
    known = sorted({*facts.rows, *(facts.stream.listing or {})})
    rates = {} if before is None else _rates(before, facts)
    found = explanations(facts, known)
    lines = [_line(facts, each, rates) for each in found if not each.situation.is_finished]
    lines.sort(key=lambda line: (_or_forever(line.seconds_to_loss), line.explanation.situation.moves, line.shard_id))
    finished = len(found) - len(lines)
    return Overview(facts=facts, shards=tuple(lines), finished=finished, verdict=verdict(facts, found, told))


def _sum_of_known(lines: Sequence[ShardLine]) -> float | None:
    known = [line.records_per_second for line in lines if line.records_per_second is not None]
    return sum(known) if known else None


def _line(facts: FleetFacts, explanation: Explanation, rates: Mapping[str, float]) -> ShardLine:
    shard_id = explanation.shard_id
    lease = facts.lease(shard_id)
    return ShardLine(
        shard_id=shard_id,
        owner="" if lease is None else lease.owner,
        explanation=explanation,
        lag_seconds=lag_seconds(facts, shard_id),
        is_lag_bound=is_lag_bound(facts, shard_id),
        seconds_to_loss=seconds_to_loss(facts, shard_id),
        records_per_second=rates.get(shard_id),
    )


def _rates(before: FleetFacts, after: FleetFacts) -> dict[str, float]:
    seconds = (after.now_micros - before.now_micros) / MICROS_PER_SECOND
    rates: dict[str, float] = {}
    for key, lease in after.leases.items():
        old = before.lease(key)
        if seconds > 0 and old is not None and old.progress is not None and lease.progress is not None:
            rates[key] = max(0, lease.progress.records - old.progress.records) / seconds
    return rates


def _or_forever(seconds: float | None) -> float:
    return FOREVER if seconds is None else seconds


# --- for programs and for people -----------------------------------------------------------------------------------


def overview_document(view: Overview, *, has_shards: bool = True) -> Document:
    """Return the screen as a document, without its list of shards if ``has_shards`` is false."""
    document: Document = {
        **fleet_document(view.facts),
        "verdict": view.verdict,
        "totals": {
            "workers": len(view.workers),
            "shards": len(view.shards),
            "moving": view.moving,
            "finished": view.finished,
            "records_per_second": view.records_per_second,
            "longest_lag_seconds": view.longest_lag_seconds,
            "cost_an_hour": None if view.cost is None else view.cost.to_document(),
        },
        "workers": view.workers,
    }
    return {**document, "shards": [shard_line_document(line) for line in view.shards]} if has_shards else document


def shard_line_document(line: ShardLine) -> Document:
    """Return one line of a screen, with a shard, its owner and the verdict, as a JSON object."""
    return {
        "shard": line.shard_id,
        "owner": line.owner,
        "situation": line.explanation.situation.name,
        "moves": line.explanation.situation.moves,
        "first_line": line.explanation.first_line,
        "lag_seconds": line.lag_seconds,
        "lag_is_bound": line.is_lag_bound,
        "records_per_second": line.records_per_second,
        "seconds_to_loss": line.seconds_to_loss,
    }


def headline(view: Overview) -> str:
    """Return the totals of a screen as one line of text."""
    workers = counted(len(view.workers), "worker")
    shards = "1 shard moves" if len(view.shards) == 1 else f"{len(view.shards)} shards move"
    parts = [workers, f"{view.moving} of {shards}", f"{view.finished} finished"]
    if view.records_per_second is not None:
        parts.append(f"{rate(view.records_per_second)} records/s")
    if view.longest_lag_seconds is not None:
        longest = [line for line in view.shards if line.lag_seconds == view.longest_lag_seconds]
        is_bound = all(line.is_lag_bound for line in longest)  # bounds that are shorter do not matter
        parts.append(f"longest lag {'at most ' if is_bound else ''}{duration(view.longest_lag_seconds)}")
    return f"{view.facts.stream.table_name}: {', '.join(parts)}"


def cost_line(view: Overview) -> str:
    """Return the fleet's cost per hour as text; empty if no worker publishes its cost."""
    return "" if view.cost is None else f"cost per hour: {view.cost}"


def rate(value: float | None) -> str:
    """Return a rate as text. For ``None``, an unknown rate, the text is ``-``."""
    return "-" if value is None else f"{value:.0f}"
