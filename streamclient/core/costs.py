"""The cost of requests to the service in the units of its bill: requests and capacity units."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from attrs import asdict, astuple, frozen

from streamclient.base.times import SECONDS_PER_HOUR


@frozen(kw_only=True)
class Cost:
    """The requests and capacity units that were used in a span of time."""

    seconds: float = 0.0
    """The length, in seconds, of the span of time in which the requests were made."""
    stream_requests: int = 0
    stream_read_units: int = 0
    """The read units for pages of records. Other requests to a stream cost no units."""
    status_table_requests: int = 0
    status_table_read_units: int = 0
    status_table_write_units: int = 0

    def since(self, earlier: Cost) -> Cost:
        """Return the cost of the time since ``earlier`` was measured: this cost less ``earlier``."""
        return Cost(**{name: value - getattr(earlier, name) for name, value in asdict(self).items()})

    def an_hour(self) -> Cost:
        """Return the cost of an hour at the same rate, rounded to whole requests and units."""
        scale = SECONDS_PER_HOUR / self.seconds if self.seconds > 0 else 0.0
        counts = {name: round(value * scale) for name, value in asdict(self).items()}
        return Cost(**{**counts, "seconds": SECONDS_PER_HOUR})

    def to_document(self) -> dict[str, Any]:
        """Return the fields by name, as plain values."""
        return {**asdict(self), "seconds": round(self.seconds, 3)}

    @classmethod
    def from_document(cls, told: Mapping[str, Any]) -> Cost | None:
        """Return the cost that ``to_document`` wrote; ``None`` if ``told`` is unreadable or has an empty span."""
        values: dict[str, Any] = {name: told.get(name) for name in _NAMES}
        if not all(map(_is_count, values.values())) or not values["seconds"]:
            return None
        return cls(**values)

    def __str__(self) -> str:
        return (
            f"stream {_requests(self.stream_requests)} and {self.stream_read_units:,} read units, status table "
            f"{_requests(self.status_table_requests)}, {self.status_table_read_units:,} read and "
            f"{self.status_table_write_units:,} write units"
        )


_NAMES = tuple(asdict(Cost()))


def together_an_hour(costs: Iterable[Cost]) -> Cost | None:
    """Return the sum of ``costs``, each converted to an hour; ``None`` if ``costs`` is empty."""
    hourly = [astuple(cost.an_hour()) for cost in costs]
    if not hourly:
        return None
    sums = dict(zip(_NAMES, map(sum, zip(*hourly, strict=True)), strict=True))
    return Cost(**{**sums, "seconds": SECONDS_PER_HOUR})


def _requests(number: int) -> str:
    return "1 request" if number == 1 else f"{number:,} requests"


def _is_count(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
