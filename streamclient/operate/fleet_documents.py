"""The documents about a fleet that a page in a browser shows, made from readings of the fleet.

Each element of a list has an ``id``, which stays the same from one document to the next. Times are microseconds since
1970 by the service's clock. An unknown value is ``null``.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from attrs import evolve

from streamclient.base.times import MICROS_PER_HOUR, MICROS_PER_SECOND, SECONDS_PER_HOUR
from streamclient.errors import StreamClientError, printable
from streamclient.interfaces import IParkingStore
from streamclient.model import ParkedRecord
from streamclient.operate.audit import read_audit
from streamclient.operate.cases import Explanation
from streamclient.operate.collection import FleetReader, readable
from streamclient.operate.explanation import explain
from streamclient.operate.facts import FleetFacts, parked_counts
from streamclient.operate.fleet_following import FleetReading
from streamclient.operate.groups import NOT_MOVING_SHOWN, groups_document
from streamclient.operate.lease_moves import LeaseMoves
from streamclient.operate.next_records import change_document
from streamclient.operate.operator_documents import (
    Document,
    audit_document,
    explanation_document,
    fleet_document,
    lease_document,
)
from streamclient.operate.overview import Overview, overview_document
from streamclient.operate.site import Site, text_of
from streamclient.operate.story import StoryBook
from streamclient.operate.verdict import Urgency
from streamclient.records import StreamRecord
from streamclient.worker.parking.parked_causes import cause_id, parked_causes
from streamclient.worker.parking.parked_documents import document_of
from streamclient.worker.parking.parking_table import TableParkingStore

Detail = Literal["shards", "groups", "auto"]

MOST_SHARDS = 2_000
"""The largest number of shards that a document lists or a picture shows. More shards would slow the browser, and people
could not tell them apart."""

MOST_ROWS_TOLD = 10 * MOST_SHARDS
"""The largest number of lease rows, or of listed shards, with which a fleet's story is kept. The story shows the
fleet's shards over time. It remembers every row, also of a finished lease, so the limit bounds its memory."""

LAG_POINTS, LAG_SECONDS = 120, SECONDS_PER_HOUR
"""The largest number of points in the curve of the lag, and the time that the curve spans, in seconds."""

MOST_MOVES = 500
"""The largest number of audit rows that are read for the list of moves. A page shows the same number of moves."""

MOST_PARKED = 200
"""The largest number of parked records that a document lists. The document also lists the causes of parked records,
with counts that include the records that are not listed."""

HISTORY_ROWS = 50
"""The largest number of audit rows in the document of a lease. ``leases show`` has the same limit."""

MOST_VALUE_BYTES = 4_096
"""The largest number of bytes of a column's value that a document shows, so that documents stay small."""


