"""The parked keys that one shard's consumer knows, and the number of records that it may park.

Before its first batch, the consumer asks the parking store for all parked keys of the stream. It asks again when a
record of a parked key comes and the last answer is older than a second, because the records of the key may have been
replayed meanwhile. Keys move to child shards when a shard splits, so the store answers by key and not by shard. A child
starts only after every record of its parents was processed or parked, so the child sees all keys that its parents
parked.

After a rewind, a shard is read again while keys are parked in its descendants. The records of a key are in a line of
shards, each a descendant of the one before it. Laws:

* a record waits only for records that were parked before it: in its own shard or in an ancestor;
* along that line, generations grow by at least the number of steps from shard to shard, on the longest way. So a shard
  that parks a record between two shards with parked records finds a free number. Numbers may be zero or negative;
* a shard that the tree does not know counts as older than all shards that it knows, because the oldest shards leave
  the stream first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter

from attrs import frozen

from streamclient.config import FailurePolicy
from streamclient.core.shard_tree import ShardTree
from streamclient.model import ParkedKey, ParkedRecord
from streamclient.records import PrimaryKey, StreamRecord

TRUSTED_SECONDS = 1.0
"""The time for which the store's answer is used while records of parked keys arrive. One question per second is cheap.
After a replay, the shard delivers records of the replayed keys again within that time."""

KEY_IS_PARKED = "not tried: an earlier record of its key is parked"


@frozen
class Failure:
    """The reason why records are parked."""

    error: str
    traceback: str
    attempts: int


AFTER_PARKED = Failure(KEY_IS_PARKED, "", 0)


class ParkedShare:
    """The number of parked records among the latest records of a shard, and the policy's limit for it."""

    def __init__(self, policy: FailurePolicy) -> None:
        self._window = policy.share_window_records
        self._most = policy.most_parked
        self._seen = 0
        self._parked: deque[int] = deque()

    def accepted(self, records: int) -> None:
        """Count ``records`` more records that the processor accepted."""
        self._seen += records
        self._forget()

    def parked(self, records: int) -> None:
        """Count ``records`` more records that were parked."""
        self._parked.extend(range(self._seen, self._seen + records))
        self._seen += records
        self._forget()

    def allows(self, records: int) -> bool:
        """Return whether the failure policy allows the worker to park ``records`` more records now."""
        return len(self._parked) + records <= self._most

    @property
    def count(self) -> int:
        """The number of parked records among the latest records of the shard."""
        return len(self._parked)

    def _forget(self) -> None:
        while self._parked and self._parked[0] < self._seen - self._window:
            self._parked.popleft()


