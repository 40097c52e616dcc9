"""The readers of a tunnel worker that may read and process at once: at most ``max_channel_parallel``.

Laws (Java SDK, tunnel package: a fair semaphore around each round, which is one read and one call of the processor):

* never more readers than the limit have a turn;
* readers get turns in the order in which they asked; a reader that ends a turn and asks again comes after all that
  wait;
* a turn is one page, from the start of its read until the last call for it returned. A reader that pauses has no turn:
  an idle channel, or one whose processor fails, holds up no other. (Java sleeps with the permit in hand.)
"""

from __future__ import annotations


class Turns:
    """The readers that have a turn, and those that wait for one. Owned by one thread."""

    def __init__(self, most: int | None) -> None:
        """``most`` is the number of turns at once; ``None`` for no limit."""
        self.most = most
        self._having: set[str] = set()
        self._waiting: dict[str, None] = {}

    @property
    def having(self) -> frozenset[str]:
        """Readers that have a turn."""
        return frozenset(self._having)

    def has(self, reader: str) -> bool:
        """Return whether a reader has a turn."""
        return reader in self._having

    def waits(self, reader: str) -> bool:
        """Return whether a reader asked for a turn and still waits for it."""
        return reader in self._waiting

    def ask(self, reader: str) -> bool:
        """Ask for a turn, and return whether the reader has it now. Asking again changes nothing."""
        if reader not in self._having:
            self._waiting[reader] = None
            self._grant()
        return reader in self._having

    def end(self, reader: str) -> tuple[str, ...]:
        """End a reader's turn or its wait, and return the readers that get a turn now. Repeating it is harmless."""
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
