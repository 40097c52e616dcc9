"""The fleets that several steps look at: a table, workers, a record that cannot be processed."""

from __future__ import annotations

from typing import Any

from tests.console_drill.stand import QUICK, STATUS, TABLE, Console, Server, Stand, awaited
from tests.console_drill.steps_of_server import open_shards, put
from tests.stage import make_table

POISON = "twelve"
"""An amount that the drill's processors refuse."""

PARKING = "orders_parked"


def fleet_of(
    stand: Stand, *names: str, factory: str = "Checking", options: tuple[str, ...] = (), **environment: str
) -> Server:
    """Start a server with the table of orders, and workers that hold its leases."""
    server = stand.server()
    make_table(server.client(), TABLE)
    for number in range(8):
        put(server.client(), f"key-{number}", number)
    for name in names:
        stand.worker(server, name, factory, *QUICK, *options, **environment)
    awaited("a worker with a lease", lambda: any(each["leases"] for each in workers(stand, server)))
    return server


def workers(stand: Stand, server: Server) -> list[dict[str, Any]]:
    """Return the workers as ``top`` tells them; none before there is a status table."""
    ran = stand.command(server, "top", "--once", "--json", "--data-table", TABLE, "--status-table", STATUS)
    found: list[dict[str, Any]] = ran.document["workers"] if ran.code == 0 else []
    return found


def poisoned(stand: Stand, server: Server, console: Console) -> tuple[str, list[str]]:
    """Put a record that fails, and split its shard; return the shard and its children once the verdict names them."""
    (parent,) = open_shards(server)
    put(server.client(), "key-3", POISON)
    server.admin("split", table=TABLE, shard_id=parent)
    children = open_shards(server)
    for number in range(8):
        put(server.client(), f"key-{number}", number)
    awaited("the root and its children in the verdict", lambda: is_root(console, parent, len(children)))
    return parent, children


def is_root(console: Console, shard: str, waiting: int) -> bool:
    """Tell whether the worst trouble of the console's verdict is this shard's, and so many shards wait for it."""
    troubles = console.get("verdict").get("troubles", [])
    return bool(troubles) and (troubles[0]["shard"], troubles[0]["waiting_shards"]) == (shard, waiting)


def reshard(server: Server, count: int) -> None:
    """Split the only open shard until there are this many, so that all workers get some."""
    while len(opened := open_shards(server)) < count:
        server.admin("split", table=TABLE, shard_id=opened[0])
        for number in range(8):
            put(server.client(), f"key-{number}", number)


def document(console: Console, **query: str) -> Any:
    """Return the console's document of the fleet."""
    words = "&".join(f"{name}={value}" for name, value in query.items())
    return console.get(f"fleets/{TABLE}" + (f"?{words}" if words else ""))


def owners(console: Console) -> dict[str, str]:
    """Return the owner of each unfinished shard."""
    return {each["shard"]: each["owner"] for each in document(console, detail="shards")["shards"]}


def await_owners(server: Server, console: Console) -> None:
    """Wait until each open shard has an owner, and every other shard is finished."""

    def is_settled() -> bool:
        found = owners(console)
        return found.keys() == set(open_shards(server)) and all(found.values())

    awaited("an owner of each open shard", is_settled)


def worker_of(console: Console, name: str) -> dict[str, Any]:
    """Return what the console tells of one worker."""
    return next((each for each in document(console)["workers"] if each["worker"] == name), {})
