"""Every example in the documentation runs from an installed wheel, and prints what the page says it prints."""

from __future__ import annotations

from pathlib import Path

import page_examples
import pytest

from tests.installed import ROOT, Installed
from tests.patience import however_late_planners_start


def pages() -> list[Path]:
    candidates = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [page for page in candidates if page.exists() and "```python" in page.read_text()]


@pytest.mark.slow
@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_page_examples_run_as_printed(page: Path, tmp_path: Path, installed: Installed) -> None:
    script = Path(page_examples.__file__)

    however_late_planners_start(lambda: installed.run_script(script, str(page), folder=tmp_path))


def test_a_wrong_output_is_noticed(tmp_path: Path) -> None:
    """The check itself can fail."""
    page = tmp_path / "page.md"
    page.write_text("```python\nprint('one 1 two')\n```\n\n```text\none ... three\n```\n")

    with pytest.raises(AssertionError, match="one 1 two"):
        page_examples.run_page(page)
