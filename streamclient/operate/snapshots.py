"""Snapshots, which keep the state of a fleet in a file, and the differences between two snapshots."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from attrs import frozen

from streamclient.base.kept_formats import FORMAT_MEMBER, KeptFormat, parse_json
from streamclient.errors import ConfigurationError
from streamclient.operate.facts import FleetFacts
from streamclient.operate.operator_documents import (
    Document,
    fleet_document,
    row_document,
    session_document,
    shard_document,
)

SNAPSHOT_FORMAT = KeptFormat("the snapshot")
FORMAT = f"streamclient-snapshot-{SNAPSHOT_FORMAT.version}"


@frozen
class SnapshotDifference:
    """One difference between two snapshots: its subject, its kind, and a text for people."""

    subject: str
    """The subject of the difference: ``shard ID``, ``worker NAME`` or ``stream``."""
    kind: str
    """The name of the kind of difference. It never changes, so programs may compare it."""
    text: str

    def __str__(self) -> str:
        return f"{self.subject}: {self.text}"


def snapshot_of(facts: FleetFacts) -> Document:
    """Return the snapshot of a fleet: its lease rows and workers, and the shards that the stream lists."""
    listing = facts.stream.listing or {}
    return {
        FORMAT_MEMBER: FORMAT,
        **fleet_document(facts),
        "leases": [row_document(key, facts.rows[key]) for key in sorted(facts.rows)],
        "workers": [
            {"worker": name, "nonce": facts.workers[name].nonce, **session_document(facts, facts.workers[name])}
            for name in sorted(facts.workers)
        ],
        "shards": [shard_document(listing[key]) for key in sorted(listing)],
    }


def snapshot_text(facts: FleetFacts) -> str:
    """Return the snapshot of a fleet as JSON text for a file."""
    return json.dumps(snapshot_of(facts), ensure_ascii=False, indent=2) + "\n"


def load_snapshot(path: Path) -> Document:
    """Return the snapshot in a file.

    Raises:
        ConfigurationError: the file cannot be read, is not a snapshot, or has an unknown version.
    """
    try:
        document = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path} is not a snapshot: {error}") from error
    found: Document = document if isinstance(document, dict) else {}
    if problem := SNAPSHOT_FORMAT.problem_of_title(found.get(FORMAT_MEMBER), FORMAT):
        raise ConfigurationError(f"{path} is not a snapshot that can be read: {problem}")
    return found


def differences(before: Document, after: Document) -> list[SnapshotDifference]:
    """Return the differences between the streams, leases and workers of two snapshots. Heartbeats are not compared."""
    changes = list(_stream_differences(before, after))
    changes += _shard_differences(_by(before["leases"], "shard"), _by(after["leases"], "shard"))
    changes += _worker_differences(_by(before["workers"], "worker"), _by(after["workers"], "worker"))
    return changes


def _by(entries: list[Document], name: str) -> dict[str, Document]:
    return {entry[name]: entry for entry in entries}


def _stream_differences(before: Document, after: Document) -> Iterator[SnapshotDifference]:
    if before["stream"] != after["stream"]:
        yield SnapshotDifference("stream", "replaced", f"{before['stream']} was replaced by {after['stream']}")
    old, new = _by(before["shards"], "shard"), _by(after["shards"], "shard")
    for shard in sorted(new.keys() - old.keys()):
        parents = ", ".join(new[shard]["parents"])
        yield SnapshotDifference(
            "stream", "shard-opened", f"shard {shard} was opened" + (f" below {parents}" if parents else "")
        )
    for shard in sorted(old.keys() - new.keys()):
        yield SnapshotDifference("stream", "shard-left", f"shard {shard} left the listing")


def _shard_differences(old: Mapping[str, Document], new: Mapping[str, Document]) -> Iterator[SnapshotDifference]:
    for shard in sorted({*old, *new}):
        subject = f"shard {shard}"
        if shard not in old:
            yield SnapshotDifference(subject, "row-created", f"its lease row is new{_owned(new[shard])}")
        elif shard not in new:
            yield SnapshotDifference(subject, "row-deleted", f"its lease row is gone{_owned(old[shard])}")
        else:
            for kind, text in _lease_changes(old[shard], new[shard]):
                yield SnapshotDifference(subject, kind, text)


def _owned(lease: Document) -> str:
    return f", owner {lease['owner']}" if lease["owner"] else ""


def _lease_changes(old: Document, new: Document) -> Iterator[tuple[str, str]]:
    if old["problem"] != new["problem"]:
        yield ("row-problem", f"malformed: {new['problem']}" if new["problem"] else "its row was repaired")
    if old["owner"] != new["owner"]:
        yield "owner", f"owner {old['owner'] or 'none'} -> {new['owner'] or 'none'}"
    if old["stealer"] != new["stealer"]:
        yield "stealer", f"wanted by {new['stealer']}" if new["stealer"] else f"no longer wanted by {old['stealer']}"
    if old["checkpoint"] != new["checkpoint"]:
        yield "checkpoint", _checkpoint_change(old, new)
    if old["pause"] != new["pause"]:
        yield "pause", _pause_change(old["pause"], new["pause"])
    elif old["pause_acknowledged"] != new["pause_acknowledged"]:
        yield "pause", f"its pause is {'' if new['pause_acknowledged'] else 'no longer '}acknowledged by its owner"
    if old.get("orders", []) != new.get("orders", []):
        yield "orders", _orders_change(old.get("orders") or [], new.get("orders") or [])
    if old["pending"] != new["pending"]:
        text = "a checkpoint was prepared" if new["pending"] else "no checkpoint is prepared any more"
        yield "pending", text
    if old["parents"] != new["parents"]:
        yield "parents", f"parents {_names(old['parents'])} -> {_names(new['parents'])}"


def _checkpoint_change(old: Document, new: Document) -> str:
    kinds = {"end": "it was finished", "oldest": "its checkpoint was set back to the oldest record"}
    text = kinds.get(new["checkpoint_kind"] or "", "its checkpoint moved")
    if old["progress"] and new["progress"]:
        text += f", {new['progress']['records'] - old['progress']['records']:+d} records"
    return text


def _pause_change(old: Any, new: Any) -> str:
    if new is None:
        return f"the pause by {old['by']} ended"
    return f"paused by {new['by']}: {new['reason']}"


def _orders_change(old: list[Document], new: list[Document]) -> str:
    added, ended = [order for order in new if order not in old], [order for order in old if order not in new]
    texts = [f"{_records(order)} to be taken out, by order of {order['by']}" for order in added]
    return "; ".join([*texts, *(f"the order by {order['by']} ended" for order in ended)])


def _records(order: Document) -> str:
    count = len(order["record_ids"])
    return "one record is" if count == 1 else f"{count} records are"


def _names(names: list[str] | None) -> str:
    return ", ".join(names or ()) or "none"


def _worker_differences(old: Mapping[str, Document], new: Mapping[str, Document]) -> Iterator[SnapshotDifference]:
    for name in sorted({*old, *new}):
        subject = f"worker {name}"
        if name not in old:
            yield SnapshotDifference(subject, "worker-joined", "joined")
        elif name not in new:
            yield SnapshotDifference(subject, "worker-gone", "left")
        elif old[name]["nonce"] != new[name]["nonce"]:
            yield SnapshotDifference(subject, "worker-restarted", "was restarted")
        elif old[name]["state"] != new[name]["state"]:
            yield SnapshotDifference(subject, "worker-state", f"{old[name]['state']} -> {new[name]['state']}")
