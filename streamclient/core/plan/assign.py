"""The assignment of leases to workers, in a fleet in which every worker knows all other workers.

``assign_by_count`` and ``assign_by_load`` are pure functions. They take the leases with their holders and the names of
the staying workers, and return the future holder of each lease. Workers with the same view compute the same assignment.
So each worker carries out only its own part, in one pass: it takes the free leases that are assigned to it, and asks
other workers for the leases that they still hold.

Laws of the two functions:

* every lease goes to a worker that stays, and a lease stays where it is unless its move makes the fleet more even;
* an assignment that was carried out leads to no further move;
* a lease without a holder causes another lease to move only if evenness needs that move;
* unfinished leases are assigned first. Finished leases cost only heartbeats. They even out the numbers of all leases,
  as far as that is possible without moves of unfinished leases.

``assign_by_count`` evens out numbers: two workers' numbers of unfinished leases differ by at most one, and so do their
numbers of all leases. It makes as few moves of unfinished leases as possible, and then as few moves of finished leases
as possible. ``assign_by_load`` evens out the weights of unfinished leases.

If a worker of the fleet has no session, for example a Java worker, ``beside_java`` decides instead.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Mapping, Sequence
from zlib import crc32

from attrs import define, frozen

PAYING_SHARE = 0.1
"""Moves for a worker are planned only if its load differs from the mean load by more than this share of the mean. They
are made only if they bring workers nearer to the mean by at least this share. Smaller differences are not worth
stopping processors, and measured loads change by some percent from minute to minute."""

IDLE_SHARE = 0.05
"""The weight of an idle lease, as a share of the mean lease. An idle lease is polled and renewed, so idle leases are
spread, too."""


@frozen
class Placed:
    """A lease, and the worker that has it or will soon have it."""

    lease_key: str
    holder: str
    """The worker that has the lease, or that will have it once all unfinished moves have arrived. A worker that does
    not stay does not count as a holder."""
    is_finished: bool = False


LAST_TEXT = "\U0010ffff"
"""A text that sorts after every lease key."""

Assignment = Mapping[str, str]
"""The future worker of each lease, by lease key."""


def assign_by_count(leases: Iterable[Placed], workers: Iterable[str]) -> Assignment:
    """Even out the numbers of unfinished leases, and of all leases.

    Worked example: Worker a has the unfinished leases u1 to u4 and the finished lease f1. Worker b has the finished
    leases f2 and f3. Worker c has just joined, and the holder of u5 has died. Five unfinished leases for three workers
    mean that two workers get two each, and the third gets one. Worker a keeps two, because it has them. Worker c gets
    two and b gets one, because b has more finished leases. Eight leases in all mean that two workers get three each,
    and the third gets two. With f1, a has three; with f2 and f3, b has three, and c has two. So no finished lease
    moves. Worker b asks a for u4. Worker c asks a for u3, and takes u5. After that no worker moves a lease.
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
    """Even out the weights of unfinished leases by moves that are worth their cost.

    ``weights`` are the known loads of unfinished leases, for example in bytes per second. An unknown load counts as the
    mean of the known loads. Workers measure different loads, so only one worker passes ``weights``, and it plans the
    moves for all workers. Without ``weights``, every unfinished lease that has a holder stays with its holder.

    *A move must pay.* Moves are planned for each worker whose load differs from the mean by more than a tenth of the
    mean, until it differs by at most a twentieth. The other worker of a move is on the other side of the mean. A lease
    may move if that brings its giver and its receiver nearer to the mean, on average by at least half of its weight.
    The heaviest such lease moves first. The moves for one worker are made only if they bring workers nearer to the mean
    by a tenth of the mean, on average for giver and receiver. So steady loads cause no moves. A lease that is heavier
    than all other leases together does not move, either: its new worker would be as far above the mean as its old one.

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
        """Return the unfinished and the finished leases among ``leases``, each grouped by holder."""
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
        """The number of all leases here, with or without a holder that stays."""
        return len(self.homeless) + sum(map(len, self.keys.values()))

    def dealt(self, quotas: Mapping[str, int]) -> dict[str, str]:
        """Let each worker keep its first leases, up to its quota; deal the remaining leases to workers that have room.

        Workers compute the result at different moments, so some workers may have taken their leases already. That does
        not change the result for the remaining leases, because a worker that took a lease keeps it and has room for one
        lease less.
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
    """Return, by worker, how many of the leases ``held`` the worker should have.

    ``bases`` has the number of other leases of each worker. The two numbers of a worker are added, and these sums are
    made as even as possible. If only some of several equal workers can get one more lease, the workers that have this
    lease already come first, so that fewer leases move. Then come workers with smaller numbers in ``burdens``, and then
    the first workers by name.
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
    """Deal the leases ``keys`` to the workers ``names`` in turn.

    The first key decides with which worker the dealing begins. If it always began with the first name, and few leases
    were dealt each time, the first workers would get all of them.
    """
    start = crc32(keys[0].encode()) if keys else 0
    return {key: names[(start + number) % len(names)] for number, key in enumerate(keys)}


# --- by load ---------------------------------------------------------------------------------------------------------


@define
class _Scales:
    """The loads of the workers while the moves of leases are being chosen."""

    mean: float
    loads: dict[str, float]
    leases: dict[str, list[tuple[float, str]]]
    """The weight and the key of each lease, by worker, lightest first."""

    @classmethod
    def of(cls, target: Assignment, names: Sequence[str], weights: Mapping[str, float]) -> _Scales:
        """Return the loads for the assignment ``target``, before any move."""
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
        """Make and return the moves that bring the worker ``name`` near the mean. If they do not pay, undo them."""
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
        """Return the greatest weight of a lease for which a move from ``giver`` to ``receiver`` is allowed.

        The sum of the two workers' distances from the mean must shrink by at least the weight. So one worker may pass
        the mean if the other comes nearer by as much, or both may pass the mean a little.
        """
        less, more = sorted((self._excess(giver), -self._excess(receiver)))
        return 2 * less if 2 * less <= more else 2 * (less + more) / 3

    def _move(self, weight: float, key: str, giver: str, receiver: str) -> None:
        self.leases[giver].remove((weight, key))
        insort(self.leases[receiver], (weight, key))
        self.loads[giver] -= weight
        self.loads[receiver] += weight
