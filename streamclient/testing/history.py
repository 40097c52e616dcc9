"""Facts about the delivery of a stream's changes, and the laws that judge these facts.

A law looks at one fact after another, and yields the violations. A simulation passes each fact to the laws immediately,
and stops at the fact that breaks a law. The facts about a fleet of real processes come from files that the processors
wrote. The laws judge these facts after the run.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from attrs import frozen

ORDER, LOST, INVENTED = "order per key", "nothing is lost", "nothing is invented"
PARENTS, CALLS, READERS, EPOCHS = "parents first", "calls in order", "one reader", "epochs grow"

INITIALIZE, SHUTDOWN = "initialize", "shutdown"


class LawBroken(Exception):
    """The violation of a law. Simulations raise this error at the event that breaks the law."""

    def __init__(self, law: str, lease_key: str, text: str) -> None:
        super().__init__(f"{law}: {text}")
        self.law = law
        self.lease_key = lease_key
        self.text = text


@frozen
class ReaderBegan:
    """A fact: a reader of a shard begins. A reader is a consumer, a processor, or a tunnel channel's reader."""

    reader: object
    process: object
    shard: str
    epoch: int = 0
    """The epoch of the shard's lease; 0 for readers without epochs."""


@frozen
class ReaderOver:
    """A fact: a reader has ended, and no part of the reader runs any more."""

    reader: object
    shard: str


@frozen
class Called:
    """A fact: a reader's call into user code begins."""

    reader: object
    shard: str
    call: str


@frozen
class Returned:
    """A fact: a reader's call into user code has returned or raised."""

    reader: object
    shard: str
    is_open: bool = True
    """Whether the reader has a processor after the call. A failed ``initialize`` may have made no processor."""


@frozen(eq=False)
class Delivered:
    """A fact: changes reach a processor or a destination, in the order of ``keys``."""

    reader: object
    shard: str
    keys: Sequence[Hashable]
    numbers: Sequence[int]
    """The number of each change among the changes of its key, counted from 1. The number is 0 for a change that no
    writer made."""
    is_judged: bool = True
    """Whether ``KeysInOrder`` judges this fact. If not, the law only notes that the changes were delivered."""


Fact = ReaderBegan | ReaderOver | Called | Returned | Delivered


class Judge(Protocol):
    """The interface of a law, which sees one fact after another."""

    def see(self, fact: Fact) -> Iterator[LawBroken]:
        """Yield the violations that ``fact`` shows after all facts that this law has seen before."""


def require(fact: Fact, *judges: Judge) -> None:
    """Raise the first violation that one of ``judges`` finds in ``fact``."""
    for judge in judges:
        for broken in judge.see(fact):
            raise broken


def nothing(*_: object) -> bool:
    """Return ``False`` for any arguments. ``KeysInOrder`` uses this function as the default of its conditions."""
    return False


class KeysInOrder:
    """The law that readers get the changes of a key in order and without a gap, across all splits and merges.

    Repeats are allowed, except where ``is_fenced`` forbids them: a fenced parent shard must not repeat a change of a
    key after a child shard has delivered a change of that key.
    """

    def __init__(
        self,
        *,
        may_be_missing: Callable[[Hashable, int], bool] = nothing,
        is_fenced: Callable[[str, str], bool] = nothing,
    ) -> None:
        """Make the law; by default it allows no gaps and all repeats.

        Args:
            may_be_missing: whether the change with a given key and number may be missing.
            is_fenced: whether the first of two shards must not repeat changes of a key after the second shard has
                delivered changes of the key. The arguments are the two shard ids.
        """
        self.furthest: dict[Hashable, int] = {}
        """The highest number of a delivered change, by key."""
        self._shards: dict[Hashable, str] = {}
        """The shard that delivered the change of ``furthest``, by key."""
        self._may_be_missing, self._is_fenced = may_be_missing, is_fenced

    def see(self, fact: Fact) -> Iterator[LawBroken]:
        """Yield a violation for each gap and each forbidden repeat in a delivery."""
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
                text = f"{fact.reader} had change {number} of key {key} again after {later} had gone on with the key"
                yield LawBroken(ORDER, shard, text)

    def _gap(self, fact: Delivered, key: Hashable, missing: range) -> Iterator[LawBroken]:
        for number in missing:
            if not self._may_be_missing(key, number):
                text = f"{fact.reader} had change {missing.stop} of key {key}, but no reader had change {number}"
                yield LawBroken(ORDER, fact.shard, text)


