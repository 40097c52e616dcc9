"""The collection of facts about a fleet: which reads are made, in which order, and how failed reads are handled."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from threading import Event

from attrs import evolve

from streamclient.errors import ConfigurationError, StreamClientError, StreamClientException
from streamclient.operate.explanation import explain
from streamclient.operate.facts import FleetFacts, HeadFacts, RowFacts, StreamView, WorkerFacts
from streamclient.operate.next_records import HeadReader
from streamclient.operate.site import Site

DEFAULT_LEASE_SECONDS = 20.0
"""The lease duration, in seconds, to assume if no worker publishes its lease duration in a session row."""


NO_SUCH_TABLE = "the table does not exist: check the name and the instance"

WRONG_FOR_GOOD = frozenset({"", "misfit", "missing", "refused", "clock"})
"""Codes of problems that last until the user solves them: a wrong name, key or clock, or a table without a stream.

The empty code stands for a table without a stream.
"""


class FleetReader:
    """The reader of the facts about one fleet. It remembers each shard's *head*, which is its next unread record."""

    def __init__(
        self,
        site: Site,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        wait: Callable[[float], object] | None = None,
    ) -> None:
        self.site = site
        self._monotonic = monotonic
        self._wait = wait or Event().wait
        self._heads: HeadReader | None = None

    # --- all facts -------------------------------------------------------------------------------------------------

    def collect(self, heads: Iterable[str] | None = (), *, observe_seconds: float = 0.0) -> FleetFacts:
        """Read the stream, the lease rows, the workers, and the heads of the shards ``heads``.

        If ``heads`` is ``None``, read the heads of all unfinished shards. If ``observe_seconds`` is above 0, wait
        for this time, and read rows and workers again. If a read fails, the returned facts name the problem.
        """
        stream = self.stream()
        if stream.stream_id is None:
            return self._without_stream(stream)
        try:
            facts = self._fleet(stream, stream.stream_id, observe_seconds)
        except StreamClientError as error:
            problem, code = self.site.problem_of_status_table(error)
            return self._facts(stream, problem=problem, problem_code=code)
        self.head_reader(stream.stream_id).forget_all_but(facts.leases)
        wanted = sorted(facts.leases) if heads is None else [key for key in heads if key in facts.leases]
        checkpoints = {key: facts.leases[key].checkpoint for key in wanted if not facts.leases[key].is_finished}
        return evolve(facts, heads=self.heads(stream.stream_id, checkpoints), now_micros=self.site.clock.now_micros())

    def refreshed(self, facts: FleetFacts) -> FleetFacts:
        """Read lease rows and workers again, and return ``facts`` with them. A failed read raises its error."""
        if facts.stream.stream_id is None:
            return facts
        rows, workers = self.rows(facts.stream.stream_id), self.workers(facts.stream.stream_id)
        return evolve(facts, rows=rows, workers=workers, now_micros=self.site.clock.now_micros())

    def lineage_of(self, facts: FleetFacts, shard_id: str) -> list[str]:
        """Return the unfinished shards among ``shard_id`` and its ancestors.

        The explanation of ``shard_id`` needs the heads of all these shards.
        """
        lineage = (shard_id, *facts.tree.ancestors(shard_id))
        return [key for key in lineage if key in facts.leases and not facts.leases[key].is_finished]

    def with_heads(self, facts: FleetFacts, shard_ids: Iterable[str]) -> FleetFacts:
        """Read the heads (next unread records) of the shards ``shard_ids``, and return ``facts`` with these heads."""
        if facts.stream.stream_id is None or facts.problem:
            return facts
        checkpoints = {key: facts.leases[key].checkpoint for key in shard_ids if key in facts.leases}
        return evolve(facts, heads={**facts.heads, **self.heads(facts.stream.stream_id, checkpoints)})

    # --- one kind of facts -----------------------------------------------------------------------------------------

    def stream(self) -> StreamView:
        """Read the stream with its shards and retention.

        If the read fails, the result names the problem.
        """
        name = self.site.data_table
        stream_id: str | None = None
        try:
            streams = self.site.streams.list_stream(name)
            if not streams:
                self.site.streams.describe_table(name)  # describe_table raises an error if the table itself is missing
                return StreamView(table_name=name, stream_id=None)
            stream_id = streams[0].stream_id
            described = self.site.streams.describe_stream(stream_id)
        except StreamClientError as error:
            text, code = self.site.problem_of(error)
            if code == "missing" and stream_id is not None:  # the stream was switched off between two requests
                return StreamView(table_name=name, stream_id=None)
            problem = NO_SUCH_TABLE if code == "missing" else text
            return StreamView(table_name=name, stream_id=stream_id, problem=problem, problem_code=code)
        return StreamView(
            table_name=name,
            stream_id=stream_id,
            expiration_hours=described.expiration_time_hours,
            listing={shard.shard_id: shard for shard in described.shards},
        )

    def rows(self, stream_id: str) -> Mapping[str, RowFacts]:
        """Read all lease rows of a stream, including malformed rows."""
        return self.site.read("scanning the status table", lambda: self.site.table.leases(stream_id))

    def workers(self, stream_id: str) -> Mapping[str, WorkerFacts]:
        """Read the session rows of all workers.

        Call this after ``rows``. Then the session row of an owner is at least as new as the owner's lease rows.
        """
        return self.site.read("reading the workers", lambda: self.site.table.workers(stream_id))

    def heads(self, stream_id: str, checkpoints: Mapping[str, str]) -> dict[str, HeadFacts]:
        """Return facts about the next unread record of each shard. ``checkpoints`` has the checkpoints by shard id."""
        return self.head_reader(stream_id).read(checkpoints)

    def head_reader(self, stream_id: str) -> HeadReader:
        """Return the reader that remembers the heads (next unread records) of the stream's shards.

        If ``stream_id`` is not the stream of the previous call, make a new reader.
        """
        if self._heads is None or self._heads.stream_id != stream_id:
            self._heads = HeadReader(self.site.streams, stream_id, self._monotonic)
        return self._heads

    # --- helpers ---------------------------------------------------------------------------------------------------

    def _fleet(self, stream: StreamView, stream_id: str, observe_seconds: float) -> FleetFacts:
        rows, workers = self.rows(stream_id), self.workers(stream_id)
        if observe_seconds > 0 and rows:
            began = self._monotonic()
            self._pause(observe_seconds)
            later, later_workers = self.rows(stream_id), self.workers(stream_id)
            observed = self._monotonic() - began
            facts = self._facts(stream, later, later_workers)
            facts = evolve(facts, earlier=rows, earlier_workers=workers, observed_seconds=observed)
        else:
            facts = self._facts(stream, rows, workers)
        return facts if rows else self._with_former(facts, stream_id)

    def _pause(self, seconds: float) -> None:
        self._wait(seconds)

    def _with_former(self, facts: FleetFacts, stream_id: str) -> FleetFacts:
        """Return ``facts`` with the leases of the data table's former stream, if the status table still has them."""
        former = [
            other for other in self._stream_ids() if other != stream_id and _is_of(other, facts.stream.table_name)
        ]
        if not former:
            return facts
        return evolve(facts, former_stream_id=former[-1], former_rows=self.rows(former[-1]))

    def _without_stream(self, stream: StreamView) -> FleetFacts:
        facts = self._facts(stream)
        if stream.problem:
            return facts
        try:
            return self._with_former(facts, "")
        except StreamClientError:
            return facts

    def _stream_ids(self) -> list[str]:
        return self.site.read("looking for other streams", self.site.table.stream_ids)

    def _facts(
        self,
        stream: StreamView,
        rows: Mapping[str, RowFacts] | None = None,
        workers: Mapping[str, WorkerFacts] | None = None,
        *,
        problem: str = "",
        problem_code: str = "",
    ) -> FleetFacts:
        return FleetFacts(
            now_micros=self.site.clock.now_micros(),
            lease_duration_seconds=self.site.lease_seconds or _published_lease_seconds(workers or {}),
            status_table_name=self.site.status_table,
            stream=stream,
            rows=rows or {},
            workers=workers or {},
            problem=problem,
            problem_code=problem_code,
        )


