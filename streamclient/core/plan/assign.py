"""Who shall have which lease, in a fleet whose workers all know of each other and all compute the same.

Pure functions from who has what, and the names of the workers that stay, to who shall have what. Everybody with the
same view computes the same answer, so each worker carries out only its own part, all of it in one pass: it takes the
free leases that are its own by the answer, and asks for those that others still have.

Laws, of both functions:

* every lease goes to a worker that stays, and a lease stays where it is unless its move makes the fleet more even;
* doing what they say leaves them nothing more to say;
* leases without a holder never move anybody else's more than evenness needs;
* finished leases, which cost a heartbeat and nothing else, fill up: all leases of the workers become as even in number
  as they can be without moving unfinished ones for it.

By count, unfinished leases are within one of each other, and so are all leases, with the fewest moves: first of
unfinished ones, then of finished ones. By load, the unfinished ones are evened by weight, see ``assign_by_load``.

In a fleet with workers of another kind ``balance`` decides instead.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Mapping, Sequence
from zlib import crc32

from attrs import define, frozen

PAYING_SHARE = 0.1
"""How far a worker must be from the mean load, as a share of it, and how much nearer to it moves must bring workers:
less is not worth stopping processors, and measured loads differ by some percent from one minute to the next."""

IDLE_SHARE = 0.05
"""What an idle lease weighs, as a share of the mean lease: it is polled and renewed, so idle leases are spread, too."""


@frozen
class Placed:
    """A lease and who has it."""

    lease_key: str
    holder: str
    """Who has it, or will have it once everything under way has arrived; whoever does not stay counts as nobody."""
    is_finished: bool = False


LAST_TEXT = "\U0010ffff"
"""Sorts behind every key."""

Assignment = Mapping[str, str]
"""Lease key to the worker that shall have it."""


def assign_by_count(leases: Iterable[Placed], workers: Iterable[str]) -> Assignment:
    """Even out numbers: of unfinished leases, and of all.

    Worked example: a has u1 to u4 and the finished f1; b has the finished f2 and f3; c has just joined; the holder of
    u5 has died. Five unfinished leases and three workers: two of them get two and one gets one. a keeps two, for it has
    them; c gets two and b one, for b has more finished ones. Eight leases in all: two workers get three and one gets
    two. With f1 where it is, a has three, with f2 and f3, b has three too, and c has two. So b asks a for u4, c asks a
    for u3 and takes u5. Once that is done, nobody does anything.
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
    """Even out the weights of unfinished leases, as far as that pays.

    ``weights`` are loads of unfinished leases, for example bytes per second, all of them or those that are known;
    others count as the mean of these. Without ``weights``, unfinished leases stay where they are: one worker moves them
    for all, as no two of them measure the same.

    *A move must pay.* A worker whose load is within a tenth of the mean is left alone. For one that is not, leases are
    moved to or from it until it is within a twentieth, the heaviest first that bring giver and receiver nearer to the
    mean by half of what they carry; and only if together they bring workers nearer by a tenth of the mean. So steady
    loads cause no moves, nor does a lease that is heavier than all others together: wherever it is, its worker is far
    above the mean, and moving it would only change who is.

    Unfinished leases without holder are dealt out in equal numbers, whatever others have: everybody can compute that
    without knowing weights.
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
    """Leases of one kind, unfinished or finished, by holder."""

    keys: Mapping[str, Sequence[str]]
    """For every worker that stays, sorted."""
    homeless: Sequence[str]
    """Those of nobody else, sorted."""

    @classmethod
    def of(cls, leases: Iterable[Placed], names: Sequence[str]) -> tuple[_Held, _Held]:
        """The unfinished ones, and the finished ones."""
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
        """How many a worker has."""
        return len(self.keys[name])

    @property
    def total(self) -> int:
        """How many there are."""
        return len(self.homeless) + sum(map(len, self.keys.values()))

    def dealt(self, quotas: Mapping[str, int]) -> dict[str, str]:
        """Everybody keeps its first leases up to its quota; each of the others goes to whom it suits best and has room.

        Workers look at different moments, while some have carried out their parts already. What is left of the answer
        is the same then: whoever took a lease has one place less, and was given that lease for the last of them.
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
    """How many leases of one kind each worker gets, so that base and lease counts together are as even as can be.

    Where one worker out of several has to get one more, it is one that has it already, so that fewer move; then one
    with fewer ``burdens``; then the first by name.
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
    """The highest level to which the amount fills all that lies below it; ``bases`` are sorted."""
    below = 0
    for number, base in enumerate(bases, 1):
        below += base
        level = (amount + below) // number
        if number == len(bases) or level < bases[number]:
            return level
    return 0


def _dealt_round(keys: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    """Deal in turn, beginning with a worker that depends on the first key, so that single leases meet all in time."""
    start = crc32(keys[0].encode()) if keys else 0
    return {key: names[(start + number) % len(names)] for number, key in enumerate(keys)}


# --- by load ---------------------------------------------------------------------------------------------------------


@define
class _Scales:
    """Weights per worker while leases are being moved."""

    mean: float
    loads: dict[str, float]
    leases: dict[str, list[tuple[float, str]]]
    """By worker: weight and key, lightest first."""

    @classmethod
    def of(cls, target: Assignment, names: Sequence[str], weights: Mapping[str, float]) -> _Scales:
        """With every lease of ``target`` where it is now."""
        known = [weights[key] for key in sorted(target) if key in weights]
        usual = sum(known) / len(known) if known else 0.0
        least = usual * IDLE_SHARE or 1.0
        leases: dict[str, list[tuple[float, str]]] = {name: [] for name in names}
        for key in sorted(target):
            insort(leases[target[key]], (max(weights.get(key, usual), least), key))
        loads = {name: sum(weight for weight, _ in leases[name]) for name in names}
        return cls(sum(loads.values()) / len(names), loads, leases)

    def moves(self) -> dict[str, str]:
        """New workers of the leases that shall move."""
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
        """Moves that bring one worker near the mean, made; none, and none made, if they do not pay."""
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
        """What may move at most to bring both nearer to the mean, together by as much as it weighs.

        One of them may pass the mean, as long as the other one comes that much nearer; or both by a little.
        """
        less, more = sorted((self._excess(giver), -self._excess(receiver)))
        return 2 * less if 2 * less <= more else 2 * (less + more) / 3

    def _move(self, weight: float, key: str, giver: str, receiver: str) -> None:
        self.leases[giver].remove((weight, key))
        insort(self.leases[receiver], (weight, key))
        self.loads[giver] -= weight
        self.loads[receiver] += weight
