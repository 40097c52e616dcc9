"""The thread that merges the changes of all shards that a process of a mirror has.

The thread works in these steps. After a crash, another process may repeat a batch, but no change is lost or stored
twice.

1. For each shard that is due, take waiting pages as a batch. The batch begins where the shard's last commit ended.
2. Store each shard's commit in the status table, as a prepared checkpoint. After a crash, the shard's next owner finds
   the commit there, reads up to the same record, and completes the same batch.
3. If the mirror keeps a history, store the changes and these commits in the history.
4. Store the changed rows and these commits in the mirror, in one step. If a later owner has committed, the destination
   refuses the step. A repeated step changes nothing.
5. Store the checkpoints.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING

from attrs import define, field

from streamclient.base import logs
from streamclient.base.pools import start_thread
from streamclient.base.processes import Birthplace
from streamclient.base.reasons import counted
from streamclient.base.times import now_micros
from streamclient.copying.copy_trouble import WAIT_SECONDS, UnmergedChanges
from streamclient.copying.mirror_shards import MergeLimits, MirroredShard, ShardCut, WaitingPage
from streamclient.copying.reread import Key as RowKey
from streamclient.copying.reread import as_changes, remember
from streamclient.copying.source_table import SourceTable
from streamclient.destinations.commit import Commit, Destination, FencedCommit, MergingDestination, is_stored
from streamclient.destinations.destination_packages import pyarrow
from streamclient.destinations.folding.fold import copied, fold, stored_keys, types_of, with_keys, without_doubles
from streamclient.destinations.folding.folded_batches import ChangeBatch
from streamclient.destinations.folding.row_changes import CLOCKS_MARGIN_MICROS, TableRule, expired
from streamclient.destinations.rows.change_rows import VERSION, change_rows
from streamclient.destinations.rows.digest import records_digest
from streamclient.errors import DependencyException, StreamClientException, TrimmedDataException
from streamclient.interfaces import InitializationInput
from streamclient.records import StreamRecord

if TYPE_CHECKING:
    from pyarrow import Schema, Table

    from streamclient.copying.mirror_listing import ShardWatch

_log = logs.logger(__name__)

EXPIRY = "expiry"
"""The name in ``Commit.shard`` of the commits that store the time up to which expired cells were removed."""

_EXPIRED_ROWS = 20_000
"""The largest number of rows from which one commit removes expired cells."""

_SHOWN_KEYS = 10
"""The largest number of row keys that one log message shows."""

_LOOK_SECONDS = 0.25
"""The interval, in seconds, at which a waiting processor checks whether its lease is lost."""

CLOSED = "the mirror has ended"


@define(eq=False)
class MirrorWriter:
    """Merges the changes of all shards of this process into the mirror, in its own thread. Thread-safe."""

    source: SourceTable
    destination: MergingDestination
    rule: TableRule
    history: Destination | None = None
    limits: MergeLimits = field(factory=MergeLimits)
    watch: ShardWatch | None = None
    loss: str = ""
    """The reason why the mirror may lack changes; empty while no loss is found. Any thread may read this text."""
    clock: Callable[[], float] = time.monotonic
    merges: int = 0
    """The number of merges by this object."""
    changes: int = 0
    """The number of changes that this object has merged."""
    unmerged: UnmergedChanges = field(factory=UnmergedChanges)
    """The lag of each shard, and the failures of the shard's merges. Any thread may read from this object."""
    _shards: list[MirroredShard] = field(factory=list)
    _changed: threading.Condition = field(factory=threading.Condition)
    _birthplace: Birthplace = field(factory=Birthplace)
    _thread: threading.Thread | None = None
    _using: threading.Lock = field(factory=threading.Lock)
    """The lock that a thread holds while it uses ``destination``, which serves one thread at a time."""
    _is_closed: bool = False
    _expired_at: float | None = None

    def start(self) -> None:
        """Start the thread that merges.

        Raises:
            NoThreadError: the system refused the thread.
        """
        self._thread = start_thread(self._run, "streamclient-mirror")

    def close(self) -> None:
        """Let the thread end, and wait until it has finished its current merge.

        The next owners of the shards read the remaining changes from the last checkpoints.
        """
        self._birthplace.require("the mirror")
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(WAIT_SECONDS)

    def begin(self, given: InitializationInput) -> MirroredShard:
        """Register the shard of a new processor, and return the shard's state.

        If an earlier owner has stored a batch but not the batch's checkpoint, this call stores the checkpoint. If the
        earlier owner has only prepared the batch, the shard's next batch will have the same records.
        """
        shard = MirroredShard(given.shard_info, given.checkpointer, given.shutdown_marker, given.initial_checkpoint)
        try:
            self._settle(shard, given)
        except Exception as error:
            with self._changed:
                self.unmerged.failed(shard.info.shard_id, shard.start, error, self.clock())
            raise
        with self._changed:
            self.unmerged.begins(shard.info.shard_id, shard.start)
            self._shards.append(shard)
            self._changed.notify_all()
        return shard

    def _settle(self, shard: MirroredShard, given: InitializationInput) -> None:
        pending = given.pending_checkpoint
        if pending is None:
            return
        promised = Commit.from_json(pending.state)
        with self._using:
            last = self.destination.last_commits([promised.shard])[promised.shard]
        if last is not None and last.digest == promised.digest:
            given.checkpointer.checkpoint(pending.value)
            shard.start = pending.value
        else:
            shard.promised = promised

    def offer(self, shard: MirroredShard, records: Sequence[StreamRecord], end: str) -> None:
        """Add ``records``, which end at the position ``end``, to the waiting changes of the shard.

        If the shard has failed, raise its error. While the waiting changes fill two batches, the call does not return.
        """
        page = WaitingPage.of(records, end, self.clock())
        with self._changed:
            self._raise(shard)
            shard.pages.append(page)
            self.unmerged.waits(shard.info.shard_id, shard.start, page.records)
            self._changed.notify_all()
            if shard.promised is None:
                self._await(lambda: shard.is_over or not shard.is_full(self.limits, 2), shard)
            self._raise(shard)

    def flush(self, shard: MirroredShard, *, is_end: bool) -> None:
        """Wait until all waiting changes of the shard are merged. If ``is_end``, commit the end of the shard, too."""
        with self._changed:
            shard.is_flushing, shard.is_ending = True, is_end
            if shard.promised is not None and not (is_end or shard.is_under_way) and shard.due_at(self.limits) is None:
                return  # some records of the prepared batch are missing, so the shard's next owner completes it
            self._changed.notify_all()
            self._await(lambda: shard.is_settled, shard)
            self._raise(shard)

    def leave(self, shard: MirroredShard, *, is_lost: bool = False) -> None:
        """Forget the shard and drop its waiting changes. ``is_lost`` says whether the shard's lease is lost."""
        with self._changed:
            shard.is_lost |= is_lost
            shard.pages.clear()
            if shard in self._shards:
                self._shards.remove(shard)
            self._changed.notify_all()

    def _raise(self, shard: MirroredShard) -> None:
        if shard.error is not None:
            raise shard.error
        if self._is_closed:
            raise StreamClientException(CLOSED)

    def _await(self, ready: Callable[[], bool], shard: MirroredShard) -> None:
        deadline = self.clock() + WAIT_SECONDS
        while not self._changed.wait_for(lambda: ready() or self._is_closed, _LOOK_SECONDS):
            if shard.checkpointer.is_closed:
                return
            if self.clock() > deadline:
                raise StreamClientException(f"the destination did not take a batch within {WAIT_SECONDS:g} s")

    # --- methods of the merging thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            cuts = self._await_due()
            if cuts is None:
                return
            errors = self._store_safely(cuts) if cuts else {}
            with self._changed:
                self.unmerged.answered(self.clock())
                for cut in cuts:
                    self._note(cut, errors.get(cut.part.shard))
                self._changed.notify_all()
            for cut in cuts:
                if cut.shard.error is not None:
                    # Without this request, the processor would raise the error only when new changes come.
                    cut.shard.marker.mark_for_process_restart()
            if self._is_expiry_due():
                self._expire_safely()
            if self._is_look_due():
                self._look_safely()

    def _note(self, cut: ShardCut, error: Exception | None) -> None:
        shard, shard_id = cut.shard, cut.part.shard
        shard.is_under_way, shard.error = False, error
        if error is not None:
            self.unmerged.failed(shard_id, shard.start, error, self.clock())
            return
        shard.start, shard.promised = cut.end, None
        self.unmerged.merged(shard_id)
        if shard.pages:
            self.unmerged.waits(shard_id, shard.start, shard.pages[0].records)

    def _await_due(self) -> list[ShardCut] | None:
        """Wait for work, and return the batches that are due.

        Return an empty list if other work is due, such as the removal of expired cells; ``None`` after ``close``.
        """
        with self._changed:
            while not self._is_closed:
                now = self.clock()
                dates = [(at, shard) for shard in self._shards if (at := shard.due_at(self.limits)) is not None]
                if dates and min(at for at, _ in dates) <= now:
                    # Include shards that are due soon. A merge of many shards costs about as much as a merge of one.
                    soon = now + self.limits.max_age_seconds / 2
                    self.unmerged.merging(now)
                    return self._cut([shard for at, shard in sorted(dates, key=itemgetter(0)) if at <= soon])
                if self._is_expiry_due() or self._is_look_due():
                    return []
                waits = [at - now for at, _ in dates] + [self.limits.expiry_seconds]
                self._changed.wait(max(0.001, min(waits)))
        return None

    def _cut(self, due: Sequence[MirroredShard]) -> list[ShardCut]:
        """Take a batch from each shard in ``due`` until one merge has enough changes. The other shards stay due."""
        cuts: list[ShardCut] = []
        for shard in due:
            if sum(cut.size_bytes for cut in cuts) < self.limits.max_bytes:
                cuts.append(shard.cut(self.limits))
        return cuts

    def _store_safely(self, cuts: Sequence[ShardCut]) -> dict[str, Exception]:
        """Store the batches ``cuts``; return the errors of the batches that were not stored, by shard id."""
        errors: dict[str, Exception] = {}
        try:
            with self._using:
                self._store(cuts, errors)
        except Exception as error:
            _log.warning("merging changes of %s failed: %s", counted(len(cuts), "shard"), error)
            for cut in cuts:
                errors.setdefault(cut.part.shard, error)
        return errors

    def _store(self, cuts: Sequence[ShardCut], errors: dict[str, Exception]) -> None:
        lasts = self.destination.last_commits([cut.part.shard for cut in cuts])
        for cut in cuts:
            try:
                self._prepare(cut, lasts)
            except Exception as error:
                errors[cut.part.shard] = error
        self._merge_all([cut for cut in cuts if cut.part.shard not in errors], errors)
        for cut in cuts:
            if cut.part.shard in errors:
                continue
            try:
                assert cut.prepared is not None
                cut.prepared.checkpoint()
            except Exception as error:
                errors[cut.part.shard] = error

    def _merge_all(self, left: Sequence[ShardCut], errors: dict[str, Exception]) -> None:
        """Merge the batches ``left`` in one step, if possible.

        If the destination refuses shards because a later owner has committed, merge the batches of the other shards. If
        the changes of a shard cannot be stored, merge each batch in a step of its own. Put the errors of shards into
        ``errors``, by shard id. Raise an error that concerns all batches, such as a failure of the destination.
        """
        while left:
            try:
                self._merge(left)
                return
            except FencedCommit as error:
                errors.update(dict.fromkeys(error.shards, error))
                if not any(cut.part.shard in errors for cut in left):
                    raise  # the error names none of these shards
                left = [cut for cut in left if cut.part.shard not in errors]
            except DependencyException:
                raise  # the destination has failed, and not because of a change
            except Exception:
                if len(left) == 1:
                    raise
                self._merge_each(left, errors)
                return

    def _merge_each(self, cuts: Sequence[ShardCut], errors: dict[str, Exception]) -> None:
        for cut in cuts:
            try:
                self._merge([cut])
            except Exception as error:
                errors[cut.part.shard] = error

    def _prepare(self, cut: ShardCut, lasts: Mapping[str, Commit | None]) -> None:
        info, promised = cut.shard.info, cut.shard.promised
        commit = Commit.after(
            lasts[info.shard_id],
            application=self.destination.application,
            shard=info.shard_id,
            epoch=info.epoch,
            start=cut.shard.start if promised is None else promised.start,
            end=cut.end,
            count=len(cut.part.records),
            content=records_digest(cut.part.changes),
        )
        if promised is not None and not commit.keeps(promised):
            changes = counted(promised.count, "change")
            raise StreamClientException(
                f"an earlier owner of shard {info.shard_id} prepared a batch up to {promised.end} with {changes}, but "
                f"{commit} has {commit.count}: the stream gives other records than before"
            )
        cut.commit = commit
        cut.prepared = cut.shard.checkpointer.prepare_checkpoint(cut.end, commit.to_json().encode())

    def _merge(self, cuts: Sequence[ShardCut]) -> None:
        commits = [cut.commit for cut in cuts if cut.commit is not None]
        if self.history is not None:
            self._remember(self.history, cuts)
        batch = ChangeBatch.of([cut.part for cut in cuts])
        if batch.is_empty:
            self.destination.commit(self._no_rows(), commits)
        else:
            self.destination.merge(batch.keys(self._key_names()), lambda present: self._folded(present, batch), commits)
        self.merges += 1
        self.changes += len(batch.records)

    def _folded(self, present: Table, batch: ChangeBatch) -> Table:
        found = fold(present, batch, self.rule)
        if len(found.in_doubt) > len(found.doubled):
            _log.info("rows are read from the source table, because single versions of their cells were deleted")
        return self._with_doubts(found.rows, present.schema, found.in_doubt, found.doubled, batch)

    def _with_doubts(
        self,
        rows: Table,
        present: Schema,
        keys: Sequence[RowKey],
        doubled: Sequence[RowKey],
        batch: ChangeBatch | None,
    ) -> Table:
        """Return ``rows`` together with the rows in doubt, as the source table has them now.

        ``present`` has the columns of the mirror's table, some of which ``rows`` may lack.

        ``keys`` has the keys of the rows in doubt. ``doubled`` has the keys among them for which the mirror has several
        rows. If the mirror keeps a history and ``batch`` is not ``None``, store the rows from the source table in the
        history, as changes that follow the changes in ``batch``.
        """
        if not keys:
            return rows
        if doubled:
            shown = ", ".join(map(repr, doubled[:_SHOWN_KEYS]))
            keys_found = counted(len(doubled), "key")
            _log.warning("the mirror has several rows for %s, and reads the source's rows: %s", keys_found, shown)
        records, at = self.source.read_again(self.rule, keys)
        if self.history is not None and batch is not None:
            remember(self.history, as_changes(batch, self.rule, keys, records), at, self.rule)
        pa = pyarrow()
        columns = pa.schema([*rows.schema, *(each for each in present if each.name not in rows.column_names)])
        again = copied(records, at, columns, self.rule)
        return pa.concat_tables([rows, again], promote_options="default")

    def _remember(self, history: Destination, cuts: Sequence[ShardCut]) -> None:
        """Store the changes and commits of ``cuts`` in the history, unless an earlier owner has already stored them."""
        lasts = history.last_commits([cut.part.shard for cut in cuts])
        left = [cut for cut in cuts if cut.commit is not None and not is_stored(lasts, [cut.commit])]
        if left:
            history.commit(self._history_rows(history, left), [cut.commit for cut in left if cut.commit is not None])

    def _history_rows(self, history: Destination, cuts: Sequence[ShardCut]) -> Table:
        pa, columns = pyarrow(), history.columns()
        parts = []
        for cut in cuts:
            number = cut.commit.number if cut.commit is not None else 0
            shard, declared = cut.part.shard, self.rule.declared
            rows = change_rows(cut.part.changes, shard=shard, number=number, columns=columns, declared=declared)
            # If a column is new in several shards, it takes its type from the first of these shards.
            columns = rows.schema if columns is None else pa.unify_schemas([columns, rows.schema])
            parts.append(rows)
        return pa.concat_tables(parts, promote_options="default")

    def _key_names(self) -> dict[str, str]:
        return dict(zip(self.rule.key, stored_keys(self.rule), strict=True))

    def _no_rows(self) -> Table:
        columns = self.destination.columns()
        assert columns is not None  # the copy has created the destination's table
        return columns.empty_table()

    # --- regular listings of the shards ---------------------------------------------------------------------------

    def _is_look_due(self) -> bool:
        return self.watch is not None and self.watch.is_due and not (self._is_closed or self.loss)

    def _look_safely(self) -> None:
        assert self.watch is not None
        try:
            with self._using:
                self.watch.look()
        except TrimmedDataException as error:
            self.loss = str(error)
            _log.error("the mirror may lack changes: %s", error)
        except Exception as error:
            self.watch.try_later()
            _log.warning("the shards of the stream could not be listed; the mirror tries again in a minute: %s", error)

    # --- removal of expired cells ---------------------------------------------------------------------------------

    def _is_expiry_due(self) -> bool:
        if self.rule.ttl_millis is None or self._is_closed:
            return False
        return self._expired_at is None or self.clock() - self._expired_at >= self.limits.expiry_seconds

    def _expire_safely(self) -> None:
        self._expired_at = self.clock()
        try:
            with self._using:
                self.expire(now_micros())
        except FencedCommit as error:
            _log.info("expired cells are removed by another process: %s", error)
        except Exception as error:
            _log.warning("expired cells could not be removed; the mirror tries again later: %s", error)

    def expire(self, now: int) -> None:
        """Remove all cells from the mirror that have exceeded the table's time to live at ``now``.

        ``now`` is a time in microseconds since 1970.
        """
        before = (now - CLOCKS_MARGIN_MICROS) // 1_000 - (self.rule.ttl_millis or 0)
        below = self.destination.rows_below(VERSION, before)
        names = stored_keys(self.rule)
        keys = [with_keys(table, self.rule).select(names).group_by(names).aggregate([]) for table in below]
        for table in keys:
            for first in range(0, table.num_rows, _EXPIRED_ROWS):
                self._expire_some(table.slice(first, _EXPIRED_ROWS), before)

    def _expire_some(self, keys: Table, before_millis: int) -> None:
        last = self.destination.last_commits([EXPIRY])[EXPIRY]
        commit = Commit.note(last, application=self.destination.application, shard=EXPIRY, text=str(before_millis))

        def left(present: Table) -> Table:
            single, doubled = without_doubles(with_keys(present, self.rule), self.rule)
            rows = expired(single, before_millis, self.rule, types_of(single, self.rule))
            return self._with_doubts(rows, present.schema, doubled, doubled, None)

        self.destination.merge(keys, left, [commit])
