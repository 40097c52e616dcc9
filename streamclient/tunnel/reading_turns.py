"""The turns in which the consumers of a tunnel's channels read, so that only a limited number work at the same time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from streamclient.base.reasons import Cause, Reason
from streamclient.core.tunnel.channel_turns import Turns
from streamclient.worker.owner_loop import OwnerLoop


class ReaderTurns:
    """Calls each reader when its turn begins. ``Turns`` decides which readers have a turn. For the owner thread."""

    def __init__(self, turns: Turns, loop: OwnerLoop) -> None:
        self.turns = turns
        self._loop = loop
        self._going: dict[str, Callable[[], None]] = {}

    def ask(self, reader: str, go: Callable[[], None]) -> None:
        """Call ``go`` once, when the reader gets a turn, perhaps immediately.

        If ``end`` is called before, ``go`` is never called.
        """
        self._going[reader] = go
        if self.turns.ask(reader):
            self._go(reader)

    def end(self, reader: str) -> None:
        """End the reader's turn, or its wait for a turn. The owner thread later calls the readers that get a turn."""
        self._going.pop(reader, None)
        for following in self.turns.end(reader):
            self._loop.call_later(0.0, partial(self._go, following))

    def _go(self, reader: str) -> None:
        # Since the turn was granted, it may have been ended, and another turn may have been requested.
        if self.turns.has(reader):
            go = self._going.pop(reader, None)
            if go is not None:
                go()


class ChannelTurn:
    """The turns of one channel's reader. The reader's consumer reads and processes only during a turn.

    While the consumer waits for a turn, it holds no page, except after a failed call. A stop ends the wait immediately,
    and the wait never counts as a slow read.
    """

    def __init__(self, reader: str, readers: ReaderTurns) -> None:
        self._reader = reader
        self._readers = readers

    def ask(self, go: Callable[[], None]) -> None:
        """Call ``go`` once, when the reader gets a turn."""
        self._readers.ask(self._reader, go)

    def end(self) -> None:
        """End the turn, or the wait for a turn."""
        self._readers.end(self._reader)

    def hold_up(self) -> Reason | None:
        """Return why the reader waits, with the limit of simultaneous turns as detail; ``None`` if it does not wait."""
        turns = self._readers.turns
        return Reason(Cause.TURN, detail=str(turns.most)) if turns.waits(self._reader) else None
