"""The printed history of a simulated fleet: each event, command and change of a row, with its time."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, TextIO

from attrs import define, field

from streamclient.base.reasons import counted
from streamclient.cli.terminal.layout import fold
from streamclient.cli.terminal.output import width_of
from streamclient.core import events
from streamclient.testing.simulation.kernel import Entry, line_of


@define(eq=False)
class Replay:
    """A printer of a history while it happens. With ``lease_key``, it skips lines that are only about other leases."""

    lease_key: str | None = None
    step: bool = field(default=False, kw_only=True)
    """Whether to wait for Enter whenever the simulated time advances."""
    output: TextIO = field(factory=lambda: sys.stdout, kw_only=True)
    _shown_at: float = 0.0

    def noted(self, entry: Entry) -> None:
        """Print an entry of the trace: for example that a row changed, a fault began, or a consumer started."""
        if self.lease_key in (None, entry[3]) or not entry[3]:
            self._print(entry[0], line_of(entry))

    def handled(self, now: float, label: str, event: object, commands: Iterable[object]) -> None:
        """Print an event that the core of the process ``label`` handled, and the commands that it returned."""
        answers = [command for command in commands if self._is_wanted(command)]
        if self._is_wanted(event) or (answers and not _is_scan(event)):
            self._print(now, f"{now:10.3f} {label:8} <- {self._text(event)}")
        for command in answers:
            self._print(now, f"{now:10.3f} {label:8} -> {self._text(command)}")

    def _is_wanted(self, item: object) -> bool:
        if self.lease_key is None:
            return True
        if isinstance(item, events.Answered):
            if isinstance(item.value, events.Scan):
                return any(row.lease_key == self.lease_key for row in item.value.rows)
            return self._is_wanted(item.call)
        return _lease_key_of(item) == self.lease_key

    def _text(self, item: object) -> str:
        if isinstance(item, events.Answered):
            return f"{self._text(item.call)}: {self._answer(item)}"
        name = type(item).__name__
        if isinstance(item, events.WriteLease):
            return f"{name} {item.write}"
        return f"{name} {_fields(item)}".strip()

    def _answer(self, answer: events.Answered[Any]) -> str:
        value = answer.value
        if isinstance(value, events.Scan):
            shown = [row for row in value.rows if self.lease_key in (None, row.lease_key)]
            return f"{counted(len(value.rows), 'row')}: {', '.join(str(row) for row in shown)}"
        if isinstance(value, events.ShardList):
            return counted(len(value.shards), "shard")
        return _short(answer.error or value)

    def _print(self, now: float, line: str) -> None:
        if self.step and now > self._shown_at:
            self.output.flush()
            sys.stdin.readline()
        self._shown_at = now
        self.output.write(fold(line, width_of(self.output)) + "\n")


def _is_scan(event: object) -> bool:
    return isinstance(event, events.Answered) and isinstance(event.call, events.ReadRows)


def _lease_key_of(item: object) -> str | None:
    write = getattr(item, "write", None)
    if write is not None:
        return getattr(write, "lease_key", None)
    info = getattr(item, "shard_info", None)
    return info.shard_id if info is not None else getattr(item, "lease_key", None)


def _fields(item: object) -> str:
    """Return the fields of an attrs object as text, in order, without fields that are ``None``."""
    names = getattr(type(item), "__match_args__", ())
    values = [(name, getattr(item, name)) for name in names]
    return " ".join(f"{name}={_short(value)}" for name, value in values if value is not None)


def _short(value: object) -> str:
    short = getattr(value, "value", value)
    return repr(sorted(short)) if isinstance(short, frozenset) else str(short)
