"""The console of one or more fleets: the documents about them, and the changes that people order.

Laws:

- The event loop makes no call to the service. Each fleet has a thread for readings. Other threads serve people's
  requests.
- A change is planned first. It is carried out only if the page then sends the plan's digest, and the plan is still the
  same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, TypeVar

from attrs import frozen

from streamclient._version import __version__
from streamclient.base import logs
from streamclient.base.pools import DaemonPool
from streamclient.console.doors import REQUESTED_BY, ConsoleError, found, number_in
from streamclient.console.feeds import Document
from streamclient.errors import ConfigurationError, NoThreadError, StreamClientError
from streamclient.operate import fleet_documents as documents
from streamclient.operate.asked_changes import AskedChanges, ChangeRefusedError, PageRights
from streamclient.operate.collection import FleetReader
from streamclient.operate.fleet_following import INTERVAL_SECONDS, FleetFollower, FleetReading
from streamclient.operate.next_records import read_next
from streamclient.operate.site import Site, text_of

_log = logs.logger(__name__)

ASKING_THREADS = 4
"""The number of threads for people's requests. With several threads, an order that waits does not delay other
requests."""

MOST_RECORDS = 100
"""The largest number of a shard's next records in one answer."""

_KINDS = ("fleet", "story", "moves", "parked")

Answer = TypeVar("Answer")

_CONFLICTS = frozenset({"changed", "no-parking", "no-processor", "not-parked", "two-fleets"})
"""The codes of refusals that are due to the present state of the fleet, not to the arguments of the request."""


@frozen(kw_only=True)
class FleetSettings:
    """The settings of a console of fleets: the service, and what the page may show and change."""

    endpoint: str
    instance: str
    rights: PageRights
    allows_actions: bool = False
    shows_values: bool = False


class _Fleet:
    """One fleet of the console, with its documents and the follower that reads it."""

    def __init__(self, site: Site, settings: FleetSettings, made: Callable[[FleetReading], object]) -> None:
        rights, values = settings.rights, settings.shows_values
        self.site = site
        self.book = documents.FleetBook(site, rights.store, command=rights.parked_command, shows_values=values)
        self.follower = FleetFollower(site, noted=self.book.noted, made=made)


