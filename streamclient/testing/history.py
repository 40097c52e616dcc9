"""The history of a stream's changes, as facts, and the laws that judge it.

Facts come from simulated fleets while they run, one by one, or from real processes, whose processors write files that
are read afterwards. The laws are the same for both. Each law looks at one fact after the other and yields the
violations. So it is a function of a ``History``, and a simulation can stop at the very fact that breaks the law.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from attrs import frozen

ORDER, LOST, INVENTED = "order per key", "nothing is lost", "nothing is invented"
PARENTS, CALLS, READERS, EPOCHS = "parents first", "calls in order", "one reader", "epochs grow"

INITIALIZE, SHUTDOWN = "initialize", "shutdown"


class LawBroken(Exception):
    """A law does not hold. Simulations raise it at the event that breaks the law."""

    def __init__(self, law: str, lease_key: str, text: str) -> None:
        super().__init__(f"{law}: {text}")
        self.law = law
        self.lease_key = lease_key
        self.text = text


@frozen
class ReaderBegan:
    """A reader of a shard begins: a consumer, a processor, or the reader of a channel."""

    reader: object
    process: object
    shard: str
    epoch: int = 0
    """The epoch of the acquisition; 0 if there are no epochs."""


@frozen
class ReaderOver:
    """No part of a reader runs any more."""

    reader: object
    shard: str


@frozen
class Called:
    """A call into user code begins."""

    reader: object
    shard: str
    call: str


@frozen
class Returned:
    """The call has returned or raised."""

    reader: object
    shard: str
    is_open: bool = True
    """Whether the reader has a processor after the call."""


@frozen(eq=False)
class Delivered:
    """Changes reach a processor or a destination, in the given order."""

    reader: object
    shard: str
    keys: Sequence[Hashable]
    numbers: Sequence[int]
    """For each change, its number among the changes of its key, counted from 1; 0 for a change that was never
    written."""
    is_judged: bool = True
    """Whether the laws apply to the deliverer. If not, its changes only count as delivered."""


Fact = ReaderBegan | ReaderOver | Called | Returned | Delivered


class Judge(Protocol):
    """One law that looks at facts."""

    def see(self, fact: Fact) -> Iterator[LawBroken]:
        """Yield the violations of a fact, given all facts before it."""


def require(fact: Fact, *judges: Judge) -> None:
    """Raise the first violation that one of the judges sees in a fact."""
    for judge in judges:
        for broken in judge.see(fact):
            raise broken


def nothing(*_: object) -> bool:
    """Return ``False``, which excuses no violation."""
    return False


class KeysInOrder:
    """The changes of a key come in order and without a gap, through all splits and merges. Repeats are allowed.

    With a fence, repeats are allowed only within one shard. After a child's change, no change of its parents may come.
    """

    def __init__(
        self,
        *,
        may_be_missing: Callable[[Hashable, int], bool] = nothing,
        is_fenced: Callable[[str, str], bool] = nothing,
    ) -> None:
        """Make the law.

        ``is_fenced`` returns whether readers of a first shard are refused once a second shard goes on.
        """
        self.furthest: dict[Hashable, int] = {}
        """The number of the last delivered change of each key."""
        self._shards: dict[Hashable, str] = {}
        """The shard that the last delivered change of each key came from."""
        self._may_be_missing, self._is_fenced = may_be_missing, is_fenced

    def see(self, fact: Fact) -> Iterator[LawBroken]:
        """See ``Judge.see``."""
        if not isinstance(fact, Delivered):
            return
        furthest, shards, shard = self.furthest, self._shards, fact.shard
        for key, number in zip(fact.keys, fact.numbers, strict=True):
            last = furthest.get(key, 0)
            if number > last:
                if number > last + 1 and fact.is_judged:
                    yield from self._gap(fact, key, range(last + 1, number))
                furthest[key], shards[key] = number, shard
            elif (later := shards.get(key, shard)) != shard and fact.is_judged and self._is_fenced(shard, later):
                text = f"{fact.reader} had change {number} of key {key} again after {later} had gone on with it"
                yield LawBroken(ORDER, shard, text)

    def _gap(self, fact: Delivered, key: Hashable, missing: range) -> Iterator[LawBroken]:
        for number in missing:
            if not self._may_be_missing(key, number):
                text = f"{fact.reader} had change {missing.stop} of key {key}, but no reader had change {number}"
                yield LawBroken(ORDER, fact.shard, text)


class ReadersGoForward:
    """One processor is given each change of a key once, in order. Applies to a fleet in which no processor raises."""

    def __init__(self) -> None:
        self._furthest: dict[tuple[object, Hashable], int] = {}

    def see(self, fact: Fact) -> Iterator[LawBroken]:
        """See ``Judge.see``."""
        if not isinstance(fact, Delivered):
            return
        for key, number in zip(fact.keys, fact.numbers, strict=True):
            last = self._furthest.get((fact.reader, key), -1)
            if number <= last:
                text = f"{fact.reader} had change {number} of key {key} after change {last}"
                yield LawBroken(ORDER, fact.shard, text)
            self._furthest[fact.reader, key] = number


class ParentsBeforeChildren:
    """No shard is read before all its ancestors were read to their ends."""

    def __init__(self, ancestors: Callable[[str], Iterable[str]], is_over: Callable[[str], bool]) -> None:
        self._ancestors, self._is_over = ancestors, is_over

    def see(self, fact: Fact) -> Iterator[LawBroken]:
        """See ``Judge.see``."""
        if isinstance(fact, ReaderBegan):
            for ancestor in sorted(self._ancestors(fact.shard)):
                if not self._is_over(ancestor):
                    yield LawBroken(PARENTS, fact.shard, f"{fact.reader} starts although {ancestor} has not ended")


class CallsOneByOne:
    """The calls of a reader never overlap.

    Each processor gets ``initialize``, then others, then ``shutdown``, each once. A reader is over, or begins another
    processor, only when its former processor was shut down or was never made.
    """

    def __init__(self) -> None:
        self._calling: dict[object, str] = {}
        self._open: set[object] = set()
        """Readers with a processor that must be shut down."""

    def see(self, fact: Fact) -> Iterator[LawBroken]:
        """See ``Judge.see``."""
        match fact:
            case Called(reader, shard, call):
                if reader in self._calling:
                    yield LawBroken(CALLS, shard, f"{reader} is called ({call}) while {self._calling[reader]} runs")
                if (call == INITIALIZE) is (reader in self._open):
                    text = f"{reader} is called ({call}), and its processor is not in the state for it"
                    yield LawBroken(CALLS, shard, text)
                self._calling[reader] = call
                if call == INITIALIZE:
                    self._open.add(reader)
            case Returned(reader, _, is_open):
                call = self._calling.pop(reader)
                if call == SHUTDOWN or (call == INITIALIZE and not is_open):
                    self._open.discard(reader)
            case ReaderBegan(reader, _, shard) | ReaderOver(reader, shard):
                if reader in self._open or reader in self._calling:
                    what = "begins anew" if isinstance(fact, ReaderBegan) else "is over"
                    yield LawBroken(CALLS, shard, f"{reader} {what}, but its processor was not shut down")


class OneReliesOnIt:
    """No process has two readers of a shard, and no two processes read one under leases that both may rely on."""

    def __init__(
        self, relies: Callable[[Any], bool], *, in_one_process: str = READERS, begins_late: bool = False
    ) -> None:
        """With ``begins_late``, a reader may begin when its own lease has already expired, and is then not judged."""
        self._relies, self._in_one_process, self._begins_late = relies, in_one_process, begins_late
        self.readers: dict[str, dict[object, object]] = {}
        """By shard, the readers that are not over, with their processes."""

    def see(self, fact: Fact) -> Iterator[LawBroken]:
        """See ``Judge.see``."""
        match fact:
            case ReaderBegan(reader, process, shard):
                yield from self._rivals(shard, reader, process, is_judged=not self._begins_late or self._relies(reader))
                self.readers.setdefault(shard, {})[reader] = process
            case Called(reader, shard):
                yield from self._rivals(shard, reader, self.readers[shard][reader], is_judged=self._relies(reader))
            case ReaderOver(reader, shard):
                self.readers[shard].pop(reader, None)

    def _rivals(self, shard: str, reader: object, process: object, *, is_judged: bool) -> Iterator[LawBroken]:
        for other, its_process in self.readers.get(shard, {}).items():
            if other is reader:
                continue
            if its_process is process:
                yield LawBroken(self._in_one_process, shard, f"{reader} starts before {other} is over")
            elif is_judged and self._relies(other):
                yield LawBroken(READERS, shard, f"{reader} reads although {other} has the lease, too")


class EpochsHaveOneOwner:
    """No two processes ever have a shard under the same epoch."""

    def __init__(self) -> None:
        self._owners: dict[tuple[str, int], object] = {}

    def see(self, fact: Fact) -> Iterator[LawBroken]:
        """See ``Judge.see``."""
        if isinstance(fact, ReaderBegan) and fact.epoch:
            owner = self._owners.setdefault((fact.shard, fact.epoch), fact.process)
            if owner != fact.process:
                text = f"epoch {fact.epoch} of {fact.shard} was that of {owner} and of {fact.process}"
                yield LawBroken(EPOCHS, fact.shard, text)


@frozen
class History:
    """The changes written to a stream, and the facts of the fleet that read it."""

    parents: Mapping[str, Iterable[str]]
    """The parents of each shard."""
    written: Mapping[str, Sequence[tuple[Hashable, int]]]
    """The key and the number of each change, by shard."""
    facts: Sequence[Fact]

    def broken(self) -> Iterator[LawBroken]:
        """Yield every violation that the facts can show."""
        came = {change for fact in self.facts for change in _changes(fact)}
        for shard, changes in self.written.items():
            for key, number in changes:
                if (key, number) not in came:
                    yield LawBroken(LOST, shard, f"change {number} of key {key} of {shard}")
        there = {change for changes in self.written.values() for change in changes}
        for key, number in sorted(came - there, key=str):
            yield LawBroken(INVENTED, "", f"change {number} of key {key}")
        yield from self._in_their_order(lambda key, number: (key, number) not in came)

    def _in_their_order(self, may_be_missing: Callable[[Hashable, int], bool]) -> Iterator[LawBroken]:
        left = {shard: set(changes) for shard, changes in self.written.items()}
        judges: tuple[Judge, ...] = (
            KeysInOrder(may_be_missing=may_be_missing),
            ReadersGoForward(),
            EpochsHaveOneOwner(),
            ParentsBeforeChildren(self._ancestors, lambda shard: not left.get(shard)),
        )
        for fact in self.facts:
            for judge in judges:
                yield from judge.see(fact)
            if isinstance(fact, Delivered):
                left.get(fact.shard, set()).difference_update(_changes(fact))

    def _ancestors(self, shard: str) -> set[str]:
        return ancestors(shard, self.parents)


def ancestors(shard: str, parents: Mapping[str, Iterable[str]]) -> set[str]:
    """Return all known ancestors of a shard."""
    found: set[str] = set()
    level = set(parents.get(shard, ()))
    while level:
        found |= level & parents.keys()
        level = {parent for name in level for parent in parents.get(name, ())} - found
    return found


def _changes(fact: Fact) -> Iterator[tuple[Hashable, int]]:
    if isinstance(fact, Delivered):
        yield from zip(fact.keys, fact.numbers, strict=True)
