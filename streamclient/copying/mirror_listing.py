"""Regular listings of a stream's shards, by which a mirror detects that changes of a new shard may be lost.

The destination's log stores the last listing. For each shard from which no changes are merged yet, the listing has the
shard's first position. A read at this position shows whether the stream still has the shard's first changes. If a new
listing has a shard that the stored listing lacks, the shard was opened between the two listings. ``core.shard_tree``
explains when the first changes of such a shard may be lost.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from attrs import define, field, frozen

from streamclient.base.kept_formats import parse_json
from streamclient.base.times import MICROS_PER_HOUR, now_micros
from streamclient.copying.mirror_copy import require_changes_since
from streamclient.copying.source_table import COPY, CopyPlan, SourceTable
from streamclient.core.shard_tree import is_kept, next_look
from streamclient.destinations.commit import Commit, MergingDestination
from streamclient.destinations.folding.row_changes import CLOCKS_MARGIN_MICROS
from streamclient.errors import StreamClientException, TrimmedDataException
from streamclient.model import Shard

LISTED = f"{COPY}/listed"
"""The name in ``Commit.shard`` of the commits that store the listings."""

_TRY_AGAIN_MICROS = 60 * 1_000_000


@frozen
class Listing:
    """A stored listing of a stream's shards, without the shards from which the mirror has merged changes."""

    micros: int
    """The time of the listing, in microseconds since 1970. Every shard that was opened later is absent."""
    places: Mapping[str, str]
    """The first position of each listed shard, by the shard's id."""

    def to_text(self) -> str:
        """Return the listing as JSON text, which a commit in the destination's log stores."""
        return json.dumps({"micros": self.micros, "places": dict(self.places)})

    @classmethod
    def of(cls, last: Commit | None) -> Listing | None:
        """Return the listing in the commit ``last``. Return ``None`` if ``last`` is ``None``.

        Mirrors of earlier versions of this package have no such commit.
        """
        return None if last is None else cls.from_text(last.end)

    @classmethod
    def from_text(cls, text: str) -> Listing:
        """Return the listing from its JSON text, which ``to_text`` has made."""
        plain = parse_json(text)
        return cls(plain["micros"], plain["places"])


@define(eq=False)
class ShardWatch:
    """Detects lost changes of new shards.

    It lists the shards when a process begins to follow the stream, and then at intervals.
    """

    source: SourceTable
    destination: MergingDestination
    plan: CopyPlan
    _next_micros: int = field(init=False, default=0)

    @property
    def is_due(self) -> bool:
        """Whether it is time for the next listing."""
        return now_micros() >= self._next_micros

    def try_later(self) -> None:
        """Postpone the next listing for a minute, after an error of the service or the destination."""
        self._next_micros = now_micros() + _TRY_AGAIN_MICROS

    def look(self) -> None:
        """List the shards, check that no changes are lost, and store the listing if the stored one is too old.

        Raises:
            TrimmedDataException: changes of a shard are lost, or may be lost without a sign in the stream.
            StreamClientError: the service or the destination failed.
        """
        # Take the time before the call, because the response may lack shards that are opened during the call.
        now = now_micros()
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
                    f"changes of shard {shard.shard_id} left the stream before any of them was merged: {error}; begin "
                    "a new mirror, with another destination and status table"
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
        assert columns is not None  # the copy has created the destination's table
        try:
            self.destination.commit(columns.empty_table(), [commit])
        except StreamClientException:
            if self.destination.last_commits([LISTED])[LISTED] == last:
                raise  # otherwise another process has stored a listing, and no error is needed
