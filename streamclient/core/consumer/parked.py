"""What one shard's consumer knows of parked keys, and how many records it may park.

The parking store is asked for all parked keys of the stream before the first batch of a consumer, and again when a
record of such a key comes and the answer is older than a second: somebody may have replayed the key. Keys move to child
shards when a shard splits. The store answers by key and not by shard, and a child starts only after everything of its
parents was processed or parked, so it sees what they parked.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from attrs import frozen

from streamclient.config import FailurePolicy
from streamclient.model import ParkedKey, ParkedRecord
from streamclient.records import PrimaryKey, StreamRecord

TRUSTED_SECONDS = 1.0
"""How long the store's answer is believed while records of parked keys come: one question per second is cheap, and
after a replay the shard goes over to delivering within that time."""

KEY_IS_PARKED = "not tried: an earlier record of its key is parked"


@frozen
class Failure:
    """Why records are parked."""

    error: str
    traceback: str
    attempts: int


BEHIND_PARKED = Failure(KEY_IS_PARKED, "", 0)


class ParkedShare:
    """How many of the latest records of a shard were parked, against the policy's limit."""

    def __init__(self, policy: FailurePolicy) -> None:
        self._window = policy.share_window_records
        self._most = policy.most_parked
        self._seen = 0
        self._parked: deque[int] = deque()

    def accepted(self, records: int) -> None:
        """So many records passed."""
        self._seen += records
        self._forget()

    def parked(self, records: int) -> None:
        """So many records were parked."""
        self._parked.extend(range(self._seen, self._seen + records))
        self._seen += records
        self._forget()

    def allows(self, records: int) -> bool:
        """Whether so many more may be parked now."""
        return len(self._parked) + records <= self._most

    @property
    def count(self) -> int:
        """How many of the latest records are parked."""
        return len(self._parked)

    def _forget(self) -> None:
        while self._parked and self._parked[0] < self._seen - self._window:
            self._parked.popleft()


class ParkedKeys:
    """Parked keys of one consumer's stream, as far as it knows, through all of its processors.

    Args:
        shard_id: the consumer's own shard.
        record_id: the id of a record, by which the ids of a shard sort as its records.
    """

    def __init__(self, policy: FailurePolicy, shard_id: str, record_id: Callable[[StreamRecord], str]) -> None:
        self.share = ParkedShare(policy)
        self._keeps_order = policy.park_rest_of_key
        self._shard_id = shard_id
        self._record_id = record_id
        self._places: dict[PrimaryKey, dict[str, ParkedKey]] = {}
        self._asked_at: float | None = None

    def must_ask(self, records: Sequence[StreamRecord], indices: Iterable[int], now: float) -> bool:
        """Whether the store has to be asked before these records are dealt with."""
        if self._asked_at is None:
            return True
        if not self._places or now - self._asked_at <= TRUSTED_SECONDS:
            return False
        return any(records[index].primary_key in self._places for index in indices)

    def answered(self, keys: Iterable[ParkedKey], now: float) -> None:
        """What the store said."""
        self._places = {}
        for place in keys:
            self._places.setdefault(place.key, {})[place.shard_id] = place
        self._asked_at = now

    def behind_parked(self, records: Sequence[StreamRecord], indices: Iterable[int]) -> tuple[int, ...]:
        """Which of these must be parked untried, so that they do not overtake an earlier record of their keys."""
        if not self._places or not self._keeps_order:
            return ()
        return tuple(index for index in indices if self._is_behind_parked(records[index]))

    def stored(self, parked: Sequence[ParkedRecord]) -> None:
        """The store has them."""
        here = self._shard_id
        for each in parked:
            places = self._places.setdefault(each.record.primary_key, {})
            first = min(each.record_id, places[here].first_record_id) if here in places else each.record_id
            places[here] = ParkedKey(each.record.primary_key, here, first, each.generation)
        self.share.parked(len(parked))

    def generation(self, key: PrimaryKey) -> int:
        """The generation of a record of that key which is parked here and now."""
        places = self._places.get(key, {})
        here = places.get(self._shard_id)
        return here.generation if here else 1 + max((place.generation for place in places.values()), default=0)

    def _is_behind_parked(self, record: StreamRecord) -> bool:
        """A record that comes *before* the parked ones of its shard comes a second time, after a crash or a restart.

        It was accepted then, and is delivered again like any other.
        """
        places = self._places.get(record.primary_key)
        if not places:
            return False
        here = places.get(self._shard_id)
        if here is None or len(places) > 1:
            return True
        return self._record_id(record) >= here.first_record_id
