"""The service's limits, in one value, so that a test can lower one and meet it quickly."""

from __future__ import annotations

from attrs import field, frozen

from streamclient.base.times import MICROS_PER_SECOND, SECONDS_PER_DAY
from streamclient.wire.puts import PutLimits

MEGABYTE = 1024 * 1024
INT64_MAX = 2**63 - 1

CELL_TIMESTAMP_MAX_MILLIS = INT64_MAX // 1000
"""Cell timestamps are below this: the service keeps them in microseconds, in 64 bits."""

MESSAGE_FIELDS = 30_000
"""Elements of repeated fields in one message, those of messages inside it included. The largest batches that the
service takes have a few thousands; five megabytes of empty ones would be millions of objects."""


@frozen
class Limits:
    """Limits that the server enforces. The defaults are those of the product documentation and the SDKs' tests."""

    tables: int = 64
    name_bytes: int = 255
    key_columns: int = 4
    key_value_bytes: int = 1024
    attribute_value_bytes: int = 2 * MEGABYTE
    attribute_columns: int = 1024
    requested_columns: int = 1024
    row_bytes: int = 4 * MEGABYTE
    """Of what one write brings."""
    stored_row_bytes: int = 16 * MEGABYTE
    """Of a row with all its versions, which many updates may make larger than any of them. The service's number is not
    documented; this one bounds the answer to every read of one row."""
    batch_write_rows: int = 200
    batch_write_bytes: int = 4 * MEGABYTE
    batch_get_rows: int = 100
    batch_get_bytes: int = 16 * MEGABYTE
    """Of the rows that one BatchGetRow reads, each as often as it is asked for. The first is read however large it is.
    The service's number is not documented."""
    range_rows: int = 5000
    range_bytes: int = 4 * MEGABYTE
    filters: int = 32
    """Nodes of one filter or condition, composites counted (SDKs' tests; older pages say 10)."""
    partitions: int = 10
    """Of a table at its creation. Splitting shards goes beyond."""
    defined_columns: int = 32
    split_unit_bytes: int = MEGABYTE
    """The smallest unit of ComputeSplitPointsBySize."""
    capacity_units: int = 100_000
    stream_expiration_hours: int = 168
    """Seven days, as the SDKs' tests use it; pages of 2017 say 24."""
    stream_expiration_default_hours: int = 24
    stream_page_records: int = 1000
    """Records in one answer when the request gives no limit."""
    stream_page_records_most: int = 5000
    """Whatever the request asks for; clients use up to 1,000."""
    stream_page_bytes: int = 4 * MEGABYTE
    """At least one record is returned, however large."""
    stream_page_shards: int = 100
    """Shards in one answer when the request gives no limit."""
    stream_page_shards_most: int = 1000
    """Whatever the request asks for; the listing has pages."""
    transaction_bytes: int = 4 * MEGABYTE
    transaction_seconds: int = 60
    """How long a local transaction may stay open."""
    open_transactions: int = 10_000
    """Of the server; the service's number is not documented, this one bounds memory."""
    open_transaction_bytes: int = 256 * MEGABYTE
    """Of what all open transactions hold."""
    tunnel_base_channel_bytes: int = 16 * MEGABYTE
    """About how much of a table one channel of a tunnel's full data covers; the service does not say its own size."""
    tunnel_page_records: int = 1000
    """Records of incremental data in one answer: more than the 500 at which clients read on without a pause."""
    tunnels: int = 1_000
    """Of the instance; the service's number is not documented, this one only bounds memory."""
    tunnel_sessions: int = 1_000
    """Clients of one tunnel at a time; chosen as the number of tunnels is."""
    splits_per_request: int = 10_000
    """Split points in one answer, so that a tiny split size cannot make an answer of any size."""
    put: PutLimits = field(init=False)
    """Those that the row of a put meets, as the compiled reader takes them."""

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
"""The largest deviation between a cell's timestamp and the clock; kept in microseconds, in 64 bits."""
