"""Settings of the Spark processors, frozen and checked when made."""

from __future__ import annotations

import re
from enum import Enum
from typing import Any

from attrs import Attribute, field, frozen

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


def _positive(instance: object, attribute: Attribute[Any], value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise ConfigurationError(f"{attribute.name} must be a whole number above 0, not {value!r}")


def _policy(instance: object, attribute: Attribute[Any], value: Any) -> None:
    if not isinstance(value, UnfitValue):
        raise ConfigurationError(f"{attribute.name} must be a member of UnfitValue, not {value!r}")


def _prefix(instance: object, attribute: Attribute[Any], value: Any) -> None:
    # The underscore keeps the directories of the lake apart from the columns of the table.
    if not isinstance(value, str) or not _PREFIX.fullmatch(value):
        raise ConfigurationError(f"{attribute.name} must be an underscore and then letters or digits, not {value!r}")


@frozen(kw_only=True)
class SparkConfig:
    """When batches are committed, how much may wait, and what happens to values that do not fit."""

    max_records: int = field(default=50_000, validator=_positive)
    """A shard's batch is committed once it has this many records. Batches end where a read ended, so a batch may be
    larger by one read."""
    max_bytes: int = field(default=64 * 1024 * 1024, validator=_positive)
    """A shard's batch is committed once its records take about this many bytes of memory."""
    max_age_millis: int = field(default=5_000, validator=_positive)
    """A shard's batch is committed once its first record waited this long, whether or not more records come."""
    max_buffered_bytes: int = field(default=256 * 1024 * 1024, validator=_positive)
    """Bound of the records that all shards of one factory hold, waiting or being written. At the bound
    ``process_records`` blocks and everything that waits becomes due. Spark and Arrow hold a second copy of the batch
    that is being written."""
    max_wait_millis: int = field(default=600_000, validator=_positive)
    """Longest time that ``process_records`` waits for room, or ``shutdown`` for its last batch, before it raises.
    Ten minutes: longer than a healthy sink takes, short enough to show a stuck one."""
    unfit_value: UnfitValue = field(default=UnfitValue.WIDEN, validator=_policy)
    prefix: str = field(default="_", validator=_prefix)
    """First characters of the columns that are added to those of the table."""

    def __attrs_post_init__(self) -> None:
        if self.max_bytes > self.max_buffered_bytes:
            raise ConfigurationError(
                f"max_bytes={self.max_bytes} must not be above max_buffered_bytes={self.max_buffered_bytes}: "
                "a batch would never be full"
            )
