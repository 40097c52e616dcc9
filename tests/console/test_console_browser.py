"""The page in a browser, under its own policy: what it shows, what people do by keyboard, nothing from elsewhere."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from console_tools import Scene
from tablestore import Row

from streamclient.server import Fail, FaultRule
from tests.console.chromium import Seen, chromium
from tests.console.fleet_page_tools import go
from tests.patience import until

pytestmark = pytest.mark.slow

EVIL = "<img src=x onerror=alert(1)>\u202e\x00<script>alert(2)</script>"
EVIL_SHOWN = "<img src=x onerror=alert(1)>\\u202e\\u0000<script>alert(2)</script>"

PAGES = ["", "tables", "tables/orders", "stream/orders", "tunnels", "faults", "requests"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture
def seen(browser: Any, scene: Scene) -> Iterator[Callable[..., Seen]]:
    made: list[Seen] = []

    def start(**options: Any) -> Seen:
        made.append(Seen(browser, scene.console.port, **options))
        return made[-1]

    yield start
    for each in made:
        each.context.close()
        assert (each.messages, each.foreign) == ([], [])


def furnish(scene: Scene) -> None:
    for number in range(20):
        scene.local.put("orders", id=f"o-{number:02}", amount=number, city="Hangzhou")
    scene.local.create_table("clicks", {"at": int, "by": bytes})
    low, _ = scene.local.split("orders")
    scene.local.split("orders", low)
    scene.local.add_fault(FaultRule("GetStreamRecord", Fail("OTSServerBusy"), table="orders"))


def test_a_newcomer_makes_a_table_and_puts_a_row_by_keyboard_alone(seen: Callable[..., Seen], scene: Scene) -> None:
    page = seen().open("tables")
    page.get_by_label("Name", exact=True).focus()
    page.keyboard.type("visits")
    page.keyboard.press("Tab")
    page.keyboard.type("id")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Table visits").wait_for()
    page.get_by_label("id (STRING)").focus()
    page.keyboard.type("a")
    page.keyboard.press("Tab")
    page.keyboard.type("n")
    page.keyboard.press("Tab")
    page.keyboard.type("INT")
    page.keyboard.press("Tab")
    page.keyboard.type(str(2**63 - 1))
    page.keyboard.press("Enter")
    page.get_by_text(re.compile(r"arrived after \d+ ms")).wait_for()

    page.get_by_role("row", name="PUT").get_by_text("9223372036854775807").wait_for()
    assert scene.local.client().get_row("visits", [("id", "a")])[1].attribute_columns[0][1] == 2**63 - 1


def test_what_an_sdk_puts_shows_without_a_click_and_takes_no_focus(seen: Callable[..., Seen], scene: Scene) -> None:
    page = seen().open("tables/orders")
    field = page.get_by_label("id (STRING)")
    field.fill("half-typed")
    field.focus()
    for number in range(3):
        scene.local.client().put_row("orders", Row([("id", f"k{number}")], [("n", number)]))
        page.get_by_role("row", name="PUT").get_by_text(f"k{number}").wait_for()

    assert field.input_value() == "half-typed"
    assert page.evaluate("document.activeElement.name") == "key id"


def test_a_shard_is_chosen_and_split_and_merged(seen: Callable[..., Seen], scene: Scene) -> None:
    for key in "abcdefgh":
        scene.local.put("orders", id=key)
    page = seen().open("stream/orders")
    (shard,) = [each.shard_id for each in scene.local.shards("orders")]
    page.get_by_role("table").get_by_role("button", name=shard[:8]).click()
    page.get_by_role("button", name="Split at its median").click()
    until(lambda: len(scene.local.shards("orders")) == 3, "the split")
    low = scene.local.shards("orders")[1].shard_id
    page.get_by_role("table").get_by_role("button", name=low[:8]).click()
    page.get_by_role("button", name="Merge with the next one").click()
    until(lambda: len(scene.local.shards("orders")) == 4, "the merge")
    trim = page.get_by_role("button", name="Trim…")
    page.get_by_role("table").get_by_role("button", name=shard[:8]).click()
    trim.click()
    assert scene.local.shards("orders")[0].record_count == 8, "the first click only asks"
    page.get_by_role("button", name="Delete its 8 records now").click()
    until(lambda: all(view.record_count == 0 for view in scene.local.shards("orders")), "the trim")


def test_a_fault_is_told_on_the_first_page_and_removed_there(seen: Callable[..., Seen], scene: Scene) -> None:
    page = seen().open("faults")
    page.get_by_role("button", name="Throttle").click()
    go(page, "")
    page.get_by_role("heading", name="A fault is active").wait_for()
    page.get_by_role("button", name="Remove this fault").click()
    page.get_by_role("heading", name="All is well").wait_for()

    page.get_by_text("The last fault: fail, code OTSFlowControl").wait_for()
    assert scene.local.faults() == ()


def test_what_the_server_refuses_is_told_and_a_form_keeps_its_text(seen: Callable[..., Seen], scene: Scene) -> None:
    watched = seen()
    page = watched.open("faults")
    rule = page.get_by_label("Rule as JSON")
    rule.fill('{"operation": "PutRow", "action": {"kind": "vanish"}}')
    page.get_by_role("button", name="Add the rule").click()
    page.get_by_role("alert").get_by_text("action kind must be one of").wait_for()
    until(lambda: page.title() != "" and watched.messages != [], "the browser's own word")

    assert "vanish" in rule.input_value()
    assert [text for text in watched.messages if "400" not in text] == []
    watched.messages.clear()


def test_texts_of_others_are_shown_as_text_in_every_place(seen: Callable[..., Seen], scene: Scene) -> None:
    scene.local.put("orders", id=EVIL, **{EVIL: EVIL})
    scene.local.add_fault(FaultRule(EVIL, Fail(EVIL, EVIL)))
    page = seen().open("requests")
    page.get_by_text("No request has come").wait_for()
    scene.local.client(sts_token="<img src=x onerror=alert(3)>").list_table()
    page.get_by_text("<img src=x onerror=alert(3)>").wait_for()
    for place in ("tables/orders", "faults", ""):
        go(page, place)
        page.get_by_text(EVIL_SHOWN).first.wait_for()

    assert page.locator("img").count() == 0


def test_the_policy_stops_what_the_page_would_do_by_mistake(browser: Any, scene: Scene) -> None:
    watched = Seen(browser, scene.console.port)
    page = watched.open()
    refused = page.evaluate(
        "() => { try { document.body.innerHTML = '<b>x</b>'; return 'written'; } catch (error) { return error.name; } }"
    )
    page.evaluate("() => { const image = new Image(); image.src = 'http://127.0.0.1:1/x.png'; }")
    until(lambda: page.title() != "" and len(watched.messages) >= 2, lambda: watched.messages)
    watched.context.close()

    assert refused == "TypeError"
    for text in watched.messages:
        assert "Content Security Policy" in text or "TrustedHTML" in text


def test_the_key_leaves_the_address_and_works(browser: Any, opened: Callable[..., Scene]) -> None:
    scene = opened(secret="a-secret-of-this-test")
    watched = Seen(browser, scene.console.port)
    watched.page.goto(scene.console.address)
    watched.page.get_by_text("live").wait_for()
    watched.page.get_by_role("heading", name="All is well").wait_for()
    url = watched.page.url
    watched.context.close()

    assert "key" not in url
    assert watched.messages == []


def test_a_server_that_is_gone_greys_the_data_with_their_age(browser: Any, scene: Scene) -> None:
    watched = Seen(browser, scene.console.port)
    page = watched.open()
    scene.console.stop()
    page.get_by_text(re.compile(r"data are \d+ s old")).wait_for()
    page.get_by_role("heading", name="All is well").wait_for()
    watched.context.close()


def test_pages_have_titles_and_take_the_focus(seen: Callable[..., Seen], scene: Scene) -> None:
    page = seen().open()
    page.get_by_role("link", name="Faults").click()
    page.get_by_role("heading", name="Faults").wait_for()

    assert page.title() == "Faults \N{EN DASH} streamclient console"
    assert page.evaluate("document.activeElement.tagName") == "H1"
    assert page.get_by_role("link", name="Faults").get_attribute("aria-current") == "page"


@pytest.mark.parametrize(
    ("width", "scheme"),
    [
        (390, "dark"),
        pytest.param(1440, "light", marks=pytest.mark.long),
        pytest.param(1440, "dark", marks=pytest.mark.long),
        pytest.param(390, "light", marks=pytest.mark.long),
    ],
)
def test_axe_finds_nothing(seen: Callable[..., Seen], scene: Scene, width: int, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe-playwright-python")
    furnish(scene)
    page = seen(viewport={"width": width, "height": 900}, color_scheme=scheme, bypass_csp=True).open()
    for place in PAGES:
        go(page, place)
        found = axe.Axe().run(page, options={"runOnly": ["wcag2a", "wcag2aa", "wcag21aa", "wcag22aa", "best-practice"]})
        assert [each["id"] for each in found.response["violations"]] == [], f"{place}: {found.generate_report()}"


@pytest.mark.parametrize("place", PAGES)
def test_nothing_needs_sideways_scrolling_at_320_pixels(seen: Callable[..., Seen], scene: Scene, place: str) -> None:
    furnish(scene)
    page = seen(viewport={"width": 320, "height": 700}).open(place)

    assert page.evaluate("document.documentElement.scrollWidth") <= 320