class FleetBook:
    """Collects readings of one fleet, and makes documents of them. Not thread-safe.

    Only the documents ``moves`` and ``parked`` need calls of the service.
    """

    def __init__(
        self,
        site: Site,
        store: IParkingStore | None = None,
        *,
        command: Callable[[str, str], str] = lambda action, stream_id: "",
        shows_values: bool = False,
    ) -> None:
        """Begin without a reading.

        ``command`` takes ``replay`` or ``discard`` and a stream id, and returns the command line for all parked records
        of this stream. Documents have the values of columns only with ``shows_values``, otherwise keys and names.
        """
        self._site = site
        self._store = store
        self._command = command
        self._shows_values = shows_values
        self._story = StoryBook()
        self._moves = LeaseMoves()
        self._lag: list[tuple[int, float | None]] = []
        self._first_micros: int | None = None

    def noted(self, reading: FleetReading) -> None:
        """Add a reading to the story, the moves and the curve of the lag.

        Ignore a reading whose ``view`` is ``None``, because no reading of the fleet has succeeded yet.
        """
        view = reading.view
        if view is None:
            return
        facts = view.facts
        self._first_micros = self._first_micros or facts.now_micros
        self._moves.read(facts)
        self._note_lag(facts.now_micros, view.longest_lag_seconds)
        if max(len(facts.rows), len(facts.stream.listing or {})) <= MOST_ROWS_TOLD:
            heads = {key: head for key in facts.heads if (head := facts.head(key)) is not None and not head.problem}
            unread = {key: head.next_record_micros for key, head in heads.items()}
            known = {key for key, head in heads.items() if not head.is_trimmed}
            self._story.saw(
                (facts.stream.listing or {}).values(),
                facts.leases,
                facts.now_micros,
                next_records={key: micros for key, micros in unread.items() if micros is not None},
                unknown=facts.leases.keys() - known,
            )

    def _note_lag(self, now_micros: int, seconds: float | None) -> None:
        """Add a point to the curve of the lag: the time ``now_micros``, and the lag in ``seconds``.

        If the curve already ends with two points that are too near to each other, the new point replaces the last one.
        """
        spacing = LAG_SECONDS * MICROS_PER_SECOND // (LAG_POINTS - 1)
        if len(self._lag) > 1 and self._lag[-1][0] - self._lag[-2][0] < spacing:
            del self._lag[-1]
        self._lag.append((now_micros, seconds))
        oldest = now_micros - LAG_SECONDS * MICROS_PER_SECOND
        self._lag = [point for point in self._lag if point[0] >= oldest][-LAG_POINTS:]

    def document(self, kind: str, reading: FleetReading, detail: Detail = "auto") -> Document:
        """Return the document ``kind``: ``fleet``, ``story``, ``moves`` or ``parked``. The result may be a refusal.

        ``detail`` says whether ``fleet`` lists shards or counts them in groups; with ``auto``, the number of shards
        decides.

        Raises:
            KeyError: no document has the name ``kind``.
        """
        make = {"fleet": self._fleet, "story": self._of_story, "moves": self._of_moves, "parked": self._parked}[kind]
        view = reading.view
        if view is None and reading.problem is None:
            return refusal(*NOT_READ_YET)
        if view is None:
            troubles = [] if reading.verdict is None else reading.verdict["troubles"]
            return refusal("unreadable", reading.problem or "", troubles[0]["advice"] if troubles else "")
        try:
            return make(view, reading, detail)
        except StreamClientError as error:
            return refusal("unreadable", text_of(error))

    def _fleet(self, view: Overview, reading: FleetReading, detail: Detail) -> Document:
        is_grouped = detail == "groups" or (detail == "auto" and len(view.shards) > MOST_SHARDS)
        told = groups_document(view) if is_grouped else overview_document(view)
        if "shards" in told:
            told["shards"] = [{"id": line["shard"], **line} for line in told["shards"]]
        if reading.problem is not None:
            told["verdict"] = reading.verdict
        return {
            **told,
            "workers": [{"id": worker["worker"], **worker} for worker in told["workers"]],
            "read_micros": reading.read_micros,
            "problem": reading.problem,
            "next_seconds": reading.next_seconds,
            "lag": [list(point) for point in self._lag],
        }

    def _of_story(self, view: Overview, reading: FleetReading, detail: Detail) -> Document:
        facts = view.facts
        now, hours = facts.now_micros, facts.stream.expiration_hours
        loss = now - hours * MICROS_PER_HOUR if hours else None
        first = (self._first_micros or now) - MICROS_PER_HOUR  # most changes before this hour are unknown
        story = self._story.story(max(first, loss or 0), now, loss)
        if not story["bands"] or len(story["bands"]) > MOST_SHARDS:
            return refusal("too-many-shards", f"a picture shows 1 to {MOST_SHARDS} shards, not {len(facts.rows)}")
        lines = {line.shard_id: line.explanation.situation for line in view.shards}
        for band in story["bands"]:
            situation = lines.get(band["shard"])
            if situation is not None:
                band["situation"], band["moves"] = situation.name, situation.moves
        return {**story, "shards": [{"id": band["shard"], "keys": None, "records": None} for band in story["bands"]]}

    def _of_moves(self, view: Overview, reading: FleetReading, detail: Detail) -> Document:
        self._moves.audited(read_audit(self._site, MOST_MOVES))
        return dict(self._moves.document())

    def _parked(self, view: Overview, reading: FleetReading, detail: Detail) -> Document:
        if self._store is None:
            return refusal(*NO_PARKING)
        stream_id = view.facts.stream.stream_id
        told = parked_document(parked_in(self._store, stream_id), shows_values=self._shows_values)
        return {**told, "commands": {each: self._command(each, stream_id or "") for each in ("replay", "discard")}}


