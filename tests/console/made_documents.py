"""Made documents of fleets, as ``/api/v1/`` has them, for tests of the page."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

SECOND = 1_000_000
NOW = 1_800_000_000 * SECOND
"""The service's time in all documents."""

WORKERS = ("shop-a-1", "shop-a-2", "shop-b-1", "shop-b-2")
STUCK = "9170e251-8ad4-4c52-b7a5-5b0c0f7a1d02"
CHILDREN = ("5f06c0eb-1b1f-4d6e-8a4c-000000000001", "5807850b-1b1f-4d6e-8a4c-000000000002")
FAILURE = "process_records: TypeError: amount '12,50' of order o-4711 is not a number; next start in 6 s"
TRACEBACK = 'Traceback (most recent call last):\n  File "shop.py", line 12, in process_records\nTypeError: amount'


def shard_name(number: int) -> str:
    digest = hashlib.sha256(str(number).encode()).hexdigest()
    return f"{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:32]}"


def line(shard: str, owner: str, situation: str = "caught-up", **members: Any) -> dict[str, Any]:
    """A shard as ``top --json`` has it."""
    moves = situation in ("caught-up", "reading", "held", "finished")
    return {
        "id": shard,
        "shard": shard,
        "owner": owner,
        "situation": situation,
        "moves": moves,
        "first_line": f"Shard {shard} {'moves' if moves else 'does not move'}: worker {owner} has read it.",
        "lag_seconds": 1.2,
        "lag_is_bound": False,
        "records_per_second": 97.3,
        "seconds_to_loss": 86_000.0,
        **members,
    }


def worker(name: str, life: str = "living", **members: Any) -> dict[str, Any]:
    session = {"state": "running", "beat_seconds": 2.0, "host": "h", "pid": 7, "trouble": "", "shards": {}}
    told = {"worker": name, "life": life, "leases": 3, "unfinished": 3, "records_per_second": 292.0}
    return {"id": name, **told, "session": session, **members}


def trouble(fleet: str, **members: Any) -> dict[str, Any]:
    """A trouble as the verdict has it; by default the poisoned record."""
    return {
        "id": f"{fleet} {members.get('situation', 'processor-fails')}",
        "kind": "stuck",
        "urgency": "failing",
        "fleet": fleet,
        "shard": STUCK,
        "shards": [STUCK],
        "worker": "shop-a-2",
        "situation": "processor-fails",
        "first_line": f"Shard {STUCK} does not move on worker shop-a-2: {FAILURE}.",
        "advice": "Mend the processor or its destination; the processor starts again by itself. "
        "See `streamclient explain`.",
        "command": "",
        "since_micros": NOW - 384 * SECOND,
        "since_is_seen": False,
        "waiting_shards": 2,
        "records_waiting": None,
        "seconds_to_loss": 86_000.0,
        **members,
    }


def verdict(fleet: str, *troubles: Mapping[str, Any], is_well: bool = False) -> dict[str, Any]:
    sentence = f"{fleet}: all is well: 12 shards move."
    if not is_well:
        first = str(troubles[0]["first_line"])
        more = f" And {len(troubles) - 1} more troubles." if len(troubles) > 1 else ""
        sentence = f"{fleet}: {first[0].lower()}{first[1:]}{more}"
    told = {"is_well": is_well, "sentence": sentence, "troubles": list(troubles)}
    return {**told, "last_trouble": None, "complete_since_micros": NOW - 3_600 * SECOND}


def fleet(name: str, told: Mapping[str, Any], lines: Sequence[Mapping[str, Any]], **members: Any) -> dict[str, Any]:
    """The document of one fleet."""
    return {
        "table": name,
        "status_table": f"{name}_status",
        "stream": f"{name}_1",
        "now_micros": NOW,
        "lease_duration_seconds": 20.0,
        "expiration_hours": 24,
        "verdict": told,
        "totals": {
            "workers": len(WORKERS),
            "shards": len(lines),
            "moving": sum(bool(each["moves"]) for each in lines),
            "finished": 7,
            "records_per_second": 1_168.0,
            "longest_lag_seconds": 384.0,
            "cost_an_hour": None,
        },
        "workers": [worker(each) for each in WORKERS],
        "shards": list(lines),
        "read_micros": NOW,
        "problem": None,
        "next_seconds": 2.0,
        "lag": [[NOW - minute * 60 * SECOND, None if minute == 9 else 400.0 / minute] for minute in range(60, 0, -1)],
        **members,
    }


def fleet_line(name: str, document: Mapping[str, Any], **members: Any) -> dict[str, Any]:
    """The fleet's line on the first page."""
    totals, told = document["totals"], document["verdict"]
    return {
        "id": name,
        "is_well": told["is_well"],
        "sentence": told["sentence"],
        **{key: totals[key] for key in ("workers", "shards", "moving", "finished", "records_per_second")},
        "longest_lag_seconds": totals["longest_lag_seconds"],
        "seconds_to_loss": 86_000.0 if document.get("shards") else None,
        "read_micros": document["read_micros"],
        "problem": document["problem"],
        "round_seconds": 0.2,
        **members,
    }


