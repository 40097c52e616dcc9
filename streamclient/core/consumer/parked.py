"""The parked keys that one shard's consumer knows, and the number of records that it may park.

The consumer asks the parking store for all parked keys of the stream before its first batch. It asks again when a
record of such a key comes and the answer is older than a second, because the key may have been replayed. Keys move to
child shards when a shard splits. The store answers by key and not by shard, and a child starts only after every record
of its parents was processed or parked, so it sees what they parked.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from attrs import frozen

from streamclient.config import FailurePolicy
from streamclient.model import ParkedKey, ParkedRecord
from streamclient.records import PrimaryKey, StreamRecord

TRUSTED_SECONDS = 1.0
"""The time for which the store's answer is trusted while records of parked keys arrive. One question per second is
cheap, and after a replay the shard delivers such keys again within that time."""

KEY_IS_PARKED = "not tried: an earlier record of its key is parked"


@frozen
class Failure:
    """Why records are parked."""

    error: str
    traceback: str
    attempts: int


AFTER_PARKED = Failure(KEY_IS_PARKED, "", 0)


class ParkedShare:
    """The number of parked records among the latest of a shard, against the policy's limit."""

    def __init__(self, policy: FailurePolicy) -> None:
        self._window = policy.share_window_records
        self._most = policy.most_parked
        self._seen = 0
        self._parked: deque[int] = deque()

    def accepted(self, records: int) -> None:
        """Count ``records`` records that passed."""
        self._seen += records
        self._forget()

    def parked(self, records: int) -> None:
        """Count ``records`` records that were parked."""
        self._parked.extend(range(self._seen, self._seen + records))
        self._seen += records
        self._forget()

    def allows(self, records: int) -> bool:
        """Return whether ``records`` more may be parked now."""
        return len(self._parked) + records <= self._most

    @property
    def count(self) -> int:
        """Number of parked records among the latest."""
        return len(self._parked)

    def _forget(self) -> None:
        while self._parked and self._parked[0] < self._seen - self._window:
            self._parked.popleft()


class ParkedKeys:
    """Parked keys of one consumer's stream, as far as it knows them; all of its processors share them.

    Args:
        shard_id: the consumer's own shard.
        record_id: returns the id of a record; the ids of a shard sort in the order of its records.
    """

    def __init__(self, policy: FailurePolicy, shard_id: str, record_id: Callable[[StreamRecord], str]) -> None:
        self._policy = policy
        self.share = ParkedShare(policy)
        self._keeps_order = policy.park_rest_of_key
        self._shard_id = shard_id
        self._record_id = record_id
        self._places: dict[PrimaryKey, dict[str, ParkedKey]] = {}
        self._asked_at: float | None = None

    def forget_share(self) -> None:
        """Count parked records anew, as after a pause: an operator has decided about those that stopped the shard."""
        self.share = ParkedShare(self._policy)

    def must_ask(self, records: Sequence[StreamRecord], indices: Iterable[int], now: float) -> bool:
        """Return whether the store has to be asked before the records at ``indices`` are dealt with."""
        if self._asked_at is None:
            return True
        if not self._places or now - self._asked_at <= TRUSTED_SECONDS:
            return False
        return any(records[index].primary_key in self._places for index in indices)

    def answered(self, keys: Iterable[ParkedKey], now: float) -> None:
        """Process the store's answer, known at ``now``."""
        self._places = {}
        for place in keys:
            self._places.setdefault(place.key, {})[place.shard_id] = place
        self._asked_at = now

    def after_parked(self, records: Sequence[StreamRecord], indices: Iterable[int]) -> tuple[int, ...]:
        """Return the indices of records to park untried, so that they overtake no earlier record of their key."""
        if not self._places or not self._keeps_order:
            return ()
        return tuple(index for index in indices if self._is_after_parked(records[index]))

    def stored(self, parked: Sequence[ParkedRecord], *, is_ordered: bool = False) -> None:
        """Record that the store holds ``parked``. Records that an operator ordered there do not count as failures."""
        here = self._shard_id
        for record in parked:
            places = self._places.setdefault(record.record.primary_key, {})
            first = min(record.record_id, places[here].first_record_id) if here in places else record.record_id
            places[here] = ParkedKey(record.record.primary_key, here, first, record.generation)
        if not is_ordered:
            self.share.parked(len(parked))

    def generation(self, key: PrimaryKey) -> int:
        """Return the generation for a record of ``key`` that this shard parks now."""
        places = self._places.get(key, {})
        here = places.get(self._shard_id)
        return here.generation if here else 1 + max((place.generation for place in places.values()), default=0)

    def _is_after_parked(self, record: StreamRecord) -> bool:
        """Return whether an earlier record of the record's key is parked.

        A record that lies *before* the parked ones of its shard can only be a repetition after a crash or a restart. It
        was accepted the first time, so the answer is ``False``, and the record is delivered again like any other.
        """
        places = self._places.get(record.primary_key)
        if not places:
            return False
        here = places.get(self._shard_id)
        if here is None or len(places) > 1:
            return True
        return self._record_id(record) >= here.first_record_id


def first_generations(
    keys: Iterable[ParkedKey], shard_id: str, records: Sequence[StreamRecord], record_id: Callable[[StreamRecord], str]
) -> list[int]:
    """Return the generations of ``records`` for a store of which nothing but its ``keys`` is known."""
    known = ParkedKeys(FailurePolicy(), shard_id, record_id)
    known.answered(keys, 0.0)
    return [known.generation(record.primary_key) for record in records]
