"""Fleets of made documents: they implement ``Pages``, and nothing behind them runs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from console_tools import Asked

from streamclient.console.doors import ConsoleDoors, ConsoleError
from streamclient.console.feeds import Document
from streamclient.console.listening import PageServer
from streamclient.server.auth import Doors
from tests.console.made_documents import (
    CHILDREN,
    FAILURE,
    NOW,
    STUCK,
    WORKERS,
    detail,
    fleet,
    fleet_line,
    line,
    moves,
    parked,
    shard_name,
    story,
    trouble,
    verdict,
    worker,
)


class MadeFleets:
    """Documents by topic, which a test may exchange at any time; orders are planned, noted, and never carried out."""

    def __init__(self, documents: Mapping[str, Document], fleets: Sequence[str] = ("orders",), **about: Any) -> None:
        self.about: dict[str, Any] = {
            "version": "1.0",
            "mode": "fleet",
            "endpoint": "http://127.0.0.1:8180",
            "instance": "local",
            "interval_millis": 2000,
            "allows_actions": True,
            "shows_values": False,
            "can_replay": True,
            "has_parking": True,
            "fleets": list(fleets),
            **about,
        }
        self.documents: dict[str, Document] = dict(documents)
        self.changes: list[tuple[str, dict[str, Any]]] = []
        """Everything that was asked for by POST, with its path."""
        self.is_changed = False
        """Whether what is planned has changed when it is to be carried out."""
        self._wake: Callable[[], None] = lambda: None

    def show(self, **documents: Document) -> None:
        """Exchange documents; in a name, two underscores are a colon."""
        self.documents.update({name.replace("__", ":"): document for name, document in documents.items()})
        self._wake()

    def begin(self, wake: Callable[[], None]) -> None:
        self._wake = wake

    def end(self) -> None: ...

    def followed(self, topics: Collection[str]) -> None: ...

    def document(self, topic: str) -> Document:
        if topic == "about":
            return self.about
        missing = ConsoleError(404, "topic", f"there is no document {topic}").document()
        return self.documents.get(topic, missing)

    async def read(self, words: list[str], query: Mapping[str, str]) -> Any:
        match words:
            case ["about"]:
                return self.about
            case ["fleets", name, "shards", shard]:
                lines = self.documents.get(f"fleet:{name}", {}).get("shards", [])
                found = next((each for each in lines if each["shard"] == shard), None)
                if "detail" in self.documents:
                    return self.documents["detail"]
                if found is None:
                    raise ConsoleError(404, "shard", f"the fleet has no shard {shard}")
                return detail(found, "Mend the processor; or see `leases park`.")
            case ["fleets", _, "shards", shard, "records"]:
                change = {"shard": shard, "sequence": "1", "time_micros": NOW, "type": "PUT", "key": {"id": "o-4711"}}
                column = {"name": "amount", "operation": "PUT", "timestamp_millis": 1}
                return {"records": [{"id": "1", **change, "columns": [column]}]}
        raise ConsoleError(404, "path", "there is no such document")

    async def change(self, method: str, words: list[str], arguments: Mapping[str, Any]) -> Any:
        self.changes.append(("/".join(words[2:]), dict(arguments)))
        told = {name: value for name, value in arguments.items() if name != "plan"}
        digest = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]
        if "plan" in arguments and (arguments["plan"] != digest or self.is_changed):
            raise ConsoleError(409, "changed", "the plan has changed", "Look at it again.")
        is_done = "plan" in arguments
        if words[-1] != "actions":
            report: dict[str, Any] = {
                "status": "done" if is_done else "planned",
                "records": 6,
                "keys": [[["id", "o-471"]]],
            }
            return {"plan": digest, "command": f"streamclient parked {words[-1]}", "report": report}
        writes = [
            {
                "shard": shard,
                "write": "pause",
                "before": {"pause": None},
                "after": {"pause": {"by": "ann", "reason": arguments["reason"]}},
                "effect": "its owner stops reading it",
                "outcome": "done" if is_done else None,
            }
            for shard in arguments["shards"]
        ]
        report = {"command": arguments["command"], "status": "done" if is_done else "planned", "change": None}
        report |= {"changes": writes, "refusals": [], "notes": ["the owner has 1 min to stop"]}
        return {"plan": digest, "command": f"streamclient leases {arguments['command']}", "report": report}


class MadeConsole(Asked):
    """A console over real HTTP that shows made documents."""

    def __init__(self, pages: MadeFleets) -> None:
        self.pages = pages
        super().__init__(PageServer(lambda: pages, ConsoleDoors(Doors(()))))


# --- states --------------------------------------------------------------------------------------------------------


def _owned(count: int, stuck: bool = False) -> list[dict[str, Any]]:
    lines = [line(shard_name(each), WORKERS[each % 4], "caught-up" if each % 5 else "reading") for each in range(count)]
    if stuck:
        waiting = [line(each, "shop-b-1", "waits-for-parent", lag_seconds=156.0) for each in CHILDREN]
        first = f"Shard {STUCK} does not move on worker shop-a-2: {FAILURE}."
        poisoned = line(STUCK, "shop-a-2", "processor-fails", lag_seconds=384.0, first_line=first)
        unknown = line(shard_name(9_999), "", "free", lag_seconds=None, records_per_second=None, seconds_to_loss=None)
        lines = [{**poisoned, "records_per_second": 0.0}, *waiting, unknown, *lines]
    return lines


def _made(told: Mapping[str, Any], lines: Sequence[Mapping[str, Any]], **members: Any) -> dict[str, Document]:
    document = fleet("orders", told, lines, **members)
    return {
        "verdict": told,
        "fleets": {"fleets": [fleet_line("orders", document)]},
        "fleet:orders": document,
        "story:orders": story(lines) if lines else ConsoleError(404, "too-many-shards", "there is no shard").document(),
        "moves:orders": moves(lines),
        "parked:orders": parked(7 if lines else 0),
    }


def healthy() -> MadeFleets:
    last = trouble("orders", first_line="Worker shop-b-2 is silent: its last heartbeat was 12 s ago.")
    return MadeFleets(_made({**verdict("orders", is_well=True), "last_trouble": last}, _owned(12)))


def poisoned(**about: Any) -> MadeFleets:
    """One shard is stuck, two wait for it; of three fleets one is well and one cannot be read."""
    silent = trouble("orders", **_silent(), id="orders silent")
    text = "7 records were parked since the workers started."
    told = trouble(
        "orders", kind="parked", urgency="told", shard=None, worker=None, first_line=text, id="orders parked"
    )
    documents = _made(verdict("orders", trouble("orders"), silent, told), _owned(8, stuck=True))
    lines = [*documents["fleets"]["fleets"]]
    well = fleet("payments", verdict("payments", is_well=True), [])
    lines.append(fleet_line("payments", well, workers=20, shards=1000, moving=1000, longest_lag_seconds=1.9))
    unread = {**fleet_line("clicks", well), "workers": None, "longest_lag_seconds": None, "is_well": None}
    lines.append({**unread, "sentence": "not read yet", "records_per_second": None, "moving": None, "shards": None})
    documents["fleets"] = {"fleets": lines}
    return MadeFleets(documents, ("orders", "payments", "clicks"), **about)


def _silent() -> dict[str, Any]:
    return {
        "kind": "worker",
        "urgency": "slow",
        "shard": None,
        "shards": [],
        "worker": "shop-b-2",
        "situation": "owner-silent",
        "first_line": "Worker shop-b-2 is silent: its last heartbeat was 12 s ago.",
        "advice": "Wait until the lease expires, or bring the worker back under its name.",
        "command": "kill -CONT 4711",
        "since_is_seen": True,
        "waiting_shards": 0,
        "seconds_to_loss": None,
    }


def silent_worker() -> MadeFleets:
    lines = [
        {**each, "situation": "owner-silent", "moves": False} if each["owner"] == "shop-b-2" else each
        for each in _owned(12)
    ]
    workers = [worker(each, "silent" if each == "shop-b-2" else "living") for each in WORKERS]
    workers.append(worker("java-1", "unseen", session=None, records_per_second=None))
    return MadeFleets(_made(verdict("orders", trouble("orders", **_silent())), lines, workers=workers))


def three_hundred() -> MadeFleets:
    return MadeFleets(_made(verdict("orders", trouble("orders")), _owned(296, stuck=True)))


def five_thousand() -> MadeFleets:
    """As groups: the list of shards is not sent, and there is no picture of so many."""
    classes = ["up to 1 s", "up to 10 s", "up to 1 min", "up to 10 min", "up to 1 h", "over 1 h", "unknown"]
    workers = [
        {"id": f"shop-{number:03}", "health": "well" if number else "no session row", "counts": [90, 5, 2, 1, 1, 0, 1]}
        for number in range(50)
    ]
    groups = [{**each, "shards": 100, "moving": 98} for each in workers]
    groups.append({"id": "", "health": "", "counts": [0, 0, 0, 0, 0, 0, 3], "shards": 3, "moving": 0})
    worst = [line(shard_name(each), "shop-001", "processor-fails") for each in range(25)]
    documents = _made(verdict("orders", trouble("orders")), _owned(40, stuck=True))
    grouped = dict(documents["fleet:orders"])
    del grouped["shards"]
    told = {"lag_classes": classes, "workers": groups, "not_moving": worst, "not_moving_more": 80}
    totals = {**grouped["totals"], "shards": 5_003, "moving": 4_900}
    text = "a picture shows 1 to 2000 shards, not 5003"
    refused = ConsoleError(404, "too-many-shards", text).document()
    return MadeFleets(
        {**documents, "fleet:orders": {**grouped, "groups": told, "totals": totals}, "story:orders": refused}
    )


def nothing_there() -> MadeFleets:
    told = {**verdict("orders", is_well=True), "sentence": "orders: all is well: no shard is unfinished."}
    documents = _made(told, [], workers=[], lag=[])
    empty = dict(documents["fleet:orders"])
    unknown = {"workers": 0, "finished": 0, "records_per_second": None, "longest_lag_seconds": None}
    empty["totals"] = {**empty["totals"], **unknown}
    no_store = ConsoleError(404, "no-parking", "this console knows no store", "Start it with `--parking-table NAME`.")
    return MadeFleets({**documents, "fleet:orders": empty, "parked:orders": no_store.document()}, has_parking=False)


def no_fleet() -> MadeFleets:
    return MadeFleets(
        {"verdict": ConsoleError(404, "not-read-yet", "nothing is read").document(), "fleets": {"fleets": []}}, ()
    )


def stale() -> MadeFleets:
    problem = "the service does not answer: see `--endpoint`. Workers go on by themselves."
    documents = _made(verdict("orders", trouble("orders")), _owned(8, stuck=True), problem=problem, next_seconds=16.0)
    return MadeFleets(documents)


STATES: Mapping[str, Callable[[], MadeFleets]] = {
    "healthy": healthy,
    "poisoned": poisoned,
    "silent-worker": silent_worker,
    "three-hundred": three_hundred,
    "five-thousand": five_thousand,
    "nothing-there": nothing_there,
    "stale": stale,
    "no-fleet": no_fleet,
}

PLACES = (
    "",
    "fleets/orders",
    f"fleets/orders/shards/{STUCK}",
    "fleets/orders/stream",
    "fleets/orders/moves",
    "fleets/orders/parked",
)
"""The pages of fleets."""
