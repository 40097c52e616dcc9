"""Regular expressions of filters. A match takes time linear in the length of the text, whatever the expression is.

The time of a match is proportional to the length of the text times the size of the compiled expression, and 256
characters can make that size very large. So a match is charged this product, and compiling an expression is charged,
too (``streamclient.server.work``).

RE2 does not support back references and look-around, because they cannot be matched in linear time. Expressions that
use them are refused as unreadable. The service documents Perl's syntax, and RE2 has all other parts of it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from attrs import frozen

from streamclient.server import refusals, work

PATTERN_BYTES = 256
"""The largest length of one expression (product documentation)."""

PATTERN_GROUPS = 32
"""The largest number of groups of one expression. Only the first group is used, and RE2's memory grows with the number
of groups."""

_PROGRAM_BYTES = 1024 * 1024
"""The memory, in bytes, for one compiled expression. Repetitions of large classes, such as ``\\pL{1000}``, need more
memory, and take seconds."""

_MAKING_WORK = 20_000
"""The cost of compiling even the shortest expression: about half a millisecond."""

_MAKING_WORK_PER_INSTRUCTION = 200
"""The additional cost of each instruction, about 5 µs. It matters for nested repetitions, which RE2 unrolls."""


@frozen
class Pattern:
    """A compiled expression."""

    _compiled: Any
    program_size: int
    """The number of instructions: the larger of those for forward and for backward matching."""

    def first(self, text: str) -> str | None:
        """Return the first group of the first match. Without groups, return the match; without a match, ``None``."""
        size = len(text) if text.isascii() else len(text.encode())
        work.pay(
            self.program_size * size,
            "The regex in value transfer rule has %d instructions and meets a value of %d bytes",
            self.program_size,
            size,
        )
        found = self._compiled.search(text)
        if found is None:
            return None
        result: str | None = found.group(1 if self._compiled.groups else 0)
        return result


def compile_pattern(text: str) -> Pattern:
    """Compile the expression of a filter.

    Raises:
        ServiceError: the expression is empty, too long, has too many groups, or is unreadable.
    """
    size = len(text.encode())
    if not 1 <= size <= PATTERN_BYTES:
        raise refusals.REGEX_LENGTH(limit=PATTERN_BYTES, size=size)
    re2, options = _engine()
    try:
        compiled = re2.compile(text, options=options)
    except re2.error as error:
        reason = error.args[0] if error.args else error
        shown = reason.decode(errors="replace") if isinstance(reason, bytes) else reason
        raise refusals.REGEX(reason=shown) from error
    if compiled.groups > PATTERN_GROUPS:
        raise refusals.REGEX_GROUPS(count=compiled.groups, limit=PATTERN_GROUPS)
    program_size = max(compiled.programsize, compiled.reverseprogramsize)
    work.pay(
        _MAKING_WORK + _MAKING_WORK_PER_INSTRUCTION * program_size,
        "The regex in value transfer rule has %d instructions",
        program_size,
    )
    return Pattern(compiled, program_size)


@cache
def _engine() -> tuple[Any, Any]:
    """Load RE2 when the first filter needs it, so that the server starts quickly."""
    import re2  # noqa: PLC0415

    options = re2.Options()
    options.max_mem = _PROGRAM_BYTES
    options.log_errors = False
    return re2, options
