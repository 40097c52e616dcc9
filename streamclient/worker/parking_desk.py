"""What one shard's consumer knows of parked keys, and how it fills in the forms. Owner thread.

The parking store is asked for all parked keys of the stream before the first batch of a consumer, and again when a
record of such a key comes and the answer is older than a second: somebody may have replayed the key. Keys move to child
shards when a shard splits. The store answers by key and not by shard, and a child starts only after everything of its
parents was processed or parked, so it sees what they parked.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Sequence

from attrs import frozen

from streamclient.config import FailurePolicy
from streamclient.core.failures import ParkedShare
from streamclient.interfaces import IParkingStore
from streamclient.model import ParkedKey, ParkedRecord, ShardInfo
from streamclient.parking.frames import record_id
from streamclient.records import PrimaryKey, StreamRecord

TRUSTED_SECONDS = 1.0
"""How long the store's answer is believed while records of parked keys come: one question per second is cheap, and
after a replay the shard goes over to delivering within that time."""

MOST_ERROR_CHARACTERS = 4_096
"""Of an error's text that is stored; some carry whole documents."""

MOST_TRACEBACK_CHARACTERS = 16_384
"""Of a traceback that is stored, its inner end; recursion that ran away makes endless ones."""

KEY_IS_PARKED = "not tried: an earlier record of its key is parked"


@frozen
class Failure:
    """Why records are parked."""

    error: str
    traceback: str
    attempts: int

    @classmethod
    def of(cls, error: BaseException, attempts: int) -> Failure:
        """What was raised, after so many failed calls."""
        trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        text = f"{type(error).__name__}: {error}"
        return cls(text[:MOST_ERROR_CHARACTERS], trace[-MOST_TRACEBACK_CHARACTERS:], attempts)


BEHIND_PARKED = Failure(KEY_IS_PARKED, "", 0)


class ParkingDesk:
    """Parked keys and shares of one consumer, through all of its processors."""

    def __init__(
        self, policy: FailurePolicy, store: IParkingStore, shard: ShardInfo, wall_micros: Callable[[], int]
    ) -> None:
        self.share = ParkedShare(policy)
        self._store = store
        self._shard = shard
        self._wall_micros = wall_micros
        self._keeps_order = policy.park_rest_of_key
        self._places: dict[PrimaryKey, dict[str, ParkedKey]] = {}
        self._asked_at: float | None = None

    @property
    def knows_keys(self) -> bool:
        """Whether any key is parked, as far as it knows."""
        return bool(self._places)

    def must_ask(self, records: Iterable[StreamRecord], now: float) -> bool:
        """Whether the store has to be asked before these records are dealt with."""
        if self._asked_at is None:
            return True
        return now - self._asked_at > TRUSTED_SECONDS and any(record.primary_key in self._places for record in records)

    def ask(self) -> Sequence[ParkedKey]:
        """Ask the store. Any thread."""
        return list(self._store.parked_keys(self._shard.stream_id))

    def answered(self, keys: Iterable[ParkedKey], now: float) -> None:
        """What the store said."""
        self._places = {}
        for place in keys:
            self._places.setdefault(place.key, {})[place.shard_id] = place
        self._asked_at = now

    def is_behind_parked(self, record: StreamRecord) -> bool:
        """Whether it must be parked untried, so that it does not overtake an earlier record of its key.

        A record that comes *before* the parked ones of its shard comes a second time, after a crash or a restart: it
        was accepted then, and is delivered again like any other.
        """
        places = self._places.get(record.primary_key)
        if not self._keeps_order or not places:
            return False
        here = places.get(self._shard.shard_id)
        if here is None or len(places) > 1:
            return True
        return record_id(record) >= here.first_record_id

    def park(
        self, records: Sequence[StreamRecord], indices: Iterable[int], position: str, failure: Failure
    ) -> Sequence[ParkedRecord]:
        """Store the records at these places of a page that was read at ``position``; safe once this returns.

        Any thread, while the owner waits for it; the owner then passes what it returns to ``stored``.
        """
        now_micros = self._wall_micros()
        parked = [
            ParkedRecord(
                record_id=record_id(records[index]),
                stream_id=self._shard.stream_id,
                shard_id=self._shard.shard_id,
                record=records[index],
                position=position,
                index=index,
                generation=self._generation(records[index].primary_key),
                error=failure.error,
                traceback=failure.traceback,
                attempts=failure.attempts,
                parked_micros=now_micros,
            )
            for index in indices
        ]
        self._store.park(parked)
        return parked

    def stored(self, parked: Sequence[ParkedRecord]) -> None:
        """The store has them."""
        here = self._shard.shard_id
        for each in parked:
            places = self._places.setdefault(each.record.primary_key, {})
            first = min(each.record_id, places[here].first_record_id) if here in places else each.record_id
            places[here] = ParkedKey(each.record.primary_key, here, first, each.generation)
        self.share.parked(len(parked))

    def _generation(self, key: PrimaryKey) -> int:
        places = self._places.get(key, {})
        here = places.get(self._shard.shard_id)
        return here.generation if here else 1 + max((place.generation for place in places.values()), default=0)
