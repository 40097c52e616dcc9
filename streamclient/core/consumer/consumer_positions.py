"""Which positions a processor may store: those that it was given, none before one that it already stored."""

from __future__ import annotations

from collections import OrderedDict

from attrs import frozen

from streamclient.errors import ConfigurationError
from streamclient.model import CheckpointPosition, Progress
from streamclient.records import SequenceInfo

MOST_POSITIONS = 10_000
"""Positions remembered per processor. One that stores progress forgets everything before it, so only a processor that
runs ten thousand batches ahead of its checkpoints meets this bound; its oldest positions are then refused by name."""

END_NUMBER = 2**63
"""Number of SHARD_END, whether the end was reached or not: behind every batch."""

NO_PROGRESS = Progress(record_micros=0, records=0, bytes=0)


@frozen
class Place:
    """One position that may be stored."""

    text: str
    number: int
    """Iterators are opaque, so their order is known only by these numbers."""
    progress: Progress
    """What was processed up to here, counted from the creation of the lease."""
    last: SequenceInfo | None = None
    """The last record before it, as far as this processor was given any."""


class HandedOutPositions:
    """Numbers the positions of one processor in the order in which they were handed out.

    Not thread-safe; the checkpointer locks.
    """

    def __init__(self, shard_id: str, initial: str, progress: Progress = NO_PROGRESS) -> None:
        self._shard_id = shard_id
        start = Place(initial, 0, progress)
        self._places: OrderedDict[str, Place] = OrderedDict({initial: start})
        self._last_number = 0
        self._permitted = self._permitted_before = self._requested = start
        self._prepared: set[int] = set()
        self._is_retracted = False

    @property
    def permitted(self) -> str:
        """The position behind the last batch that was handed out and did not fail."""
        return self._permitted.text

    @property
    def progress(self) -> Progress:
        """What was processed once that batch is."""
        return self._permitted.progress

    def permit(self, position: str, progress: Progress | None = None, last: SequenceInfo | None = None) -> None:
        """Hand out the position behind one more batch."""
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
        """The batch before the permitted position failed: permit only what came before it.

        A position that was already requested stays: whoever asked for it said that everything before it is safe. One
        that was prepared may still be completed by name, as its sink may have committed it.
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
        """Let a position be stored before anything was handed out: what an earlier processor prepared."""
        self._last_number += 1
        number = END_NUMBER if position == CheckpointPosition.SHARD_END else self._last_number
        self._remember(Place(position, number, progress, last))

    def withdraw(self, position: str) -> None:
        """What was offered was not taken."""
        if self._places[position].number > self._requested.number:
            del self._places[position]

    def resolve(self, value: str | None) -> Place:
        """The place to store; without a value, all that was handed out, or what was requested beyond that.

        What lies beyond was prepared by an earlier processor, and this one asked for it without an answer that it is
        stored: its sink has it, so asking again is right, and going back is not.

        Raises:
            ConfigurationError: the value was not handed out, or lies before one that was already stored.
        """
        if value is None:
            return max(self._permitted, self._requested, key=lambda place: place.number)
        place = self._place(value)
        if place.number < self._requested.number:
            raise ConfigurationError(
                f"checkpoint {place.text!r} of shard {self._shard_id} lies before a checkpoint that was already "
                "requested; progress never goes back"
            )
        return place

    def requested(self, place: Place) -> None:
        """A checkpoint is on its way: earlier ones are refused from now on, whatever becomes of it."""
        if place.number >= self._requested.number:
            self._requested = place
        outdated = [
            text for text, known in self._places.items() if known.number < place.number and text != self.permitted
        ]
        for text in outdated:
            del self._places[text]
        self._prepared = {number for number in self._prepared if number > place.number}

    def prepared(self, place: Place) -> None:
        """A sink may commit everything before this place."""
        self._prepared.add(place.number)

    def records_since_request(self, place: Place) -> int:
        """How many records lie between the checkpoint requested last, or the initial one, and a place.

        Requests are stored in order, and a position prepared after one is stored only if that one was.
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
                f"checkpoint {text!r} was not handed out for shard {self._shard_id}, or more than {MOST_POSITIONS} "
                f"positions ago; use a value of largest_permitted_checkpoint_value, or SHARD_END"
            )
        if self._is_retracted:
            raise ConfigurationError(
                f"SHARD_END of shard {self._shard_id} is refused: the batch behind {self.permitted!r} failed and must "
                "be processed first"
            )
        return Place(text, END_NUMBER, self.progress, self._permitted.last)


def further(progress: Progress, *, records: int, size_bytes: int = 0, record_micros: int = 0) -> Progress:
    """Progress after one more batch; ``record_micros`` is the time of its last record, as far as it is known."""
    return Progress(
        record_micros=max(progress.record_micros, record_micros),
        records=progress.records + records,
        bytes=progress.bytes + size_bytes,
    )
