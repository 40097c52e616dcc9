"""The heavy libraries, imported on first use, and the translation of their errors into errors of this package.

``import streamclient.destinations`` works without them.
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
"""Errors that Arrow, JSON, Pydantic and other libraries raise for content that they do not expect."""

_GONE = ("not found", "does not exist", "no such")
_DAMAGED = ("json error", "parquet error", "no table metadata")
"""Texts by which errors of delta-rs and of catalogs show that content is damaged. delta-rs has one type for nearly all
of its errors."""

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_SAID_MAX = 600
"""The number of letters that are kept of another package's message. They contain the cause; the chained exception has
the rest."""


@contextmanager
def own_errors(place: str) -> Iterator[None]:
    """Raise errors of other packages as errors of this package, which name the table and the remedy.

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
    """Return an error's text as one line; delta-rs colours it, breaks it up, and adds positions in its own code."""
    plain = _COLOURS.sub("", text).partition("\n   0: ")[0]
    return " ".join(plain.split())[:_SAID_MAX]


def raises_own(function: _Function) -> _Function:
    """Make a function whose first argument is a destination raise only this package's errors, which name its ``place``.

    If the function returns an iterator, each step of the iterator raises only such errors, too.
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
    """Wrap a function that reads a file of a table so that it raises only errors of this package."""

    def reading() -> Iterator[Any]:
        with own_errors(place):
            yield from read()

    return reading
