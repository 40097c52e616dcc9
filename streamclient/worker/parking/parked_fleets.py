"""The fleet of each parked record: no two fleets of one stream keep parked records in one store.

Each fleet of a stream processes the whole stream by itself, so each needs parked records of its own. If two fleets
shared the parked records of a stream, one would park keys that only the other one failed to process, and a replay for
one would take records from the other. Laws:

* a record names the fleet that parked it. A record without a name counts as a record of every fleet: earlier versions
  and tunnels name none;
* a fleet refuses a store in which another fleet has records of the stream. It asks before it writes, so that it does
  not disturb the other fleet, and again after it has written. If two fleets write at once, at least one finds the
  records of the other one, and does not go on. It never removes what it has written, because another worker of its
  fleet may rely on these records;
* after a refusal, the shard waits and the call is repeated, so no record is skipped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from streamclient.errors import ConfigurationError
from streamclient.model import ParkedKey, ParkedRecord


def fleet_of(records: Iterable[ParkedRecord], stream_id: str) -> str:
    """Return the fleet that parks ``records`` of the stream; an empty text if they name none."""
    return next((parked.fleet for parked in records if parked.stream_id == stream_id and parked.fleet), "")


def require_own(fleet: str, found: Iterable[ParkedRecord] | Iterable[ParkedKey], store: object) -> None:
    """Check that no other fleet than ``fleet`` has parked ``found``, the records or keys of a stream in ``store``.

    An empty ``fleet`` stands for every fleet, so nothing is checked.

    Raises:
        ConfigurationError: another fleet has parked some of them. The message names both fleets.
    """
    if not fleet:
        return
    other = next((each.fleet for each in found if each.fleet not in ("", fleet)), None)
    if other is not None:
        raise ConfigurationError(
            f"{store!r} has parked records of this stream from another fleet, that of the status table {other!r}: give "
            f"the fleet of the status table {fleet!r} a store of its own, or replay or discard those records first"
        )


def require_one_fleet(records: Sequence[ParkedRecord]) -> None:
    """Check that the records of each stream were parked by one fleet.

    Raises:
        ConfigurationError: two fleets have parked records of one stream. The message names both fleets.
    """
    fleets: dict[str, str] = {}
    for parked in records:
        known = fleets.setdefault(parked.stream_id, parked.fleet) or parked.fleet
        fleets[parked.stream_id] = known
        if parked.fleet not in ("", known):
            raise ConfigurationError(
                f"two fleets have parked these records of stream {parked.stream_id}, those of the status tables "
                f"{known!r} and {parked.fleet!r}: replay the records of each fleet with its own processor, with "
                "`streamclient parked replay --fleet STATUS-TABLE`, and give each fleet a store of its own"
            )
