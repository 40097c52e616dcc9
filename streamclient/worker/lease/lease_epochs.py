"""Numbers that only grow: one row per shard in the status table, beside its lease and outliving it.

The service can increase a column by itself, but the SDK does not decode the row that comes back, and reading it
afterwards would give two workers one number. So a number is drawn by comparing and setting, for many shards at once:
all rows are read with one request, and written with another one, each on the condition that it is still as read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attrs import frozen
from tablestore import BatchGetRowRequest, OTSClient, TableInBatchGetRowItem

from streamclient.core import write_rules
from streamclient.core.write_rules import EpochRow, EpochWrite, WriteOutcome
from streamclient.errors import DependencyException, ErrorKind, StreamClientException
from streamclient.tablestore.row_batches import translated
from streamclient.wire.service_errors import from_answer
from streamclient.worker.lease.lease_batches import send_rows
from streamclient.worker.lease.lease_rows import EPOCH_STATUS_TYPE, Cells, item_of, key_of
from streamclient.worker.lease.lease_store import WriteAnswer

EPOCH = "Epoch"
"""The last number that was drawn."""

CELLS: Cells[EpochRow] = {"number": lambda row: {EPOCH: row.number}}
"""How an epoch row is stored."""

ROWS_PER_DRAW = 100
"""The service takes at most this many rows in one BatchGetRow, half of what a BatchWriteRow takes."""

DRAWS_AT_MOST = 4
"""How often a number is tried for that others draw, too. Only workers that acquire one shard at one time do, and each
of them once; more than a few collisions in a row are a service that never accepts."""


@frozen
class EpochRows:
    """The epochs of one stream's shards. Thread-safe; no call is repeated after a failure."""

    client: OTSClient
    table_name: str
    stream_id: str

    def draw(self, lease_keys: Sequence[str]) -> Sequence[int | Exception]:
        """A number for each of some different keys, greater than every one drawn for it before; never raises."""
        drawn: dict[str, int | Exception] = {}
        for batch in _batches(lease_keys):
            drawn.update(self._draw_batch(batch))
        return [drawn[key] for key in lease_keys]

    def forget(self, lease_keys: Sequence[str]) -> Mapping[str, Exception]:
        """Delete the rows of some keys; which ones stay, and why."""
        kept: dict[str, Exception] = {}
        for batch in _batches(lease_keys):
            answers = self._send([write_rules.forget(key) for key in batch])
            kept.update((key, answer.error) for key, answer in zip(batch, answers, strict=True) if answer.error)
        return kept

    def _draw_batch(self, lease_keys: Sequence[str]) -> Mapping[str, int | Exception]:
        drawn: dict[str, int | Exception] = {}
        for _ in range(DRAWS_AT_MOST):
            wanted = [key for key in lease_keys if key not in drawn]
            if wanted:
                drawn.update(self._try(wanted))
        for key in lease_keys:
            drawn.setdefault(key, DependencyException(f"others drew every epoch of shard {key} that was tried"))
        return drawn

    def _try(self, lease_keys: Sequence[str]) -> Mapping[str, int | Exception]:
        """Try once; keys for which somebody else was faster are left out."""
        found = self._read(lease_keys)
        drawn: dict[str, int | Exception] = {key: row for key, row in found.items() if isinstance(row, Exception)}
        writes = [write_rules.draw(key, row) for key, row in found.items() if not isinstance(row, Exception)]
        for write, answer in zip(writes, self._send(writes), strict=True):
            if answer.outcome is not WriteOutcome.REFUSED and write.result is not None:
                drawn[write.lease_key] = answer.error or write.result.number
        return drawn

    def _send(self, writes: Sequence[EpochWrite]) -> Sequence[WriteAnswer]:
        if not writes:
            return []
        items = [item_of(write, self._key(write.lease_key), CELLS) for write in writes]
        return send_rows(self.client, self.table_name, items)

    def _read(self, lease_keys: Sequence[str]) -> Mapping[str, EpochRow | Exception | None]:
        request = BatchGetRowRequest()
        keys = [self._key(key) for key in lease_keys]
        request.add(TableInBatchGetRowItem(self.table_name, keys, max_version=1))
        try:
            results = self.client.batch_get_row(request).get_result_by_table(self.table_name) or []
        except Exception as error:
            return dict.fromkeys(lease_keys, translated(error, write=False, client=self.client))
        if len(results) != len(lease_keys):
            wrong = StreamClientException(f"BatchGetRow gave {len(results)} rows for {len(lease_keys)} keys")
            return dict.fromkeys(lease_keys, wrong)
        return {key: _parsed(key, result) for key, result in zip(lease_keys, results, strict=True)}

    def _key(self, lease_key: str) -> list[tuple[str, object]]:
        return key_of(self.stream_id, lease_key, EPOCH_STATUS_TYPE)


def _parsed(lease_key: str, result: Any) -> EpochRow | Exception | None:
    """What a row holds; ``None`` if there is no row."""
    if not result.is_ok:
        return from_answer(result.error_code, result.error_message, write=False)
    if result.row is None or not result.row.primary_key:
        return None
    cells = {name: value for name, value, *_ in result.row.attribute_columns or ()}
    number = cells.get(EPOCH)
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        return DependencyException(
            f"epoch row {result.row.primary_key} holds {EPOCH} = {number!r}, which is no number above 0; set it to one "
            "that is above every epoch its shard ever had",
            kind=ErrorKind.PERMANENT,
        )
    return EpochRow(lease_key, number)


def _batches(lease_keys: Sequence[str]) -> Iterator[Sequence[str]]:
    return (lease_keys[start : start + ROWS_PER_DRAW] for start in range(0, len(lease_keys), ROWS_PER_DRAW))
