"""A search for records that the service may have skipped because they were older than the retention.

The service promises no error for a channel whose position is older than the table's retention. It may silently go on
with the records that are left. So a reader itself compares times with the retention: the time of the position at which
a channel is opened, and the times of each page's first record and of the position before that page.

The search finds suspicions, not proofs: even if a position is older than the retention, perhaps no record was written
between that position and the oldest time that the retention covers. Rows of full data have no times, so they raise no
suspicion. ``LogWatch`` is for one thread at a time. Any thread may call ``facts_of_log`` and ``facts_of_description``,
which wait for the service.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum

from attrs import define, evolve, field, frozen

from streamclient.base import logs
from streamclient.base.times import duration, utc_text
from streamclient.errors import DependencyException, StreamClientError
from streamclient.tunnel.tunnel_client import TunnelClient
from streamclient.tunnel.tunnel_model import TunnelDescription

_log = logs.logger(__name__)

LOOK_SECONDS = 60.0
"""The shortest time, in seconds, between two requests for the tunnel's description. Earlier positions of channels count
for as long: a channel that was not consumed since then is checked by the earlier description."""


class Suspicion(Enum):
    """The reason why records may have been skipped, as in the label ``cause`` of the metric ``SUSPECTED_LOSSES``."""

    POSITION = "position"
    """The position of a channel was older than the retention when the channel was opened."""
    GAP = "gap"
    """The position before a page was older than the retention, but the page's first record was not."""


@frozen
class LogFacts:
    """The service's statements about the log of a tunnel: its retention, and how far each channel was consumed."""

    retention_micros: int | None = None
    """The time for which the table's stream keeps records, in microseconds; ``None`` if it is not known."""
    consumed_micros: Mapping[str, int] = field(factory=dict)
    """The time up to which each channel of changes was consumed, in microseconds since 1970. The keys are channel ids.
    Channels without a known time are left out."""
    is_partial: bool = False
    """Whether facts are missing because of an error that passes, for example because the service was busy. A later
    request may bring them."""


def facts_of_log(client: TunnelClient, tunnel_id: str) -> LogFacts:
    """Ask the service for the facts about a tunnel's log.

    If the service refuses, return empty facts. If an error passes, return the facts that are known, as partial facts.
    """
    try:
        info = next((info for info in client.list_tunnel() if info.tunnel_id == tunnel_id), None)
        if info is None:
            return LogFacts()
        described = client.describe_tunnel(info.table_name, info.tunnel_name)
    except StreamClientError as error:
        _log.info("tunnel %s: its retention and consume points are not known: %s", tunnel_id, error)
        return LogFacts(is_partial=_passes(error))
    return facts_of_description(client, described)


def facts_of_description(client: TunnelClient, described: TunnelDescription) -> LogFacts:
    """Ask the service for the retention of the tunnel's table, and return it with the channels' times in ``described``.

    If the service refuses, return empty facts. If an error passes, return the times alone, as partial facts.
    """
    info, points = described.info, {each.channel_id: each.consume_point_micros for each in described.channels}
    consumed_micros = {key: at for key, at in points.items() if at}
    try:
        retention_micros = client.retention_micros(info.table_name)
    except StreamClientError as error:
        _log.info("tunnel %s: the retention of its table is not known: %s", info.tunnel_id, error)
        return LogFacts(None, consumed_micros, is_partial=True) if _passes(error) else LogFacts()
    return LogFacts(retention_micros, consumed_micros)


def _passes(error: StreamClientError) -> bool:
    return isinstance(error, DependencyException) and error.retriable


@define(eq=False)
class _Opening:
    """The position at which a channel of changes was opened, and the first page after it. All times are by the service.

    Both are kept until they can be checked, because the service soon states a later position.
    """

    position_micros: int | None = None
    known_micros: int = 0
    """The time at which the position became known."""
    first_page: tuple[int | None, int, int] | None = None
    """The first page with records that could not be checked when it arrived: the time of the position before the page,
    if it was known, the time of the page's first record, and the time at which the page arrived."""


