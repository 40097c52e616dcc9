"""The pages of fleets in a browser, with made documents: what they show, what people do, what an update changes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from tests.console.chromium import chromium
from tests.console.fleet_page_tools import NOT_FOUND, Shows, go, shown_fleets, text_of
from tests.console.made_documents import CHILDREN, NOW, SECOND, STUCK, fleet_line
from tests.console.made_fleets import (
    PLACES,
    STATES,
    five_thousand,
    healthy,
    poisoned,
    stale,
    three_hundred,
)
from tests.patience import until

pytestmark = pytest.mark.slow

DASH = "\N{EN DASH}"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture
def shown(browser: Any) -> Iterator[Shows]:
    with shown_fleets(browser) as shows:
        yield shows


# --- what they show ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", STATES)
def test_every_page_shows_every_state(shown: Shows, state: str) -> None:
    page, _ = shown(STATES[state](), excused=NOT_FOUND)
    for place in PLACES:
        go(page, place)
        text = text_of(page)
        assert re.findall(r"undefined|NaN|\[object", text) == [], f"{place}: {text}"
        assert page.locator("#page h1").count() == 1, place


def test_the_first_page_tells_the_worst_trouble_in_full_and_the_others_in_a_line(shown: Shows) -> None:
    page, made = shown(poisoned())
    verdict = made.documents["verdict"]
    assert page.locator("h1").inner_text().replace("\n", " ").replace("  ", " ") == verdict["sentence"]
    text = text_of(page, '[data-id="verdict"]')
    assert re.search(r"Since \d\d:\d\d:\d\d UTC, that is 6 min \d\d s\.", text)
    assert "Mend the processor or its destination; the processor starts again by itself." in text
    figures = page.locator('[data-id="verdict"] dl.figures dd').all_inner_texts()
    assert figures == [DASH, "23 h 53 min", "1", "2"]
    assert "Worker shop-b-2 is silent" in text
    page.get_by_role("link", name="Look at: 7 records were parked since the workers started.").click()
    page.wait_for_url("**/fleets/orders/parked")


def test_fleets_are_sorted_by_a_click_and_unknown_comes_last(shown: Shows) -> None:
    page, _ = shown(poisoned())
    names = page.locator('table[aria-label="fleets"] tbody tr td:first-child')
    assert names.all_inner_texts() == ["orders", "payments", "clicks"]
    lag = page.get_by_role("columnheader", name="Longest lag")
    lag.get_by_role("button").click()
    until(lambda: lag.get_attribute("aria-sort") == "descending", "the order")
    assert names.all_inner_texts() == ["orders", "payments", "clicks"]
    lag.get_by_role("button").click()
    until(lambda: lag.get_attribute("aria-sort") == "ascending", "the order")
    assert names.all_inner_texts() == ["payments", "orders", "clicks"]
    row = page.get_by_role("row", name="clicks")
    assert row.get_by_role("cell").nth(5).inner_text() == DASH


def test_each_of_several_fleets_has_its_way(shown: Shows) -> None:
    page, _ = shown(poisoned())
    nav = page.get_by_role("navigation", name="Pages")
    assert [each.split("\n")[0] for each in nav.get_by_role("link").all_inner_texts()] == [
        "Overview",
        "orders",
        "payments",
        "clicks",
        "History",
    ]
    nav.get_by_role("link", name="orders").click()
    nav.get_by_role("link", name="Moves").click()
    page.get_by_role("heading", name="Moves of orders").wait_for()
    assert nav.get_by_role("link", name="Moves").get_attribute("aria-current") == "page"
    assert page.evaluate("document.activeElement.tagName") == "H1"
    assert page.title() == f"Moves {DASH} orders {DASH} streamclient console"


@pytest.mark.parametrize("width", [320, 430, 560, 700, 1440])
def test_the_times_below_a_drawing_stand_apart(shown: Shows, width: int) -> None:
    page, _ = shown(poisoned(), "fleets/orders", viewport={"width": width, "height": 900})
    for place, drawing in (("fleets/orders", ".line"), ("fleets/orders/stream", ".river")):
        go(page, place)
        times = page.locator(f"{drawing} .layer-axis text", has_text=re.compile(r"\d\d:\d\d:\d\d"))
        times.first.wait_for()
        boxes = sorted((each.bounding_box() for each in times.all()), key=lambda box: box["x"])
        gaps = [later["x"] - box["x"] - box["width"] for box, later in pairwise(boxes)]
        assert len(boxes) >= 2
        assert min(gaps) > 4, (drawing, gaps)


def test_few_shards_are_a_table_and_the_lag_is_a_line(shown: Shows) -> None:
    page, made = shown(poisoned(), "fleets/orders")
    rows = page.locator('table[aria-label="shards"] tbody tr')
    assert rows.count() == len(made.documents["fleet:orders"]["shards"])
    assert rows.first.locator("td").all_inner_texts()[1:4] == ["processor-fails", "shop-a-2", "6 min 24 s"]
    page.get_by_label("Filter").fill("waits-for")
    page.get_by_text("2 of 12 unfinished shards, 2 do not move").wait_for()
    assert rows.count() == 2
    assert page.locator(".line-path").get_attribute("d").count("M") == 2, "the line has a gap where the lag was unknown"
    page.get_by_role("button", name="Lag as a table").click()
    lag = page.get_by_role("table").filter(has_text="Longest lag").locator("tbody tr")
    until(lambda: lag.count() == 60, "the table of the line")


def test_hundreds_of_shards_are_squares_with_a_line_for_each_worker_and_the_worst(shown: Shows) -> None:
    page, made = shown(three_hundred(), "fleets/orders")
    lines = made.documents["fleet:orders"]["shards"]
    page.locator(".squares .square").first.wait_for()
    assert page.locator(".squares .square").count() == len(lines) == 300
    assert page.locator(".squares .square.bad").count() == page.locator(".squares .layer-signs path").count() == 1
    assert page.locator(".squares .square-half").count() == 3
    owners = page.locator('table[aria-label="owners"] tbody tr')
    assert owners.first.locator("td").all_inner_texts()[:4] == ["no owner", "1", "0", "1"]
    assert owners.count() == 5
    assert page.locator('table[aria-label="shards"] tbody tr').count() == 4
    page.get_by_role("button", name="All as a table").click()
    until(lambda: page.locator('table[aria-label="shards"] tbody tr').count() == 304, "the table of all")
    page.locator(".squares .square.bad").click()
    page.wait_for_url(f"**/fleets/orders/shards/{STUCK}")


def test_thousands_of_shards_are_groups(shown: Shows) -> None:
    page, _ = shown(five_thousand(), "fleets/orders")
    first = page.locator('table[aria-label="groups"] tbody tr').first.locator("td").all_inner_texts()
    assert first == ["shop-000", "no session row", "90", "5", "2", "1", "1", "0", "1", "100", "98"]
    assert page.locator('table[aria-label="shards"] tbody tr').count() == 25
    page.get_by_text("and 80 more").wait_for()
    assert "4900 of 5003" in text_of(page)


def test_a_shard_tells_its_verdict_family_evidence_and_orders(shown: Shows) -> None:
    page, _ = shown(poisoned(), f"fleets/orders/shards/{STUCK}")
    page.get_by_role("heading", name="Actions").wait_for()
    text = text_of(page)
    assert "Mend the processor; or see leases park." in text
    assert "lease: owner shop-a-2, counter 12" in text
    family = page.locator("section", has=page.get_by_role("heading", name="Family", exact=True))
    assert family.locator("tbody tr").count() == 2
    assert re.search(r"ann@ops\s+pause s\s+upgrade\s+done", text)
    assert "They are read only if you ask." in text
    page.get_by_role("button", name="Read the next records").click()
    page.get_by_role("cell", name="id o-4711").wait_for()
    go(page, f"fleets/orders/shards/{CHILDREN[0]}")
    page.get_by_role("definition").get_by_role("link", name=STUCK[:8]).click()
    page.wait_for_url(f"**/{STUCK}")


def test_moves_are_lanes_and_the_table_says_the_same(shown: Shows) -> None:
    page, made = shown(poisoned(), "fleets/orders/moves")
    lanes = made.documents["moves:orders"]["lanes"]
    spans = [span for lane in lanes for span in lane["spans"]]
    page.locator(".lanes .layer-spans rect").first.wait_for()
    assert page.locator(".lanes .layer-spans rect").count() == len(spans)
    assert page.locator(".lanes .layer-ground rect").count() == len(lanes) == 4
    page.get_by_role("button", name="Leases as a table").click()
    held = page.locator("section", has=page.get_by_role("heading", name="Leases of each worker"))
    until(lambda: held.locator("tbody tr").count() == len(spans), "the table")
    text = text_of(page)
    assert re.search(r"Complete since \d\d:\d\d:\d\d UTC", text)
    assert re.search(r"taken\s+shop-b-2\s+shop-b-1\s+21 s", text)
    assert "ann@ops move s --to w (\N{LEFT DOUBLE QUOTATION MARK}drain" in text


def test_parked_records_are_chosen_by_cause_and_one_is_shown_whole(shown: Shows) -> None:
    page, _ = shown(poisoned(), "fleets/orders/parked")
    records = page.locator("section", has=page.get_by_role("heading", name="Records", exact=True)).locator("tbody tr")
    assert records.count() == 7
    page.get_by_role("button", name="OSError: gone", exact=True).click()
    until(lambda: records.count() == 1, "the records of the cause")
    page.get_by_role("button", name="All causes").click()
    page.get_by_role("button", name="o-473 3").click()
    page.get_by_text('File "shop.py", line 12, in process_records').wait_for()
    assert len(page.locator("pre").inner_text().splitlines()) == 3


# --- what people do ------------------------------------------------------------------------------------------------


def test_by_keyboard_alone_from_the_first_page_to_a_plan_that_is_carried_out(shown: Shows) -> None:
    page, made = shown(poisoned())

    def tab_to(name: str) -> None:
        for _ in range(80):
            page.keyboard.press("Tab")
            focused = "document.activeElement.getAttribute('aria-label') || document.activeElement.textContent"
            if page.evaluate(focused) == name:
                return
        raise AssertionError(f"Tab does not come to {name}")

    tab_to(f"Look at shard {STUCK[:8]}")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Actions").wait_for()
    tab_to("Pause")
    page.keyboard.press("Enter")
    page.get_by_label("For, such as 15m").wait_for()
    for text in ("15m", "upgrade of the shop"):
        while page.evaluate("document.activeElement.tagName") != "INPUT" or page.evaluate(
            "document.activeElement.value"
        ):
            page.keyboard.press("Tab")
        page.keyboard.type(text)
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="The plan").wait_for()
    until(lambda: page.evaluate("document.activeElement.textContent") == "The plan", "the focus on the plan")
    assert "its owner stops reading it" in text_of(page, '[data-id="plan"]')
    assert "upgrade of the shop" in text_of(page, '[data-id="plan"] table'), "what would be written is shown"
    assert [("plan" in asked) for _, asked in made.changes] == [False]
    tab_to("Carry it out")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Carried out").wait_for()

    (_, planned), (where, done) = made.changes
    assert where == "actions"
    assert planned == {
        "command": "pause",
        "shards": [STUCK],
        "options": {"for": "15m"},
        "reason": "upgrade of the shop",
    }
    assert done["plan"]


def test_an_order_needs_a_reason(shown: Shows) -> None:
    page, made = shown(poisoned(), f"fleets/orders/shards/{STUCK}")
    page.get_by_role("button", name="Resume").click()
    page.get_by_role("button", name="Show the plan").click()
    assert page.locator("input[name=reason]:invalid").count() == 1
    assert made.changes == []


def test_a_plan_that_changed_is_not_carried_out(shown: Shows) -> None:
    page, made = shown(poisoned(), f"fleets/orders/shards/{STUCK}", excused=("409 (Conflict)",))
    page.get_by_role("button", name="Move", exact=True).click()
    page.get_by_label("To worker").fill("shop-b-1")
    page.get_by_label("Reason").fill("drain")
    page.get_by_role("button", name="Show the plan").click()
    made.is_changed = True
    page.get_by_role("button", name="Carry it out").click()
    page.get_by_role("alert").get_by_text("the plan has changed. Look at it again.").wait_for()
    assert page.get_by_role("heading", name="The plan").count() == 0
    assert page.get_by_label("To worker").input_value() == "shop-b-1"


def test_a_change_of_page_closes_what_was_half_done(shown: Shows) -> None:
    page, _ = shown(poisoned(), f"fleets/orders/shards/{STUCK}")
    page.get_by_role("button", name="Pause").click()
    page.get_by_label("Reason").fill("x")
    page.get_by_role("button", name="Show the plan").click()
    page.get_by_role("heading", name="The plan").wait_for()
    go(page, "fleets/orders")
    go(page, f"fleets/orders/shards/{STUCK}")
    page.get_by_role("heading", name="Actions").wait_for()
    assert page.get_by_role("heading", name="The plan").count() == page.locator("form").count() == 0


def test_a_read_only_console_shows_commands_in_place_of_buttons(shown: Shows) -> None:
    page, made = shown(poisoned(allows_actions=False), f"fleets/orders/shards/{STUCK}")
    page.locator("#live").get_by_text("read-only").wait_for()
    for name in ("Pause", "Resume", "Move", "Release", "Park a record"):
        assert page.get_by_role("button", name=name, exact=True).is_disabled()
    page.get_by_text("This console is read-only").wait_for()
    told = [
        f"streamclient leases {order} {STUCK} --reason WHY --data-table orders"
        for order in ("pause", "resume", "move", "release")
    ]
    assert copied_commands(page) == told
    go(page, "fleets/orders/parked")
    for button in page.locator('button[data-act="parked"]').all():
        assert button.is_disabled()
    commands = made.documents["parked:orders"]["commands"]
    assert copied_commands(page) == [f"{commands[each]} --cause c1" for each in ("replay", "discard")]
    page.get_by_role("button", name="OSError: gone", exact=True).click()
    page.get_by_text(f"{commands['discard']} --cause c2").wait_for()
    assert made.changes == []


def test_a_replay_is_planned_by_cause_and_by_key(shown: Shows) -> None:
    page, made = shown(poisoned(), "fleets/orders/parked")
    page.get_by_role("button", name="Replay: TypeError: amount # is not a number").click()
    page.get_by_label("Reason").fill("mended")
    page.get_by_role("button", name="Show the plan").click()
    page.get_by_role("heading", name="The plan").wait_for()
    page.get_by_role("button", name="Carry it out").click()
    page.get_by_role("heading", name="Carried out").wait_for()
    page.get_by_role("button", name="o-473 3").click()
    page.get_by_role("button", name=re.compile("^Replay its key")).click()
    page.get_by_role("heading", name="Carried out").wait_for(state="detached")  # the form is the next one's
    page.get_by_label("Reason").fill("mended")
    page.get_by_role("button", name="Show the plan").click()
    page.get_by_role("heading", name="The plan").wait_for()

    assert [where for where, _ in made.changes] == ["parked/replay"] * 3
    assert made.changes[0][1] == {"cause": "c1", "reason": "mended"}
    assert made.changes[1][1]["plan"]
    assert made.changes[2][1] == {"key": [["id", "o-473"], ["part", 3]], "reason": "mended"}


def test_without_a_processor_the_command_of_a_replay_is_shown(shown: Shows) -> None:
    page, made = shown(poisoned(can_replay=False), "fleets/orders/parked")
    assert page.get_by_role("button", name="Replay: OSError: gone").is_disabled()
    assert page.get_by_role("button", name="Discard: OSError: gone").is_enabled()
    assert copied_commands(page) == [f"{made.documents['parked:orders']['commands']['replay']} --cause c1"]


def copied_commands(page: Any) -> list[str]:
    return [str(each.get_attribute("data-text")) for each in page.locator('[data-act="copy"]').all()]


# --- updates -------------------------------------------------------------------------------------------------------


def test_an_update_changes_cells_and_takes_no_focus(shown: Shows) -> None:
    page, made = shown(poisoned(), "fleets/orders")
    field = page.get_by_label("Filter")
    field.fill("shop")
    field.focus()
    page.get_by_role("button", name="Lag as a table").click()
    field.focus()
    page.evaluate("document.querySelector('table[aria-label=workers] tbody tr').isKept = true")
    document = made.documents["fleet:orders"]
    workers = [{**each, "records_per_second": 4_321.0} for each in document["workers"]]
    made.show(fleet__orders={**document, "workers": workers, "read_micros": NOW + 2 * SECOND})
    page.get_by_role("table", name="workers").get_by_text("4\u202f321").first.wait_for()
    assert page.evaluate("document.querySelector('table[aria-label=workers] tbody tr').isKept")

    assert page.evaluate("document.activeElement.name") == "filter"
    assert field.input_value() == "shop"
    assert page.get_by_role("button", name="Lag as a table").get_attribute("aria-expanded") == "true"


def test_old_data_stay_greyed_with_age_and_error(shown: Shows) -> None:
    page, made = shown(stale(), "fleets/orders")
    page.get_by_text(re.compile(r"orders: the data are .* old: the service does not answer")).wait_for()
    assert "Workers go on by themselves. The next reading comes within 16 s." in text_of(page)
    assert page.locator("#page code", has_text="--endpoint").all_inner_texts() == ["--endpoint"]
    assert page.locator('table[aria-label="shards"] tbody tr').count() == 12
    card = page.locator('[data-id="verdict"]')
    until(lambda: card.evaluate("node => getComputedStyle(node).filter") == "grayscale(1)", "grey")
    good = poisoned().documents["fleet:orders"]
    made.show(fleet__orders={**good, "read_micros": NOW + 9 * SECOND})
    page.get_by_text("the service does not answer").wait_for(state="detached")
    until(lambda: card.evaluate("node => getComputedStyle(node).filter") in ("none", "grayscale(0)"), "colour")


def test_the_verdict_is_spoken_once(shown: Shows) -> None:
    page, made = shown(healthy())
    status = page.get_by_role("status")
    until(lambda: status.inner_text() == made.documents["verdict"]["sentence"], "the spoken verdict")
    page.evaluate("() => { const now = Date.now(); state.spokenAt = now; Date.now = () => now; }")
    made.show(verdict=poisoned().documents["verdict"])
    page.get_by_role("heading", name="does not move").wait_for()
    assert "all is well" in status.inner_text(), "the next sentence waits for ten seconds"
    page.evaluate("() => { const now = Date.now(); Date.now = () => now + 10001; }")
    until(lambda: status.inner_text() == made.documents["verdict"]["sentence"], "the next sentence")


def test_the_first_page_follows_the_fleet_in_trouble(shown: Shows) -> None:
    page, made = shown(poisoned())
    page.get_by_role("heading", name="Stream of orders").wait_for()
    troubles = [{**each, "fleet": "payments"} for each in made.documents["verdict"]["troubles"]]
    payments = {**made.documents["fleet:orders"], "table": "payments"}
    lines = [fleet_line("payments", payments)]
    stories = {"story:payments": made.documents["story:orders"], "moves:payments": made.documents["moves:orders"]}
    made.documents.update(stories)
    made.show(verdict={**made.documents["verdict"], "troubles": troubles}, fleets={"fleets": lines})
    page.get_by_role("heading", name="Stream of payments").wait_for()
    page.locator(".river .layer-bands rect").first.wait_for()
