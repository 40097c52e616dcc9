"""The repeated reading of a fleet with few requests, for the screens of ``top`` and for the console."""

from __future__ import annotations

import time
from collections.abc import Callable

from attrs import evolve

from streamclient.errors import StreamClientError
from streamclient.operate.collection import FleetReader, readable
from streamclient.operate.facts import FleetFacts
from streamclient.operate.overview import Overview, overview
from streamclient.operate.site import Site
from streamclient.operate.verdict import FleetVerdict, verdict

STREAM_SECONDS = 30.0
"""The seconds between two requests for the list of shards. The list changes when partitions of the table split or
merge, which is rare while a person watches."""

HEADS_PER_REFRESH = 20
"""The largest number of shards whose next unread record one refresh reads; the shards take turns. Each shard takes one
small read, or two if its checkpoint is the oldest record."""


class FleetWatch:
    """The reader of a fleet, which returns a new screen at each call of ``next``. For one thread."""

    def __init__(self, site: Site, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._collector = FleetReader(site, monotonic=monotonic)
        self._monotonic = monotonic
        self._facts: FleetFacts | None = None
        self._listed_at = 0.0
        self.verdict: FleetVerdict | None = None
        """The verdict of the last reading, even if that reading failed; ``None`` before the first reading."""

    def next(self) -> Overview:
        """Read the fleet, and return the next screen.

        Raises:
            StreamClientError: a read failed; the next call tries again.
        """
        before = self._facts
        facts = self._read(before)
        if facts.unreadable:
            self.verdict = verdict(facts, (), self.verdict)
            readable(facts)
        self._facts = self._with_heads(facts)
        view = overview(self._facts, before, self.verdict)
        self.verdict = view.verdict
        return view

    def _read(self, before: FleetFacts | None) -> FleetFacts:
        """Read the fleet and return the facts. If a read fails, the facts name the problem."""
        if before is None or self._monotonic() - self._listed_at > STREAM_SECONDS:
            facts = self._collector.collect()
            if not facts.unreadable:
                self._listed_at = self._monotonic()
            return facts
        try:
            return self._collector.refreshed(before)
        except StreamClientError as error:
            problem, code = self._collector.site.problem_of(error)
            return evolve(before, problem=problem, problem_code=code)

    def _with_heads(self, facts: FleetFacts) -> FleetFacts:
        if facts.stream.stream_id is None:
            return facts
        checkpoints = {key: lease.checkpoint for key, lease in facts.leases.items() if not lease.is_finished}
        reader = self._collector.head_reader(facts.stream.stream_id)
        return evolve(facts, heads=reader.read_some(checkpoints, HEADS_PER_REFRESH))
