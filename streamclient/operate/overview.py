"""A fleet on one screen: what ``streamclient top`` shows. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from streamclient.operate.documents import Document, fleet_document, worker_document
from streamclient.operate.explanation import explain
from streamclient.operate.facts import MICROS_PER_SECOND, FleetFacts
from streamclient.operate.liveness import seconds_to_loss
from streamclient.operate.text import duration
from streamclient.operate.verdict import Explanation

FOREVER = float("inf")


@frozen(kw_only=True)
class ShardLine:
    """One shard that is not finished."""

    shard_id: str
    owner: str
    explanation: Explanation
    lag_seconds: float | None
    seconds_to_loss: float | None
    records_per_second: float | None
    """Between two refreshes; ``None`` before the second, and where the owner stores no progress."""


@frozen(kw_only=True)
class Overview:
    """One screen."""

    facts: FleetFacts
    shards: tuple[ShardLine, ...]
    """Nearest to loss first."""
    finished: int

    @property
    def moving(self) -> int:
        """How many of the shards move."""
        return sum(line.explanation.situation.moves for line in self.shards)

    @property
    def longest_lag_seconds(self) -> float:
        """Of all shards whose lag is known."""
        return max((line.lag_seconds for line in self.shards if line.lag_seconds is not None), default=0.0)

    @property
    def records_per_second(self) -> float:
        """Of all shards whose rate is known."""
        return sum(line.records_per_second or 0.0 for line in self.shards)

    def rate_of(self, worker: str) -> float:
        """Records per second of one worker's shards."""
        return sum(line.records_per_second or 0.0 for line in self.shards if line.owner == worker)

    @property
    def workers(self) -> list[Document]:
        """All workers, with session or without, by name."""
        names = sorted({*self.facts.beats, *self.facts.workers})
        return [{**worker_document(self.facts, name), "records_per_second": self.rate_of(name)} for name in names]


def overview(facts: FleetFacts, before: FleetFacts | None = None) -> Overview:
    """The screen for these facts; rates need the facts of the screen before."""
    known = sorted({*facts.rows, *(facts.stream.listing or {})})
    rates = {} if before is None else _rates(before, facts)
    verdicts = [explain(facts, key) for key in known]
    lines = [_line(facts, verdict, rates) for verdict in verdicts if verdict.situation.name != "finished"]
    lines.sort(key=lambda line: (_or_forever(line.seconds_to_loss), line.explanation.situation.moves, line.shard_id))
    return Overview(facts=facts, shards=tuple(lines), finished=len(verdicts) - len(lines))


def _line(facts: FleetFacts, verdict: Explanation, rates: Mapping[str, float]) -> ShardLine:
    head = facts.heads.get(verdict.shard_id)
    lease = facts.lease(verdict.shard_id)
    return ShardLine(
        shard_id=verdict.shard_id,
        owner="" if lease is None else lease.owner,
        explanation=verdict,
        lag_seconds=None if head is None else head.lag_seconds(facts.now_micros),
        seconds_to_loss=seconds_to_loss(facts, head),
        records_per_second=rates.get(verdict.shard_id),
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


def overview_document(view: Overview) -> Document:
    """The screen as JSON."""
    return {
        **fleet_document(view.facts),
        "totals": {
            "workers": len(view.workers),
            "shards": len(view.shards),
            "moving": view.moving,
            "finished": view.finished,
            "records_per_second": view.records_per_second,
            "longest_lag_seconds": view.longest_lag_seconds,
        },
        "workers": view.workers,
        "shards": [
            {
                "shard": line.shard_id,
                "owner": line.owner,
                "situation": line.explanation.situation.name,
                "moves": line.explanation.situation.moves,
                "first_line": line.explanation.first_line,
                "lag_seconds": line.lag_seconds,
                "records_per_second": line.records_per_second,
                "seconds_to_loss": line.seconds_to_loss,
            }
            for line in view.shards
        ],
    }


WORKER_COLUMNS = ("WORKER", "STATE", "LEASES", "UNFINISHED", "RECORDS/S", "HEALTH")
SHARD_COLUMNS = ("SHARD", "OWNER", "STATE", "LAG", "RECORDS/S", "TIME TO LOSS", "WHY")


def headline(view: Overview) -> str:
    """The totals in one line."""
    facts = view.facts
    return (
        f"{facts.stream.table_name}: {len(view.workers)} workers, {view.moving} of {len(view.shards)} shards move, "
        f"{view.finished} finished, {view.records_per_second:.0f} records/s, longest lag "
        f"{duration(view.longest_lag_seconds)}"
    )


def worker_rows(view: Overview) -> list[tuple[str, ...]]:
    """Cells of ``WORKER_COLUMNS``."""
    return [
        (
            worker["worker"],
            _worker_state(worker),
            str(worker["leases"]),
            str(worker["unfinished"]),
            f"{worker['records_per_second']:.0f}",
            _health(worker),
        )
        for worker in view.workers
    ]


def _worker_state(worker: Document) -> str:
    session = worker["session"]
    if session is None or worker["life"] != "living":
        return str(worker["life"])
    return str(session["state"])


def _health(worker: Document) -> str:
    session = worker["session"]
    if session is None:
        return "no session row"
    return session["trouble"] or "well"


def shard_rows(view: Overview, most: int | None = None) -> list[tuple[str, ...]]:
    """Cells of ``SHARD_COLUMNS``, of the first ``most`` shards."""
    return [
        (
            line.shard_id,
            line.owner or "-",
            line.explanation.situation.name,
            _seconds(line.lag_seconds),
            "-" if line.records_per_second is None else f"{line.records_per_second:.0f}",
            _seconds(line.seconds_to_loss),
            "" if line.explanation.situation.moves else line.explanation.predicate,
        )
        for line in view.shards[:most]
    ]


def _seconds(value: float | None) -> str:
    return "-" if value is None else duration(value)
