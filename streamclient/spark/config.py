"""Settings of the Spark processors, frozen and checked when made."""

from __future__ import annotations

import re
from enum import Enum

from attrs import field, frozen

from streamclient import checks
from streamclient.errors import ConfigurationError

_PREFIX = re.compile(r"_[A-Za-z0-9_]*")


class UnfitValue(Enum):
    """What happens to a value whose type is not that of its column. It is reported in each case, and never nulled."""

    WIDEN = "WIDEN"
    """The column takes the narrowest type that holds both without loss: INTEGER, then DOUBLE if exact, then STRING."""

    DIVERT = "DIVERT"
    """The whole record goes to ``reject_sink``, before the checkpoint that covers it, and not into the frame."""

    FAIL = "FAIL"
    """The shard stops with ``UnfitValueError``, which names column, types and record."""


_prefix = checks.Check(
    # The underscore keeps the directories of the lake apart from the columns of the table.
    "an underscore and then letters or digits",
    lambda value: isinstance(value, str) and _PREFIX.fullmatch(value) is not None,
)


def _unfit_value(given: object) -> UnfitValue:
    return checks.choice("unfit_value", UnfitValue, given)


@checks.explains_names
@frozen(kw_only=True)
class SparkConfig:
    """When batches are committed, how much may wait, and what happens to values that do not fit."""

    max_records: int = field(default=50_000, validator=checks.positive)
    """A shard's batch is committed once it has this many records. Batches end where a read ended, so a batch may be
    larger by one read."""
    max_bytes: int = field(default=64 * 1024 * 1024, validator=checks.positive)
    """A shard's batch is committed once its records take about this many bytes of memory."""
    max_age_millis: int = field(default=5_000, validator=checks.positive)
    """A shard's batch is committed once its first record waited this long, whether or not more records come."""
    max_buffered_bytes: int = field(default=256 * 1024 * 1024, validator=checks.positive)
    """Bound of the records that all shards of one factory hold, waiting or being written. At the bound
    ``process_records`` blocks and everything that waits becomes due. Spark and Arrow hold a second copy of the batch
    that is being written."""
    max_wait_millis: int = field(default=600_000, validator=checks.positive)
    """Longest time that ``process_records`` waits for room, or ``shutdown`` for its last batch, before it raises.
    Ten minutes: longer than a healthy sink takes, short enough to show a stuck one."""
    unfit_value: UnfitValue = field(default=UnfitValue.WIDEN, converter=_unfit_value)
    """Also as a string."""
    prefix: str = field(default="_", validator=_prefix)
    """First characters of the columns that are added to those of the table."""

    def __attrs_post_init__(self) -> None:
        if self.max_bytes > self.max_buffered_bytes:
            raise ConfigurationError(
                f"max_bytes={self.max_bytes} must not be above max_buffered_bytes={self.max_buffered_bytes}: "
                "a batch would never be full"
            )
