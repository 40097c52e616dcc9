"""Epochs: numbers that only grow. The status table has one epoch row per shard, which outlives the shard's lease.

The service can increase a column in one write, but the SDK does not decode the row that comes back. A later read could
give two workers the same epoch. So a worker makes a new epoch by comparing and setting, for many shards together. One
request reads all rows. Another request writes them, each on the condition that the row is unchanged since the read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attrs import frozen
from tablestore import OTSClient

from streamclient.base.kept_formats import FORMAT_COLUMN, KeptFormat
from streamclient.core import write_rules
from streamclient.core.write_rules import EpochRow, EpochWrite, WriteOutcome
from streamclient.errors import DependencyException, ErrorKind, StreamClientError
from streamclient.tablestore.row_batches import ROWS_PER_READ, read_rows
from streamclient.worker.lease.lease_batches import send_rows
from streamclient.worker.lease.lease_rows import EPOCH_STATUS_TYPE, Cells, item_of, key_of
from streamclient.worker.lease.lease_store import WriteAnswer

EPOCH = "Epoch"
"""The column that holds the last epoch of the shard."""

EPOCH_FORMAT = KeptFormat("the epoch row")

CELLS: Cells[EpochRow] = {"number": lambda row: {EPOCH: row.number}}
"""The functions that return the columns of an epoch row, one function for each field. The keys are the fields'
names."""

DRAWS_AT_MOST = 4
"""The largest number of attempts to draw an epoch. An attempt fails if another worker draws an epoch of the same shard
meanwhile. Only workers that acquire the shard at the same time do this, and each of them needs only one epoch. They are
few, so if all these attempts fail, the service probably refuses every write."""


@frozen
class EpochRows:
    """The epochs of the shards of one stream. Thread-safe; no call is repeated after a failure."""

    client: OTSClient
    table_name: str
    stream_id: str

    def draw(self, lease_keys: Sequence[str]) -> Sequence[int | Exception]:
        """Draw an epoch for each of ``lease_keys``, greater than all earlier epochs of that key. Never raises.

        The keys must differ. The result has an epoch or an error for each key, in order.
        """
        drawn: dict[str, int | Exception] = {}
        for batch in _batches(lease_keys):
            drawn.update(self._draw_batch(batch))
        return [drawn[key] for key in lease_keys]

    def forget(self, lease_keys: Sequence[str]) -> Mapping[str, Exception]:
        """Delete the rows of ``lease_keys``; return the errors of the rows that stay, by lease key."""
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
            drawn.setdefault(key, DependencyException(f"no epoch for shard {key}: another worker was always faster"))
        return drawn

    def _try(self, lease_keys: Sequence[str]) -> Mapping[str, int | Exception]:
        """Try once to draw an epoch for each key. Leave out each key whose epoch another worker has just changed."""
        rows = self._read(lease_keys)
        drawn: dict[str, int | Exception] = {key: row for key, row in rows.items() if isinstance(row, Exception)}
        writes = [write_rules.draw(key, row) for key, row in rows.items() if not isinstance(row, Exception)]
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
        try:
            rows = read_rows(self.client, self.table_name, [self._key(key) for key in lease_keys])
        except StreamClientError as error:
            return dict.fromkeys(lease_keys, error)
        return {key: _parsed(key, row) for key, row in zip(lease_keys, rows, strict=True)}

    def _key(self, lease_key: str) -> list[tuple[str, object]]:
        return key_of(self.stream_id, lease_key, EPOCH_STATUS_TYPE)


def _parsed(lease_key: str, row: Any) -> EpochRow | Exception | None:
    """Return the content of ``row``; if ``row`` is ``None`` or an error, return it unchanged."""
    if row is None or isinstance(row, Exception):
        return row
    cells = {name: value for name, value, *_ in row.attribute_columns or ()}
    if problem := EPOCH_FORMAT.problem(cells.get(FORMAT_COLUMN)):
        return DependencyException(f"epoch row {row.primary_key}: {problem}", kind=ErrorKind.PERMANENT)
    number = cells.get(EPOCH)
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        return DependencyException(
            f"epoch row {row.primary_key} holds {EPOCH} = {number!r}, which is not a number above 0; set it to "
            "a number above every epoch that its shard ever had",
            kind=ErrorKind.PERMANENT,
        )
    return EpochRow(lease_key, number)


def _batches(lease_keys: Sequence[str]) -> Iterator[Sequence[str]]:
    return (lease_keys[start : start + ROWS_PER_READ] for start in range(0, len(lease_keys), ROWS_PER_READ))
