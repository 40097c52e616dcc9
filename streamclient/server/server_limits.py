"""The service's limits, as one object. A test can lower a limit, to reach it quickly."""

from __future__ import annotations

from attrs import field, frozen

from streamclient.base.times import MICROS_PER_SECOND, SECONDS_PER_DAY
from streamclient.wire.puts import PutLimits

MEGABYTE = 1024 * 1024
INT64_MAX = 2**63 - 1

CELL_TIMESTAMP_MAX_MILLIS = INT64_MAX // 1000
"""The largest timestamp of a cell, in milliseconds. The service keeps timestamps as microseconds in 64 bits."""

MESSAGE_FIELDS = 30_000
"""The largest number of elements of repeated fields in one message, nested messages included. The largest batches that
the service accepts have a few thousand elements. Without this limit, five megabytes of empty elements would become
millions of objects."""


@frozen
class Limits:
    """Limits that the server enforces. The defaults come from the product documentation and the SDKs' tests."""

    tables: int = 64
    name_bytes: int = 255
    key_columns: int = 4
    key_value_bytes: int = 1024
    attribute_value_bytes: int = 2 * MEGABYTE
    attribute_columns: int = 1024
    requested_columns: int = 1024
    row_bytes: int = 4 * MEGABYTE
    """The largest size of the row in one write."""
    stored_row_bytes: int = 16 * MEGABYTE
    """The largest size of a stored row with all its versions. After many updates, the size may exceed ``row_bytes``.
    The service's limit is not documented. This limit bounds the answer to a read of one row."""
    batch_write_rows: int = 200
    batch_write_bytes: int = 4 * MEGABYTE
    batch_get_rows: int = 100
    batch_get_bytes: int = 16 * MEGABYTE
    """The largest size of all rows in the answer to one BatchGetRow. A row that is requested twice counts twice. The
    first row is always read. The service's limit is not documented."""
    range_rows: int = 5000
    range_bytes: int = 4 * MEGABYTE
    filters: int = 32
    """The largest number of nodes of one filter or condition, including composite nodes (from the SDKs' tests; older
    pages say 10)."""
    partitions: int = 10
    """The largest number of partitions of a new table. Later splits of shards may exceed this number."""
    defined_columns: int = 32
    split_unit_bytes: int = MEGABYTE
    """The smallest ``split_size_unit_in_byte`` that ComputeSplitPointsBySize accepts."""
    capacity_units: int = 100_000
    stream_expiration_hours: int = 168
    """The longest retention of a stream: seven days (from the SDKs' tests; pages of 2017 say 24 hours)."""
    stream_expiration_default_hours: int = 24
    stream_page_records: int = 1000
    """The number of records in one answer of GetStreamRecord if the request gives no limit."""
    stream_page_records_most: int = 5000
    """The largest number of records in one answer of GetStreamRecord. Clients request up to 1,000."""
    stream_page_bytes: int = 4 * MEGABYTE
    """The largest size of the records in one answer of GetStreamRecord. The first record may be larger."""
    stream_page_shards: int = 100
    """The number of shards in one answer of DescribeStream if the request gives no limit."""
    stream_page_shards_most: int = 1000
    """The largest number of shards in one answer of DescribeStream. A longer list has several pages."""
    transaction_bytes: int = 4 * MEGABYTE
    transaction_seconds: int = 60
    """The seconds after which the server aborts a local transaction."""
    transaction_rows: int = 200
    """The largest number of row keys with which a client starts a transaction: as many rows as one batch writes. The
    service's limit is not documented."""
    open_transactions: int = 10_000
    """The largest number of open transactions of the server. The service's limit is not documented. This limit bounds
    the server's memory."""
    open_transaction_bytes: int = 256 * MEGABYTE
    """The largest size of the data of all open transactions together."""
    tunnel_base_channel_bytes: int = 16 * MEGABYTE
    """The approximate size of the rows in one channel of a tunnel's full data. The service's size is not documented."""
    tunnel_page_records: int = 1000
    """The largest number of records of incremental data in one answer to a tunnel's client. The number is above 500,
    because clients may pause after a page of fewer than 500 records."""
    tunnels: int = 1_000
    """The largest number of tunnels of the instance. The service's limit is not documented. This limit only bounds the
    server's memory."""
    tunnel_sessions: int = 1_000
    """The largest number of clients that one tunnel has at the same time. This limit only bounds the server's
    memory."""
    splits_per_request: int = 10_000
    """The largest number of split points in one answer of ComputeSplitPointsBySize. This limit bounds the answer if the
    split size is tiny."""
    put: PutLimits = field(init=False)
    """The limits for the row of a put, as the tuple that ``puts.read_put`` takes."""

    @put.default
    def _put(self) -> PutLimits:
        return (
            self.key_columns,
            self.key_value_bytes,
            self.name_bytes,
            self.attribute_value_bytes,
            self.attribute_columns,
            CELL_TIMESTAMP_MAX_MILLIS,
        )


DEFAULT_LIMITS = Limits()

TIME_TO_LIVE_MIN_SECONDS = SECONDS_PER_DAY
"""The shortest time to live other than "for ever": one day."""

DEVIATION_MAX_SECONDS = INT64_MAX // MICROS_PER_SECOND
"""The largest value, in seconds, of the table option that limits the deviation of a cell's timestamp from the clock.
The service keeps the option as microseconds in 64 bits."""
