"""The import of libraries when a destination first uses them, and the translation of their errors.

``import streamclient.destinations`` works without these libraries. Their errors become errors of this package.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar, cast

from streamclient.base.extras import load
from streamclient.errors import DependencyException, ErrorKind, StreamClientError

_Function = TypeVar("_Function", bound=Callable[..., Any])


def pyarrow() -> Any:
    """Import ``pyarrow``, or raise an error that says which extra to install."""
    return load("pyarrow", "delta")


def compute() -> Any:
    """Import ``pyarrow.compute``, or raise an error that says which extra to install."""
    return load("pyarrow.compute", "delta")


_DAMAGES = (ValueError, TypeError, LookupError, AttributeError)
"""The error types that Arrow, JSON, Pydantic and other libraries raise for unexpected content."""

_GONE = ("not found", "does not exist", "no such")
_DAMAGED = ("json error", "parquet error", "no table metadata")
"""Texts by which error messages of delta-rs and of catalogs tell of damaged content. The messages must be searched,
because delta-rs has one exception type for nearly all errors."""

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_SAID_MAX = 600
"""The largest number of characters that a message quotes of another package's error. The chained exception has the
whole text."""


@contextmanager
def own_errors(place: str) -> Iterator[None]:
    """Translate errors that other packages raise in this context. The new error names the table ``place`` and a remedy.

    Raises:
        DependencyException: the table cannot be reached, or its content cannot be read.
    """
    try:
        yield
    except StreamClientError:
        raise
    except Exception as error:
        raise _own(error, place) from error


def _own(error: Exception, place: str) -> DependencyException:
    text = str(error).lower()
    said = f"{type(error).__name__}: {_sentence(str(error))}"
    if isinstance(error, FileNotFoundError) or any(words in text for words in _GONE):
        advice, kind = "it is gone, in part or as a whole: restore what was moved or removed", ErrorKind.TRANSIENT
    elif (isinstance(error, _DAMAGES) and not isinstance(error, OSError)) or any(words in text for words in _DAMAGED):
        advice = "its content has changed since it was written: restore it from a copy; verify names the lost rows"
        kind = ErrorKind.PERMANENT
    else:
        advice = "check that it can be reached, and that this process may read and write there; then try again"
        kind = ErrorKind.TRANSIENT
    return DependencyException(f"{place} cannot be used ({said}): {advice}", kind=kind)


def _sentence(text: str) -> str:
    """Return an error's text as one line, without the colours and code positions that delta-rs adds."""
    plain = _COLOURS.sub("", text).partition("\n   0: ")[0]
    return " ".join(plain.split())[:_SAID_MAX]


def raises_own(function: _Function) -> _Function:
    """Decorate a method of a destination, so that it raises only errors of this package.

    The errors name the destination's ``place``. If the method is a generator function, errors during the iteration are
    also translated.
    """
    if inspect.isgeneratorfunction(function):

        @wraps(function)
        def iterating(destination: Any, *arguments: Any, **named: Any) -> Iterator[Any]:
            with own_errors(destination.place):
                yield from function(destination, *arguments, **named)

        return cast(_Function, iterating)

    @wraps(function)
    def calling(destination: Any, *arguments: Any, **named: Any) -> Any:
        with own_errors(destination.place):
            return function(destination, *arguments, **named)

    return cast(_Function, calling)


def reading_own(place: str, read: Callable[[], Iterator[Any]]) -> Callable[[], Iterator[Any]]:
    """Return a function that yields the tables of ``read``, and translates errors by ``own_errors(place)``."""

    def reading() -> Iterator[Any]:
        with own_errors(place):
            yield from read()

    return reading
