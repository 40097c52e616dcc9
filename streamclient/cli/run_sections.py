"""The sections and settings of ``streamclient run``, which a file, the environment and options may give.

Most settings are made from the fields of ``StreamConfig``, ``ClientConfig``, its groups and ``FailurePolicy``. So a new
field of these classes automatically becomes a setting with the same name and the same check.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from enum import Enum
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import attrs
from attrs import evolve, frozen

from streamclient.base import checks
from streamclient.base.checks import Check
from streamclient.base.settings import Section, Setting, choice
from streamclient.base.times import now_micros, parse_moment
from streamclient.config import ClientConfig, FailurePolicy, StreamConfig, processor_factory
from streamclient.model import InitialPosition
from streamclient.tablestore.instance import CONNECTION_SETTINGS

LOOPBACK = "127.0.0.1"

PREFIX = "STREAMCLIENT"
"""The prefix of environment variables for settings. The names of section and setting follow in capitals."""


class LogLevel(Enum):
    """The least severe level of entries that are logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(Enum):
    """The format of the log lines on standard error."""

    TEXT = "text"
    JSON = "json"


@frozen
class Named:
    """The name ``module:name`` of an object. The object is imported before the worker is made."""

    text: str

    def __str__(self) -> str:
        return self.text


Key = tuple[str, str]
"""The names of a section and a setting."""

OBJECTS: dict[Key, Check] = {
    ("run", "factory"): processor_factory,
    ("run", "executor"): checks.executor,
}
"""The settings that name objects, each with the check for the imported object. Code below adds the settings that come
from fields of classes."""

_named = Check("a text such as 'module:name'", lambda value: isinstance(value, Named))


def _read_named(given: Any) -> Any:
    return Named(given) if isinstance(given, str) and all(given.partition(":")) else given


def _object(name: str, text: str = "") -> Setting:
    return Setting(name, text, _named, _read_named)