def story(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Bands of equal height; the stuck shard was closed by a split, and its children are open."""
    hour, size = 3_600 * SECOND, 1 / max(len(lines), 1)
    bands, spans = [], []
    for number, each in enumerate(lines):
        opened = None if number % 3 else NOW - hour // (number + 2)
        bands.append(
            {
                "shard": each["shard"],
                "parents": [STUCK] if each["shard"] in CHILDREN else [],
                "low": number * size,
                "high": (number + 1) * size,
                "is_range_known": False,
                "opened_micros": opened,
                "closed_micros": NOW - 60 * SECOND if each["shard"] == STUCK else None,
                "owner": each["owner"],
                "read_to_micros": NOW - 384 * SECOND if each["shard"] == STUCK else None if number == 1 else NOW,
                "situation": each["situation"],
                "moves": each["moves"],
            }
        )
        if each["owner"]:
            held = {"shard": each["shard"], "owner": each["owner"]}
            spans.append({**held, "from_micros": opened or NOW - hour, "to_micros": NOW})
    shards = [{"id": each["shard"], "keys": None, "records": None} for each in lines]
    return {
        "from_micros": NOW - hour,
        "now_micros": NOW,
        "loss_micros": None,
        "bands": bands,
        "spans": spans,
        "shards": shards,
    }


def moves(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    nothing = dict.fromkeys(("from", "to", "seconds", "who", "command", "reason", "outcome"))
    listed = [
        {**nothing, "kind": "taken", "from": "shop-b-2", "to": "shop-b-1", "seconds": 21.4},
        {**nothing, "kind": "handed-over", "from": "shop-a-1", "to": "shop-a-2"},
        {
            **nothing,
            "kind": "order",
            "who": "ann@ops",
            "command": "move s --to w",
            "reason": "drain",
            "outcome": "done",
        },
        {**nothing, "kind": "finished", "to": None},
    ]
    rows = [
        {
            "id": f"m{number}",
            "at_micros": NOW - number * 70 * SECOND,
            "at_is_seen": number == 1,
            "shard": each["shard"],
            **move,
        }
        for number, (each, move) in enumerate(zip(lines, listed, strict=False))
    ]
    spans: dict[str, list[dict[str, Any]]] = {}
    for number, each in enumerate(lines):
        held = {"shard": each["shard"], "from_micros": NOW - (number % 50 + 5) * 60 * SECOND, "to_micros": NOW}
        spans.setdefault(str(each["owner"]), []).append(held)
    lanes = [{"id": name, "spans": held} for name, held in sorted(spans.items()) if name]
    return {"complete_since_micros": NOW - 3_600 * SECOND, "moves": rows, "lanes": lanes}


def parked(count: int = 7) -> dict[str, Any]:
    """Parked records of two causes."""
    records = [
        {
            "id": f"s {STUCK} r{number}",
            "cause": "c2" if number == 0 else "c1",
            "record_id": f"1800000000000000.{number}.0",
            "stream_id": "orders_1",
            "shard_id": STUCK,
            "key": [["id", f"o-47{number}"], ["part", number]],
            "change": "PUT",
            "time_micros": NOW - number * SECOND,
            "position": "p",
            "index": number,
            "generation": 1,
            "error": "OSError: gone" if number == 0 else f"TypeError: amount '{number},50' is not a number",
            "traceback": TRACEBACK,
            "attempts": 4,
            "parked_micros": NOW - number * SECOND,
        }
        for number in range(count)
    ]
    times = {"oldest_micros": NOW - count * SECOND, "newest_micros": NOW, "shards": 1}
    causes = [
        {
            "id": "c1",
            "cause": "TypeError: amount # is not a number",
            "records": count - 1,
            "error": "TypeError: a",
            **times,
        },
        {"id": "c2", "cause": "OSError: gone", "records": 1, "error": "OSError: gone", **times},
    ]
    commands = {
        "replay": "streamclient parked replay --table orders_parked --stream orders_1 --processor MODULE:NAME",
        "discard": "streamclient parked discard --table orders_parked --stream orders_1",
    }
    return {"count": count, "causes": causes if count else [], "records": records, "commands": commands}


def detail(each: Mapping[str, Any], advice: str = "Nothing.") -> dict[str, Any]:
    """Everything about one shard, as ``leases show --json`` prints it."""
    pause = {"by": "bob@ops", "reason": "maintenance", "until_micros": None} if each["situation"] == "paused" else None
    lease = {
        **{name: each[name] for name in ("shard", "owner", "situation", "moves", "lag_seconds", "lag_is_bound")},
        "seconds_to_loss": each["seconds_to_loss"],
        "stealer": "",
        "checkpoint_kind": "iterator",
        "parents": [STUCK] if each["shard"] in CHILDREN else [],
        "pause": pause,
        "orders": [],
        "progress": {"records": 4_711, "bytes": 99_000},
        "checkpoint_seconds": 384.0,
        "problem": "",
    }
    explanation = {
        **{name: each[name] for name in ("shard", "situation", "moves", "first_line")},
        "root": STUCK if each["shard"] in CHILDREN else each["shard"],
        "advice": advice,
        "evidence": ["stream: orders_1 of table orders", "lease: owner shop-a-2, counter 12 written 2.0 s ago"],
    }
    audit = {
        "change": "922f96bd",
        "at_micros": NOW - 900 * SECOND,
        "who": "ann@ops",
        "command": "pause s",
        "reason": "upgrade",
    }
    history = [{**audit, "shard": each["shard"], "before": {}, "after": {}, "outcome": "done"}]
    commands = {
        order: f"streamclient leases {order} {each['shard']} --reason WHY --data-table orders"
        for order in ("pause", "resume", "move", "release")
    }
    told = {"lease": lease, "explanation": explanation, "history": history, "commands": commands}
    return {"table": "orders", "now_micros": NOW, **told}
