"""The pages of fleets for everybody: axe, narrow screens, thumbs, no motion; and texts that others wrote."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib import resources
from typing import Any

import pytest

from tests.console.chromium import chromium
from tests.console.fleet_page_tools import NOT_FOUND, Shows, go, shown_fleets, text_of
from tests.console.made_documents import detail
from tests.console.made_fleets import PLACES, STATES, healthy, poisoned
from tests.patience import until

pytestmark = pytest.mark.slow

WIDTHS = (1440, 1024, 768, 390)
AXE = {"runOnly": ["wcag2a", "wcag2aa", "wcag21aa", "wcag22aa", "best-practice"]}

HOSTILE = (
    "<img src=x onerror=alert(1)>",
    "<script>alert(2)</script>",
    "</script><script>alert(3)</script>",
    "<svg onload=alert(4)>",
    '"><img src=x onerror=alert(5)>',
    "' onfocus=alert(6) autofocus='",
    "javascript:alert(7)",
    "{{constructor.constructor('alert(8)')()}}",
    "${alert(9)}",
    "`-alert(10)-`",
    "<!--",
    "]]>",
    "<iframe srcdoc='<script>alert(11)</script>'>",
    "<a href=javascript:alert(12)>x</a>",
    "<style>*{display:none}</style>",
    "<meta http-equiv=refresh content=0>",
    "<base href=//evil.example>",
    "<form action=//evil.example><button>x",
    "&lt;img src=x onerror=alert(13)&gt;",
    "\u202eevil\u202c",
    "\u2066\u200f\u200b\ufeff",
    "\x00\x1b[31mred\x1b[0m",
    "\ud800",
    "a\nb\r\tc",
    "__proto__",
    "constructor",
    "'; DROP TABLE leases; --",
    "../../etc/passwd?x=1#/y%2f%",
    "\N{PILE OF POO}" * 20,
    "w" * 2000,
)
"""Texts that somebody could put where others read them."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture
def shown(browser: Any) -> Iterator[Shows]:
    with shown_fleets(browser) as shows:
        yield shows


# --- for everybody -------------------------------------------------------------------------------------------------


def axe_of(page: Any) -> Callable[[str], None]:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe-playwright-python").Axe()

    def check(place: str) -> None:
        go(page, place)
        found = axe.run(page, options=AXE)
        assert [each["id"] for each in found.response["violations"]] == [], f"{place}: {found.generate_report()}"

    return check


@pytest.mark.parametrize(("width", "scheme"), [(1440, "light"), pytest.param(390, "dark", marks=pytest.mark.long)])
def test_axe_finds_nothing(shown: Shows, width: int, scheme: str) -> None:
    page, _ = shown(poisoned(), viewport={"width": width, "height": 900}, color_scheme=scheme, bypass_csp=True)
    for place in PLACES:
        axe_of(page)(place)


@pytest.mark.long
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_axe_finds_nothing_in_any_state(shown: Shows, width: int, scheme: str, state: str) -> None:
    options: Mapping[str, Any] = {"viewport": {"width": width, "height": 900}, "color_scheme": scheme}
    page, _ = shown(STATES[state](), excused=NOT_FOUND, bypass_csp=True, **options)
    for place in PLACES:
        axe_of(page)(place)


_WIDE = """[...document.querySelectorAll("main .card")].filter(card => card.scrollWidth > card.clientWidth)
    .map(card => card.innerText.slice(0, 40))"""


@pytest.mark.parametrize("state", STATES)
def test_nothing_needs_sideways_scrolling_at_320_pixels(shown: Shows, state: str) -> None:
    page, _ = shown(STATES[state](), excused=NOT_FOUND, viewport={"width": 320, "height": 700})
    for place in PLACES:
        go(page, place)
        assert page.evaluate("document.documentElement.scrollWidth") <= 320, place
        assert page.evaluate(_WIDE) == [], place


def test_targets_are_large_enough_for_a_thumb(shown: Shows) -> None:
    page, _ = shown(poisoned(), viewport={"width": 390, "height": 900})
    for place in PLACES:
        go(page, place)
        for target in page.locator("main button:visible, main select:visible, nav a").all():
            box = target.bounding_box()
            assert box["height"] >= (24 if target.evaluate("node => !!node.closest('thead')") else 39.9), (place, box)


def test_rows_that_are_cards_keep_the_roles_of_a_table(shown: Shows) -> None:
    page, _ = shown(poisoned(), "fleets/orders", viewport={"width": 390, "height": 900})
    table = page.get_by_role("table", name="shards")
    assert table.get_by_role("row").count() == 13
    assert table.get_by_role("columnheader").count() == 6
    assert table.get_by_role("cell").first.evaluate("node => getComputedStyle(node).display") == "block"


def test_whoever_wants_no_motion_gets_none(shown: Shows) -> None:
    page, _ = shown(healthy(), reduced_motion="reduce")
    moving = (
        "[...document.querySelectorAll('*')].filter(node => getComputedStyle(node).transitionDuration !== '0s').length"
    )
    assert page.evaluate(moving) == 0


# --- hostile texts -------------------------------------------------------------------------------------------------


def spoiled(document: Any, evil: str, name: str = "") -> Any:
    """A document with a text in place of every other text, but the names by which the console knows its fleets."""
    if isinstance(document, dict):
        return {key: spoiled(value, evil, key) for key, value in document.items()}
    if isinstance(document, list):
        return [spoiled(each, evil, name) for each in document]
    return evil if isinstance(document, str) and name != "fleet" else document


def escaped(text: str) -> str:
    """The text as the page shows it: control and direction marks as numbers."""
    marks = "[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
    return re.sub(marks, lambda mark: f"\\u{ord(mark[0]):04x}", text)


def has(page: Any, text: str) -> bool:
    return text in page.locator("#page").text_content()


def attack(shown: Shows, texts: tuple[str, ...]) -> None:
    good = poisoned()
    page, made = shown(poisoned())
    for evil in texts:
        made.documents.update({topic: spoiled(document, evil) for topic, document in good.documents.items()})
        stuck = good.documents["fleet:orders"]["shards"][0]
        made.show(detail=spoiled(detail(stuck, "Mend `it`."), evil))
        for place in PLACES:
            go(page, place)
            until(partial(has, page, escaped(evil)), f"{evil!a} on {place}")
            assert page.locator("main :is(img, script, iframe, style, base, meta, form[action])").count() == 0, evil
            marks = re.findall("[\u0000-\u0008\u200b-\u200f\u202a-\u202e\u2066-\u2069]", text_of(page))
            assert marks == [], (evil, place)
            assert page.evaluate("document.documentElement.scrollWidth") <= 1440, (evil, place)


def test_texts_of_others_stay_texts(shown: Shows) -> None:
    attack(shown, (HOSTILE[0], HOSTILE[5], HOSTILE[19], HOSTILE[21], HOSTILE[-1]))


@pytest.mark.long
def test_thirty_hostile_texts_stay_texts_in_every_field(shown: Shows) -> None:
    assert len(set(HOSTILE)) == 30
    attack(shown, HOSTILE)


def test_the_page_stays_small_enough_to_be_read() -> None:
    files = [each for each in resources.files("streamclient.console").joinpath("page").iterdir() if each.is_file()]
    lines = [line for each in files for line in each.read_text(encoding="utf-8").splitlines()]

    assert len(lines) <= 1_650
    assert [line for line in lines if len(line) > 160] == []
