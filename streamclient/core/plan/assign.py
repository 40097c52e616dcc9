"""The assignment of leases to workers, in a fleet whose workers all know of each other.

Pure functions from the present holders of leases and the names of the staying workers to the future holders. All
workers with the same view compute the same assignment. So each worker carries out only its own part of the assignment,
in one pass. It takes the free leases that it shall have, and asks other workers for leases that they still have.

Laws, of both functions:

* every lease goes to a worker that stays, and a lease stays where it is unless its move makes the fleet more even;
* an assignment that was carried out leads to no further move;
* leases without a holder never cause more moves of other leases than evenness needs;
* finished leases cost only a heartbeat, and come last: with them, the numbers of all leases become as even as they can
  without moving unfinished leases.

By count, two workers' numbers of unfinished leases differ by at most one, and so do their numbers of all leases. This
takes as few moves as possible, first of unfinished leases, then of finished leases. By load, unfinished leases are
evened out by weight, see ``assign_by_load``.

In a fleet with workers without sessions, ``beside_java`` decides instead.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Mapping, Sequence
from zlib import crc32

from attrs import define, frozen

PAYING_SHARE = 0.1
"""The share of the mean load by which a worker must differ from the mean, and by which moves must bring workers nearer
to the mean. Smaller differences are not worth stopping processors, and measured loads change by some percent from
minute to minute."""

IDLE_SHARE = 0.05
"""The weight of an idle lease, as a share of the mean lease. An idle lease is polled and renewed, so idle leases are
spread, too."""


@frozen
class Placed:
    """A lease and its holder."""

    lease_key: str
    holder: str
    """The worker that has the lease, or that will have it once all unfinished moves have arrived. A worker that does
    not stay does not count as a holder."""
    is_finished: bool = False


LAST_TEXT = "\U0010ffff"
"""A text that sorts after every key."""

Assignment = Mapping[str, str]
"""The future worker of each lease, by lease key."""


def assign_by_count(leases: Iterable[Placed], workers: Iterable[str]) -> Assignment:
    """Even out the numbers of unfinished leases, and of all leases.

    Worked example: Worker a has the unfinished leases u1 to u4 and the finished lease f1. Worker b has the finished
    leases f2 and f3. Worker c has just joined, and the holder of u5 has died. Five unfinished leases for three workers
    mean two for two of them and one for the third. Worker a keeps two, because it has them. Worker c gets two and b
    gets one, because b has more finished leases. Eight leases in all mean three for two workers and two for the third.
    With f1, a has three; with f2 and f3, b has three, and c has two, so no finished lease moves. So b asks a for u4,
    and c asks a for u3 and takes u5. After that no worker moves a lease.
    """
    names = sorted(set(workers))
    if not names:
        return {}
    unfinished, finished = _Held.of(leases, names)
    counts = _fill(dict.fromkeys(names, 0), unfinished, dict(zip(names, map(finished.count, names), strict=True)))
    return unfinished.dealt(counts) | finished.dealt(_fill(counts, finished))


def assign_by_load(
    leases: Iterable[Placed], workers: Iterable[str], weights: Mapping[str, float] | None = None
) -> Assignment:
    """Even out the weights of unfinished leases, as far as the moves pay.

    ``weights`` are the known loads of unfinished leases, for example in bytes per second. An unknown load counts as the
    mean of the known loads. Without ``weights``, unfinished leases stay where they are: only one worker moves them for
    all workers, because no two workers measure the same loads.

    *A move must pay.* A worker whose load is within a tenth of the mean neither gives nor gets leases. For any other
    worker, leases are moved to it or from it until its load is within a twentieth of the mean. Candidates are leases
    that bring giver and receiver nearer to the mean by half of their weight; the heaviest candidate moves first. The
    moves are made only if they together bring workers nearer to the mean by a tenth of the mean. So steady loads cause
    no moves. A lease that is heavier than all other leases together causes no moves, either: its worker is always far
    above the mean, and a move would only change which worker that is.

    Unfinished leases without a holder are dealt out in equal numbers, whatever other leases the workers have. Every
    worker can compute this without knowing weights.
    """
    names = sorted(set(workers))
    if not names:
        return {}
    unfinished, finished = _Held.of(leases, names)
    target = {key: name for name in names for key in unfinished.keys[name]}
    target |= _dealt_round(unfinished.homeless, names)
    if weights is not None:
        target |= _Scales.of(target, names, weights).moves()
    counts = dict.fromkeys(names, 0)
    for name in target.values():
        counts[name] += 1
    return target | finished.dealt(_fill(counts, finished))


# --- by count --------------------------------------------------------------------------------------------------------


@frozen
class _Held:
    """The leases of one kind, unfinished or finished, by holder."""

    keys: Mapping[str, Sequence[str]]
    """The sorted keys of the leases of each worker that stays."""
    homeless: Sequence[str]
    """The sorted keys of leases whose holder does not stay."""

    @classmethod
    def of(cls, leases: Iterable[Placed], names: Sequence[str]) -> tuple[_Held, _Held]:
        """Return the unfinished leases and the finished leases."""
        kinds: tuple[dict[str, list[str]], dict[str, list[str]]] = ({}, {})
        for lease in leases:
            kinds[lease.is_finished].setdefault(lease.holder, []).append(lease.lease_key)
        unfinished, finished = (cls._of_kind(kind, names) for kind in kinds)
        return unfinished, finished

    @classmethod
    def _of_kind(cls, held: dict[str, list[str]], names: Sequence[str]) -> _Held:
        keys = {name: sorted(held.pop(name, ())) for name in names}
        return cls(keys, sorted(key for others in held.values() for key in others))

    def count(self, name: str) -> int:
        """Return the number of leases of worker ``name``."""
        return len(self.keys[name])

    @property
    def total(self) -> int:
        """The number of leases."""
        return len(self.homeless) + sum(map(len, self.keys.values()))

    def dealt(self, quotas: Mapping[str, int]) -> dict[str, str]:
        """Let each worker keep its first leases, up to its quota; deal the remaining leases to workers that have room.

        Workers compute this at different moments, when some workers have already carried out their parts. The rest of
        the result is the same even then: a worker that took a lease has room for one lease less, and that lease was the
        last one that it was dealt.
        """
        target = {key: name for name, keys in self.keys.items() for key in keys[: quotas[name]]}
        surplus = (key for name, keys in self.keys.items() for key in keys[quotas[name] :])
        room = {name: quotas[name] - self.count(name) for name in self.keys if quotas[name] > self.count(name)}
        for key in sorted([*self.homeless, *surplus]):
            _, name = max((crc32(f"{name} {key}".encode()), name) for name in room)
            target[key] = name
            room[name] -= 1
            if not room[name]:
                del room[name]
        return target


def _fill(bases: Mapping[str, int], held: _Held, burdens: Mapping[str, int] | None = None) -> dict[str, int]:
    """Return each worker's number of leases of one kind, so that the sums of ``bases`` and these numbers are most even.

    If only some of several equal workers get one more lease, it goes first to a worker that has one more already, so
    that fewer leases move. After that it goes to a worker with fewer ``burdens``, then to the first worker by name.
    """
    level = _level(sorted(bases.values()), held.total)
    quotas = {name: max(level - base, 0) for name, base in bases.items()}
    ranked = sorted(
        (held.count(name) <= quotas[name], 0 if burdens is None else burdens[name], name)
        for name, base in bases.items()
        if base <= level
    )
    for _, _, name in ranked[: held.total - sum(quotas.values())]:
        quotas[name] += 1
    return quotas


def _level(bases: Sequence[int], amount: int) -> int:
    """Return the highest level to which ``amount`` can raise all bases below that level; ``bases`` are sorted."""
    below = 0
    for number, base in enumerate(bases, 1):
        below += base
        level = (amount + below) // number
        if number == len(bases) or level < bases[number]:
            return level
    return 0


def _dealt_round(keys: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    """Deal ``keys`` to ``names`` in turn.

    The first key decides which worker begins, so that over time every worker gets some.
    """
    start = crc32(keys[0].encode()) if keys else 0
    return {key: names[(start + number) % len(names)] for number, key in enumerate(keys)}


# --- by load ---------------------------------------------------------------------------------------------------------


@define
class _Scales:
    """The measured loads of the workers, while moves of leases are being chosen."""

    mean: float
    loads: dict[str, float]
    leases: dict[str, list[tuple[float, str]]]
    """The weight and the key of each lease, by worker, lightest first."""

    @classmethod
    def of(cls, target: Assignment, names: Sequence[str], weights: Mapping[str, float]) -> _Scales:
        """Return the scales with each lease of ``target`` at its present worker."""
        known = [weights[key] for key in sorted(target) if key in weights]
        usual = sum(known) / len(known) if known else 0.0
        least = usual * IDLE_SHARE or 1.0
        leases: dict[str, list[tuple[float, str]]] = {name: [] for name in names}
        for key in sorted(target):
            insort(leases[target[key]], (max(weights.get(key, usual), least), key))
        loads = {name: sum(weight for weight, _ in leases[name]) for name in names}
        return cls(sum(loads.values()) / len(names), loads, leases)

    def moves(self) -> dict[str, str]:
        """Make the moves that pay, and return the new worker of each moved lease."""
        made: dict[str, str] = {}
        while bundle := next(filter(None, map(self._paying_bundle, self._by_distance())), None):
            made.update((key, receiver) for _, key, _, receiver in bundle)
        return made

    def _by_distance(self) -> list[str]:
        away = [name for name in self.loads if abs(self._excess(name)) > PAYING_SHARE * self.mean]
        return sorted(away, key=lambda name: (-abs(self._excess(name)), name))

    def _excess(self, name: str) -> float:
        return self.loads[name] - self.mean

    def _paying_bundle(self, name: str) -> list[tuple[float, str, str, str]]:
        """Make the moves that bring one worker near the mean, and return them; undo them if they do not pay."""
        bundle: list[tuple[float, str, str, str]] = []
        before = self._distance()
        while abs(self._excess(name)) > PAYING_SHARE / 2 * self.mean:
            move = self._next_move(name)
            if move is None:
                break
            self._move(*move)
            bundle.append(move)
        if (before - self._distance()) / 2 >= PAYING_SHARE * self.mean:
            return bundle
        for weight, key, giver, receiver in reversed(bundle):
            self._move(weight, key, receiver, giver)
        return []

    def _distance(self) -> float:
        return sum(abs(self._excess(name)) for name in self.loads)

    def _next_move(self, name: str) -> tuple[float, str, str, str] | None:
        by_load = sorted(self.loads, key=lambda other: (self.loads[other], other))
        is_giver = self._excess(name) > 0
        for other in by_load if is_giver else reversed(by_load):
            giver, receiver = (name, other) if is_giver else (other, name)
            if self._excess(giver) <= 0 or self._excess(receiver) >= 0:
                return None
            leases = self.leases[giver]
            fitting = bisect_right(leases, (self._heaviest(giver, receiver), LAST_TEXT))
            if fitting:
                weight, key = leases[bisect_left(leases, (leases[fitting - 1][0], ""))]
                return weight, key, giver, receiver
        return None

    def _heaviest(self, giver: str, receiver: str) -> float:
        """Return the greatest weight that brings two workers nearer to the mean, together by as much as it weighs.

        One of the workers may pass the mean, if the other comes nearer by as much; or both may pass the mean a little.
        """
        less, more = sorted((self._excess(giver), -self._excess(receiver)))
        return 2 * less if 2 * less <= more else 2 * (less + more) / 3

    def _move(self, weight: float, key: str, giver: str, receiver: str) -> None:
        self.leases[giver].remove((weight, key))
        insort(self.leases[receiver], (weight, key))
        self.loads[giver] -= weight
        self.loads[receiver] += weight
