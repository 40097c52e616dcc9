"""Prints a history while it happens: every event, every command, every change of a row, with its time."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, TextIO

from attrs import define, field

from streamclient.cli.terminal.layout import fold
from streamclient.cli.terminal.output import width_of
from streamclient.core import events
from streamclient.testing.simulation.trace import Entry, line_of


@define(eq=False)
class Replay:
    """Told of everything that happens; with ``lease_key``, it prints only what is about that lease or about none."""

    lease_key: str | None = None
    step: bool = field(default=False, kw_only=True)
    """Whether to wait for Enter whenever time goes on."""
    output: TextIO = field(factory=lambda: sys.stdout, kw_only=True)
    _shown_at: float = 0.0

    def noted(self, entry: Entry) -> None:
        """Something happened outside the cores: a row changed, a fault began, a consumer started."""
        if self.lease_key in (None, entry[3]) or not entry[3]:
            self._print(entry[0], line_of(entry))

    def handled(self, now: float, label: str, event: object, commands: Iterable[object]) -> None:
        """A core handled an event."""
        answers = [command for command in commands if self._is_wanted(command)]
        if self._is_wanted(event) or (answers and not _is_scan(event)):
            self._print(now, f"{now:10.3f} {label:8} <- {self._text(event)}")
        for command in answers:
            self._print(now, f"{now:10.3f} {label:8} -> {self._text(command)}")

    def _is_wanted(self, thing: object) -> bool:
        if self.lease_key is None:
            return True
        if isinstance(thing, events.Answered):
            if isinstance(thing.value, events.Scan):
                return any(row.lease_key == self.lease_key for row in thing.value.rows)
            return self._is_wanted(thing.call)
        return _lease_key_of(thing) == self.lease_key

    def _text(self, thing: object) -> str:
        if isinstance(thing, events.Answered):
            return f"{self._text(thing.call)}: {self._answer(thing)}"
        name = type(thing).__name__
        if isinstance(thing, events.WriteLease):
            return f"{name} {thing.write}"
        return f"{name} {_fields(thing)}".strip()

    def _answer(self, answer: events.Answered[Any]) -> str:
        value = answer.value
        if isinstance(value, events.Scan):
            shown = [row for row in value.rows if self.lease_key in (None, row.lease_key)]
            return f"{len(value.rows)} rows: {', '.join(str(row) for row in shown)}"
        if isinstance(value, events.ShardList):
            return f"{len(value.shards)} shards"
        return _short(answer.error or value)

    def _print(self, now: float, line: str) -> None:
        if self.step and now > self._shown_at:
            self.output.flush()
            sys.stdin.readline()
        self._shown_at = now
        self.output.write(fold(line, width_of(self.output)) + "\n")


def _is_scan(event: object) -> bool:
    return isinstance(event, events.Answered) and isinstance(event.call, events.ReadRows)


def _lease_key_of(thing: object) -> str | None:
    write = getattr(thing, "write", None)
    if write is not None:
        return getattr(write, "lease_key", None)
    info = getattr(thing, "shard_info", None)
    return info.shard_id if info is not None else getattr(thing, "lease_key", None)


def _fields(thing: object) -> str:
    """The values of a frozen thing, in the order in which it names them."""
    names = getattr(type(thing), "__match_args__", ())
    values = [(name, getattr(thing, name)) for name in names]
    return " ".join(f"{name}={_short(value)}" for name, value in values if value is not None)


def _short(value: object) -> str:
    short = getattr(value, "value", value)
    return repr(sorted(short)) if isinstance(short, frozenset) else str(short)
