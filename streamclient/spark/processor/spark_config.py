"""Settings of the Spark processors, frozen and checked at creation."""

from __future__ import annotations

from attrs import field, frozen

from streamclient.base import checks
from streamclient.errors import ConfigurationError

_millis = checks.whole(1, 10**12)
"""The check of a time in milliseconds, up to some thirty years. For much longer waits Python raises an error."""


@checks.explains_names
@frozen(kw_only=True)
class SparkConfig:
    """The limits at which batches are committed, and the limits of waiting records."""

    max_records: int = field(default=50_000, validator=checks.positive)
    """A shard's batch is committed once it has this many records. Batches end where a read ended, so a batch may be
    larger by one read."""
    max_bytes: int = field(default=64 * 1024 * 1024, validator=checks.positive)
    """A shard's batch is committed once its records take about this many bytes of memory, as columns."""
    max_age_millis: int = field(default=5_000, validator=_millis)
    """A shard's batch is committed once its first record waited this long, whether or not more records come."""
    max_buffered_bytes: int = field(default=256 * 1024 * 1024, validator=checks.positive)
    """The largest number of bytes of the records that all shards of one factory hold, waiting or being written. At this
    limit ``process_records`` blocks and all waiting records become due. Spark and Arrow hold a second copy of the batch
    that is being written."""
    max_wait_millis: int = field(default=600_000, validator=_millis)
    """The longest time that ``process_records`` waits for memory, or ``shutdown`` for its last batch, before it raises.
    Ten minutes: longer than a healthy sink takes, short enough to reveal a stuck one."""

    def __attrs_post_init__(self) -> None:
        if self.max_bytes > self.max_buffered_bytes:
            raise ConfigurationError(
                f"max_bytes={self.max_bytes} must not be above max_buffered_bytes={self.max_buffered_bytes}: "
                "a batch would never be full"
            )
