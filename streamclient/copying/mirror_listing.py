"""A mirror lists the shards of its stream regularly, so that changes of newly opened shards are not missed.

The law is the one of ``core.shard_tree``; the listings are stored in the destination's log. A listing names the shards
of which nothing was merged, each with the position where it begins. A read at that position shows whether the changes
after it still exist. Shards that a later listing has and the stored one lacks were opened in between.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from attrs import define, field, frozen

from streamclient.base.times import MICROS_PER_HOUR, now_micros
from streamclient.copying.mirror_copy import require_changes_since
from streamclient.copying.source_table import COPY, CopyPlan, SourceTable
from streamclient.core.shard_tree import is_kept, next_look
from streamclient.destinations.commit import Commit, MergingDestination
from streamclient.destinations.folding.row_changes import CLOCKS_MARGIN_MICROS
from streamclient.errors import StreamClientException, TrimmedDataException
from streamclient.model import Shard

LISTED = f"{COPY}/listed"
"""The shard whose commits list the shards of the stream."""

_TRY_AGAIN_MICROS = 60 * 1_000_000


@frozen
class Listing:
    """The shards of a stream at one time."""

    micros: int
    """The time of the listing, in microseconds since 1970. Shards that were not listed at this time were opened
    later."""
    places: Mapping[str, str]
    """The first position of each shard of which nothing had been merged."""

    def to_text(self) -> str:
        """Return the text that the log stores."""
        return json.dumps({"micros": self.micros, "places": dict(self.places)})

    @classmethod
    def of(cls, last: Commit | None) -> Listing | None:
        """Read the listing in a commit; ``None`` without a commit, as in the log of a mirror of an earlier version."""
        return None if last is None else cls.from_text(last.end)

    @classmethod
    def from_text(cls, text: str) -> Listing:
        """Read a text of ``to_text``."""
        plain = json.loads(text)
        return cls(plain["micros"], plain["places"])


@define(eq=False)
class ShardWatch:
    """Lists the shards when a process begins to follow the stream, and regularly afterwards."""

    source: SourceTable
    destination: MergingDestination
    plan: CopyPlan
    _next_micros: int = field(init=False, default=0)

    @property
    def is_due(self) -> bool:
        """Whether it is time to list the shards again."""
        return now_micros() >= self._next_micros

    def try_later(self) -> None:
        """Do not list the shards before a pause is over, because the service or the destination has trouble."""
        self._next_micros = now_micros() + _TRY_AGAIN_MICROS

    def look(self) -> None:
        """Store the list of shards, unless that was done lately.

        Raises:
            TrimmedDataException: changes are lost, or may be, which no read of the stream would show.
            StreamClientError: the service or the destination failed.
        """
        now = now_micros()  # before the call: its answer may lack shards that are opened meanwhile
        described = self.source.describe_stream(self.plan.stream_id)
        lasts = self.destination.last_commits([LISTED, *(shard.shard_id for shard in described.shards)])
        known = Listing.of(lasts[LISTED])
        silent = [shard for shard in described.shards if lasts[shard.shard_id] is None]
        new = [shard for shard in silent if known is None or shard.shard_id not in known.places]
        if known is None:
            if len(silent) == len(described.shards):
                require_changes_since(self.plan, now, described.expiration_time_hours)
        else:
            self._require_first_changes(new, known, now, described.expiration_time_hours)
            self._require_kept([shard for shard in silent if shard not in new], known.places)
        if known is None or new or now >= next_look(known.micros, described.expiration_time_hours):
            last, known = lasts[LISTED], Listing(now, self._positions(silent, known))
            self._store(last, known)
        self._next_micros = next_look(known.micros, described.expiration_time_hours)

    def _require_first_changes(self, new: Sequence[Shard], known: Listing, now: int, hours: int) -> None:
        if new and not is_kept(known.micros, now + CLOCKS_MARGIN_MICROS, hours):
            raise TrimmedDataException(
                f"no process of the mirror looked at the stream for {(now - known.micros) / MICROS_PER_HOUR:.1f} h, "
                f"and the stream keeps changes for {hours} h: shard {new[0].shard_id} was opened meanwhile, and its "
                "first changes may be gone; begin a new mirror, with another destination and status table"
            )

    def _require_kept(self, silent: Sequence[Shard], positions: Mapping[str, str]) -> None:
        for shard in silent:
            try:
                self.source.require_kept(positions[shard.shard_id])
            except TrimmedDataException as error:
                raise TrimmedDataException(
                    f"changes of shard {shard.shard_id} left the stream before any of it was merged: {error}; begin a "
                    "new mirror, with another destination and status table"
                ) from error

    def _positions(self, silent: Sequence[Shard], known: Listing | None) -> dict[str, str]:
        stored = {} if known is None else known.places
        return {
            shard.shard_id: stored.get(shard.shard_id) or self.source.position_at(shard.shard_id, self.plan)
            for shard in silent
        }

    def _store(self, last: Commit | None, listing: Listing) -> None:
        commit = Commit.note(last, application=self.destination.application, shard=LISTED, text=listing.to_text())
        columns = self.destination.columns()
        assert columns is not None  # the copy has made the table
        try:
            self.destination.commit(columns.empty_table(), [commit])
        except StreamClientException:
            if self.destination.last_commits([LISTED])[LISTED] == last:
                raise  # otherwise another process was quicker, and has stored the same list
