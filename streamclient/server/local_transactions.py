"""Local transactions: writes to one partition key of one table that take effect together, or not at all.

Laws:

- A transaction holds its partition key from its start to its end. During this time, only the transaction can write rows
  with that key. Reads outside the transaction see the committed rows. Reads inside the transaction also see the writes
  of the transaction.
- A transaction ends when it is committed or aborted, when its time is over, when its table is deleted, or when the
  server stops. Only a commit has an effect.
"""

from __future__ import annotations

import base64
import binascii
import uuid
from collections import OrderedDict

from attrs import field, frozen

from streamclient.base.times import MICROS_PER_SECOND
from streamclient.records import KeyValue
from streamclient.server import refusals
from streamclient.server.drafts import Draft
from streamclient.server.keys import encode_key
from streamclient.server.server_errors import ServiceError
from streamclient.server.stored_tables import Key, Table
from streamclient.server.writes import WritePlan
from streamclient.wire.plainbuffer import KeyBound

_RANDOM_BYTES = 16
_CHECK_BYTES = 4

_Lock = tuple[int, bytes]
"""The number of a table, and an encoded partition key of this table."""


def new_transaction_id(table_name: str) -> str:
    """Return a random id that cannot be guessed. It contains the table's name, and a checksum that detects damage."""
    data = table_name.encode() + uuid.uuid4().bytes
    return base64.b64encode(data + binascii.crc32(data).to_bytes(_CHECK_BYTES, "big")).decode()


def table_of_transaction(transaction_id: str) -> str:
    """Return the table that a transaction id names.

    Raises:
        ServiceError: the text is not a transaction id. The id of an ended transaction is accepted, too.
    """
    try:
        data = base64.b64decode(transaction_id, validate=True)
        whole, check = data[:-_CHECK_BYTES], data[-_CHECK_BYTES:]
        if len(whole) > _RANDOM_BYTES and binascii.crc32(whole).to_bytes(_CHECK_BYTES, "big") == check:
            return whole[:-_RANDOM_BYTES].decode()
    except (ValueError, UnicodeDecodeError):
        pass
    raise refusals.TRANSACTION_ID()


def partition_key_text(value: KeyValue | KeyBound) -> str:
    """Return a partition key in the form in which the service's error texts print it."""
    if isinstance(value, KeyBound):
        return value.name
    return value.hex() if isinstance(value, bytes) else str(value)


@frozen
class Transaction:
    """An open transaction on one partition key of one table."""

    transaction_id: str
    table: Table
    partition_key: KeyValue
    started_micros: int
    draft: Draft = field(eq=False)

    @property
    def lock(self) -> _Lock:
        """The key of the transaction's lock: the table's number and the encoded partition key."""
        return _lock(self.table, self.partition_key)

    def check_scope(self, table: Table, *keys: Key) -> None:
        """Check that a request stays within the transaction's table and partition key.

        ``keys`` are the keys of rows, or the bounds of a range, that the request names.

        Raises:
            ServiceError: the table or a partition key is not the transaction's (``OTSDataOutOfRange``).
        """
        if table is not self.table:
            raise self._out_of_scope("Table", self.table.definition.name, table.definition.name)
        for key in keys:
            given = key[0][1]
            if given != self.partition_key:
                raise self._out_of_scope("PartKey", partition_key_text(self.partition_key), partition_key_text(given))

    def _out_of_scope(self, what: str, own: str, given: str) -> ServiceError:
        return refusals.TRANSACTION_SCOPE(what=what, own=own, given=given)


def _lock(table: Table, partition_key: KeyValue | KeyBound) -> _Lock:
    return table.definition.number, encode_key((partition_key,))


class Transactions:
    """The open transactions of one server, oldest first. They exist only in memory."""

    def __init__(self, lifetime_seconds: int, most_open: int, most_bytes: int) -> None:
        self._lifetime_micros = lifetime_seconds * MICROS_PER_SECOND
        self._most_open = most_open
        self._most_bytes = most_bytes
        self.held_bytes: int = 0
        """The memory, in bytes, of all planned writes of open transactions, with their rows."""
        # The oldest transaction comes first. Finding the first entry of a plain dictionary is slow after many deletions
        # at its beginning.
        self._open: OrderedDict[str, Transaction] = OrderedDict()
        self._locks: dict[_Lock, Transaction] = {}

    def start(self, table: Table, partition_key: KeyValue, now_micros: int) -> Transaction:
        """Open a transaction that holds ``partition_key`` of ``table``.

        Raises:
            ServiceError: another transaction holds the partition key, or too many transactions are open.
        """
        self._expire(now_micros)
        if self.is_locked(table, partition_key, now_micros):
            raise refusals.ROW_CONFLICT()
        if len(self._open) >= self._most_open:
            raise refusals.TRANSACTIONS_FULL(limit=self._most_open)
        transaction = Transaction(
            new_transaction_id(table.definition.name), table, partition_key, now_micros, Draft(table)
        )
        self._open[transaction.transaction_id] = transaction
        self._locks[transaction.lock] = transaction
        return transaction

    def find(self, transaction_id: str, now_micros: int) -> Transaction:
        """Return an open transaction.

        Raises:
            ServiceError: the transaction was committed or aborted, its time is over, or the id is unknown.
        """
        self._expire(now_micros)
        transaction = self._open.get(transaction_id)
        if transaction is None:
            raise refusals.TRANSACTION_OVER()
        return transaction

    def require_room(self, size_bytes: int) -> None:
        """Raise ``OTSServerBusy`` if the open transactions hold too much memory for ``size_bytes`` more."""
        if self.held_bytes + size_bytes > self._most_bytes:
            raise refusals.TRANSACTIONS_LARGE(size=self.held_bytes)

    def add(self, transaction: Transaction, plan: WritePlan) -> None:
        """Add a planned write to an open transaction."""
        before = transaction.draft.held_bytes
        transaction.draft.add(plan)
        self.held_bytes += transaction.draft.held_bytes - before

    @property
    def are_open(self) -> bool:
        """Whether any transaction is open. A transaction whose time is over may still count as open."""
        return bool(self._open)

    def is_locked(self, table: Table, partition_key: KeyValue | KeyBound, now_micros: int) -> bool:
        """Return whether an open transaction holds this partition key."""
        if not self._open:
            return False
        self._expire(now_micros)
        return _lock(table, partition_key) in self._locks

    def end(self, transaction: Transaction) -> None:
        """Forget a transaction and release its partition key."""
        del self._open[transaction.transaction_id]
        del self._locks[transaction.lock]
        self.held_bytes -= transaction.draft.held_bytes

    def drop_table(self, table: Table) -> None:
        """End all open transactions of a table that the server deletes."""
        for transaction in [each for each in self._open.values() if each.table is table]:
            self.end(transaction)

    def _expire(self, now_micros: int) -> None:
        while self._open:
            oldest = next(iter(self._open.values()))
            if now_micros - oldest.started_micros < self._lifetime_micros:
                return
            self.end(oldest)
