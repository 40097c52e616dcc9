"""Every example in the documentation runs from an installed wheel, and prints what the page says it prints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import page_examples
import pytest

from tests.installed import ROOT, Installed

LONG = {"docs/spark.md"}
"""Pages whose examples start a Spark; ``make test`` runs those of ``docs/source.md``, in one that runs already."""


def pages() -> list[Any]:
    candidates = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    names = {page: str(page.relative_to(ROOT)) for page in candidates if "```python" in page.read_text()}
    return [
        pytest.param(page, id=name, marks=[pytest.mark.long] if name in LONG else []) for page, name in names.items()
    ]


@pytest.mark.slow
@pytest.mark.parametrize("page", pages())
def test_page_examples_run_as_printed(page: Path, tmp_path: Path, installed: Installed) -> None:
    installed.run_script(Path(page_examples.__file__), str(page), folder=tmp_path)


def test_a_wrong_output_is_noticed(tmp_path: Path) -> None:
    """The check itself can fail."""
    page = tmp_path / "page.md"
    page.write_text("```python\nprint('one 1 two')\n```\n\n```text\none ... three\n```\n")

    with pytest.raises(AssertionError, match="one 1 two"):
        page_examples.run_page(page)
