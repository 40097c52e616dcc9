"""A console of a fleet whose tables are on a local Tablestore, over real HTTP."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any

from console_tools import Answered, Asked

from streamclient.console.doors import ConsoleDoors
from streamclient.console.fleets import FleetPages, FleetSettings
from streamclient.console.listening import PageServer
from streamclient.model import ParkedRecord
from streamclient.operate.asked_changes import PageRights
from streamclient.operate.site import Site
from streamclient.server import LocalTablestore
from streamclient.server.auth import Doors
from streamclient.tablestore.instance import Connection
from streamclient.worker.parking.parked_frames import record_id
from tests.operate.operate_scene import STATUS, TABLE, Ran, Scene
from tests.patience import FOREVER_SECONDS
from tests.placed_records import make_record

WHO = "ann@ops"


class FleetConsole(Asked):
    """A fleet's tables, and a console of it; ``doors`` and ``rights`` are options of these."""

    def __init__(
        self,
        local: LocalTablestore,
        fleet: Scene | None = None,
        *,
        allows_actions: bool = True,
        shows_values: bool = False,
        sites: Mapping[str, Site] | None = None,
        doors: Mapping[str, Any] | None = None,
        **rights: Any,
    ) -> None:
        self.local = local
        self.fleet = Scene(local, lease_seconds=FOREVER_SECONDS) if fleet is None else fleet
        settings = FleetSettings(
            endpoint=local.endpoint,
            instance=local.instance,
            rights=PageRights(who=WHO, command_options=("--endpoint", local.endpoint), **rights),
            allows_actions=allows_actions,
            shows_values=shows_values,
        )
        self.pages = FleetPages(sites or {TABLE: self.site()}, settings)
        options = {"key": "a-key-of-this-test-0123", "allows_changes": allows_actions, **(doors or {})}
        super().__init__(PageServer(lambda: self.pages, ConsoleDoors(Doors(()), **options)))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, traceback)
        self.pages.close()

    def site(self, status: str = STATUS) -> Site:
        """The fleet's tables, by a client of the console's own."""
        client = Connection(endpoint=self.local.endpoint, access_key_secret=self.local.access_key_secret).quiet_client()
        return Site(client, TABLE, status, lease_seconds=self.fleet.lease_seconds)

    def command(self, *words: str) -> Ran:
        """A command about the same fleet."""
        return self.fleet.run(*words)

    def act(self, command: str, *shards: str, plan: str = "", reason: str = "a test", **options: Any) -> Answered:
        """Ask for an order about leases."""
        content = {"command": command, "shards": list(shards), "options": options, "reason": reason, "plan": plan}
        return self.ask("POST", f"/api/v1/fleets/{TABLE}/actions", content)

    def parked(self, action: str, plan: str = "", **which: Any) -> Answered:
        """Ask for a replay or a discard."""
        content = {"reason": "a test", "plan": plan, **which}
        return self.ask("POST", f"/api/v1/fleets/{TABLE}/parked/{action}", content)

    @property
    def request_count(self) -> int:
        """The number of requests that the Tablestore got."""
        return sum(count.requests for count in self.local.requests())


def parked_record(
    key: str, number: int, stream: str, *, error: str = "ValueError: no 'x'", **columns: Any
) -> ParkedRecord:
    """A record as a worker parks it; ``number`` is its time."""
    record = make_record(key, number, **columns)
    return ParkedRecord(record_id(record), stream, "s", record, "i0", number, 1, error, "trace\n", 4, number)


def timeless(document: Any, *dropped: str) -> Any:
    """A document without what differs between two readings: times and durations, in texts as well."""
    if isinstance(document, str):
        return re.sub(r"\d+(\.\d+)? (ms|s|min|h|d)\b", "# s", document)
    if isinstance(document, list):
        return [timeless(each, *dropped) for each in document]
    if not isinstance(document, dict):
        return document
    changing = ("_micros", "_seconds", "seconds_to_loss", "evidence", "records_per_second", *dropped)
    return {name: timeless(each, *dropped) for name, each in document.items() if not name.endswith(changing)}


def every_path(shard: str, fleets: Iterable[str] = (TABLE,)) -> list[str]:
    """Every path of a console of fleets that is read."""
    own = ["", "/story", "/moves", "/parked", f"/shards/{shard}", f"/shards/{shard}/records", "?detail=groups"]
    return ["about", "verdict", "fleets", *(f"fleets/{name}{rest}" for name in fleets for rest in own)]
