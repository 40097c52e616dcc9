"""The page of a history: one file, which opens from disk and leads to a moment."""

from __future__ import annotations

import itertools
import json
import re
from base64 import b64encode
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from streamclient.cli.main import main
from streamclient.console.history_page import page_file
from streamclient.testing.simulation.drawing import Size, draw_plan
from streamclient.testing.simulation.fleet_history import fleet_history
from streamclient.testing.simulation.history_document import FORMAT, HistoryDocument
from streamclient.testing.simulation.runner import play_plan
from streamclient.testing.simulation.world import SimulatedWorld
from tests.console.chromium import REASON, chromium, opened
from tests.simulation.mutations import MUTATIONS

WIDTHS = (1440, 1024, 768, 390)
COLOURS = ("light", "dark")
OFTEN = ((1440, "light"), (390, "dark"))
"""The widths and colours of every run of the tests."""


def history_of(seed: int, size: Size | None = None) -> HistoryDocument:
    world, verdict = play_plan(draw_plan(seed, size))
    assert isinstance(world, SimulatedWorld)
    return fleet_history(world, verdict)


@pytest.fixture(scope="module")
def nine() -> HistoryDocument:
    return history_of(9)


@pytest.fixture(scope="module")
def file(nine: HistoryDocument, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("page") / "history.html"
    path.write_text(page_file(nine), encoding="utf-8")
    return path.as_uri()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


# --- the file --------------------------------------------------------------------------------------------------------


def test_the_file_has_the_history_and_one_script_that_its_policy_permits(nine: HistoryDocument) -> None:
    text = page_file(nine)
    scripts = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    (embedded,) = re.findall(r'<script type="application/json" id="history">(.*?)</script>', text, re.DOTALL)

    assert json.loads(embedded) == json.loads(json.dumps(nine))
    assert len(scripts) == 1
    assert b64encode(sha256(scripts[0].encode()).digest()).decode() in text.partition("<style>")[0]
    assert "unsafe" not in text.partition("<style>")[0]


def test_the_file_for_seed_nine_has_the_size_of_an_attachment(nine: HistoryDocument) -> None:
    assert len(page_file(nine).encode()) < 200_000


def test_no_text_of_a_history_leaves_its_place(nine: HistoryDocument) -> None:
    evil = "</script><script>alert(1)</script><!--"
    text = page_file({**nine, "events": [(0.0, evil, "owner", "", evil)], "seed": evil})

    assert evil not in text
    assert text.count("</script>") == 2


def test_the_scripts_make_no_nodes_from_texts() -> None:
    page = page_file({"format": FORMAT, "seed": 0}).partition('id="history">')[2]

    assert (
        re.findall(
            r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b|fetch\(|https?://(?!www\.w3\.org/)", page
        )
        == []
    )


# --- the command -----------------------------------------------------------------------------------------------------


def test_the_command_writes_the_page_of_a_seed_with_its_digest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "history.html"
    assert main(["simulate", "--seed", "1", "--page", str(page)]) == 0
    digest, wrote = capsys.readouterr().out.splitlines()

    assert f'"{digest.split()[1].rstrip(",")}"' in page.read_text(encoding="utf-8")
    assert wrote.startswith(f"wrote {page} (")


def test_the_command_writes_the_page_of_a_plan_beside_its_document(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, page = tmp_path / "plan.json", tmp_path / "history.html"
    plan.write_text(draw_plan(1, Size.SMALL).to_json(), encoding="utf-8")
    assert main(["simulate", "--plan", str(plan), "--page", str(page), "--json"]) == 0
    captured = capsys.readouterr()

    assert json.loads(captured.out)["plan"]["seed"] == 1
    assert captured.err.startswith("wrote ")


@pytest.mark.parametrize(
    ("arguments", "refusal"),
    [
        ([], "--page needs --seed or --plan"),
        (["--seed", "1", "--tunnels"], "--page shows histories of fleets"),
        (["--seed", "1"], "cannot write the page to "),
    ],
)
def test_a_page_that_cannot_be_made_is_refused(
    arguments: list[str], refusal: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", *arguments, "--page", str(tmp_path / "missing" / "page.html")]) == 2
    assert refusal in capsys.readouterr().err


# --- in a browser ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_page_opens_from_disk_and_draws_what_the_history_has(
    browser: Any, file: str, nine: HistoryDocument
) -> None:
    with opened(browser, file) as page:
        assert page.locator("h1").inner_text() == "History of seed 9"
        assert nine["digest"] in page.locator(".facts").inner_text()
        assert page.locator(".river .layer-bands rect").count() == len(nine["shards"])
        assert page.locator(".lanes .layer-ground rect").count() == len({life["worker"] for life in nine["lives"]})
        assert page.locator(".lanes .layer-ends path").count() == sum(
            life["manner"] in ("killed", "died") for life in nine["lives"]
        )
        page.locator(".events li").nth(len(nine["events"]) - 1).wait_for()
        assert page.locator(".events li").count() == len(nine["events"])


@pytest.mark.slow
def test_a_link_leads_to_its_moment_and_shard(browser: Any, file: str, nine: HistoryDocument) -> None:
    shard = next(shard for shard in nine["shards"] if shard["opened"] > 60.0)
    at = shard["opened"] + 20.0
    with opened(browser, f"{file}#/history?seed=9&at={at:.1f}&shard={shard['shard']}") as page:
        assert page.locator("output.time").inner_text() == f"{at:.1f} s"
        assert page.locator(f'[aria-label^="{shard["shard"]},"]').get_attribute("aria-pressed") == "true"
        written = len([each for each in _times(nine, shard["shard"]) if each <= at])
        assert (
            f"{written} records written" in page.locator("section", has_text="Records of one shard").last.inner_text()
        )
        opened_shards = len([each for each in nine["shards"] if each["opened"] <= at])
        assert page.locator(".river .layer-bands rect").count() == opened_shards
        link = page.get_by_role("link", name="Link to this moment").get_attribute("href")
        assert link == f"#/history?seed=9&at={at:.1f}&shard={shard['shard']}"
        page.evaluate("location.hash = '#/history?seed=9&at=3.0'")
        page.locator("output.time", has_text=re.compile(r"^3\.0 s$")).wait_for()
        opened_shards = len([each for each in nine["shards"] if each["opened"] <= 3.0])
        assert page.locator(".river .layer-bands rect").count() == opened_shards


def _times(history: HistoryDocument, name: str) -> list[float]:
    (shard,) = (each for each in history["shards"] if each["shard"] == name)
    places = enumerate(shard["records"])
    return [history["writes"][shard["first_write"] + place] for place, digit in places for _ in range(int(digit))]


@pytest.mark.slow
def test_the_moment_says_who_lives_and_what_waits(browser: Any, file: str, nine: HistoryDocument) -> None:
    life = next(life for life in nine["lives"] if life["manner"] == "killed")
    assert life["ended"] is not None
    at = life["ended"] + 0.2
    dead = {
        shard
        for shard, who, since, to, how in nine["spans"]
        if (how, who) == ("owns", life["worker"]) and since <= at < to
    }
    finished = {shard for stored, shard, place in nine["checkpoints"] if place is None and stored <= at}
    with opened(browser, f"{file}#/history?at={at}") as page:
        row = page.locator("tr", has=page.get_by_role("cell", name=life["worker"], exact=True))
        cells = row.locator("td").all_inner_texts()
        assert "killed" in cells[1]
        assert set(re.findall(r"s\d+", cells[3])) == dead - finished
        records = sum(each <= at for shard in nine["shards"] for each in _times(nine, shard["shard"]))
        assert f"{records} records written" in page.locator(
            "section", has_text="At this moment"
        ).last.inner_text().replace("\u202f", "")


@pytest.mark.slow
def test_the_keyboard_alone_plays_steps_and_chooses(browser: Any, file: str, nine: HistoryDocument) -> None:
    with opened(browser, f"{file}#/history?at=0.0") as page:
        page.keyboard.press("Space")
        page.get_by_role("button", name="Pause").wait_for()
        page.keyboard.press("Space")
        page.get_by_role("button", name="Play").wait_for()
        page.keyboard.press("ArrowRight")
        first = page.locator("li[aria-current] time").inner_text()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowLeft")
        assert page.locator("li[aria-current] time").inner_text() == first
        page.evaluate("location.hash = '#/history?seed=9&at=100.0'")
        page.locator("output.time", has_text="100.0 s").wait_for()
        page.get_by_role("button", name="Positions").focus()
        page.keyboard.press("Enter")
        assert page.locator("li.position").first.is_hidden()
        for _ in range(12):
            page.keyboard.press("ArrowRight")
            assert "position" not in (page.locator("li[aria-current]").get_attribute("class") or "")
        band = page.locator(".band-button").first
        band.focus()
        page.keyboard.press("Enter")
        assert band.get_attribute("aria-pressed") == "true"


@pytest.mark.slow
def test_a_click_leads_to_a_moment_and_to_a_shard(browser: Any, file: str, nine: HistoryDocument) -> None:
    with opened(browser, file) as page:
        box = page.locator(".lanes").bounding_box()
        page.mouse.click(box["x"] + 56 + (box["width"] - 58) / 2, box["y"] + 60)
        at = float(page.locator("output.time").inner_text().split()[0])
        assert at == pytest.approx(nine["seconds"] / 2, abs=1.0)
        page.locator("li.fault").first.click()
        assert page.locator("output.time").inner_text() == f"{nine['events'][0][0]:.1f} s"


@pytest.mark.slow
def test_a_broken_law_opens_at_its_moment(browser: Any, tmp_path: Path) -> None:
    (mutation,) = (each for each in MUTATIONS if each.name == "a checkpoint is answered before it is stored")
    file = tmp_path / "broken.html"
    with mutation.applied():
        assert main(["simulate", "--seed", "0", "--page", str(file)]) == 1
        violation = history_of(0)["violation"]
    assert violation is not None
    with opened(browser, file.as_uri()) as page:
        assert page.locator("output.time").inner_text() == f"{violation['at']:.1f} s"
        assert "answers are true" in page.locator(".broken h2").inner_text()
        assert page.locator(f'[aria-label^="{violation["shard"]},"]').get_attribute("aria-pressed") == "true"
        page.get_by_role("button", name="Event before").click()
        page.get_by_role("button", name=re.compile("^Go to ")).click()
        assert page.locator("output.time").inner_text() == f"{violation['at']:.1f} s"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("width", "colours"),
    [
        pytest.param(*each, marks=() if each in OFTEN else pytest.mark.long)
        for each in itertools.product(WIDTHS, COLOURS)
    ],
)
def test_the_page_is_accessible_at_every_width(browser: Any, file: str, width: int, colours: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason=REASON).Axe()
    size = {"width": width, "height": 900}
    options = {"viewport": size, "color_scheme": colours, "bypass_csp": True}  # the policy permits no foreign script
    with opened(browser, f"{file}#/history?at=270.0&shard=s001", **options) as page:
        page.get_by_text("Shards as a table").click()
        found = axe.run(page).response["violations"]
        assert page.evaluate("document.documentElement.scrollWidth") <= width

    assert [(each["id"], [node["html"][:200] for node in each["nodes"]]) for each in found] == []


@pytest.mark.slow
def test_nothing_is_wider_than_a_phone_of_320_pixels(browser: Any, file: str) -> None:
    with opened(browser, f"{file}#/history?at=270.0&shard=s001", viewport={"width": 320, "height": 700}) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= 320
