"""The causes of parked records. A cause is an error text without the parts that differ from record to record."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import TypedDict

from streamclient.base.reasons import common_words
from streamclient.model import ParkedRecord

ID_CHARACTERS = 12
"""The number of characters of a cause's id. These hold 48 bits, which is enough to tell the causes of a store apart."""


class ParkedCause(TypedDict):
    """A summary of the parked records with one cause. Times are microseconds since 1970, by the workers' clocks."""

    id: str
    """The id of the cause: a digest of its text. Equal causes have equal ids in every store and every run."""
    cause: str
    """The error, with ``#`` for the parts that differ from record to record."""
    records: int
    """The number of parked records with this cause."""
    shards: int
    """The number of shards from which these records come."""
    oldest_micros: int
    """The time at which the first of these records was parked."""
    newest_micros: int
    """The time at which the last of these records was parked."""
    error: str
    """The complete error of the record that was parked last."""


def cause_id(error: str) -> str:
    """Return the id of the cause to which the error text ``error`` belongs."""
    return hashlib.sha256(common_words(error).encode("utf-8", "backslashreplace")).hexdigest()[:ID_CHARACTERS]


def parked_causes(records: Iterable[ParkedRecord]) -> list[ParkedCause]:
    """Return the causes of parked records, the cause with the most records first."""
    groups: dict[str, list[ParkedRecord]] = {}
    for parked in records:
        groups.setdefault(cause_id(parked.error), []).append(parked)
    causes = [_cause(name, group) for name, group in groups.items()]
    return sorted(causes, key=lambda cause: (-cause["records"], cause["oldest_micros"], cause["id"]))


def _cause(name: str, group: Sequence[ParkedRecord]) -> ParkedCause:
    newest = max(group, key=lambda parked: parked.parked_micros)
    return {
        "id": name,
        "cause": common_words(newest.error),
        "records": len(group),
        "shards": len({(parked.stream_id, parked.shard_id) for parked in group}),
        "oldest_micros": min(parked.parked_micros for parked in group),
        "newest_micros": newest.parked_micros,
        "error": newest.error,
    }


def of_cause(records: Iterable[ParkedRecord], cause: str) -> list[ParkedRecord]:
    """Return the records whose cause has the id ``cause``."""
    return [parked for parked in records if cause_id(parked.error) == cause]


def of_keys_with_cause(records: Iterable[ParkedRecord], cause: str) -> list[ParkedRecord]:
    """Return all records of each key that has a record with the cause ``cause``.

    With all records of a key, a replay keeps the order within the key.
    """
    everything = list(records)
    keys = {(parked.stream_id, parked.record.primary_key) for parked in of_cause(everything, cause)}
    return [parked for parked in everything if (parked.stream_id, parked.record.primary_key) in keys]
