"""What one turn of the owner asks the status table for, sent together at its end. Owner thread only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from streamclient.core import events
from streamclient.worker.service import ServiceCalls


class TurnWrites:
    """Commands that go out in groups: many rows cost the table one request."""

    def __init__(self, service: ServiceCalls) -> None:
        self._service = service
        self._waiting: dict[type, list[Any]] = {kind: [] for kind in _SENDERS}

    def put(self, command: GroupedCommand) -> None:
        """Have a command carried out at the end of the turn."""
        self._waiting[_WAITS_WITH.get(type(command), type(command))].append(command)

    def clear(self) -> None:
        """Drop what waits."""
        for commands in self._waiting.values():
            commands.clear()

    def flush(self) -> None:
        """Send what waits."""
        for kind, send in _SENDERS.items():
            if self._waiting[kind]:
                commands, self._waiting[kind] = self._waiting[kind], []
                send(self._service, commands)


GroupedCommand = events.WriteLease | events.WriteWorker | events.WakeWorkers | events.DrawEpoch | events.ForgetEpoch

_WAITS_WITH: dict[type, type] = {events.WriteWorker: events.WriteLease}
"""Commands that go out with those of another kind, in one request."""


def _wake(service: ServiceCalls, commands: Sequence[events.WakeWorkers]) -> None:
    service.wake_workers(tuple(sorted({name for command in commands for name in command.names})))


_SENDERS: dict[type, Callable[[ServiceCalls, Sequence[Any]], None]] = {
    events.WriteLease: lambda service, commands: service.write([command.write for command in commands]),
    events.WakeWorkers: _wake,
    events.DrawEpoch: lambda service, commands: service.draw_epochs([command.lease_key for command in commands]),
    events.ForgetEpoch: lambda service, commands: service.forget_epochs([command.lease_key for command in commands]),
}
"""How the commands of each kind go out, in this order."""