class ReadersGoForward:
    """The law that a processor gets the changes of a key in ascending order, and each change once.

    The law fits fleets whose processors never raise. After an error a processor may get the same batch again.
    """

    def __init__(self) -> None:
        self._furthest: dict[tuple[object, Hashable], int] = {}

    def see(self, fact: Fact) -> Iterator[LawBroken]:
        """Yield a violation for each delivered change that is not newer than the reader's last change of its key."""
        if not isinstance(fact, Delivered):
            return
        for key, number in zip(fact.keys, fact.numbers, strict=True):
            last = self._furthest.get((fact.reader, key), -1)
            if number <= last:
                text = f"{fact.reader} had change {number} of key {key} after change {last}"
                yield LawBroken(ORDER, fact.shard, text)
            self._furthest[fact.reader, key] = number


class ParentsBeforeChildren:
    """The law that a shard is read only after all its ancestors were read to their ends."""

    def __init__(self, ancestors: Callable[[str], Iterable[str]], is_over: Callable[[str], bool]) -> None:
        self._ancestors, self._is_over = ancestors, is_over

    def see(self, fact: Fact) -> Iterator[LawBroken]:
        """Yield a violation for each ancestor that has not ended when a reader of a shard begins."""
        if isinstance(fact, ReaderBegan):
            for ancestor in sorted(self._ancestors(fact.shard)):
                if not self._is_over(ancestor):
                    yield LawBroken(PARENTS, fact.shard, f"{fact.reader} starts although {ancestor} has not ended")


class CallsOneByOne:
    """The law that the calls of a reader never overlap.

    Each processor gets one ``initialize``, then other calls, then one ``shutdown``. A reader may end, or begin anew,
    only if it has no processor that must still be shut down.
    """

    def __init__(self) -> None:
        self._calling: dict[object, str] = {}
        self._open: set[object] = set()
        """The readers with a processor that must still be shut down."""

    def see(self, fact: Fact) -> Iterator[LawBroken]:
        """Yield a violation for each call that overlaps another call or comes in a wrong order.

        Also yield a violation if a reader ends, or begins anew, before its processor was shut down.
        """
        match fact:
            case Called(reader, shard, call):
                if reader in self._calling:
                    yield LawBroken(CALLS, shard, f"{reader} is called ({call}) while {self._calling[reader]} runs")
                if (call == INITIALIZE) is (reader in self._open):
                    text = f"{reader} is called ({call}), and its processor is not in the state for this call"
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
    """The law that a shard has one reader at a time.

    No process has two readers of a shard. No two processes read a shard while both may rely on its lease.
    """

    def __init__(
        self, relies: Callable[[Any], bool], *, in_one_process: str = READERS, begins_late: bool = False
    ) -> None:
        """Make the law.

        Args:
            relies: whether a given reader may still rely on the lease of its shard.
            in_one_process: the name of the law that two readers in one process break.
            begins_late: whether a reader whose lease has expired may still begin while another process has a reader of
                the shard.
        """
        self._relies, self._in_one_process, self._begins_late = relies, in_one_process, begins_late
        self.readers: dict[str, dict[object, object]] = {}
        """The process of each reader that has not ended, by shard id and then by reader."""

    def see(self, fact: Fact) -> Iterator[LawBroken]:
        """Yield a violation for each reader that the law forbids beside the reader of ``fact``.

        The law judges facts about readers that begin, and about readers that call user code.
        """
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
    """The law that two processes never read a shard under the same epoch."""

    def __init__(self) -> None:
        self._owners: dict[tuple[str, int], object] = {}

    def see(self, fact: Fact) -> Iterator[LawBroken]:
        """Yield a violation if a reader begins with an epoch under which another process has read the shard."""
        if isinstance(fact, ReaderBegan) and fact.epoch:
            owner = self._owners.setdefault((fact.shard, fact.epoch), fact.process)
            if owner != fact.process:
                text = f"epoch {fact.epoch} of {fact.shard} was that of {owner} and of {fact.process}"
                yield LawBroken(EPOCHS, fact.shard, text)


@frozen
class History:
    """The changes that were written to a stream, and the facts about the fleet that read the stream."""

    parents: Mapping[str, Iterable[str]]
    """The ids of each shard's parents, by shard id."""
    written: Mapping[str, Sequence[tuple[Hashable, int]]]
    """The changes by shard: the key of each change, and its number among the changes of the key."""
    facts: Sequence[Fact]

    def broken(self) -> Iterator[LawBroken]:
        """Yield every violation of a law that the facts show."""
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
    """Return all ancestors of ``shard`` that are keys of ``parents``, which maps each shard to its parents."""
    found: set[str] = set()
    level = set(parents.get(shard, ()))
    while level:
        found |= level & parents.keys()
        level = {parent for name in level for parent in parents.get(name, ())} - found
    return found


def _changes(fact: Fact) -> Iterator[tuple[Hashable, int]]:
    if isinstance(fact, Delivered):
        yield from zip(fact.keys, fact.numbers, strict=True)
