"""The settings of Spark processors."""

from __future__ import annotations

from attrs import field, frozen

from streamclient.base import checks
from streamclient.errors import ConfigurationError

_millis = checks.whole(1, 10**12)
"""The check of a time in milliseconds. The upper limit is about thirty years, because Python raises an error for a much
longer wait."""


@checks.explains_names
@frozen(kw_only=True)
class SparkConfig:
    """The limits at which a Spark processor commits a batch, and the limits for records that wait for a commit."""

    max_records: int = field(default=50_000, validator=checks.positive)
    """A shard's batch is due once this many records wait. A batch may be larger by one page, because it consists of
    whole pages."""
    max_bytes: int = field(default=64 * 1024 * 1024, validator=checks.positive)
    """A shard's batch is due once its waiting records take about this many bytes of memory."""
    max_age_millis: int = field(default=5_000, validator=_millis)
    """A shard's batch is due once its first record has waited for this many milliseconds."""
    max_buffered_bytes: int = field(default=256 * 1024 * 1024, validator=checks.positive)
    """The memory limit, in bytes, for records that wait or are being written, in all shards of a factory. At this
    limit ``process_records`` waits, and all waiting records are committed. Spark and Arrow need further memory for a
    second copy of the batch that is being written."""
    max_wait_millis: int = field(default=600_000, validator=_millis)
    """The longest time, in milliseconds, for which ``process_records`` waits for memory, or ``shutdown`` for its last
    batch, before it raises an error. The default is longer than a healthy sink takes."""

    def __attrs_post_init__(self) -> None:
        if self.max_bytes > self.max_buffered_bytes:
            raise ConfigurationError(
                f"max_bytes={self.max_bytes} must not be above max_buffered_bytes={self.max_buffered_bytes}: "
                "a batch would never be full"
            )
