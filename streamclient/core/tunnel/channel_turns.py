"""Which readers of a tunnel worker may read and process at once: as many as ``max_channel_parallel`` says.

Laws (Java SDK, tunnel package: a fair semaphore around each round, which is one read and one call of the processor):

* never more readers than the limit have a turn;
* whoever asked first comes first, and a reader that ends a turn and asks again stands behind all that wait;
* a turn is one page, from the start of its read until the last call for it returned. Whoever pauses has no turn: a
  channel that is idle, or whose processor fails, holds nobody up. (Java sleeps with the permit in hand.)
"""

from __future__ import annotations


class Turns:
    """The readers that have a turn, and those that wait for one. Owned by one thread."""

    def __init__(self, most: int | None) -> None:
        """``most`` is how many turns there are at once; ``None`` for no limit."""
        self.most = most
        self._having: set[str] = set()
        self._waiting: dict[str, None] = {}

    @property
    def having(self) -> frozenset[str]:
        """The readers that have a turn."""
        return frozenset(self._having)

    def has(self, reader: str) -> bool:
        """Whether a reader has a turn."""
        return reader in self._having

    def waits(self, reader: str) -> bool:
        """Whether a reader has asked for a turn and not got it."""
        return reader in self._waiting

    def ask(self, reader: str) -> bool:
        """Have a turn, now or later; whether it is now. Asking again changes nothing."""
        if reader not in self._having:
            self._waiting[reader] = None
            self._grant()
        return reader in self._having

    def end(self, reader: str) -> tuple[str, ...]:
        """End a reader's turn, or its waiting for one; the readers whose turn it is now. Again does no harm."""
        self._having.discard(reader)
        self._waiting.pop(reader, None)
        return self._grant()

    def _grant(self) -> tuple[str, ...]:
        granted = []
        while self._waiting and (self.most is None or len(self._having) < self.most):
            reader = next(iter(self._waiting))
            del self._waiting[reader]
            self._having.add(reader)
            granted.append(reader)
        return tuple(granted)
