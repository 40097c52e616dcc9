"""A row's values as an object of a user's class: a dataclass, an attrs class, a pydantic model or a TypedDict.

Each class is inspected once. A class with ``model_validate`` is a pydantic model, which follows its own rules. For the
fields of all other classes these rules hold:

* A field of type ``int``, ``float``, ``bool``, ``str`` or ``bytes`` takes values of exactly this type. A ``float`` also
  takes an integer that it can represent exactly. Other values are refused, because a conversion would change them
  silently.
* A field of another class, such as ``Decimal``, ``UUID`` or an ``Enum``, takes the object that the class returns for
  the value. If the class is derived from a plain type, the value must be of that type. Fields with collections are
  refused: no value of a row is a list, and ``list("ab")`` would invent a list.
* The first member of a union that takes the value decides. A ``Literal`` takes its own values.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import InitVar, is_dataclass
from functools import partial
from types import UnionType
from typing import Any, NoReturn, TypeVar
from weakref import WeakKeyDictionary

import attrs

from streamclient.base.checks import shown
from streamclient.errors import ConfigurationError, UnfitValueError

_Row = TypeVar("_Row")

_PLAIN: tuple[type, ...] = (bool, int, float, str, bytes)
"""The types that values of rows have. ``bool`` comes first, because it is derived from ``int``."""

_MARKS = frozenset({"Annotated", "Final", "NotRequired", "ReadOnly", "Required"})
"""The names of the special forms, such as ``Final``, that may surround the type of a field."""


@attrs.frozen
class _Field:
    column: str
    """The name of the column, and of the argument or key that takes its value."""
    hint: Any
    unchanged: frozenset[type]
    """The types of values that the field takes unchanged."""
    convert: Callable[[Any], Any]
    """The function that makes the field's value from a value of another type. It raises an error if the value
    does not fit."""
    is_required: bool


_FIELDS: WeakKeyDictionary[type, tuple[_Field, ...]] = WeakKeyDictionary()


def row_of(model: type[_Row], values: Mapping[str, Any], title: Callable[[], str]) -> _Row:
    """Return an object of ``model``, made from ``values`` by name; ``title`` names the row in messages.

    ``model`` is a dataclass, an attrs class, a pydantic model or a TypedDict. Values without a field are ignored.
    Usable from any thread.

    Raises:
        UnfitValueError: a value does not fit its field, or a field without a default has no value.
        ConfigurationError: ``model`` is not a class of these kinds, or the types of its fields cannot be found.
        Exception: ``model`` itself raised this error when it was called.
    """
    if isinstance(model, type) and callable(getattr(model, "model_validate", None)):
        validated: _Row = _validated(model, values, title)
        return validated
    fields = _FIELDS.get(model) if isinstance(model, type) else None
    if fields is None:
        fields = _FIELDS[model] = tuple(_fields_of(model))
    row = {}
    for field in fields:
        value = values.get(field.column)
        if value.__class__ in field.unchanged:
            row[field.column] = value
        elif value is not None:
            row[field.column] = _fitted(field, value, model, title)
        elif field.is_required:
            raise UnfitValueError(
                f"{_expected(field, model, title)}, and the record does not have it: give the field a default, or ask "
                f"first whether {field.column!r} is in the record"
            )
    return model(**row)


def _validated(model: Any, values: Mapping[str, Any], title: Callable[[], str]) -> Any:
    try:
        return model.model_validate(dict(values))
    except ValueError as error:
        errors = getattr(error, "errors", None)
        if not callable(errors):
            raise
        found = "; ".join(map(_complaint, errors()))
        raise UnfitValueError(f"{title()} does not fit {model.__qualname__}: {found}") from error


def _complaint(detail: Mapping[str, Any]) -> str:
    column, given = ".".join(map(str, detail["loc"])), detail["input"]
    found = "" if detail["type"] == "missing" else f", not the {type(given).__name__} {shown(given)}"
    return f"column {column!r}: {detail['msg']}{found}"


def _fitted(field: _Field, value: Any, model: type, title: Callable[[], str]) -> Any:
    try:
        return field.convert(value)
    except Exception as error:
        because = "" if isinstance(error, _MisfitError) else f" ({type(error).__name__}: {error})"
        raise UnfitValueError(
            f"{_expected(field, model, title)}, not the {type(value).__name__} {shown(value)}{because}"
        ) from error


def _expected(field: _Field, model: type, title: Callable[[], str]) -> str:
    wanted = inspect.formatannotation(_bare(field.hint))
    return f"{title()}: column {field.column!r} must be {wanted} for {model.__qualname__}"


# --- the fields of a class -------------------------------------------------------------------------------------------


def _fields_of(model: Any) -> Iterator[_Field]:
    is_class = isinstance(model, type) and typing.get_origin(model) is None
    if is_class and issubclass(model, dict) and hasattr(model, "__required_keys__"):
        for name, hint in _hints_of(model).items():
            mark = _marks(hint) & {"NotRequired", "Required"}
            yield _field(name, hint, mark == {"Required"} if mark else name in model.__required_keys__)
    elif is_class and attrs.has(model):
        hints = _hints_of(model)
        for own in attrs.fields(model):
            if own.init:
                hint = hints.get(own.name, own.type)
                is_free = own.converter is not None or hint is None
                yield _field(own.alias, Any if is_free else hint, own.default is attrs.NOTHING)
    elif is_dataclass(model) and isinstance(model, type):
        hints = _hints_of(model)
        for name, parameter in inspect.signature(model).parameters.items():
            yield _field(name, hints.get(name, Any), parameter.default is parameter.empty)
    else:
        raise ConfigurationError(
            "a record becomes an object of a dataclass, an attrs class, a pydantic model or a TypedDict, not of "
            f"{shown(model)}"
        )


def _hints_of(model: type) -> dict[str, Any]:
    try:
        return typing.get_type_hints(model, include_extras=True)
    except Exception as error:
        raise ConfigurationError(
            f"the field types of {model.__qualname__} cannot be found ({type(error).__name__}: {error}): define or "
            "import them at the top level of the module that defines the class, and not for type checkers alone"
        ) from error


def _field(column: str, hint: Any, is_required: bool) -> _Field:
    return _Field(column, hint, frozenset(_unchanged(hint)), _converter(hint), is_required)


def _unchanged(hint: Any) -> Iterator[type]:
    hint = _bare(hint)
    if _is_union(hint):
        for member in typing.get_args(hint):
            yield from _unchanged(member)
    elif hint in (Any, object):
        yield from _PLAIN
    elif hint in _PLAIN:
        yield hint


# --- types -----------------------------------------------------------------------------------------------------------


class _MisfitError(Exception):
    """The error for a value that does not fit a type. It has no text, because its caller names value and type."""


def _converter(hint: Any) -> Callable[[Any], Any]:
    hint = _bare(hint)
    if _is_union(hint):
        return partial(_first_fitting, [_converter(member) for member in typing.get_args(hint)])
    if typing.get_origin(hint) is typing.Literal:
        return partial(_chosen, [(type(choice), choice) for choice in typing.get_args(hint)])
    if typing.get_origin(hint) is not None or not isinstance(hint, type):
        return _refused
    for plain in _PLAIN:
        if issubclass(hint, plain):
            return partial(_from_plain, hint, plain)
    convert: Callable[[Any], Any] = _refused if issubclass(hint, Collection) else hint
    return convert


def _refused(value: object) -> NoReturn:
    raise _MisfitError


def _first_fitting(converters: Sequence[Callable[[Any], Any]], value: object) -> Any:
    for convert in converters:
        with suppress(Exception):
            return convert(value)
    raise _MisfitError


def _chosen(choices: Sequence[tuple[type, Any]], value: object) -> Any:
    if (type(value), value) not in choices:  # The values 1, 1.0 and True are equal, but are different choices.
        raise _MisfitError
    return value


def _from_plain(kind: type, plain: type, value: Any) -> Any:
    if type(value) is plain or (plain is float and type(value) is int and float(value) == value):
        return kind(value)
    raise _MisfitError


def _bare(hint: Any) -> Any:
    """Return the type of a field, without special forms, aliases and ``NewType``."""
    while True:
        if isinstance(hint, InitVar):
            hint = hint.type
        elif _mark(hint) in _MARKS:
            hint = typing.get_args(hint)[0]
        elif hasattr(hint, "__supertype__"):
            hint = hint.__supertype__
        elif type(hint).__name__ == "TypeAliasType":
            hint = hint.__value__
        else:
            return hint


def _marks(hint: Any) -> set[str]:
    found = set()
    while _mark(hint) in _MARKS:
        found.add(_mark(hint))
        hint = typing.get_args(hint)[0]
    return found


def _mark(hint: Any) -> str:
    """Return the name of the special form around a type; empty if there is no such form.

    Forms are compared by name, because the forms in ``typing_extensions`` are other objects.
    """
    origin = typing.get_origin(hint)
    return "Annotated" if origin is typing.Annotated else getattr(origin, "_name", None) or ""


def _is_union(hint: Any) -> bool:
    return typing.get_origin(hint) in (typing.Union, UnionType)
