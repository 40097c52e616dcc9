"""The readers of a tunnel worker that may read and process at the same time: at most ``max_channel_parallel``.

Laws (Java SDK, tunnel package: a fair semaphore around each round, which is one read and one call of the processor):

* the number of readers that have a turn is never above the limit;
* readers get turns in the order of their requests. A reader that ends a turn and asks again comes after all readers
  that wait;
* a turn is the time of one page, from the start of its read until the last call for the page has returned. A reader
  that pauses has no turn. So a channel that is idle, or whose processor fails, does not hold up other channels. (Java
  keeps the permit while it sleeps.)
"""

from __future__ import annotations


class Turns:
    """The readers that have a turn, and the readers that wait for a turn. Owned by one thread."""

    def __init__(self, most: int | None) -> None:
        """Set the largest number of turns at the same time to ``most``; ``None`` means no limit."""
        self.most = most
        self._having: set[str] = set()
        self._waiting: dict[str, None] = {}

    @property
    def having(self) -> frozenset[str]:
        """The readers that have a turn."""
        return frozenset(self._having)

    def has(self, reader: str) -> bool:
        """Return whether a reader has a turn."""
        return reader in self._having

    def waits(self, reader: str) -> bool:
        """Return whether a reader asked for a turn and still waits for it."""
        return reader in self._waiting

    def ask(self, reader: str) -> bool:
        """Ask for a turn. Return whether the reader has the turn now. A repeated request changes nothing."""
        if reader not in self._having:
            self._waiting[reader] = None
            self._grant()
        return reader in self._having

    def end(self, reader: str) -> tuple[str, ...]:
        """End a reader's turn or its wait, and return the readers that get a turn now. A repeated call does no harm."""
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
