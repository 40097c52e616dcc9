"""The state of a fleet at one time, kept in two files: a snapshot, and a report of lag and loss by groups of shards.

The files are ``NAME-TIME.snapshot.json``, which ``leases diff`` reads, and ``NAME-TIME.report.json``. A file appears
only when it is complete.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from urllib.parse import quote

from attrs import frozen

from streamclient.base.times import duration, utc
from streamclient.errors import ConfigurationError
from streamclient.operate.operator_documents import Document
from streamclient.operate.overview import Overview, ShardLine, overview_document
from streamclient.operate.situations import Situation
from streamclient.operate.snapshots import snapshot_text

REPORT_FORMAT = "streamclient-report-1"

REPORTS_KEPT = 100
"""The default number of reports that a directory keeps for each fleet. With one report every ten minutes, they span
most of a day."""


@frozen
class ShardGroup:
    """The shards of a stream that are in one situation; at least one shard."""

    table_name: str
    lines: tuple[ShardLine, ...]

    @property
    def situation(self) -> Situation:
        """The situation that the shards have in common."""
        return self.lines[0].explanation.situation

    @property
    def longest_lag(self) -> ShardLine | None:
        """The shard with the longest known lag; ``None`` if no lag is known."""
        known = [line for line in self.lines if line.lag_seconds is not None]
        return max(known, key=lambda line: line.lag_seconds or 0.0, default=None)

    @property
    def nearest_to_loss(self) -> ShardLine | None:
        """The shard whose next unread record is deleted first; ``None`` if no shard has an unread record."""
        known = [line for line in self.lines if line.seconds_to_loss is not None]
        return min(known, key=lambda line: line.seconds_to_loss or 0.0, default=None)

    def __str__(self) -> str:
        """Return the group as one line for a log, with its longest lag and its shortest time to loss."""
        noun = "shard" if len(self.lines) == 1 else "shards"
        parts = [f"{self.table_name}: {len(self.lines)} {noun} {self.situation.name}"]
        if (late := self.longest_lag) is not None and late.lag_seconds is not None:
            bound = "at most " if late.is_lag_bound else ""
            parts.append(f"longest lag {bound}{duration(late.lag_seconds)} (shard {late.shard_id})")
        if (near := self.nearest_to_loss) is not None and near.seconds_to_loss is not None:
            bound = "at least " if near.is_lag_bound else ""
            parts.append(f"first loss in {bound}{duration(near.seconds_to_loss)} (shard {near.shard_id})")
        first = self.lines[0]
        why = "" if self.situation.moves else f"; shard {first.shard_id} {first.explanation.predicate}"
        return ", ".join(parts) + why


def shard_groups(view: Overview) -> list[ShardGroup]:
    """Group the unfinished shards by situation.

    Groups whose shards make no progress come first. Among the others, a group that is nearer to loss comes first.
    """
    # The shards are sorted by time to loss. A stable sort keeps this order within each situation.
    lines = sorted(view.shards, key=lambda line: line.explanation.situation.name)
    groups = [
        ShardGroup(view.facts.stream.table_name, tuple(group))
        for _, group in groupby(lines, key=lambda line: line.explanation.situation.name)
    ]
    return sorted(groups, key=lambda group: (group.situation.moves, view.shards.index(group.lines[0])))


def fleet_report(view: Overview) -> Document:
    """Return the document that ``top --json`` prints, with the groups of shards added."""
    return {
        "format": REPORT_FORMAT,
        **overview_document(view),
        "groups": [_group_document(group) for group in shard_groups(view)],
    }


def _group_document(group: ShardGroup) -> Document:
    late, near = group.longest_lag, group.nearest_to_loss
    return {
        "situation": group.situation.name,
        "moves": group.situation.moves,
        "shards": len(group.lines),
        "longest_lag_seconds": None if late is None else late.lag_seconds,
        "longest_lag_shard": None if late is None else late.shard_id,
        "seconds_to_loss": None if near is None else near.seconds_to_loss,
        "nearest_to_loss_shard": None if near is None else near.shard_id,
    }


class ReportDirectory:
    """A directory with the newest snapshots and reports of each fleet. Several workers may write to it.

    Args:
        path: the directory; it is created if it does not exist.
        kept: the number of reports to keep for each fleet, with their snapshots. Older reports are removed.

    Raises:
        ConfigurationError: ``path`` is not a directory, or cannot be created.
    """

    def __init__(self, path: str | os.PathLike[str], kept: int) -> None:
        self._path = Path(path)
        self._kept = kept
        try:
            self._path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(f"{self._path} cannot be a directory of reports: {error}") from error

    def save(self, name: str, view: Overview, at_micros: int) -> Path:
        """Write snapshot and report of the fleet ``name``, remove old files, and return the path of the report.

        A file's name has the minute of its time, so a second report within a minute replaces the first.

        Raises:
            OSError: a file cannot be written.
        """
        stem = f"{quote(name, safe='')}-{utc(at_micros):%Y%m%dT%H%MZ}"
        report = self._path / f"{stem}.report.json"
        self._write(self._path / f"{stem}.snapshot.json", snapshot_text(view.facts))
        self._write(report, json.dumps(fleet_report(view), ensure_ascii=False, indent=2) + "\n")
        self._forget(name)
        return report

    def _write(self, path: Path, text: str) -> None:
        unfinished = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
        try:
            unfinished.write_text(text, encoding="utf-8")
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)

    def _forget(self, name: str) -> None:
        """Remove the older files of the fleet ``name``, including unfinished files that a killed process left."""
        pattern = re.compile(rf"{re.escape(quote(name, safe=''))}-(\d{{8}}T\d{{4}}Z)\.(snapshot|report)\.json(\.\w+)?")
        times = {path: match[1] for path in self._path.iterdir() if (match := pattern.fullmatch(path.name))}
        kept = sorted(set(times.values()))[-self._kept :]
        _remove(path for path, time in times.items() if time not in kept)


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)
