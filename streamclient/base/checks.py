"""Checks of settings and arguments, with one wording for refusals and one help for misspelt names.

A ``Check`` is a validator of an attrs field; its method ``require`` checks an argument. A refused value raises a
``ConfigurationError`` that names the setting, the given value and the expected value.
"""

from __future__ import annotations

import inspect
import re
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from difflib import SequenceMatcher, get_close_matches
from enum import Enum
from functools import partial, wraps
from math import isfinite
from types import AsyncGeneratorType, GeneratorType
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

from attrs import Attribute, frozen

from streamclient.errors import ConfigurationError

_Made = TypeVar("_Made")
_Value = TypeVar("_Value")
_Member = TypeVar("_Member", bound=Enum)

LONGEST_SHOWN = 200
"""The largest number of characters of a refused value in a message. A caller may pass a whole document by mistake."""

CLOSE_ENOUGH = 0.6
"""The smallest similarity at which a message proposes a known name for an unknown name; the default of ``difflib``."""


@frozen
class Check:
    """A requirement that the value of a setting must meet."""

    expected: str
    """The end of the sentence "NAME must be ..." in the refusal."""
    fits: Callable[[Any], bool]
    hides: bool = False
    """Whether the setting's values are secrets. The refusal then shows only the type of the refused value."""
    because: Callable[[Any], str] = lambda value: ""
    """The function that says why a value is refused; it returns an empty text if ``expected`` says enough."""

    def __call__(self, instance: object, attribute: Attribute[Any], value: Any) -> None:
        """Check the value of an attrs field; attrs calls this method."""
        self.require(attribute.name, value)

    def require(self, name: str, value: _Value) -> _Value:
        """Return ``value`` if it meets the requirement; ``name`` names the setting in the refusal.

        Raises:
            ConfigurationError: the value does not meet the requirement.
        """
        if not self.fits(value):
            raise self.refusal(name, value, self.because(value))
        return value

    def refusal(self, name: str, value: object, because: str = "") -> ConfigurationError:
        """Return the error for a refused ``value`` of the setting ``name``; ``because`` adds the reason."""
        given = f"one of type {type(value).__name__}" if self.hides else shown(value)
        return ConfigurationError(f"{name} must be {self.expected}, not {given}{because and f': {because}'}")


def shown(value: object) -> str:
    """Return the ``repr`` of a value, for a message; a long text is cut to ``LONGEST_SHOWN`` characters."""
    try:
        text = repr(value)
    except Exception as error:
        text = f"a {type(value).__name__} whose repr raises {type(error).__name__}"
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."


# --- plain values ----------------------------------------------------------------------------------------------------


def is_whole(value: object) -> bool:
    """Return whether a value is an integer other than ``True`` and ``False``, which are integers in Python."""
    return isinstance(value, int) and not isinstance(value, bool)


def whole(least: int, most: int | None = None) -> Check:
    """Return the check for a whole number of at least ``least`` and, unless ``most`` is ``None``, at most ``most``."""
    if most is not None:
        return Check(f"a whole number from {least} to {most}", lambda value: is_whole(value) and least <= value <= most)
    text = "a whole number above 0" if least == 1 else f"a whole number of at least {least}"
    return Check(text, lambda value: is_whole(value) and value >= least)


def number(expected: str, fits: Callable[[float], bool]) -> Check:
    """Return the check for a finite number that ``fits`` accepts; ``expected`` describes the accepted numbers."""

    def is_number(value: object) -> bool:
        return isinstance(value, int | float) and not isinstance(value, bool) and _is_finite(value) and fits(value)

    return Check(expected, is_number)


def _is_finite(value: float) -> bool:
    try:
        return isfinite(value)
    except OverflowError:  # an integer that is too large for a float
        return False


def optional(check: Check) -> Check:
    """Return a check that accepts ``None``, and each value that ``check`` accepts."""
    expected = f"{check.expected} or None"
    return Check(expected, lambda value: value is None or check.fits(value), check.hides, check.because)


positive = whole(1)
not_negative = whole(0)
flag = Check("True or False", lambda value: isinstance(value, bool))
text = Check("a non-empty string", lambda value: isinstance(value, str) and bool(value))
LONGEST_IDENTIFIER_BYTES = 1_024
"""The service's limit for the bytes of a primary key's value. Names of workers, tables and streams are stored as such
values."""


def why_not_utf8(value: str) -> str:
    """Return why UTF-8 cannot encode ``value``; empty if it can."""
    try:
        value.encode()
    except UnicodeEncodeError as error:
        return f"its character {error.start} is half of a surrogate pair, which UTF-8 cannot encode"
    return ""


