r"""Regular expressions of filters, matched by RE2 in a time that is linear in the length of the text.

The time of a match is proportional to the length of the text times the size of the compiled expression. An expression
of 256 characters can have a very large compiled size. So each request pays this product in units of work for a match.
The request also pays for compiling an expression (see ``streamclient.server.work``).

The service documents Perl's syntax. RE2 refuses some of it, and reads some of it in another way:

- Refused: back references, look-around, conditions and recursion, which cannot be matched in linear time; possessive
  quantifiers, atomic groups, comments, the flags ``x`` and ``^``, branch resets, ``(?'name'…)``, counts over 1,000,
  long names of properties (``\p{Letter}``), and the escapes ``\Z``, ``\G``, ``\K``, ``\h``, ``\H``, ``\V``, ``\R``,
  ``\X``, ``\N``, ``\e``, ``\c`` and ``\o``.
- Read in another way: ``$`` does not match before a newline at the end. ``\s`` excludes the vertical tab, and ``\v``
  is the vertical tab only. ``\d``, ``\w``, ``\s`` and ``\b`` know only ASCII. ``{,n}`` is literal text. The group of
  ``(a*)+`` keeps the last text that is not empty. ``(?U)`` swaps greedy and lazy quantifiers.

The server does not rewrite expressions. Without look-around, RE2 has no equivalent of ``$`` before a newline.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from attrs import frozen

from streamclient.server import refusals, work

PATTERN_BYTES = 256
"""The largest length of one expression in bytes (product documentation)."""

PATTERN_GROUPS = 32
"""The largest number of groups of one expression. RE2's memory grows with the number of groups, and the server uses
only the first group."""

_PROGRAM_BYTES = 1024 * 1024
"""The largest memory, in bytes, of one compiled expression. This limit excludes repetitions of large classes, such as
``\\pL{1000}``, which take seconds to compile."""

_MAKING_WORK = 20_000
"""The cost of compiling the shortest expression, in units of work: about half a millisecond."""

_MAKING_WORK_PER_INSTRUCTION = 200
"""The additional cost of each compiled instruction, in units of work: about 5 µs. This cost matters for nested
repetitions, which RE2 unrolls."""


@frozen
class Pattern:
    """A compiled regular expression of a filter."""

    _compiled: Any
    program_size: int
    """The number of compiled instructions, for forward or backward matching, whichever is larger."""

    def first(self, text: str) -> str | None:
        """Return the first group of the first match in ``text``; the whole match if the expression has no groups.

        Return ``None`` without a match.
        """
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
    """Compile the regular expression of a filter.

    Raises:
        ServiceError: the expression is empty, too long, invalid, or too large after compiling, or it has too many
            groups.
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
    """Import RE2 at the first use, so that the server starts quickly; return the module and the options."""
    import re2  # noqa: PLC0415

    options = re2.Options()
    options.max_mem = _PROGRAM_BYTES
    options.log_errors = False
    return re2, options