def _or_text(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return a function like ``read`` that returns a refused text unchanged, so that the setting's check reports it."""

    def from_text(text: str) -> Any:
        try:
            return read(text.strip())
        except (LookupError, ValueError):
            return text

    return from_text


_whole, _number = _or_text(int), _or_text(float)
_truth = _or_text(lambda text: {"true": True, "false": False}[text.lower()])
_FROM_TEXT: Mapping[type, Callable[[str], Any]] = {bool: _truth, int: _whole, float: _number}


def _read_position(given: Any) -> Any:
    """Return the initial position that a text or a TOML time describes; return any other value unchanged."""
    if not isinstance(given, str | datetime):
        return given
    named = {"oldest": InitialPosition.oldest, "latest": InitialPosition.latest}
    text = given.isoformat() if isinstance(given, datetime) else given.strip()
    return named[text.lower()]() if text.lower() in named else InitialPosition.at(parse_moment(text, now_micros()))


_position = Check("oldest, latest, a time or 2h-ago", lambda value: isinstance(value, InitialPosition))


# --- settings of attrs classes ---------------------------------------------------------------------------------------


def _plain(hint: Any) -> Any:
    """Return the type of a field without ``None``; ``object`` if several types remain."""
    if get_origin(hint) not in (Union, UnionType):
        return hint
    kinds = [kind for kind in get_args(hint) if kind is not type(None)]
    return kinds[0] if len(kinds) == 1 else object


def _fields(kind: type) -> Iterator[tuple[str, Any, Check]]:
    """Yield the name, the type and the check of each field.

    A validator that is not a ``Check`` is left out here. It runs when an object is made.
    """
    hints = get_type_hints(kind)
    for each in attrs.fields(kind):
        fallback = checks.text if hints[each.name] is str else Check("given", lambda value: True)
        yield each.name, _plain(hints[each.name]), each.validator if isinstance(each.validator, Check) else fallback


def is_group(kind: Any) -> bool:
    """Return whether ``kind``, the type of a field, is a class of settings, so that the field becomes a section."""
    return isinstance(kind, type) and attrs.has(kind) and kind is not InitialPosition


def _setting(section: str, name: str, kind: Any, check: Check) -> Setting:
    if kind is InitialPosition:
        return Setting(name, "", _position, _read_position)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return choice(name, kind)
    if kind in _FROM_TEXT:
        return Setting(name, "", check, from_text=_FROM_TEXT[kind])
    if kind is str:
        return Setting(name, "", check)
    OBJECTS[section, name] = check
    return _object(name)


def _sections_of(section: str, kind: type, apart: Mapping[str, str]) -> Iterator[Section]:
    """Yield the section of a class, then the sections of its groups.

    ``apart`` has the fields that have a section elsewhere, each with a text that says where.
    """
    settings: list[Setting] = []
    groups: list[Section] = []
    instead = dict(apart)
    for name, hint, check in _fields(kind):
        if name in apart:
            continue
        if is_group(hint):
            groups += _sections_of(f"{section}.{name}", hint, {})
            instead[name] = f"it is the section [{section}.{name}]"
        else:
            settings.append(_setting(section, name, hint, check))
    yield Section(section, settings, instead=instead)
    yield from groups


SECRET_FILE = Setting("access_key_secret_file", "file with the key secret", checks.path)
_CONNECTION = (*(evolve(setting, is_needed=False, default=None) for setting in CONNECTION_SETTINGS), SECRET_FILE)

_SECTIONS: Sequence[Section] = (
    Section(
        "run",
        (
            _object("factory", "makes the processors, as for Worker"),
            Setting("worker", "name of the worker; with `processes`, a prefix of names", checks.identifier),
            Setting("group", "names the status table TABLE_GROUP", checks.identifier),
            Setting("processes", "number of workers, each in its own process", checks.positive, from_text=_whole),
            _object("executor", "runs all user code, as for Worker"),
        ),
    ),
    Section("connection", _CONNECTION),
    *_sections_of("stream", StreamConfig, {}),
    *_sections_of("client", ClientConfig, {"failure_policy": "it is the section [failure]"}),
    *_sections_of("failure", FailurePolicy, {}),
    Section(
        "parking",
        (
            Setting("table", "keeps parked records in a TableParkingStore", checks.identifier),
            Setting("directory", "keeps parked records in a FileParkingStore", checks.text),
        ),
    ),
    Section(
        "serve",
        (
            Setting("port", "serves /metrics and /health; 0 picks a free port", checks.port, from_text=_whole),
            Setting("address", "address to serve on", default=LOOPBACK),
        ),
    ),
    Section(
        "log",
        (
            choice("level", LogLevel, "least level to log", default=LogLevel.WARNING),
            choice("format", LogFormat, "form of the lines on standard error", default=LogFormat.TEXT),
        ),
    ),
)


def _told_of_others(section: Section) -> Section:
    """Return ``section`` with a hint for each key of the other sections.

    If a user puts such a key into ``section``, the refusal names the sections to which the key belongs.
    """
    own = {setting.name for setting in section.settings}
    homes: dict[str, list[str]] = {}
    for other in _SECTIONS:
        for setting in other.settings:
            if setting.name not in own:
                homes.setdefault(setting.name, []).append(f"[{other.name}]")
    told = {name: f"it is a key of {' and '.join(of)}" for name, of in homes.items()}
    return evolve(section, instead={**told, **section.instead})


SECTIONS: Sequence[Section] = tuple(map(_told_of_others, _SECTIONS))
"""All sections with their settings. The section of a group, such as ``client.prefetch``, follows its parent section."""

LATER = {"destination": "destinations come later; until then a processor writes to them itself"}
"""The sections that are not supported yet, each with the hint in its refusal."""

SETTINGS: Mapping[Key, Setting] = {
    (section.name, setting.name): setting for section in SECTIONS for setting in section.settings
}

ALSO_READ: Mapping[Key, str] = {
    **{("connection", setting.name): setting.variable for setting in CONNECTION_SETTINGS},
    ("stream", "data_table_name"): "TABLESTORE_DATA_TABLE",
    ("stream", "status_table_name"): "TABLESTORE_STATUS_TABLE",
}
"""The environment variables that all commands read, by the key of the setting to which the variable gives a value."""


def variable_of(key: Key) -> str:
    """Return the name of the environment variable that gives a setting."""
    section, name = key
    return f"{PREFIX}_{section.replace('.', '_')}_{name}".upper()


STORES: Sequence[Key] = (("failure", "parking"), ("parking", "table"), ("parking", "directory"))
"""The settings that name the parking store."""

EXCLUSIVE: Sequence[Sequence[Key]] = (
    (("run", "group"), ("stream", "status_table_name")),
    (("run", "factory"), ("stream", "record_processor_factory")),
    (("connection", "access_key_secret"), ("connection", "access_key_secret_file")),
    STORES,
    (("client", "metrics"), ("serve", "port")),
)
"""Groups of settings that exclude each other. In each group, only the setting from the highest layer is used."""

_CLASSES: Mapping[str, type] = {"stream": StreamConfig, "client": ClientConfig, "failure": FailurePolicy}


def default_of(key: Key) -> Any:
    """Return the default of a setting; ``None`` if it has no default, or if the default depends on other settings."""
    section, name = key
    owner, _, group = section.partition(".")
    if owner == "connection":
        return {setting.name: setting.default or None for setting in CONNECTION_SETTINGS}.get(name)
    if owner not in _CLASSES:
        return SETTINGS[key].default
    fields = attrs.fields_dict(_CLASSES[owner])
    default = getattr(fields[group].default, name) if group else fields[name].default
    if isinstance(default, attrs.Factory):  # type: ignore[arg-type]  # a class, which its stub has as a function
        return None
    return None if default is attrs.NOTHING else default
