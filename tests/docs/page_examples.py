"""Runs the examples of one page: ``python page_examples.py PAGE``. On its own, so that any Python can run it.

A page's ``python`` blocks run in order in one namespace. A ``text`` block right after a ``python`` block is its output,
where ``...`` stands for anything. A block that a test elsewhere runs, or that only a shell can run, is not ``python``:
``py`` needs names that a test gives.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Example:
    line: int
    code: str
    output: str | None


def examples(text: str, language: str = "python") -> list[Example]:
    blocks = list(FENCE.finditer(text))
    found = []
    for index, block in enumerate(blocks):
        if block.group(1) != language:
            continue
        following = blocks[index + 1] if index + 1 < len(blocks) else None
        is_output = (
            following is not None and following.group(1) == "text" and not text[block.end() : following.start()].strip()
        )
        output = following.group(2) if following is not None and is_output else None
        found.append(Example(text.count("\n", 0, block.start()) + 2, block.group(2), output))
    return found


def commands(text: str) -> list[tuple[str, str]]:
    """Every command in the ``console`` blocks of a page, in order, with what is shown below it."""
    parts = [
        part.partition("\n")
        for language, body in FENCE.findall(text)
        if language == "console"
        for part in re.split(r"^\$ ", body.replace("\\\n", ""), flags=re.MULTILINE)[1:]
    ]
    return [(command, shown) for command, _, shown in parts]


def matches(expected: str, actual: str) -> bool:
    pattern = ".*?".join(re.escape(part) for part in expected.strip().split("..."))
    return re.fullmatch(pattern, actual.strip(), re.DOTALL) is not None


def run_page(page: Path, language: str = "python", **names: Any) -> dict[str, Any]:
    """Run the blocks of one language, which know these names; the namespace that they leave."""
    namespace: dict[str, Any] = {"__name__": f"page_{page.stem}", **names}
    for example in examples(page.read_text(), language):
        printed = io.StringIO()
        # A page has only the __future__ that it imports itself.
        code = compile("\n" * (example.line - 1) + example.code, str(page), "exec", dont_inherit=True)
        with contextlib.redirect_stdout(printed):
            exec(code, namespace)
        if example.output is not None and not matches(example.output, printed.getvalue()):
            raise AssertionError(f"{page}:{example.line} printed:\n{printed.getvalue()}\nnot:\n{example.output}")
    return namespace


if __name__ == "__main__":
    run_page(Path(sys.argv[1]))
