"""The pictures of ``docs/console.md``: ``python -m tests.console_drill.pictures`` takes them of a real fleet.

The ids of shards and the times differ from one run to the next, so the files are kept, not compared.
"""

from __future__ import annotations

import base64
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.console.chromium import chromium
from tests.console_drill.scenes import PARKING, POISON, fleet_of, reshard
from tests.console_drill.stand import FLEET_WORD, TABLE, Console, Server, Stand, awaited, go
from tests.console_drill.steps_of_server import open_shards, put

FIGURES = Path(__file__).resolve().parents[2] / "docs" / "figures"

WIDE, PHONE = {"width": 1440, "height": 900}, {"width": 390, "height": 844}

QUALITY = 80
"""Of WebP: texts stay sharp, and a picture has some tens of kilobytes."""

ORDERS = 240


def take(stand: Stand, console: Console, file: Path, place: str, size: Mapping[str, int]) -> int:
    """Keep what a place of a console shows in the light theme; return the bytes of the file."""
    options = {"viewport": dict(size), "color_scheme": "light", "reduced_motion": "reduce", "device_scale_factor": 1}
    with stand.page(console, **options) as page:
        go(page, place)
        page.locator("section").first.wait_for()
        page.evaluate("document.activeElement.blur()")  # the frame of a focus is no part of a picture
        page.wait_for_timeout(SETTLED_MILLIS)
        sent = page.context.new_cdp_session(page)
        shown = sent.send("Page.captureScreenshot", {"format": "webp", "quality": QUALITY})
    content = base64.b64decode(shown["data"])
    file.write_bytes(content)
    return len(content)


SETTLED_MILLIS = 3_000
"""Two rounds of a fleet's readings: rates and rivers need them."""


def write_orders(server: Server) -> None:
    """Put orders over all shards."""
    for number in range(ORDERS):
        put(server.client(), f"key-{number % 40:02}", number)


def parked_scene(stand: Stand) -> tuple[Server, Console]:
    """Start three workers on six shards, whose stream split, with two parked records."""
    options = ("--on-failure", "park", "--retries", "0", "--parking-table", PARKING)
    server = fleet_of(stand, "worker-1", "worker-2", "worker-3", options=options)
    write_orders(server)
    reshard(server, 6)
    server.admin("merge", table=TABLE, shard_a=open_shards(server)[0], shard_b=open_shards(server)[1])
    write_orders(server)
    for key, amount in (("key-07", POISON), ("key-31", "9,50")):
        put(server.client(), key, amount)
    words = (FLEET_WORD, "--parking-table", PARKING, "--processor", "tests.console_drill.processors:Mended")
    console, _ = stand.console(server, *words, "--allow-actions")
    awaited("two parked records", lambda: console.get(f"fleets/{TABLE}/parked")["count"] == 2)
    write_orders(server)
    awaited("a fleet that is well", lambda: console.get("verdict")["is_well"])
    return server, console


def stuck_scene(stand: Stand) -> Console:
    """Start two workers, of whose shards one does not move: a record fails again and again."""
    server = fleet_of(stand, "worker-1", "worker-2")
    (parent,) = open_shards(server)
    put(server.client(), "key-3", POISON)
    server.admin("split", table=TABLE, shard_id=parent)
    write_orders(server)
    console, _ = stand.console(server, FLEET_WORD)
    awaited("the trouble", lambda: console.get("verdict").get("troubles"))
    return console


PICTURES: Mapping[str, tuple[str, str, Mapping[str, int]]] = {
    "console-stream": ("server", f"stream/{TABLE}", WIDE),
    "console-overview": ("stuck", "", WIDE),
    "console-fleet": ("well", f"fleets/{TABLE}", WIDE),
    "console-moves": ("well", f"fleets/{TABLE}/moves", WIDE),
    "console-parked": ("well", f"fleets/{TABLE}/parked", WIDE),
    "console-phone": ("stuck", "", PHONE),
}
"""By name: the scene, the place in its console, and the size."""


def take_pictures(stand: Stand, directory: Path, ready: Callable[[str], Any] = lambda _: None) -> dict[str, int]:
    """Write all pictures into a directory; return their bytes by name."""
    directory.mkdir(parents=True, exist_ok=True)
    server, well = parked_scene(stand)
    consoles = {"server": server.console, "well": well, "stuck": stuck_scene(stand)}
    taken = {}
    for name, (scene, place, size) in PICTURES.items():
        write_orders(server)  # so that records move while a picture is taken
        taken[name] = take(stand, consoles[scene], directory / f"{name}.webp", place, size)
        ready(f"{name}.webp {taken[name]} bytes")
    return taken


def main() -> None:
    with tempfile.TemporaryDirectory() as directory, chromium() as browser, Stand(browser, Path(directory)) as stand:
        take_pictures(stand, FIGURES, print)


if __name__ == "__main__":
    main()
