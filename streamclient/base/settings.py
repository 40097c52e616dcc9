"""Settings from files, options and the environment.

A ``Setting`` describes one setting. A ``Section`` reads and checks the values of several settings.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Any

from attrs import field, frozen

from streamclient.base import checks
from streamclient.base.checks import Check, did_you_mean, shown, words
from streamclient.base.kept_formats import parse_json
from streamclient.errors import ConfigurationError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Complain = Callable[[str], object]
"""A function that is called once for each mistake in the settings, with a text about the mistake."""

NO_LABELS: Mapping[str, str] = MappingProxyType({})

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


@frozen
class Setting:
    """One setting: its names, its meaning, and its possible values."""

    name: str
    text: str = ""
    """The meaning of the setting, for the documentation and ``--help``."""
    check: Check = checks.text
    """The check of the value that ``read`` returns."""
    read: Callable[[Any], Any] = lambda value: value
    """The function that turns the given value into the setting's value, or raises. The text of a
    ``ConfigurationError`` becomes part of the refusal."""
    from_text: Callable[[str], Any] = lambda text: text
    """The function that turns the text of an environment variable into the value that a TOML file would have. It never
    raises."""
    default: Any = None
    is_needed: bool = False
    needed_with: tuple[str, Enum] | None = None
    """The name of another setting, and a value. This setting is needed if the other setting has this value."""
    spared_by: tuple[str, Callable[[Any], bool]] | None = None
    """The name of another setting, and a check. If the other setting is given and its value passes the check, this
    setting is not needed."""
    only_with: tuple[str, Enum] | None = None
    """The name of another setting, and a value. If the other setting is given with a different value, this setting is
    not allowed."""
    variable: str = ""
    """The environment variable that has the value if the setting is not given."""
    others: tuple[str, ...] = ()
    """Other accepted spellings of the setting's name."""
    attribute: str = field()
    """The setting's name in Python, by default ``name`` in snake case."""

    @attribute.default
    def _words_of_name(self) -> str:
        return words(self.name)

    def value(self, label: str, given: Any) -> Any:
        """Return the setting's value for ``given``; ``label`` names the setting in a refusal.

        Raises:
            ConfigurationError: the setting does not accept this value.
        """
        try:
            value = self.read(given)
        except (LookupError, OSError, TypeError, ValueError) as error:
            why = str(error) if isinstance(error, ConfigurationError) else ""
            raise self.check.refusal(label, given, why) from error
        return self.check.require(label, value)


def choice(name: str, kind: type[Enum], text: str = "", **more: Any) -> Setting:
    """Return a setting whose values are the members of ``kind``, written as text in upper or lower case."""
    members = {str(member.value).lower(): member for member in kind}

    def read(given: Any) -> Any:
        return members.get(given.strip().lower(), given) if isinstance(given, str) else given

    def because(given: Any) -> str:
        hint = did_you_mean(given, members) if isinstance(given, str) else ""
        return hint.removeprefix("; ") if hint.endswith("?") else ""

    expected = Check(" or ".join(map(repr, members)), lambda value: isinstance(value, kind), because=because)
    return Setting(name, text, expected, read, **more)


