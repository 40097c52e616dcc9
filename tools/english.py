"""The turns of English that the house forbids, as far as a pattern finds them.

``python -m tools.english`` names each as ``file:line``, and exits with code 1 if there is one. It reads the docstrings,
comments and messages of the package, the tools, the samples and the benchmarks, or of the files that it is given.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("streamclient", "tools", "samples", "benchmarks")

ANYWHERE = {
    r"(?<!fall\s)(?<!falls\s)(?<!--)\bbehind\b(?!\sa\sproxy)": "after, later, lag",
    r"\bin front of\b": "before",
    r"\b(?:[Ww]ho(?:m|so)?ever|(?:[Ss]ome|[Nn]o|[Aa]ny|[Ee]very)body)\b": "the worker, the writer, the caller",
    r"\b(?:so (?:many|much|often)|for\s+so long)\b(?! as\b|[^.:;]* that\b)": "the name of the parameter",
    r"(?<![Tt]here\s)\b(?:is|are|was|were) no (?!longer|more|less|later|earlier|way|need)\w": "is not a, has no",
    r"\b(?:is|are|was|were) none\b": "does not exist, is unknown, has none",
    r"\b\w+\(e?s\)(?!://)": "`counted`, or the plural alone",
    r"\b(?:is|are|be) (?:that|those) of\b": "the noun again, 'belongs to', 'the same as in'",
    r"\b(?:used|begun|closed|requested|called|parsed|sent|shut\sdown|looked) before(?=[.;:]|\s*\Z)": "already, earlier",
    r"[,;] sorted\.|, in words\.": "sorted or 'in words' before the noun",
    r"\b[Jj]udgements?\b": "the check, the result",
}
"""Pattern to better words. A space stands for any blanks, a line break included."""

SENTENCES = {
    r"(?:What|Who|Whose|Whom|Of) (?![^.]*\?)": "the subject first",
    r"That (?:an?|the|its?|no|they|this|each|every|all)\b": "the subject first",
}
"""The same for the first words of a sentence."""

VALUES = {
    r"(?:That|Those|Where|How)\b(?![^.]*\?)": "a noun",
    r"Most (?!important\b|recent\b)[a-z]": "the largest number of",
}
"""The same for the first words of the docstring of a module, a class, a property, a field or a constant."""

FUNCTIONS = {
    r"(?:Those|Whether|Where|When|How|Why|All|Each|Every|Its|Until|Nothing)\b": "an imperative",
    r"Have (?:(?:an?|the|its|their|it|them)\b|``\w+``)": "let, order, request: the actor and the verb",
    r"See ``\w+``\.\s*\Z": "``Class.method``",
    r"Return the (?:module|class|function) ``[\w.]+``\.": "what the caller may rely on",
}
"""The same for the first words of the docstring of a function that is not a property. D401 of ruff finds the others."""

ALLOWED = {
    "looked at by nobody": "the name of a measurement, by which runs of benchmarks are compared",
}
"""Words that stay to the reason. A text with which the real service answers belongs here, too."""


class Text(NamedTuple):
    """A docstring of a value or a function, a comment or a message, and the line where it begins."""

    line: int
    text: str
    kind: str


def strings(node: ast.AST) -> Iterator[Text]:
    """Yield the docstrings and messages below ``node``. In a message ``X`` stands for each value that is filled in."""
    children = ast.iter_child_nodes(node)
    match node:
        case ast.FunctionDef(body=[ast.Expr(value=ast.Constant(value=str(text))) as docstring, *_]):
            is_value = any(ast.unparse(decorator).endswith("property") for decorator in node.decorator_list)
            yield Text(docstring.lineno, text, "value" if is_value else "function")
            children = (child for child in children if child is not docstring)
        case ast.Expr(value=ast.Constant(value=str(text))):
            yield Text(node.lineno, text, "value")
            return
        case ast.Constant(value=str(text)):
            yield Text(node.lineno, text, "message")
        case ast.JoinedStr(values=parts):
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in parts)
            yield Text(node.lineno, text, "message")
            children = (part for part in parts if isinstance(part, ast.FormattedValue))
    for child in children:
        yield from strings(child)


def comments(source: str) -> Iterator[Text]:
    """Yield the comments of ``source``, those of successive lines as one text."""
    begin = 0
    lines: list[str] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if lines and token.start[0] != begin + len(lines):
                yield Text(begin, "\n".join(lines), "comment")
                lines = []
            begin = token.start[0] - len(lines)
            lines.append(token.string.lstrip("#: "))
    yield Text(begin, "\n".join(lines), "comment")


def patterns(begin: str, turns: dict[str, str]) -> list[tuple[re.Pattern[str], str]]:
    """Return the compiled ``turns`` with their better words, each after ``begin``."""
    return [(re.compile(begin + "(" + turn.replace(" ", r"\s+") + ")"), better) for turn, better in turns.items()]


EVERYWHERE = patterns("", ANYWHERE) + patterns(r"(?:\A\s*|[.!?:]\s+|\n\s*[-*]\s+)", SENTENCES)
OPENINGS = {"value": patterns(r"\A\s*", VALUES), "function": patterns(r"\A\s*", FUNCTIONS)}


def findings(source: str) -> list[tuple[int, str, str]]:
    """Return line, words and better words of each forbidden turn in the ``source`` of a module."""
    found = []
    for line, text, kind in (*strings(ast.parse(source)), *comments(source)):
        searched = text
        for words in ALLOWED:
            searched = searched.replace(words, re.sub(r"\S", "-", words))
        for pattern, better in (*EVERYWHERE, *OPENINGS.get(kind, ())):
            found += [
                (line + text.count("\n", 0, hit.start(1)), " ".join(hit[1].split()), better)
                for hit in pattern.finditer(searched)
            ]
    return sorted(found)


def main(names: list[str]) -> int:
    """Print each finding in the files ``names``, by default in all that are read; return 1 if there is one."""
    paths = [Path(name) for name in names] or [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    lines = [
        f"{path}:{line}: {words!r}; better: {better}"
        for path in sorted(paths)
        for line, words, better in findings(path.read_text(encoding="utf-8"))
    ]
    print("\n".join(lines) or "No forbidden turn of English.")
    return min(len(lines), 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
