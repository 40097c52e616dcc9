"""Rules for injected faults. A rule says which requests meet a fault, which fault, and how often.

This module only decides which requests meet faults. Other modules carry the faults out.

Laws:

1. The server consults rules in the order in which they were added. A rule takes effect at a request if it is due by
   law 2. All latencies that take effect add up. After the first rule that takes effect with another action, the server
   consults no more rules, so later rules do not count the request.
2. A rule counts the requests that match it. It is due at request ``after + 1``, and after that at each ``every``-th
   request, at most ``times`` times. With ``probability``, a generator with the rule's own seed decides whether a due
   request meets the fault. So equal requests in equal order meet equal faults.
3. Only authenticated requests meet faults, so a rule never hides a wrong key.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable
from fnmatch import fnmatchcase

from attrs import define, field, frozen

from streamclient.base import checks
from streamclient.errors import ConfigurationError

MAX_DELAY_SECONDS = 3600.0
"""The longest pause of one fault, in seconds. It is far longer than every client's time-out. A larger number probably
has a wrong unit."""

MAX_RULES = 1000
"""The largest number of rules of one server. The server consults all rules for each request. So a test that never
removes its rules fails at this limit, instead of becoming slow."""


_delay = checks.number(
    f"a number of seconds from 0 to {MAX_DELAY_SECONDS:g}", lambda value: 0 <= value <= MAX_DELAY_SECONDS
)
_optional_text = checks.optional(checks.text)
_at_least_once = checks.optional(checks.positive)


@checks.explains_names
@frozen
class Latency:
    """A fault action: wait for ``seconds`` before executing the request."""

    seconds: float = field(validator=_delay)


@checks.explains_names
@frozen
class Fail:
    """A fault action: answer the request with an error, without executing it.

    By default, the error has the HTTP status and the message that the service uses with ``code``. For example,
    ``OTSFlowControl`` means throttling and has status 429.
    """

    code: str = field(validator=checks.text)
    message: str | None = field(default=None, validator=_optional_text)
    http_status: int | None = field(
        default=None,
        validator=checks.optional(checks.Check("an error status from 400 to 599", checks.whole(400, 599).fits)),
    )


@frozen
class Cut:
    """A fault action: cut the connection without executing the request."""


@checks.explains_names
@frozen
class LoseAnswer:
    """A fault action: execute the request, and after ``seconds``, cut the connection without an answer.

    If ``seconds`` exceeds the client's time-out, the client gives up before the cut.
    """

    seconds: float = field(default=0.0, validator=_delay)


@checks.explains_names
@frozen
class LateAnswer:
    """A fault action: execute the request immediately, and answer after ``seconds``."""

    seconds: float = field(validator=_delay)


def _positions(given: Iterable[int]) -> tuple[int, ...]:
    found = tuple(given) if isinstance(given, Iterable) and not isinstance(given, str | bytes) else None
    if found is None or not all(map(checks.not_negative.fits, found)):
        raise ConfigurationError(f"rows must be row positions from 0, not {checks.shown(given)}")
    return found


@checks.explains_names
@frozen
class FailRows:
    """A fault action: fail some rows of a batch request, and execute the other rows.

    ``rows`` are the positions of failing rows, counted from 0 over all tables of the request. ``every=3`` fails each
    third row: rows 2, 5, 8, …. Give ``rows``, ``every`` or both. If a row of an atomic batch is to fail, no row of the
    batch is written, and all its rows fail. A rule with this action matches only batch operations.
    """

    rows: tuple[int, ...] = field(default=(), converter=_positions)
    every: int | None = field(default=None, validator=_at_least_once)
    code: str = field(default="OTSServerBusy", validator=checks.text)
    message: str | None = field(default=None, validator=_optional_text)

    def __attrs_post_init__(self) -> None:
        if not self.rows and self.every is None:
            raise ConfigurationError("FailRows needs rows=(positions) or every=n, and got neither")

    def harms(self, position: int) -> bool:
        """Return whether the row at ``position`` of the batch fails."""
        return position in self.rows or (self.every is not None and (position + 1) % self.every == 0)


FaultAction = Latency | Fail | Cut | LoseAnswer | LateAnswer | FailRows

_action = checks.Check(
    "Latency, Fail, Cut, LoseAnswer, LateAnswer or FailRows", lambda value: isinstance(value, FaultAction)
)
_seed = checks.Check("a whole number", checks.is_whole)

BATCH_OPERATIONS = ("BatchWriteRow", "BatchGetRow")
"""The batch operations: each row of a request has its own result."""


@checks.explains_names
@frozen
class FaultRule:
    """A rule for injected faults: which requests meet the fault ``action``, and how often.

    ``operation`` and ``table`` are case-sensitive shell patterns (``*Row``, ``Get*``, ``*``). A request over several
    tables matches if one of its tables matches. A rule with ``table`` never matches a request without a table, such as
    ListTable.
    """

    operation: str = field(validator=checks.text)
    action: FaultAction = field(validator=_action)
    table: str | None = field(default=None, kw_only=True, validator=_optional_text)
    times: int | None = field(default=None, kw_only=True, validator=_at_least_once)
    """The number of faults after which the rule has no further effect; ``None`` for no limit."""
    after: int = field(default=0, kw_only=True, validator=checks.not_negative)
    """The number of matching requests that pass before the first fault."""
    every: int = field(default=1, kw_only=True, validator=checks.positive)
    """The distance between two faults, in matching requests. With 1, every matching request meets the fault."""
    probability: float | None = field(default=None, kw_only=True, validator=checks.optional(checks.share))
    seed: int = field(default=0, kw_only=True, validator=_seed)

    def matches(self, operation: str, tables: Iterable[str]) -> bool:
        """Return whether the rule counts a request of this operation over these tables."""
        if isinstance(self.action, FailRows) and operation not in BATCH_OPERATIONS:
            return False
        if not fnmatchcase(operation, self.operation):
            return False
        return self.table is None or any(fnmatchcase(table, self.table) for table in tables)


@frozen
class Harm:
    """The injected faults of one request: a total latency, and at most one other action."""

    delay_seconds: float = 0.0
    action: Fail | Cut | LoseAnswer | LateAnswer | FailRows | None = None


NO_HARM = Harm()


@frozen
class FaultStatus:
    """A fault rule with its id and its counters, as ``FaultBook.rules`` returns it."""

    fault_id: int
    rule: FaultRule
    seen: int
    """The number of requests that matched the rule."""
    struck: int
    """The number of requests that met the fault of the rule."""


@define
class _Entry:
    fault_id: int
    rule: FaultRule
    generator: random.Random
    seen: int = 0
    struck: int = 0

    def strikes(self) -> bool:
        rule = self.rule
        self.seen += 1
        position = self.seen - rule.after - 1
        if position < 0 or position % rule.every or (rule.times is not None and self.struck >= rule.times):
            return False
        if rule.probability is not None and self.generator.random() >= rule.probability:
            return False
        self.struck += 1
        return True


class FaultBook:
    """The fault rules of one server, with their counters. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: list[_Entry] = []
        self._last_id = 0

    def add(self, rule: FaultRule) -> int:
        """Add a rule after the existing rules; return its id, which is unique for the life of the server."""
        with self._lock:
            if len(self._entries) >= MAX_RULES:
                raise ValueError(f"there are already {MAX_RULES} fault rules; clear them first")
            self._last_id += 1
            self._entries.append(_Entry(self._last_id, rule, random.Random(rule.seed)))
            return self._last_id

    def remove(self, fault_id: int) -> bool:
        """Remove a rule; return whether the rule existed."""
        with self._lock:
            kept = [entry for entry in self._entries if entry.fault_id != fault_id]
            removed = len(kept) < len(self._entries)
            self._entries = kept
            return removed

    def clear(self) -> int:
        """Remove all rules; return the number of removed rules. Requests that wait because of a fault go on waiting."""
        with self._lock:
            count = len(self._entries)
            self._entries = []
            return count

    def rules(self) -> tuple[FaultStatus, ...]:
        """Return all rules in the order in which the server consults them, even rules that have no further effect."""
        with self._lock:
            return tuple(FaultStatus(entry.fault_id, entry.rule, entry.seen, entry.struck) for entry in self._entries)

    @property
    def is_empty(self) -> bool:
        """Whether there are no rules."""
        return not self._entries

    def harm(self, operation: str, tables: Iterable[str]) -> Harm:
        """Count a request for the rules that it matches, and return the faults that it meets."""
        if not self._entries:  # no lock needed: a rule that is added now takes effect at the next request
            return NO_HARM
        delay = 0.0
        with self._lock:
            for entry in self._entries:
                if not entry.rule.matches(operation, tables) or not entry.strikes():
                    continue
                action = entry.rule.action
                if not isinstance(action, Latency):
                    return Harm(delay, action)
                delay += action.seconds
        return Harm(delay)