def readable(facts: FleetFacts) -> FleetFacts:
    """Return ``facts`` if stream and status table could be read; otherwise raise an error.

    Raises:
        ConfigurationError: a read failed, and will fail until the user solves the problem that the error names.
        StreamClientException: a read failed, but may succeed later. The error says why, and what to do.
    """
    if reason := facts.unreadable:
        is_lasting = (facts.problem_code or facts.stream.problem_code) in WRONG_FOR_GOOD
        text = f"{reason}. {explain(facts, '').situation.advice}"
        raise (ConfigurationError if is_lasting else StreamClientException)(text)
    return facts


def _published_lease_seconds(workers: Mapping[str, WorkerFacts]) -> float:
    """Return the longest lease duration that a worker publishes.

    With a shorter duration, some living workers would seem dead.
    """
    published = [worker.info.lease_duration_millis for worker in workers.values() if worker.info.lease_duration_millis]
    return max(published) / 1_000 if published else DEFAULT_LEASE_SECONDS


def _is_of(stream_id: str, table_name: str) -> bool:
    """Return whether a stream id belongs to the table ``table_name``.

    The service composes a stream id from the table's name and a time.
    """
    return stream_id.startswith(f"{table_name}_") and stream_id.removeprefix(f"{table_name}_").isdigit()