def _why_no_identifier(value: object) -> str:
    if not isinstance(value, str) or not value:
        return ""
    size = len(value.encode(errors="replace"))
    too_long = f"it has {size:,} bytes in UTF-8, and the service takes at most {LONGEST_IDENTIFIER_BYTES:,}"
    return too_long if size > LONGEST_IDENTIFIER_BYTES else why_not_utf8(value)


identifier = Check(
    text.expected, lambda value: text.fits(value) and not _why_no_identifier(value), because=_why_no_identifier
)
"""The check for names of tables, and for names that are stored in primary keys."""
any_text = Check("a string", lambda value: isinstance(value, str))
secret = Check("a non-empty string", text.fits, hides=True)
names = Check(
    "a sequence of non-empty strings",
    lambda value: isinstance(value, Sequence) and not isinstance(value, str | bytes) and all(map(text.fits, value)),
)
path = Check("a path", lambda value: (isinstance(value, str) and bool(value)) or hasattr(type(value), "__fspath__"))
port = Check("a port number from 0 to 65535", whole(0, 65_535).fits)


def waiting(expected: str, fits: Callable[[float], bool]) -> Check:
    """Return the check for a number of seconds that ``fits`` accepts, up to the 292 years for which Python can wait."""
    return number(expected, lambda value: fits(value) and value <= threading.TIMEOUT_MAX)


seconds = waiting("a number of seconds above 0", lambda value: value > 0)
share = number("a number above 0 and up to 1", lambda value: 0 < value <= 1)
_OTHER_UNITS = range(10**9, 10**13)
"""The numbers that ``micros`` refuses: as seconds or milliseconds since 1970, they are times after the year 2001. As
microseconds they would be times in early 1970, before any stream existed."""
micros = Check(
    "microseconds since 1970, as a whole number, and neither seconds nor milliseconds",
    lambda value: is_whole(value) and value >= 0 and value not in _OTHER_UNITS,
)


def host_and_port(endpoint: str) -> tuple[str, int]:
    """Return the host and the port of an endpoint's URL; without a port, return the default port of the URL's scheme.

    Raises:
        ConfigurationError: the host or the port is missing or invalid, so that no server can have this endpoint.
    """
    why = why_unreachable(endpoint)
    if why:
        raise ConfigurationError(
            "endpoint must be http(s)://HOST[:PORT], with labels of 1 to 63 characters in the host and a port from 1 "
            f"to 65535, not {shown(endpoint)}: {why}"
        )
    parts = urlsplit(endpoint)
    return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


def why_unreachable(endpoint: str) -> str:
    """Return why no server can have the URL ``endpoint``; empty if a server can have it."""
    try:
        parts = urlsplit(endpoint)
        host, port = parts.hostname or "", parts.port
        host.encode("idna")  # sockets use this codec for a host, too; it refuses empty and long labels
    except ValueError as error:  # also the UnicodeError of ``encode``
        return str(error)
    return "no server listens at port 0" if port == 0 else "" if host else "it has no host"


# --- objects ---------------------------------------------------------------------------------------------------------


def instance(kind: type, expected: str = "") -> Check:
    """Return the check for an instance of ``kind``. Refusals say ``expected``, or by default the class's name."""
    return Check(expected or f"{_article(kind.__name__)} {kind.__name__}", lambda value: isinstance(value, kind))


def implementation(interface: type) -> Check:
    """Return the check for an object with all required methods of an interface.

    The check refuses a class, even if its instances have the methods. It also refuses async methods.
    """
    public = [name for name, value in vars(interface).items() if callable(value) and not name.startswith("_")]
    methods = sorted(getattr(interface, "__abstractmethods__", ())) or public

    def implements(value: object) -> bool:
        if isinstance(value, type) or not all(callable(getattr(value, name, None)) for name in methods):
            return False
        return not deferring_method(interface, value)

    expected = f"{_article(interface.__name__)} {interface.__name__}"
    return Check(expected, implements, because=partial(deferring_method, interface))


def function(of: str) -> Check:
    """Return the check for a plain function, or for another object that does its work when it is called.

    A refusal says "callable" and then ``of``, a text about the arguments or the result of the function.
    Async functions and generators are refused, because a call only makes an object that must still be run.
    """
    return Check(f"callable {of}", lambda value: callable(value) and not deferring(value), because=deferring)


# --- functions that do their work when they are called ---------------------------------------------------------------

_DEFERRING: Sequence[tuple[Callable[[object], bool], str]] = (
    (inspect.iscoroutinefunction, "an async function"),
    (inspect.isasyncgenfunction, "an async generator"),
    (inspect.isgeneratorfunction, "a generator"),
)