@frozen
class Section:
    """Settings that are given together: one section of a file, or the options of one command or call."""

    name: str
    settings: Sequence[Setting]
    noun: str = "key"
    prefix: str = field()
    """The text before the name of a setting in a refusal of its value."""
    ignores_case: bool = False
    instead: Mapping[str, str] = {}
    """The names that are refused, each with the advice that the refusal gives."""

    @prefix.default
    def _name_and_dot(self) -> str:
        return f"{self.name}."

    def read(
        self, given: Any, environment: Mapping[str, str], complain: Complain, labels: Mapping[str, str] = NO_LABELS
    ) -> dict[str, Any]:
        """Return the values of the settings; call ``complain`` with each mistake.

        The keys of the result are each setting's ``attribute``. A value comes from ``given``, otherwise from
        ``environment``, otherwise from the setting's default. If ``labels`` has a label for the name of a setting, a
        refusal uses the label. Otherwise a refusal uses ``prefix`` and the name.
        """
        values = {setting.attribute: setting.default for setting in self.settings if setting.default is not None}
        if not isinstance(given, Mapping):
            complain(f"{self.name} must be a section, not {shown(given)}")
            return values
        contents = self.by_name(given, complain)
        for setting in self.settings:
            content = contents.get(setting.name, environment.get(setting.variable) or None)
            if content is None:
                continue
            contents[setting.name] = content
            try:
                label = labels.get(setting.name, self.prefix + setting.name)
                values[setting.attribute] = setting.value(label, content)
            except ConfigurationError as error:
                complain(str(error))
        by_name = {setting.name: values.get(setting.attribute) for setting in self.settings}
        for setting in self.settings:
            misuse = self._misuse(setting, is_given=setting.name in contents, by_name=by_name)
            other, spares = setting.spared_by or ("", bool)
            if misuse and not (other in contents and spares(by_name[other])):
                complain(misuse)
        return values

    def by_name(self, given: Mapping[str, Any], complain: Complain) -> dict[str, Any]:
        """Return the given values by setting name; call ``complain`` with each unknown name or contradiction."""
        fold = str.lower if self.ignores_case else str
        known = {fold(spelling): entry for entry in self.settings for spelling in (entry.name, *entry.others)}
        contents: dict[str, Any] = {}
        for spelling, content in given.items():
            setting = known.get(fold(spelling))
            if setting is None:
                advice = self.instead.get(fold(spelling)) or self.instead.get(words(spelling))
                hint = f": {advice}" if advice else did_you_mean(spelling, [entry.name for entry in self.settings])
                complain(f"{self.name} has no {self.noun} {spelling}{hint}")
            elif contents.setdefault(setting.name, content) != content:
                complain(f"two spellings of the {self.noun} {setting.name} are given, with different values")
        return contents

    def _misuse(self, setting: Setting, *, is_given: bool, by_name: Mapping[str, Any]) -> str:
        """Return why a given ``setting`` is not allowed, or why a missing one is needed; otherwise an empty text."""
        other, wanted = (setting.only_with if is_given else setting.needed_with) or ("", None)
        beside_value = by_name.get(other)
        beside = f" with {other} {beside_value.value!r}" if beside_value is not None else ""
        if is_given:
            return f"{self.prefix}{setting.name} is not used{beside}" if beside_value not in (None, wanted) else ""
        if not setting.is_needed and (beside_value is None or beside_value is not wanted):
            return ""
        elsewhere = f", or the variable {setting.variable} in the environment" if setting.variable else ""
        return f"{self.name} needs the {self.noun} {setting.name}{beside}{elsewhere}"


def load_document(path: Path, *, is_toml: bool) -> Any:
    """Return the content of a file, in TOML if ``is_toml``, otherwise in JSON.

    Raises:
        ConfigurationError: the file cannot be read, or is not in that format.
    """
    return parse_document(load_text(path), path, is_toml=is_toml)


def load_text(path: Path) -> str:
    """Return the text of a configuration file.

    Raises:
        ConfigurationError: the file cannot be read, or is not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"cannot read the configuration {path}: {error}") from error


def parse_document(text: str, path: Path, *, is_toml: bool) -> Any:
    """Return the content of a text, in TOML if ``is_toml``, otherwise in JSON; ``path`` names its file in a refusal.

    A byte order mark at the beginning, which some editors write, is ignored.

    Raises:
        ConfigurationError: the text is not in that format.
    """
    text = text.removeprefix("\ufeff")
    try:
        return tomllib.loads(text) if is_toml else parse_json(text)
    except ValueError as error:
        raise ConfigurationError(f"{path} is not {'TOML' if is_toml else 'JSON'}: {error}") from error


def read_sections(
    document: Mapping[str, Any], sections: Iterable[Section], environment: Mapping[str, str], complain: Complain
) -> dict[str, dict[str, Any]]:
    """Return the values of each section, by section name; call ``complain`` with each mistake.

    In texts, ``${NAME}`` stands for an environment variable.
    """
    known = {section.name: section for section in sections}
    require_known_sections(document, known, complain)
    contents = {name: expanded(name, document.get(name, {}), environment, complain) for name in known}
    return {name: section.read(contents[name], environment, complain) for name, section in known.items()}


def require_known_sections(
    document: Mapping[str, Any], known: Iterable[str], complain: Complain, instead: Mapping[str, str] = NO_LABELS
) -> None:
    """Call ``complain`` for each section that is not in ``known``; ``instead`` has advice for some unknown names."""
    names = [*known]
    for name in document:
        if name not in names:
            hint = f": {instead[name]}" if name in instead else did_you_mean(name, names)
            complain(f"section {name} does not exist{hint}")


def expanded(label: str, content: Any, environment: Mapping[str, str], complain: Complain) -> Any:
    """Return ``content`` with the value of the environment variable ``NAME`` in place of each ``${NAME}``.

    If ``content`` is a dictionary, all texts in it are treated in this way. Call ``complain`` for each unknown
    variable; ``label`` names the content in the complaint.
    """
    if isinstance(content, dict):
        return {key: expanded(f"{label}.{key}", value, environment, complain) for key, value in content.items()}
    if not isinstance(content, str):
        return content
    for name in _VARIABLE.findall(content):
        if name not in environment:
            complain(f"{label}: the environment has no variable {name}")
    return _VARIABLE.sub(lambda match: environment.get(match[1], match[0]), content)


def require_no_mistakes(title: str, mistakes: Sequence[str]) -> None:
    """Raise a ``ConfigurationError`` with one line for each mistake, unless ``mistakes`` is empty."""
    if mistakes:
        raise ConfigurationError(f"{title} cannot work:", *(f"  {mistake}" for mistake in mistakes))