NO_PARKING = (
    "no-parking",
    "this console knows no store of parked records",
    "Start it with --parking-table NAME or --parking-directory DIR.",
)
"""The code, text and advice of the refusal by a console that has no store of parked records."""

NOT_READ_YET = ("not-read-yet", "the first reading is under way")
"""The code and text of the refusal before the first reading of a fleet."""


def refusal(code: str, text: str, advice: str = "") -> Document:
    """Return a refusal, which takes the place of a document that cannot be made."""
    return {"error": {"code": code, "text": printable(text), "advice": printable(advice)}}


def fleet_line(name: str, reading: FleetReading) -> Document:
    """Return the entry of the fleet ``name`` in the list of all fleets."""
    view, told = reading.view, reading.verdict
    is_known = told is not None or reading.problem is not None
    return {
        "id": name,
        "is_well": told is not None and told["is_well"] and reading.problem is None if is_known else None,
        "sentence": reading.problem or "not read yet" if told is None else told["sentence"],
        "workers": None if view is None else len(view.workers),
        "shards": None if view is None else len(view.shards),
        "moving": None if view is None else view.moving,
        "finished": None if view is None else view.finished,
        "records_per_second": None if view is None else view.records_per_second,
        "longest_lag_seconds": None if view is None else view.longest_lag_seconds,
        # The shards are sorted by their time to loss.
        "seconds_to_loss": view.shards[0].seconds_to_loss if view is not None and view.shards else None,
        "read_micros": reading.read_micros,
        "problem": reading.problem,
        "round_seconds": reading.round_seconds,
    }


def verdict_document(
    readings: Mapping[str, FleetReading], command: Callable[[str, str], str] = lambda fleet, command: command
) -> Document:
    """Return one verdict about several fleets, with the sentence of the fleet whose trouble is the worst.

    Each trouble lists at most ``NOT_MOVING_SHOWN`` of its shards, the nearest to loss. The sentence of the trouble
    still counts all of its shards. ``command`` takes a fleet's name and a command line of ``streamclient leases``, and
    returns the command line with the fleet's options added.
    """
    told = {name: reading.verdict for name, reading in readings.items() if reading.verdict is not None}
    if not told:
        problems = [reading.problem for reading in readings.values() if reading.problem]
        return refusal("unreadable", problems[0]) if problems else refusal(*NOT_READ_YET)
    troubles = [(name, trouble) for name, verdict in told.items() for trouble in verdict["troubles"]]
    troubles.sort(key=lambda each: (Urgency[each[1]["urgency"].upper()], _or_forever(each[1]["seconds_to_loss"])))
    unwell = [name for name, verdict in told.items() if not verdict["is_well"]]
    worst = next((name for name, _ in troubles if name in unwell), next(iter(unwell or told)))
    lasts = [verdict["last_trouble"] for verdict in told.values() if verdict["last_trouble"] is not None]
    return {
        "is_well": not unwell,
        "sentence": _sentence(told[worst]["sentence"], len(unwell), len(told), len(readings) - len(told)),
        "troubles": _with_ids(troubles, command),
        "last_trouble": None if unwell else next(iter(lasts), None),
        "complete_since_micros": max(verdict["complete_since_micros"] for verdict in told.values()),
    }


def _sentence(first: str, unwell: int, known: int, unread: int) -> str:
    parts = [first]
    if not unwell and known > 1:
        parts = [f"All {known} fleets are well."]
    elif unwell > 1:
        parts.append(f"{unwell - 1} more of {known} fleets {'is' if unwell == 2 else 'are'} not well.")
    if unread:
        parts.append("1 fleet is not read yet." if unread == 1 else f"{unread} fleets are not read yet.")
    return " ".join(parts)


def _with_ids(troubles: Iterable[tuple[str, Any]], command: Callable[[str, str], str]) -> list[Document]:
    seen: Counter[str] = Counter()
    listed = []
    for name, trouble in troubles:
        words = f"{name} {trouble['situation']} {trouble['shard'] or trouble['worker'] or ''}".rstrip()
        seen[words] += 1
        named = {**trouble, "fleet": name, "shards": trouble["shards"][:NOT_MOVING_SHOWN]}
        if trouble["command"].startswith("streamclient leases "):
            named["command"] = command(name, trouble["command"])
        listed.append({"id": words if seen[words] == 1 else f"{words} {seen[words]}", **named})
    return listed