def is_async(called: object) -> bool:
    """Return whether a call of ``called`` makes a coroutine. An async function in a ``partial`` counts, too."""
    while isinstance(called, partial):
        called = called.func
    call = getattr(type(called), "__call__", None)  # noqa: B004
    return inspect.iscoroutinefunction(called) or inspect.iscoroutinefunction(call)


def required_parameters(called: object) -> Sequence[str]:
    """Return the names of the parameters without default values. A built-in function without a signature has none."""
    try:
        parameters = inspect.signature(cast(Callable[..., Any], called)).parameters.values()
    except ValueError:
        return ()
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return tuple(each.name for each in parameters if each.default is each.empty and each.kind not in optional)


PLAIN = (
    "write a plain function, without async and yield, that has done its work when it returns (it may call asyncio.run)"
)
"""The advice in the refusal of an async function or a generator."""


def deferring(called: object, *, may_yield: bool = False) -> str:
    """Return why calling ``called`` only makes a coroutine or generator; empty if the call itself does the work.

    The check looks inside ``functools.partial`` and at ``__call__``. With ``may_yield``, generators are accepted:
    the caller iterates over them.
    """
    if isinstance(called, type):
        return ""  # calling a class makes an instance
    while isinstance(called, partial):
        called = called.func
    for function in (called, getattr(type(called), "__call__", None)):  # noqa: B004
        for is_so, kind in _DEFERRING:
            if is_so(function) and not (may_yield and kind == "a generator"):
                return f"it is {kind}, whose calls are never run; {PLAIN}"
    return ""


def deferring_method(interface: type, value: object) -> str:
    """Return which public method of ``interface`` is async or a generator in ``value``, and why that is refused.

    The result is empty if each method does its work when it is called. ``value`` is an object or a class.
    """
    for name in dir(interface):
        method = getattr(interface, name)
        if name.startswith("_") or not callable(method):
            continue
        answers = str(getattr(method, "__annotations__", {}).get("return", ""))
        why = deferring(getattr(value, name, None), may_yield=answers.startswith(_ITERATED))
        if why:
            return f"its {name}: {why}"
    return ""


_ITERATED = ("Iterable", "Iterator", "Sequence")
"""The names of return types over which callers iterate. A method with such a return type may be a generator."""


def done(call: str, answer: _Value, *, may_yield: bool = False) -> _Value:
    """Return ``answer``, the result of a call of user code, unless it is an object that must still be run.

    Even a plain function may return such an object, for example a lambda that calls an async function. The object is
    closed, so that Python does not warn about it. ``call`` names the call in the refusal.

    Raises:
        ConfigurationError: ``answer`` must still be run: it is for example a coroutine.
    """
    if answer is None or isinstance(answer, _PLAIN_ANSWERS) or not _is_deferred(answer, may_yield=may_yield):
        return answer
    given = shown(answer)
    for name in ("close", "cancel"):  # coroutines and generators have close, futures and tasks have cancel
        close = getattr(answer, name, None)
        if callable(close):
            with suppress(Exception):
                close()
            break
    raise ConfigurationError(f"{call} returned {given}, which is never run, so its work is not done: {PLAIN}")


_PLAIN_ANSWERS = (bool, int, float, str, bytes, list, tuple, dict)
"""Frequent types of results that never have to be run, so that ``done`` returns them without further checks."""


def _is_deferred(answer: object, *, may_yield: bool) -> bool:
    # This check must be fast: each signed call checks the result of its credentials provider here. The functions of
    # ``inspect`` would make five times as many calls.
    if isinstance(answer, GeneratorType):
        return not may_yield
    return isinstance(answer, AsyncGeneratorType) or getattr(type(answer), "__await__", None) is not None


executor = Check(
    "a concurrent.futures.Executor",
    lambda value: not isinstance(value, type) and callable(getattr(value, "submit", None)),
)


def _is_client(value: object) -> bool:
    # A program with a client has already imported the SDK. An import by this module would cost every command half a
    # second.
    sdk = sys.modules.get("tablestore")
    return sdk is not None and isinstance(value, sdk.OTSClient)


class _ClientCheck(Check):
    def require(self, name: str, value: _Value) -> _Value:
        """Return ``value`` if it is a client whose endpoint is valid and whose credentials provider is not async."""
        super().require(name, value)
        host_and_port(cast(Any, value).host)
        why = deferring(getattr(cast(Any, value).credentials_provider, "get_credentials", None))
        if why:
            raise ConfigurationError(f"{name} must have a credentials provider that gives credentials: {why}")
        return value


client = _ClientCheck("a tablestore.OTSClient", _is_client)
"""The check for a client of the SDK. It refuses the SDK's asynchronous client, because this package calls the client in
threads."""


def _article(word: str) -> str:
    return "an" if word[0] in "AEIOU" else "a"


# --- choices ---------------------------------------------------------------------------------------------------------


