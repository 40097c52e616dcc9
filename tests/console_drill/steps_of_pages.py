"""Steps 13 to 15: the player, the page for everybody, and its documentation."""

from __future__ import annotations

import contextlib
import io
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from streamclient.cli.main import main
from streamclient.testing.simulation.drawing import draw_plan
from streamclient.testing.simulation.fleet_history import fleet_history
from streamclient.testing.simulation.runner import play_plan
from streamclient.testing.simulation.world import SimulatedWorld
from tests.console_drill.pictures import PICTURES, take_pictures
from tests.console_drill.processors import REPLAYED
from tests.console_drill.scenes import PARKING, fleet_of, owners
from tests.console_drill.stand import (
    FLEET_WORD,
    TABLE,
    WAIT_SECONDS,
    Console,
    Stand,
    awaited,
    check,
    equal,
    go,
    text_of,
)
from tests.console_drill.steps_of_fleet import DO, MENDED, REASON, SHOW, park, path_of
from tests.console_drill.steps_of_server import tab_to
from tests.simulation.mutations import MUTATIONS

ROOT = Path(__file__).resolve().parents[2]

STEP_MILLIS = 50.0
STEPS_OF_PLAYER = 40

WIDTHS = (1440, 1024, 768, 390)
COLOURS = ("light", "dark")
NARROWEST = 320

SEED, MOMENT, LARGE_SEED = 9, 270.0, 3

OWN_PAGES = ("", "tables", f"tables/{TABLE}", f"stream/{TABLE}", "tunnels", "faults", "requests", "history")

RULES = ["wcag2a", "wcag2aa", "wcag21aa", "wcag22aa", "best-practice"]


# --- 13 --------------------------------------------------------------------------------------------------------------


def player(stand: Stand) -> str:
    """Write pages of histories; open them from disk without a network."""
    file = stand.directory / "history.html"
    ran = stand.command(None, "simulate", "--seed", str(SEED), "--page", str(file))
    equal(ran.code, 0, f"simulate --page ({ran.err})")
    found = re.search(r"digest ([0-9a-f]+)", ran.out)
    check(found, f"the command told no digest: {ran.out!r}")
    assert found is not None
    with from_disk(stand, file) as page:
        check(found[1] in page.locator("header .facts").inner_text(), f"the page does not show the digest {found[1]}")
        page.evaluate(f"location.hash = '#/history?seed={SEED}&at={MOMENT}&shard=s001'")
        page.locator("output.time", has_text=f"{MOMENT:.1f} s").wait_for()
        link = page.get_by_role("link", name="Link to this moment").get_attribute("href")
        lanes = page.locator(".lanes").text_content()
        stand.picture(page, "13-history")
    with from_disk(stand, file, link) as page:
        equal(page.locator("output.time").inner_text(), f"{MOMENT:.1f} s", "the moment that the link restores")
        equal(page.locator(".lanes").text_content(), lanes, "the lanes that the link restores")
    at, law = broken(stand)
    millis, longest, shards = steps_of_player(stand)
    check(millis < STEP_MILLIS, f"a step over {shards} shards takes {millis:.0f} ms")
    figures = f"a step {millis:.1f} ms (median of {STEPS_OF_PLAYER}, at most {longest:.1f} ms)"
    return (
        f"digest {found[1]} on the page and in the command; the link restores {MOMENT:g} s; {law!r} opens at {at}; "
        f"{shards} shards: {figures}"
    )


@contextmanager
def from_disk(stand: Stand, file: Path, fragment: str | None = None) -> Iterator[Any]:
    """Open a file in a browser without a network, which must complain of nothing and ask for nothing else."""
    context = stand.browser.new_context(offline=True, viewport={"width": 1440, "height": 1000})
    page = context.new_page()
    page.set_default_timeout(1_000 * WAIT_SECONDS)
    messages: list[str] = []
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.on("request", lambda request: messages.append(request.url))
    page.goto(file.as_uri() + (fragment or ""))
    yield page
    context.close()
    others = [text for text in messages if not text.startswith((file.as_uri(), "data:"))]
    equal(others, [], "complaints and further requests of a page from disk")


def broken(stand: Stand) -> tuple[str, str]:
    """Play a mistake in the core; return the time at which its page opens, and the law that it broke."""
    (mutation,) = (each for each in MUTATIONS if each.name == "a checkpoint is answered before it is stored")
    file = stand.directory / "broken.html"
    with mutation.applied(), contextlib.redirect_stdout(io.StringIO()):
        equal(main(["simulate", "--seed", "0", "--page", str(file)]), 1, "the exit code of a broken law")
        world, verdict = play_plan(draw_plan(0, None))
        assert isinstance(world, SimulatedWorld)
        violation = fleet_history(world, verdict)["violation"]
    assert violation is not None
    with from_disk(stand, file) as page:
        shown = str(page.locator("output.time").inner_text())
        equal(shown, f"{violation['at']:.1f} s", "the moment at which a broken law opens")
        law = str(page.locator(".broken h2").inner_text())
    return shown, law


STEP = """(count) => {
  const times = [];
  for (let number = 0; number < count; number += 1) {
    const began = performance.now();
    document.body.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight", bubbles: true, cancelable: true }));
    document.body.getBoundingClientRect();
    times.push(performance.now() - began);
  }
  return times;
}"""
"""Goes to the next event so many times; returns the milliseconds of each step, its layout included."""


