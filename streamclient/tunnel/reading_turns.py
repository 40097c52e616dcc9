"""The turns in which the consumers of channels read. The consumers are the same as in lease workers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from streamclient.base.reasons import Cause, Reason
from streamclient.core.tunnel.channel_turns import Turns
from streamclient.worker.owner_loop import OwnerLoop


class ReaderTurns:
    """Calls each reader in its turn; ``Turns`` decides the turns. Owner thread only."""

    def __init__(self, turns: Turns, loop: OwnerLoop) -> None:
        self.turns = turns
        self._loop = loop
        self._going: dict[str, Callable[[], None]] = {}

    def ask(self, reader: str, go: Callable[[], None]) -> None:
        """Call ``go`` once in the reader's turn, which may be now. If ``end`` is called first, ``go`` is not called."""
        self._going[reader] = go
        if self.turns.ask(reader):
            self._go(reader)

    def end(self, reader: str) -> None:
        """End the reader's turn or its wait. Readers that get a turn now are called from the loop, not from here."""
        self._going.pop(reader, None)
        for following in self.turns.end(reader):
            self._loop.call_later(0.0, partial(self._go, following))

    def _go(self, reader: str) -> None:
        # Between the grant and this call the turn may have been ended, and another one requested.
        if self.turns.has(reader):
            go = self._going.pop(reader, None)
            if go is not None:
                go()


class ChannelTurn:
    """The turns of one channel's reader. Only in them its consumer reads and processes.

    The consumer waits for a turn without holding a page, unless its call failed. Waiting is a pause or a read that has
    not begun: a stop ends it at once, and no watch counts it as a slow read.
    """

    def __init__(self, reader: str, readers: ReaderTurns) -> None:
        self._reader = reader
        self._readers = readers

    def ask(self, go: Callable[[], None]) -> None:
        """Call ``go`` in the reader's turn."""
        self._readers.ask(self._reader, go)

    def end(self) -> None:
        """End the turn, or the wait for a turn."""
        self._readers.end(self._reader)

    def hold_up(self) -> Reason | None:
        """Return the reason that the reader waits, with the number of turns at once; ``None`` if it does not wait."""
        turns = self._readers.turns
        return Reason(Cause.TURN, detail=str(turns.most)) if turns.waits(self._reader) else None