class FleetPages:
    """The documents about fleets, and the changes that their page may order; see ``Pages``."""

    def __init__(self, sites: Mapping[str, Site], settings: FleetSettings) -> None:
        """Store the fleets and the settings. The keys of ``sites`` are the fleets' names on the page."""
        self._settings = settings
        self._fleets = {name: _Fleet(site, settings, partial(self._made, name)) for name, site in sites.items()}
        self._asks = DaemonPool("console-asks", ASKING_THREADS)
        self._wake: Callable[[], None] = lambda: None
        self._topics: frozenset[str] = frozenset()
        self._documents: dict[str, Document] = {}
        self._lines = {name: documents.fleet_line(name, FleetReading()) for name in sites}

    def begin(self, wake: Callable[[], None]) -> None:
        """Call ``wake`` after each reading of a fleet from now on."""
        self._wake = wake

    def end(self) -> None:
        """Stop reading all fleets."""
        self.followed(())

    def close(self) -> None:
        """End the threads of the console."""
        for fleet in self._fleets.values():
            fleet.follower.close()
        self._asks.shutdown(wait=False, cancel_futures=True)

    def followed(self, topics: Collection[str]) -> None:
        """From now on, read only the fleets that the documents ``topics`` show.

        The documents ``verdict`` and ``fleets`` show all fleets.
        """
        self._topics = frozenset(topics)
        self._documents = {topic: made for topic, made in self._documents.items() if topic in self._topics}
        is_about_all = not self._topics.isdisjoint(("verdict", "fleets"))
        for name, fleet in self._fleets.items():
            own = {f"{kind}:{name}" for kind in _KINDS} & self._topics
            try:
                fleet.follower.follow(wanted=bool(own) or is_about_all, stirred=bool(own - self._documents.keys()))
            except NoThreadError as error:  # the next viewer causes another attempt
                _log.warning("fleet %s is not read: %s", name, error)

    def document(self, topic: str) -> Document:
        """Return the newest document of a topic, such as ``fleets`` or ``fleet:orders``. It may be a refusal."""
        if topic == "about":
            return self._about()
        if topic == "fleets":
            return {"fleets": list(self._lines.values())}
        if topic == "verdict":
            fleets, rights = self._fleets, self._settings.rights
            newest = {name: each.follower.reading for name, each in fleets.items()}
            return documents.verdict_document(newest, lambda name, line: rights.lease_command(fleets[name].site, line))
        kind, _, name = topic.partition(":")
        if kind not in _KINDS or name not in self._fleets:
            return ConsoleError(404, "topic", f"there is no document {topic[:100]}").document()
        made = self._documents.get(topic)
        return documents.refusal(*documents.NOT_READ_YET) if made is None else made

    def _about(self) -> Document:
        settings = self._settings
        return {
            "version": __version__,
            "mode": "fleet",
            "endpoint": settings.endpoint,
            "instance": settings.instance,
            "interval_millis": round(INTERVAL_SECONDS * 1000),
            "allows_actions": settings.allows_actions,
            "shows_values": settings.shows_values,
            "can_replay": settings.rights.processor is not None,
            "has_parking": settings.rights.store is not None,
            "fleets": list(self._fleets),
        }

    def _made(self, name: str, reading: FleetReading) -> None:
        """For the fleet ``name``, make the documents that have viewers. The fleet's own thread calls this method."""
        self._lines[name] = documents.fleet_line(name, reading)
        for kind in _KINDS:
            if (topic := f"{kind}:{name}") in self._topics:
                self._documents[topic] = self._fleets[name].book.document(kind, reading)
        self._wake()

    # Requests

    async def read(self, words: list[str], query: Mapping[str, str]) -> Document:
        """Return the document at the path ``words``. If a fleet's next reading is due, read the fleet first."""
        match words:
            case ["about"]:
                return self._about()
            case ["verdict" | "fleets" as topic]:
                for fleet in self._fleets.values():
                    await self._ask(partial(fleet.follower.look, lambda reading: None))
                return found(self.document(topic))
            case ["fleets", name]:
                detail: Any = query.get("detail", "auto")
                if detail not in ("shards", "groups", "auto"):
                    raise ConsoleError(400, "detail", "detail must be shards, groups or auto")
                return await self._looked(self._fleet(name), "fleet", detail)
            case ["fleets", name, kind] if kind in _KINDS[1:]:
                return await self._looked(self._fleet(name), kind)
            case ["fleets", name, "shards", shard]:
                site, rights = self._fleet(name).site, self._settings.rights
                page = await self._ask(lambda: documents.lease_page(site, shard, rights.store))
                if page is None:
                    raise ConsoleError(404, "shard", f"the fleet has no shard {shard[:100]}")
                return {**page, "commands": rights.lease_commands(site, shard)}
            case ["fleets", name, "shards", shard, "records"]:
                limit = number_in(query.get("limit", "20"))
                if limit is None or not 1 <= limit <= MOST_RECORDS:
                    raise ConsoleError(400, "limit", f"limit must be a whole number from 1 to {MOST_RECORDS}")
                fleet = self._fleet(name)
                return await self._ask(lambda: self._next_records(fleet.site, shard, limit))
        raise ConsoleError(404, "path", "there is no such document")

    async def change(self, method: str, words: list[str], arguments: Mapping[str, Any]) -> Document:
        """Plan an order about leases or parked records.

        Carry the order out if ``arguments`` contain the digest of this plan.
        """
        if method != "POST" or len(words) < 3 or words[0] != "fleets":
            raise ConsoleError(404, "path", "there is nothing to change at this path")
        fleet, rights = self._fleet(words[1]), self._settings.rights
        asked = AskedChanges(site=fleet.site, rights=rights, who=f"{REQUESTED_BY.get() or rights.who} (console)")
        match words[2:]:
            case ["actions"]:
                answer = await self._ask(lambda: asked.order(arguments))
            case ["parked", "replay" | "discard" as action]:
                answer = await self._ask(lambda: asked.parked(action, arguments))
            case _:
                raise ConsoleError(404, "path", "there is nothing to change at this path")
        fleet.follower.hasten()
        return answer

    def _fleet(self, name: str) -> _Fleet:
        fleet = self._fleets.get(name)
        if fleet is None:
            raise ConsoleError(404, "fleet", f"this console shows {', '.join(self._fleets)}, not {name[:100]}")
        return fleet

    async def _ask(self, call: Callable[[], Answer]) -> Answer:
        """Run ``call`` in a thread, so that it does not block the event loop; return its result."""
        try:
            return await asyncio.wrap_future(self._asks.submit(call))
        except ChangeRefusedError as error:
            status = 409 if error.code in _CONFLICTS else 400
            raise ConsoleError(status, error.code, text_of(error), error.advice) from error
        except ConfigurationError as error:
            raise ConsoleError(400, "argument", text_of(error)) from error
        except StreamClientError as error:
            raise ConsoleError(502, "service", text_of(error)) from error

    async def _looked(self, fleet: _Fleet, kind: str, detail: documents.Detail = "auto") -> Document:
        return found(await self._ask(lambda: fleet.follower.look(lambda it: fleet.book.document(kind, it, detail))))

    def _next_records(self, site: Site, shard_id: str, limit: int) -> Document:
        lease = FleetReader(site).collect().lease(shard_id)
        if lease is None:
            raise ConsoleError(404, "shard", f"shard {shard_id[:100]} has no lease row")
        records = read_next(site.streams, lease.stream_id, shard_id, lease.checkpoint, limit)
        show = partial(documents.shown_change, shard_id, shows_values=self._settings.shows_values)
        return {"records": [{"id": str(record.sequence_info), **show(record)} for record in records]}
