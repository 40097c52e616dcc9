"""Local transactions: writes to one partition key of one table that take effect together, or not at all.

Laws:

- A transaction holds its partition key from its start to its end. During this time, only the transaction can write rows
  with that key. Reads outside the transaction see the committed rows. Reads inside the transaction also see the writes
  of the transaction.
- A transaction that starts with row keys holds only these rows. Other transactions and writes can use the other rows
  with the same partition key. Inside the transaction, only its rows can be read and written.
- A transaction ends when it is committed or aborted, when its time is over, when its table is deleted, or when the
  server stops. Only a commit has an effect.
"""

from __future__ import annotations

import base64
import binascii
import uuid
from collections import OrderedDict
from collections.abc import Sequence

from attrs import field, frozen

from streamclient.base.times import MICROS_PER_SECOND
from streamclient.records import KeyValue
from streamclient.server import refusals
from streamclient.server.drafts import Draft
from streamclient.server.keys import encode_key
from streamclient.server.stored_tables import Key, Table
from streamclient.server.writes import WritePlan
from streamclient.wire.plainbuffer import KeyBound

_RANDOM_BYTES = 16
_CHECK_BYTES = 4

_ROW_LOCK_BYTES = 300
"""The measured memory, in bytes, of the lock on one row without the row's key, at most."""

_Partition = tuple[int, bytes]
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
    """An open transaction on one partition key of one table, or on some rows with this partition key."""

    transaction_id: str
    table: Table
    partition_key: KeyValue
    started_micros: int
    draft: Draft = field(eq=False)
    row_keys: frozenset[bytes] = frozenset()
    """The encoded keys of the rows that the transaction holds; empty if it holds all rows of the partition key."""

    @property
    def partition(self) -> _Partition:
        """The table's number and the encoded partition key."""
        return _partition(self.table, self.partition_key)

    @property
    def locks(self) -> frozenset[bytes]:
        """The encoded keys that the transaction locks: its row keys, or the partition key."""
        return self.row_keys or frozenset((self.partition[1],))

    @property
    def held_bytes(self) -> int:
        """The memory of the planned writes and of the locks on rows, in bytes."""
        return self.draft.held_bytes + sum(_ROW_LOCK_BYTES + len(key) for key in self.row_keys)

    def check_scope(self, table: Table, key: Key) -> None:
        """Check that the transaction may read and write the row with this key of ``table``.

        ``key`` is a whole key that fits ``table``.

        Raises:
            ServiceError: the transaction does not hold the row (``OTSDataOutOfRange``).
        """
        self._check_partition(table, key)
        if self.row_keys and _encoded(key) not in self.row_keys:
            raise refusals.TRANSACTION_ROW(given=",".join(partition_key_text(value) for _, value in key))

    def check_range(self, table: Table, start: Key, end: Key) -> None:
        """Check that the transaction may read the range of rows of ``table`` with these bounds.

        Raises:
            ServiceError: the transaction holds another table or partition key, or only some rows
                (``OTSDataOutOfRange``).
        """
        self._check_partition(table, start, end)
        if self.row_keys:
            raise refusals.TRANSACTION_RANGE()

    def _check_partition(self, table: Table, *keys: Key) -> None:
        if table is not self.table:
            raise refusals.TRANSACTION_SCOPE(what="Table", own=self.table.definition.name, given=table.definition.name)
        for key in keys:
            _check_partition_key(self.partition_key, key)


def _check_partition_key(own: KeyValue, key: Key) -> None:
    given = key[0][1]
    if given != own:
        raise refusals.TRANSACTION_SCOPE(what="PartKey", own=partition_key_text(own), given=partition_key_text(given))


def _encoded(key: Key) -> bytes:
    return encode_key(value for _, value in key)


def _partition(table: Table, partition_key: KeyValue | KeyBound) -> _Partition:
    return table.definition.number, encode_key((partition_key,))


class Transactions:
    """The open transactions of one server, oldest first. They exist only in memory."""

    def __init__(self, lifetime_seconds: int, most_open: int, most_bytes: int) -> None:
        self._lifetime_micros = lifetime_seconds * MICROS_PER_SECOND
        self._most_open = most_open
        self._most_bytes = most_bytes
        self.held_bytes: int = 0
        """The memory, in bytes, of all planned writes of open transactions, with their rows, and of locks on rows."""
        # The oldest transaction comes first. Finding the first entry of a plain dictionary is slow after many deletions
        # at its beginning.
        self._open: OrderedDict[str, Transaction] = OrderedDict()
        self._locks: dict[_Partition, set[bytes]] = {}
        """The locks of open transactions. A locked partition key stands for all its rows."""

    def start(
        self, table: Table, partition_key: KeyValue, now_micros: int, row_keys: Sequence[Key] = ()
    ) -> Transaction:
        """Open a transaction that holds ``partition_key`` of ``table``.

        With ``row_keys``, the transaction holds only the rows with these whole keys, which fit ``table``.

        Raises:
            ServiceError: a row has another partition key, another transaction holds the partition key or one of the
                rows, or too many transactions are open.
        """
        for key in row_keys:
            _check_partition_key(partition_key, key)
        transaction = Transaction(
            new_transaction_id(table.definition.name),
            table,
            partition_key,
            now_micros,
            Draft(table),
            frozenset(map(_encoded, row_keys)),
        )
        self._expire(now_micros)
        self._require_unlocked(transaction)
        if len(self._open) >= self._most_open:
            raise refusals.TRANSACTIONS_FULL(limit=self._most_open)
        self.require_room(transaction.held_bytes)
        self.held_bytes += transaction.held_bytes
        self._open[transaction.transaction_id] = transaction
        self._locks.setdefault(transaction.partition, set()).update(transaction.locks)
        return transaction

    def _require_unlocked(self, transaction: Transaction) -> None:
        partition = transaction.partition
        locks = self._locks.get(partition)
        if locks and (not transaction.row_keys or partition[1] in locks or not locks.isdisjoint(transaction.row_keys)):
            raise refusals.ROW_CONFLICT()

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

    def is_locked(self, table: Table, key: Key, now_micros: int) -> bool:
        """Return whether an open transaction holds the row with this key. The key must fit ``table``."""
        if not self._open:
            return False
        self._expire(now_micros)
        partition = _partition(table, key[0][1])
        locks = self._locks.get(partition)
        return locks is not None and (partition[1] in locks or _encoded(key) in locks)

    def end(self, transaction: Transaction) -> None:
        """Forget a transaction and release its partition key or its rows."""
        del self._open[transaction.transaction_id]
        partition = transaction.partition
        locks = self._locks[partition]
        locks.difference_update(transaction.locks)
        if not locks:
            del self._locks[partition]
        self.held_bytes -= transaction.held_bytes

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