def steps_of_player(stand: Stand) -> tuple[float, float, int]:
    """Return the median and longest milliseconds of a step over a large history, and its number of shards."""
    file = stand.directory / "large.html"
    ran = stand.command(None, "simulate", "--seed", str(LARGE_SEED), "--full-size", "--page", str(file))
    equal(ran.code, 0, f"the page of a large history ({ran.err})")
    with from_disk(stand, file) as page:
        page.locator(".events li").first.wait_for()
        middle = float(page.locator('input[type="range"]').first.get_attribute("max")) / 2
        page.evaluate(f"location.hash = '#/history?at={middle:.1f}'")
        page.locator("output.time", has_text=f"{middle:.1f} s").wait_for()
        shards = page.locator(".river .layer-bands rect").count()
        times = page.evaluate(STEP, STEPS_OF_PLAYER)
    return median(times), max(times), shards


# --- 14 --------------------------------------------------------------------------------------------------------------


def everybody(stand: Stand) -> str:
    """Replay a record by keyboard alone; look for what keeps people out; write a picture by Firefox."""
    replayed = stand.directory / "replayed.txt"
    options = ("--on-failure", "park", "--retries", "0", "--parking-table", PARKING)
    server = fleet_of(stand, "worker-1", options=options)
    words = (FLEET_WORD, "--parking-table", PARKING, "--processor", MENDED, "--allow-actions")
    console, _ = stand.console(server, *words, **{REPLAYED: str(replayed)})
    with stand.page(console) as page:
        park(server, console, "key-3")
        pressed = replay_by_keyboard(page)
        awaited("no parked record", lambda: console.get(path_of("parked"))["count"] == 0)
    equal(replayed.read_text(encoding="utf-8").split(), ["key-3"], "the replayed records")
    park(server, console, "key-5")
    shard = next(iter(owners(console)))
    below = ("", f"/shards/{shard}", "/moves", "/parked", "/stream")
    looked = 0
    for each, places in ((server.console, OWN_PAGES), (console, ("", *(f"fleets/{TABLE}{place}" for place in below)))):
        looked += accessible(stand, each, places)
        narrow(stand, each, places)
    firefox = by_firefox(stand, console)
    return (
        f"replayed with {pressed} presses of Tab; axe finds nothing in {looked} looks; nothing needs sideways "
        f"scrolling at {NARROWEST} px; {firefox}"
    )


def replay_by_keyboard(page: Any) -> int:
    """From the first screen to a replayed record; return the number of presses of Tab."""
    presses = tab_to(page, r"Parked.*")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name=re.compile("^Parked")).first.wait_for()
    awaited("the cause", lambda: "amount must be a number" in text_of(page))
    presses += tab_to(page, r"Replay.*")
    page.keyboard.press("Enter")
    presses += tab_to(page, r"Reason.*")
    page.keyboard.type(REASON)
    presses += tab_to(page, SHOW)
    page.keyboard.press("Enter")
    page.get_by_role("button", name=DO).wait_for()
    presses += tab_to(page, DO)
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Carried out").wait_for()
    return presses


def accessible(stand: Stand, console: Console, places: tuple[str, ...]) -> int:
    """Let axe look at every page in every width and colour; return the number of looks."""
    from axe_playwright_python.sync_playwright import Axe

    for width in WIDTHS:
        for colour in COLOURS:
            size = {"width": width, "height": 900}
            options = {
                "viewport": size,
                "color_scheme": colour,
                "bypass_csp": True,
            }
            with stand.page(console, **options) as page:
                for place in places:
                    go(page, place)
                    found = Axe().run(page, options={"runOnly": RULES})
                    names = [each["id"] for each in found.response["violations"]]
                    equal(names, [], f"what axe finds on #/{place}, {width} px, {colour}: {found.generate_report()}")
    return len(places) * len(WIDTHS) * len(COLOURS)


def narrow(stand: Stand, console: Console, places: tuple[str, ...]) -> None:
    with stand.page(console, viewport={"width": NARROWEST, "height": 700}) as page:
        for place in places:
            go(page, place)
            wide = page.evaluate("document.documentElement.scrollWidth")
            check(wide <= NARROWEST, f"#/{place} is {wide} px wide at {NARROWEST} px")


def by_firefox(stand: Stand, console: Console) -> str:
    """Let Firefox write a picture of the first screen; nothing here can look at it."""
    path = shutil.which("firefox-esr") or shutil.which("firefox")
    if path is None:
        return "NOT SEEN: there is no Firefox"
    picture = stand.directory.parent / "pictures" / "14-firefox.png"
    profile = stand.directory / "firefox"
    profile.mkdir()
    words = [path, "--headless", "--no-remote", "--profile", str(profile), "--window-size", "1440,1000"]
    subprocess.run(
        [*words, "--screenshot", str(picture), console.printed], capture_output=True, check=False, timeout=WAIT_SECONDS
    )
    check(picture.exists() and picture.stat().st_size > 10_000, "Firefox wrote no picture")
    return f"Firefox wrote {picture.name}"


# --- 15 --------------------------------------------------------------------------------------------------------------


def documentation(stand: Stand) -> str:
    """Run the examples of the page, and make its pictures."""
    words = [sys.executable, "-m", "pytest", "-q", "tests/docs/test_console_page.py"]
    ran = subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT, timeout=10 * WAIT_SECONDS)
    equal(ran.returncode, 0, f"the examples of docs/console.md ({ran.stdout[-1_000:]})")
    directory = stand.directory / "figures"
    taken = take_pictures(stand, directory)
    shown = re.findall(
        r"\(figures/(console-[\w-]+)\.webp\)", (ROOT / "docs" / "console.md").read_text(encoding="utf-8")
    )
    equal(sorted(shown), sorted(PICTURES), "the pictures of docs/console.md")
    kept = {path.stem for path in (ROOT / "docs" / "figures").glob("console-*.webp")}
    equal(sorted(kept), sorted(PICTURES), "the pictures in docs/figures")
    sizes = ", ".join(f"{name} {size // 1_000} kB" for name, size in taken.items())
    return f"{ran.stdout.strip().splitlines()[-1]}; {sizes}"
