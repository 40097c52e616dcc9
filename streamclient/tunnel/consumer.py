"""The consumer of one channel: that of the lease workers, which takes turns with those of the other channels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from streamclient.core.events import StartConsumer
from streamclient.core.lifecycle import Outcome, Phase
from streamclient.core.tunnel.turns import Turns
from streamclient.reasons import Cause, Reason
from streamclient.worker.consumer import ShardConsumer
from streamclient.worker.consumer_state import Surroundings
from streamclient.worker.loop import OwnerLoop

_IN_TURN = frozenset({Phase.READING, Phase.DELIVERING, Phase.PARKING})
"""Phases in which a page is read or processed. In the others nothing is in work, or ``shutdown`` runs."""


class TurnDesk:
    """Calls each reader when it is its turn; ``Turns`` decides when. Owner thread only."""

    def __init__(self, turns: Turns, loop: OwnerLoop) -> None:
        self.turns = turns
        self._loop = loop
        self._going: dict[str, Callable[[], None]] = {}

    def ask(self, reader: str, go: Callable[[], None]) -> None:
        """Call ``go`` in the reader's turn: at once if it is, or else once unless ``end`` comes before."""
        self._going[reader] = go
        if self.turns.ask(reader):
            self._go(reader)

    def end(self, reader: str) -> None:
        """End the reader's turn or its waiting; those whose turn it is are called from the loop, not from here."""
        self._going.pop(reader, None)
        for following in self.turns.end(reader):
            self._loop.call_later(0.0, partial(self._go, following))

    def _go(self, reader: str) -> None:
        # Between the grant and this call the turn may have been ended, and another one asked for.
        if self.turns.has(reader):
            go = self._going.pop(reader, None)
            if go is not None:
                go()


class ChannelConsumer(ShardConsumer):
    """Reads and processes only in its turn. It waits for one without a page, except for one whose call failed.

    Waiting is a pause or a read that has not begun: a stop ends it at once, and no watch counts it as a slow read.
    """

    def __init__(self, start: StartConsumer, around: Surroundings, turns: TurnDesk) -> None:
        super().__init__(start, around)
        self._reader = start.shard_info.lease_identifier
        self._turns = turns

    def move(self, outcome: Outcome) -> None:
        """Change the phase, and end the turn if its page is dealt with."""
        super().move(outcome)
        if self._phase not in _IN_TURN or outcome is Outcome.ACCEPTED:
            self._turns.end(self._reader)

    def pause(self, seconds: float, then: Callable[[], None]) -> None:
        """Do something after a while; what goes on with reading or processing waits for its turn then."""
        if self._phase is Phase.WAITING:
            then = partial(self._turns.ask, self._reader, then)
        super().pause(seconds, then)

    def _read(self) -> None:
        self._turns.ask(self._reader, super()._read)

    def _hold_ups(self, now: float) -> Iterator[Reason]:
        turns = self._turns.turns
        if turns.waits(self._reader):
            yield Reason(Cause.TURN, detail=str(turns.most))
        yield from super()._hold_ups(now)
