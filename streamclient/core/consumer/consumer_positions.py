"""The positions that a processor may store: every position that it was given, from its last checkpoint request on."""

from __future__ import annotations

from collections import OrderedDict

from attrs import frozen

from streamclient.errors import ConfigurationError
from streamclient.model import CheckpointPosition, Progress
from streamclient.records import SequenceInfo

MOST_POSITIONS = 10_000
"""The largest number of positions that are remembered for a processor. When a processor requests a checkpoint, all
earlier positions are forgotten. So only a processor that is ten thousand batches ahead of its checkpoints reaches this
bound. From then on its oldest positions are refused, with an error that names the bound."""

END_NUMBER = 2**63
"""The rank of the position SHARD_END, whether or not the end of the shard was reached. It is greater than the
ranks of all other positions."""

NO_PROGRESS = Progress(record_micros=0, records=0, bytes=0)


@frozen
class Place:
    """One position of a shard that its processor may store."""

    text: str
    number: int
    """The rank of this position among the positions of its processor. Iterators are opaque, so only ranks show which of
    two positions is earlier."""
    progress: Progress
    """The progress up to this position, counted from the creation of the lease."""
    last: SequenceInfo | None = None
    """The last record before the position; ``None`` if this processor was given no record."""


class HandedOutPositions:
    """The positions that one processor was given, numbered in the order in which it got them.

    Not thread-safe: the checkpointer that uses this object has a lock.
    """

    def __init__(self, shard_id: str, initial: str, progress: Progress = NO_PROGRESS) -> None:
        self._shard_id = shard_id
        start = Place(initial, 0, progress)
        self._places: OrderedDict[str, Place] = OrderedDict({initial: start})
        self._last_number = 0
        self._permitted = self._permitted_before = self._requested = start
        self._least_number = 0
        """The rank of the last position that the processor itself has requested."""
        self._prepared: set[int] = set()
        self._is_retracted = False

    @property
    def permitted(self) -> str:
        """The latest position that may be stored: after the last delivered batch that did not fail."""
        return self._permitted.text

    @property
    def progress(self) -> Progress:
        """The progress of the shard up to the position ``permitted``."""
        return self._permitted.progress

    @property
    def permitted_number(self) -> int:
        """The rank of the position ``permitted``."""
        return self._permitted.number

    @property
    def requested_records(self) -> int:
        """The number of records before the last requested position, counted from the creation of the lease.

        Before the first request, this is the number of records before the initial position.
        """
        return self._requested.progress.records

    def permit(self, position: str, progress: Progress | None = None, last: SequenceInfo | None = None) -> None:
        """Allow the processor to store ``position``, the end of one more batch."""
        self._permitted_before = self._permitted
        self._is_retracted = False
        if position == self.permitted:
            return
        self._last_number += 1
        number = END_NUMBER if position == CheckpointPosition.SHARD_END else self._last_number
        before = self._permitted
        self._permitted = Place(position, number, progress or before.progress, last or before.last)
        self._remember(self._permitted)

    def retract(self) -> None:
        """Withdraw the permission to store the last permitted position, because the batch before it failed.

        If the processor has already requested that position, it stays permitted: by the request, the processor said
        that everything before the position is safe. If the processor has only prepared that position, the permission
        ends, but a request that names the position is still accepted, because the processor's sink may already have
        committed everything before it.
        """
        failed, before = self._permitted, self._permitted_before
        if failed.number <= self._requested.number and self._requested.number > before.number:
            return
        if failed is not before:
            if failed.number not in self._prepared:
                self._places.pop(failed.text, None)
            self._places[before.text] = self._permitted = before
        self._is_retracted = True

    def offer(self, position: str, progress: Progress, last: SequenceInfo | None = None) -> None:
        """Allow the processor, before its first batch, to store ``position``, which an earlier processor prepared."""
        self._last_number += 1
        number = END_NUMBER if position == CheckpointPosition.SHARD_END else self._last_number
        self._remember(Place(position, number, progress, last))

    def withdraw(self, position: str) -> None:
        """Withdraw an offered position, unless the processor has requested that position or a later position."""
        if self._places[position].number > self._requested.number:
            del self._places[position]

    def resolve(self, value: str | None) -> Place:
        """Return the position that a checkpoint request with ``value`` stores.

        Without ``value``, return the later of two positions: the position that was permitted last, and the position
        that was requested last. The requested position can be the later one, if an earlier processor prepared it, and
        if the present processor requested it and got no answer. The sink has committed that position, so requesting it
        again is right and going back is wrong.

        If the worker itself has requested a later position than the processor, the positions in between stand for the
        later one, because all records between them were parked or skipped.

        Raises:
            ConfigurationError: the processor was not given ``value``, or ``value`` is before a position that was
                already requested.
        """
        if value is None:
            permitted, requested = self._permitted, self._requested
            return permitted if permitted.number >= requested.number else requested
        place = self._place(value)
        if place.number < self._requested.number and place.number >= self._least_number:
            return self._requested
        if place.number < self._requested.number:
            raise ConfigurationError(
                f"checkpoint {place.text!r} of shard {self._shard_id} is before a checkpoint that was already "
                "requested; progress never goes back"
            )
        return place

    def requested(self, place: Place) -> None:
        """Record that a request to store ``place`` was sent. From now on, refuse all earlier positions."""
        if place.number >= self._requested.number:
            self._requested, self._least_number = place, place.number
        outdated = [
            text for text, known in self._places.items() if known.number < place.number and text != self.permitted
        ]
        for text in outdated:
            del self._places[text]
        self._prepared = {number for number in self._prepared if number > place.number}

    def pass_set_aside(self) -> Place:
        """Record that the worker itself requests the position ``permitted``, and return the position to store.

        Every record between the processor's last request and that position was parked or skipped.
        """
        self._requested = self.resolve(None)
        return self._requested

    def prepared(self, place: Place) -> None:
        """Record that a sink may commit everything before ``place``."""
        self._prepared.add(place.number)

    def records_since_request(self, place: Place) -> int:
        """Return the number of records from the last requested position to ``place``.

        Before the first request, count from the initial position. The number is exact even if the last request has no
        answer yet. Requests are stored in order, so if ``place`` is prepared after that request, ``place`` is stored
        only if the requested position was stored.
        """
        return max(0, place.progress.records - self._requested.progress.records)

    def _remember(self, place: Place) -> None:
        self._places.pop(place.text, None)
        self._places[place.text] = place
        while len(self._places) > MOST_POSITIONS:
            self._places.popitem(last=False)

    def _place(self, text: str) -> Place:
        place = self._places.get(text)
        if place is not None:
            return place
        if text != CheckpointPosition.SHARD_END:
            raise ConfigurationError(
                f"checkpoint {text!r} was not handed out for shard {self._shard_id}, or was handed out more than "
                f"{MOST_POSITIONS} positions ago; use a value of largest_permitted_checkpoint_value, or SHARD_END"
            )
        if self._is_retracted:
            raise ConfigurationError(
                f"SHARD_END of shard {self._shard_id} is refused: the batch after {self.permitted!r} failed and must "
                "be processed first"
            )
        return Place(text, END_NUMBER, self.progress, self._permitted.last)


def further(progress: Progress, *, records: int, size_bytes: int = 0, record_micros: int = 0) -> Progress:
    """Return the progress after one more batch. ``record_micros`` is the time of its last record, or 0 if unknown."""
    return Progress(
        record_micros=max(progress.record_micros, record_micros),
        records=progress.records + records,
        bytes=progress.bytes + size_bytes,
    )
