"""Random numbers that are the same on every machine and every version of Python.

Law: nothing here calls the platform's mathematics library, whose logarithms differ in their last digit. Seeds are
texts,
which ``Random`` digests by SHA-512 everywhere.
"""

from __future__ import annotations

from random import Random

LONG_SHARE = 0.1
"""Share of delays that are much longer than usual, as in real networks."""

LONGEST_FACTOR = 6.0
"""The longest of those delays, in usual delays."""


class Dice(Random):
    """The dice of one purpose, for example the network of one worker: removing another worker does not change them."""

    @classmethod
    def of(cls, *purpose: object) -> Dice:
        """Return the dice for a purpose, which should begin with the seed."""
        return cls("/".join(str(part) for part in purpose))

    def chance(self, probability: float) -> bool:
        """Return whether an event of that probability happens."""
        return probability > 0.0 and self.random() < probability

    def delay(self, usual_seconds: float) -> float:
        """Return a delay: mostly about ``usual_seconds``, one in ten up to six times as long."""
        if self.random() < LONG_SHARE:
            return usual_seconds * (1.0 + (LONGEST_FACTOR - 1.0) * self.random())
        return usual_seconds * (0.2 + 1.2 * self.random())