@define(eq=False)
class LogWatch:
    """Checks the channels of one worker or query for skipped records; reports each pair of channel and cause once."""

    service_micros: Callable[[], int]
    """A function that returns the service's time as this client estimates it, in microseconds since 1970."""
    told: Callable[[Suspicion, str], None]
    """Called for each new suspicion, with its cause and a text for the log."""
    facts: LogFacts = field(factory=LogFacts)
    """The last facts. A retention stays known until another one is known."""
    _opened: dict[str, _Opening] = field(factory=dict, init=False)
    """The channels of changes that this client reads now. Other clients watch their own channels."""
    _suspected: set[tuple[str, Suspicion]] = field(factory=set, init=False)

    def opened(self, channel_id: str) -> None:
        """Watch a channel of changes that was just opened."""
        self._opened[channel_id] = _Opening()
        self._judge_opening(channel_id)

    def closed(self, channel_id: str) -> None:
        """Stop watching a channel, and forget its position, beyond which this client has read."""
        self._opened.pop(channel_id, None)
        kept = {key: at for key, at in self.facts.consumed_micros.items() if key != channel_id}
        self.facts = evolve(self.facts, consumed_micros=kept)

    def forget_positions(self) -> None:
        """Forget the positions of all channels, because they are old: any client may have read beyond them."""
        self.facts = evolve(self.facts, consumed_micros={})

    def learned(self, facts: LogFacts) -> None:
        """Store the service's statements about the log, and check the open channels that were not checked before."""
        retention_micros = facts.retention_micros or self.facts.retention_micros
        self.facts = evolve(facts, retention_micros=retention_micros)
        for channel_id in sorted(self._opened):
            self._judge_opening(channel_id)

    def page_came(self, channel_id: str, position_micros: int | None, first_micros: int) -> None:
        """Check for a gap before a page, by the times of the page's first record and of the position before the page.

        ``position_micros`` is ``None`` if the time of the position is unknown. ``first_micros`` is 0 for a page without
        times.
        """
        if not first_micros:
            return
        now_micros = max(self.service_micros(), first_micros)  # a record's time is never in the future
        opening = self._opened.get(channel_id, _Opening())
        before_micros = position_micros or opening.position_micros
        if before_micros is not None and self.facts.retention_micros is not None:
            self._judge(channel_id, before_micros, first_micros, now_micros)
        elif opening.first_page is None:
            opening.first_page = (before_micros, first_micros, now_micros)

    def _judge_opening(self, channel_id: str) -> None:
        """Check the position at which a channel was opened, and the first page after it, as far as they are known.

        A second check has the same result, because the position counts at the time when it became known.
        """
        opening = self._opened[channel_id]
        if opening.position_micros is None:
            opening.position_micros = self.facts.consumed_micros.get(channel_id)
            opening.known_micros = self.service_micros()
        at_micros, first_page = opening.position_micros, opening.first_page
        if at_micros is not None and self._is_past(at_micros, opening.known_micros):
            self._tell(channel_id, Suspicion.POSITION, f"was read up to {utc_text(at_micros)} only")
        before_micros = at_micros if first_page is None else first_page[0] or at_micros
        if first_page is not None and before_micros is not None:
            self._judge(channel_id, before_micros, *first_page[1:])

    def _judge(self, channel_id: str, position_micros: int, first_micros: int, now_micros: int) -> None:
        if self._is_past(position_micros, now_micros) and not self._is_past(first_micros, now_micros):
            gap = f"after {utc_text(position_micros)} the next record is of {utc_text(first_micros)}"
            self._tell(channel_id, Suspicion.GAP, gap)

    def _is_past(self, at_micros: int, now_micros: int) -> bool:
        retention = self.facts.retention_micros
        return retention is not None and at_micros < now_micros - retention

    def _tell(self, channel_id: str, cause: Suspicion, what: str) -> None:
        if (channel_id, cause) not in self._suspected and self.facts.retention_micros is not None:
            self._suspected.add((channel_id, cause))
            kept = duration(self.facts.retention_micros / 1_000_000)
            self.told(
                cause, f"channel {channel_id} may have lost records: {what}, and the table keeps records for {kept}"
            )