def choice(name: str, kind: type[_Member], given: object) -> _Member:
    """Return the member of ``kind`` for ``given``: the member itself, or its name or value as a string.

    Upper and lower case do not matter.

    Raises:
        ConfigurationError: ``given`` stands for no member of ``kind``; the message names the setting ``name``.
    """
    if isinstance(given, kind):
        return given
    by_text = {str(key).casefold(): member for member in kind for key in (member.name, member.value)}
    text = given.casefold() if isinstance(given, str) else ""
    if text in by_text:
        return by_text[text]
    members = ", ".join(f"{kind.__name__}.{member.name}" for member in kind)
    raise ConfigurationError(
        f"{name} must be one of {members}, or such a name as a string, not {shown(given)}{_hint(text, by_text)}"
    )


# --- names -----------------------------------------------------------------------------------------------------------


_HOMES: dict[str, dict[str, set[str]]] = {}
"""The classes that take settings. The outer key is a module, and the inner key is the name of a setting. The value has
the names of those classes of the module that have this setting."""


def explains_names(made: _Made) -> _Made:
    """Decorate a class or function that takes settings, so that it refuses wrong keywords with a helpful message.

    Raises:
        ConfigurationError: a keyword is unknown or missing; the decorated object raises this instead of Python's
            ``TypeError``.
    """
    if isinstance(made, type):
        made.__init__ = _explained(made.__init__, made.__name__, made.__module__)  # type: ignore[misc]
        return made
    call = cast(Callable[..., Any], made)
    return cast(_Made, _explained(call, getattr(made, "__name__", "it"), getattr(made, "__module__", "")))


def _explained(call: Callable[..., Any], owner: str, module: str) -> Callable[..., Any]:
    parameters = inspect.signature(call).parameters.values()
    named = [
        parameter
        for parameter in parameters
        if parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    known = [parameter.name for parameter in named if parameter.name != "self"]
    for name in known:
        _HOMES.setdefault(module, {}).setdefault(name, set()).add(owner)
    needed = {
        parameter.name
        for parameter in parameters
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty
    }

    @wraps(call)
    def checked(*arguments: Any, **settings: Any) -> Any:
        unknown = [name for name in settings if name not in known]
        if unknown:
            hint = _elsewhere(unknown[0], known, module) or did_you_mean(unknown[0], known)
            raise ConfigurationError(f"{owner} has no setting {unknown[0]}{hint}")
        missing = [name for name in known if name in needed and name not in settings]
        if missing:
            raise ConfigurationError(f"{owner} needs {', '.join(missing)}")
        return call(*arguments, **settings)

    return checked


def _elsewhere(name: str, known: Sequence[str], module: str) -> str:
    """Return a hint for the unknown setting ``name``: another class has a setting with the same or a similar name.

    ``known`` has the settings of the called class. The hint is empty if a setting of ``known`` is at least as similar,
    or if no class has a similar setting. The search covers the classes of ``module``, then the classes of modules whose
    names end with ``config``.
    """
    own, letters = {_letters(setting) for setting in known}, _letters(name)
    for where in (module, *(each for each in _HOMES if each.endswith("config"))):
        by_letters = {_letters(setting): setting for setting in _HOMES[where]}
        closest = get_close_matches(letters, {*own, *by_letters}, n=1, cutoff=CLOSE_ENOUGH)
        if closest and closest[0] not in own:
            meant = by_letters[closest[0]]
            of = " and of ".join(sorted(_HOMES[where][meant]))
            return f"; {meant} is a setting of {of}" if closest[0] == letters else f"; did you mean {meant} of {of}?"
    return ""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a hint for an unknown name: the most similar name of ``known``, or a list of all names.

    Only letters and digits are compared. So both ``setLeaseDurationMillis``, a name of the Java client, and
    ``leasedurationmillis``, a name as Spark passes it, lead to ``lease_duration_millis``.
    """
    names = sorted(known)
    hint = _hint(_letters(name), {_letters(option): option for option in names})
    return hint or f"; it has {', '.join(sorted(names, key=lambda each: -_similarity(name, each)))}"


def _similarity(name: str, other: str) -> float:
    return SequenceMatcher(None, _letters(name), _letters(other)).ratio()


def words(name: str) -> str:
    """Return a name in snake case: ``lease_duration`` for ``leaseDuration``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def _letters(name: str) -> str:
    return re.sub("[^a-z0-9]", "", words(name).removeprefix("set_"))


def _hint(given: str, known: dict[str, Any]) -> str:
    closest = get_close_matches(given, known, n=1, cutoff=CLOSE_ENOUGH)
    if not closest:
        return ""
    meant = known[closest[0]]
    return f"; did you mean {meant.name if isinstance(meant, Enum) else meant}?"
