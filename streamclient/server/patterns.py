"""Regular expressions of filters, matched in time that is linear in the text, whatever the expression.

The factor of the text's length is the size of the compiled expression, which 256 characters can make very large. So a
match pays for the product, and making an expression pays too (``streamclient.server.work``).

RE2 has no back references and no look-around, which cannot be matched so; an expression with them is refused as one
that cannot be read. The service speaks of Perl's syntax, of which RE2 has the rest.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from attrs import frozen

from streamclient.server import work
from streamclient.server.server_errors import invalid

PATTERN_BYTES = 256
"""Of one expression (product documentation)."""

PATTERN_GROUPS = 32
"""Only the first group is used; the engine's memory grows with their number."""

_PROGRAM_BYTES = 1024 * 1024
"""Memory for one compiled expression: repetitions of large classes, such as ``\\pL{1000}``, ask for more, and for
seconds."""

_MAKING_WORK = 20_000
"""For each expression, about half a millisecond, as for a short one."""

_MAKING_WORK_PER_INSTRUCTION = 200
"""About 5 µs, for nested repetitions that are unrolled."""


@frozen
class Pattern:
    """A compiled expression."""

    _compiled: Any
    program_size: int
    """Instructions of the compiled expression; the larger one of those for matching forward and backward."""

    def first(self, text: str) -> str | None:
        """What the first group of the first match holds, or the match if there is no group; ``None`` without one."""
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
    """The expression that a filter carries.

    Raises:
        ServiceError: it is empty, too long, has too many groups, or cannot be read.
    """
    size = len(text.encode())
    if not 1 <= size <= PATTERN_BYTES:
        raise invalid(
            f"The length of regex in value transfer rule must be from 1 to {PATTERN_BYTES}, but it is {size}."
        )
    re2, options = _engine()
    try:
        compiled = re2.compile(text, options=options)
    except re2.error as error:
        reason = error.args[0] if error.args else error
        shown = reason.decode(errors="replace") if isinstance(reason, bytes) else reason
        raise invalid(f"Invalid regex in value transfer rule: {shown}.") from error
    if compiled.groups > PATTERN_GROUPS:
        raise invalid(
            f"Invalid regex in value transfer rule: {compiled.groups} groups exceed the max: {PATTERN_GROUPS}."
        )
    program_size = max(compiled.programsize, compiled.reverseprogramsize)
    work.pay(
        _MAKING_WORK + _MAKING_WORK_PER_INSTRUCTION * program_size,
        "The regex in value transfer rule has %d instructions",
        program_size,
    )
    return Pattern(compiled, program_size)


@cache
def _engine() -> tuple[Any, Any]:
    """Loaded with the first filter that needs it: the server should start at once."""
    import re2  # noqa: PLC0415

    options = re2.Options()
    options.max_mem = _PROGRAM_BYTES
    options.log_errors = False
    return re2, options