def _or_forever(seconds: float | None) -> float:
    return float("inf") if seconds is None else seconds


# --- on request ----------------------------------------------------------------------------------------------------


def lease_page(site: Site, shard_id: str, store: IParkingStore | None = None) -> Document | None:
    """Read the fleet; return the lease of a shard as ``leases show --json`` prints it.

    Return ``None`` if the shard is unknown.
    """
    reader = FleetReader(site)
    facts = readable(reader.collect())
    if store is not None and facts.stream.stream_id is not None and is_there(store):
        facts = evolve(facts, parked=parked_counts(store.parked_keys(facts.stream.stream_id)))
    facts = reader.with_heads(facts, reader.lineage_of(facts, shard_id))
    told = explain(facts, shard_id)
    if told.situation.name == "unknown-shard":
        return None
    return _lease_page(facts, told, [audit_document(each) for each in read_audit(site, HISTORY_ROWS, shard_id)])


def _lease_page(facts: FleetFacts, told: Explanation, history: Sequence[Document]) -> Document:
    return {
        **fleet_document(facts),
        "lease": lease_document(facts, told),
        "explanation": explanation_document(facts, told),
        "history": list(history),
    }


def is_there(store: IParkingStore) -> bool:
    """Return whether a store exists.

    Call this before you read the store. If the store is a table that does not exist, a read would create the table.
    """
    return not isinstance(store, TableParkingStore) or store.exists()


def parked_in(store: IParkingStore, stream_id: str | None) -> list[ParkedRecord]:
    """Return the parked records of a stream; an empty list if the store does not exist yet."""
    return list(store.parked(stream_id)) if is_there(store) else []


def parked_document(records: Iterable[ParkedRecord], *, shows_values: bool) -> Document:
    """Return the causes of parked records, and the newest records.

    Each record has the form that ``parked show --json`` prints, with two differences. The member ``frame``, which would
    hold the whole record, is left out. With ``shows_values``, the member ``columns`` is added.
    """
    everything = sorted(records, key=lambda parked: (-parked.parked_micros, parked.record_id))
    return {
        "count": len(everything),
        "causes": [{**cause, "error": printable(cause["error"])} for cause in parked_causes(everything)],
        "records": [_parked(parked, shows_values=shows_values) for parked in everything[:MOST_PARKED]],
    }


def _parked(parked: ParkedRecord, *, shows_values: bool) -> Document:
    told = {name: value for name, value in document_of(parked).items() if name != "frame"}
    columns = shown_change(parked.shard_id, parked.record, shows_values=True)["columns"] if shows_values else None
    return {
        "id": f"{parked.stream_id} {parked.shard_id} {parked.record_id}",
        "cause": cause_id(parked.error),
        **told,
        "error": printable(parked.error),
        **({} if columns is None else {"columns": columns}),
    }


def shown_change(shard_id: str, record: StreamRecord, *, shows_values: bool) -> Document:
    """Return a record as ``tail --json`` prints it, but without the values of columns.

    With ``shows_values``, columns keep their values, each cut to ``MOST_VALUE_BYTES``.
    """
    document = dict(change_document(shard_id, record))
    for name in ("columns", "original_columns"):
        if name in document:
            document[name] = [_cut(column) if shows_values else _hidden(column) for column in document[name]]
    return document


def _hidden(column: Mapping[str, Any]) -> Document:
    return {name: value for name, value in column.items() if name != "value"}


def _cut(column: Mapping[str, Any]) -> Document:
    """Return ``column`` with its value cut to ``MOST_VALUE_BYTES``. ``cut_bytes`` is the number of bytes cut off."""
    value = column["value"]
    if isinstance(value, dict):
        data = base64.b64decode(value["base64"])
        kept: Any = {"base64": base64.b64encode(data[:MOST_VALUE_BYTES]).decode()}
    elif isinstance(value, str):
        data = value.encode("utf-8", "backslashreplace")
        kept = data[:MOST_VALUE_BYTES].decode("utf-8", "ignore")
    else:
        return {**column, "cut_bytes": 0}
    left_out = max(0, len(data) - MOST_VALUE_BYTES)
    return {**column, "value": kept if left_out else value, "cut_bytes": left_out}