class ParkedKeys:
    """The parked keys of a stream, as far as one consumer knows them. All processors of the consumer share this object.

    Args:
        shard_id: the consumer's own shard.
        record_id: returns the id of a record; the ids of a shard sort in the order of its records.
        tree: returns the shards of the stream that are known now.
    """

    def __init__(
        self,
        policy: FailurePolicy,
        shard_id: str,
        record_id: Callable[[StreamRecord], str],
        tree: Callable[[], ShardTree] = ShardTree,
    ) -> None:
        self._policy = policy
        self.share = ParkedShare(policy)
        self._keeps_order = policy.park_rest_of_key
        self._shard_id = shard_id
        self._record_id = record_id
        self._tree = tree
        self._steps: Mapping[str, int] = {}
        """The steps from this shard to each relative that the tree knows, as ``ShardTree.steps_from`` returns them."""
        self._places: dict[PrimaryKey, dict[str, ParkedKey]] = {}
        self._asked_at: float | None = None

    def forget_share(self) -> None:
        """Count parked records from zero again.

        A new order of an operator has ended the halt, so the operator knows of the records parked so far.
        """
        self.share = ParkedShare(self._policy)

    def must_ask(self, records: Sequence[StreamRecord], indices: Iterable[int], now: float) -> bool:
        """Return whether the store must be asked before the records at ``indices`` are delivered or parked."""
        if self._asked_at is None:
            return True
        if not self._places or now - self._asked_at <= TRUSTED_SECONDS:
            return False
        return any(records[index].primary_key in self._places for index in indices)

    def answered(self, keys: Iterable[ParkedKey], now: float) -> None:
        """Process the parking store's answer, which came at ``now``."""
        self._places = {}
        for place in keys:
            # A store has one entry for each fleet, and records of earlier versions name no fleet.
            places = self._places.setdefault(place.key, {})
            known = places.get(place.shard_id, place)
            places[place.shard_id] = min(known, place, key=attrgetter("first_record_id"))
        if any(places.keys() - {self._shard_id} for places in self._places.values()):
            self._steps = self._tree().steps_from(self._shard_id)
        self._asked_at = now

    def after_parked(self, records: Sequence[StreamRecord], indices: Iterable[int]) -> tuple[int, ...]:
        """Return the indices of records to park without a try, because an earlier record of their key is parked."""
        if not self._places or not self._keeps_order:
            return ()
        return tuple(index for index in indices if self._is_after_parked(records[index]))

    def stored(self, parked: Sequence[ParkedRecord], *, is_ordered: bool = False) -> None:
        """Record that the parking store has stored the records ``parked``.

        With ``is_ordered``, an operator's order is the reason, so the records do not count as failures.
        """
        here = self._shard_id
        for record in parked:
            places = self._places.setdefault(record.record.primary_key, {})
            first = min(record.record_id, places[here].first_record_id) if here in places else record.record_id
            places[here] = ParkedKey(record.record.primary_key, here, first, record.generation)
        if not is_ordered:
            self.share.parked(len(parked))

    def generation(self, key: PrimaryKey) -> int:
        """Return the ``ParkedRecord.generation`` of a record of ``key`` that this shard parks now."""
        places = self._places.get(key, {})
        if self._shard_id in places:
            return places[self._shard_id].generation
        older = [place for place in places.values() if self._is_older(place)]
        younger = [place for place in places.values() if not self._is_older(place)]
        if not older:
            return min((place.generation - self._steps_to(place) for place in younger), default=1)
        least = max(place.generation - self._steps_to(place) for place in older)
        if not younger:
            return least
        # Earlier versions left no free numbers between two shards. Then the ids of the records decide.
        highest = min(place.generation for place in younger) - 1
        return max(min(least, highest), *(place.generation for place in older))

    def _steps_to(self, place: ParkedKey) -> int:
        unknown = min(self._steps.values(), default=0) - 1
        return self._steps.get(place.shard_id, unknown)

    def _is_older(self, place: ParkedKey) -> bool:
        return self._steps_to(place) < 0

    def _is_after_parked(self, record: StreamRecord) -> bool:
        """Return whether an earlier record of the record's key is parked.

        If a record is *before* the parked records of its key, it can only be a repetition after a crash, a restart or a
        rewind. The processor accepted the record the first time. So the result is ``False``, and the record is
        delivered again like any other record.
        """
        places = self._places.get(record.primary_key)
        if not places:
            return False
        if any(self._is_older(place) for shard_id, place in places.items() if shard_id != self._shard_id):
            return True
        here = places.get(self._shard_id)
        return here is not None and self._record_id(record) >= here.first_record_id


def first_generations(
    keys: Iterable[ParkedKey],
    shard_id: str,
    records: Sequence[StreamRecord],
    record_id: Callable[[StreamRecord], str],
    tree: ShardTree,
) -> list[int]:
    """Return the ``generation`` with which each of ``records`` is parked in a store that has parked ``keys``.

    ``tree`` has the known shards of the stream.
    """
    known = ParkedKeys(FailurePolicy(), shard_id, record_id, lambda: tree)
    known.answered(keys, 0.0)
    return [known.generation(record.primary_key) for record in records]
