"""Every example in the documentation runs, and prints what the page says it prints.

A page's ``python`` blocks run in order in one namespace. A ``text`` block right after a ``python`` block is its output,
where ``...`` stands for anything. A block that a test elsewhere runs, or that only a shell can run, is not ``python``.
"""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@frozen
class Example:
    line: int
    code: str
    output: str | None


def pages() -> list[Path]:
    candidates = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [page for page in candidates if page.exists() and "```python" in page.read_text()]


def examples(text: str) -> list[Example]:
    blocks = list(FENCE.finditer(text))
    found = []
    for index, block in enumerate(blocks):
        if block.group(1) != "python":
            continue
        following = blocks[index + 1] if index + 1 < len(blocks) else None
        is_output = (
            following is not None and following.group(1) == "text" and not text[block.end() : following.start()].strip()
        )
        output = following.group(2) if following is not None and is_output else None
        found.append(Example(text.count("\n", 0, block.start()) + 2, block.group(2), output))
    return found


def matches(expected: str, actual: str) -> bool:
    pattern = ".*?".join(re.escape(part) for part in expected.strip().split("..."))
    return re.fullmatch(pattern, actual.strip(), re.DOTALL) is not None


def run_page(page: Path) -> None:
    namespace: dict[str, Any] = {"__name__": f"page_{page.stem}"}
    for example in examples(page.read_text()):
        printed = io.StringIO()
        code = compile("\n" * (example.line - 1) + example.code, str(page), "exec")
        with contextlib.redirect_stdout(printed):
            exec(code, namespace)
        if example.output is not None and not matches(example.output, printed.getvalue()):
            raise AssertionError(f"{page}:{example.line} printed:\n{printed.getvalue()}\nnot:\n{example.output}")


@pytest.mark.slow
@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_page_examples_run_as_printed(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    run_page(page)


def test_a_wrong_output_is_noticed(tmp_path: Path) -> None:
    """The check itself can fail."""
    page = tmp_path / "page.md"
    page.write_text("```python\nprint('one 1 two')\n```\n\n```text\none ... three\n```\n")

    with pytest.raises(AssertionError, match="one 1 two"):
        run_page(page)
