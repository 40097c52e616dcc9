"""The page about tests shows what runs: its sample, and its test with the fixture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from page_examples import FENCE, run_page

from streamclient.server import LocalTablestore
from tests.installed import ROOT, Installed
from tests.stage import make_table

PAGE = ROOT / "docs" / "testing.md"
SAMPLE = "test_my_consumer.py"


def test_the_page_shows_the_sample_itself() -> None:
    (shown,) = [body for _, body in FENCE.findall(PAGE.read_text()) if "def test_sum" in body]

    assert shown.strip() in (ROOT / "samples" / SAMPLE).read_text()


@pytest.mark.slow
def test_the_sample_passes_as_it_is_told(installed: Installed, tmp_path: Path) -> None:
    installed.run("streamclient sample test_my_consumer", tmp_path)

    assert "1 passed" in installed.run(f"python -m pytest {SAMPLE}", tmp_path)


@pytest.mark.slow
def test_the_test_with_the_fixture_passes(local_tablestore: LocalTablestore) -> None:
    asked: list[str] = []

    def my_report(endpoint: str) -> str:
        asked.append(endpoint)
        _, row, _ = local_tablestore.client().get_row("orders", [("id", "a")])
        return f"1 order, {row.attribute_columns[0][1]}"

    names: dict[str, Any] = {
        "LocalTablestore": LocalTablestore,
        "make_my_tables": lambda client: make_table(client, "orders"),
        "my_report": my_report,
    }
    run_page(PAGE, "py", **names)["test_my_report"](local_tablestore)

    assert asked == [local_tablestore.endpoint]
