"""The settings for ``streamclient run`` from a file, the environment and options, each with its origin.

An option wins over the environment, the environment over the file, and the file over the default.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from enum import IntEnum
from pathlib import Path
from typing import Any

from attrs import frozen

from streamclient.base.checks import did_you_mean
from streamclient.base.settings import Complain, expanded, parse_document, require_known_sections
from streamclient.cli.run_sections import ALSO_READ, EXCLUSIVE, LATER, SECTIONS, SETTINGS, STORES, Key, variable_of
from streamclient.config import ClientConfig
from streamclient.errors import ConfigurationError

FILE_VARIABLE = "_STREAMCLIENT_FILE"
"""The environment variable that gives the text of the configuration file to each process of ``--processes``. So all
processes use the same text, and the file may be a pipe."""

OPTIONS: Mapping[Key, str] = {
    ("run", "factory"): "factory",
    ("run", "worker"): "--worker",
    ("run", "group"): "--group",
    ("run", "processes"): "--processes",
    **{key: f"--{key[1].replace('_', '-')}" for key in SETTINGS if key[0] == "connection"},
    ("stream", "data_table_name"): "--data-table",
    ("stream", "status_table_name"): "--status-table",
    ("stream", "initial_position"): "--from",
    ("stream", "max_records"): "--max-records",
    ("failure", "then"): "--on-failure",
    ("failure", "retries"): "--retries",
    ("parking", "table"): "--parking-table",
    ("parking", "directory"): "--parking-directory",
    ("serve", "port"): "--metrics-port",
    ("serve", "address"): "--metrics-address",
    ("log", "level"): "--log",
    ("log", "format"): "--log-format",
}
"""The option of each setting that has an option of its own. Every other setting is given by ``--set``."""

_ATTRIBUTES = {"--from": "beginning"}
ON_FAILURE = {"restart": "RESTART", "stop": "STOP_SHARD", "park": "PARK"}
"""The values of ``--on-failure``, each with the value of the setting ``failure.then``."""

_LEASE = ("lease_duration_millis", "renewer_interval_millis", "taker_interval_millis")
"""The settings that ``--lease-duration`` gives by one number of seconds."""
_DERIVED = frozenset({("client", name) for name in _LEASE[1:]})
"""The settings that ``--lease-duration`` only derives from the duration. ``--set`` wins over such a value."""


class Layer(IntEnum):
    """The places where settings may be given. A later place wins over an earlier one."""

    FILE = 1
    ENVIRONMENT = 2
    OPTION = 3


@frozen
class Given:
    """The given value of a setting, with its origin."""

    value: Any
    layer: Layer
    name: str
    """The path of the file, or the name of the variable or option, that gave the value."""
    label: str
    """The name of the setting in an error message."""


Found = dict[Key, Given]


def gather(
    arguments: argparse.Namespace, text: str | None, environment: Mapping[str, str], complain: Complain
) -> Found:
    """Return each given setting from the layer that wins.

    Among settings that exclude each other, only the one from the highest layer is kept. ``text`` is the content of the
    configuration file; ``None`` without a file. ``complain`` is called with each mistake.

    Raises:
        ConfigurationError: ``text`` is not TOML. Its settings are not known, so that others could seem to be missing.
    """
    found = {} if text is None else dict(_of_file(arguments.config, text, environment, complain))
    found.update(_of_environment(environment, complain))
    found.update(_of_options(arguments, complain))
    if arguments.is_one_of_processes:  # the supervisor has already read the secret's file, which may be a pipe
        found.pop(("connection", "access_key_secret_file"), None)
    for group in EXCLUSIVE:
        _keep_one(found, [key for key in group if key in found], complain)
    _drop_unused_store(found)
    return found


def _drop_unused_store(found: Found) -> None:
    """Remove a parking store from ``found`` if a higher layer sets a failure policy that does not park."""
    then = found.get(("failure", "then"))
    for key in STORES:
        if then is not None and str(then.value).upper() != "PARK" and key in found and found[key].layer < then.layer:
            del found[key]


def _keep_one(found: Found, keys: list[Key], complain: Complain) -> None:
    most = max((found[key].layer for key in keys), default=Layer.FILE)
    kept = [found[key].label for key in keys if found[key].layer == most]
    if len(kept) > 1:
        complain(f"{' and '.join(kept)} exclude each other: give one of them")
    for key in keys:
        if found[key].layer < most:
            del found[key]


# --- the file --------------------------------------------------------------------------------------------------------


def _of_file(path: str, text: str, environment: Mapping[str, str], complain: Complain) -> Iterator[tuple[Key, Given]]:
    document = parse_document(text, Path(path), is_toml=True)

    def complain_of_file(text: str) -> None:
        complain(f"{path}: {text}")

    contents = _flat(document)
    require_known_sections(contents, [section.name for section in SECTIONS], complain_of_file, LATER)
    for section in SECTIONS:
        content = contents.get(section.name, {})
        if not isinstance(content, Mapping):
            complain_of_file(f"{section.name} must be a section, not {content!r}")
            continue
        known = section.by_name(expanded(section.name, content, environment, complain_of_file), complain_of_file)
        for name, value in known.items():
            yield (section.name, name), Given(value, Layer.FILE, path, f"{path}: {section.name}.{name}")


def _flat(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document with each group, such as ``[client.prefetch]``, as a section of its own."""
    contents = dict(document)
    for section in SECTIONS:
        parent, _, child = section.name.partition(".")
        content = contents.get(parent)
        if child and isinstance(content, Mapping) and child in content:
            contents[parent] = {name: value for name, value in content.items() if name != child}
            contents[section.name] = content[child]
    return contents


# --- the environment -------------------------------------------------------------------------------------------------


def _of_environment(environment: Mapping[str, str], complain: Complain) -> Iterator[tuple[Key, Given]]:
    for key, setting in SETTINGS.items():
        own, common = variable_of(key), ALSO_READ.get(key, "")
        for variable in (own, common):
            text = environment.get(variable)
            # An empty variable that all commands read is a mistake, unless the setting may be empty.
            if text or (text is not None and variable == common and setting.variable and setting.default != ""):
                yield key, Given(setting.from_text(text), Layer.ENVIRONMENT, variable, variable)
                break
    for variable in environment:
        _require_known_variable(variable, complain)


def _require_known_variable(variable: str, complain: Complain) -> None:
    """Complain about a variable that looks misspelt. Ignore other unknown variables with the prefix of this package.

    A cluster may have set the other variables for a service whose name begins with the same prefix.
    """
    sections = [section for section in SECTIONS if variable.startswith(variable_of((section.name, "")))]
    if not sections or variable in {variable_of(key) for key in SETTINGS}:
        return
    section = max(sections, key=lambda each: len(each.name))
    name = variable.removeprefix(variable_of((section.name, ""))).lower()
    hint = did_you_mean(name, [setting.name for setting in section.settings])
    if hint.endswith("?"):
        complain(f"{variable}: {section.name} has no key {name}{hint}")


# --- options ---------------------------------------------------------------------------------------------------------


def attribute_of(option: str) -> str:
    """Return the attribute of the parsed arguments that holds the value of an option."""
    return _ATTRIBUTES.get(option, option.removeprefix("--").replace("-", "_"))


def _of_options(arguments: argparse.Namespace, complain: Complain) -> Iterator[tuple[Key, Given]]:
    explicit = dict(_of_set(arguments.set, complain))
    yield from explicit.items()
    for key, given in _of_lease_duration(arguments.lease_duration, complain):
        if key not in explicit or key not in _DERIVED:
            yield key, given
    for key, option in OPTIONS.items():
        value = getattr(arguments, attribute_of(option), None)
        if value is not None:
            value = ON_FAILURE[value] if option == "--on-failure" else value
            yield key, Given(value, Layer.OPTION, option, "PACKAGE:FACTORY" if option == "factory" else option)


def _of_set(given: list[str], complain: Complain) -> Iterator[tuple[Key, Given]]:
    """Yield the settings that ``--set`` gives.

    The last value of a setting wins. If a setting has an option of its own, that option wins over ``--set``.
    """
    for each in given:
        path, equals, text = each.partition("=")
        section, _, name = path.strip().rpartition(".")
        if not equals or not section:
            shown = path or "=..."  # without the value, which may be a secret
            complain(f"--set must be SECTION.KEY=VALUE, not {shown!r}")
        elif (section, name) in SETTINGS:
            setting = SETTINGS[section, name]
            label = f"--set {section}.{name}"
            yield (section, name), Given(setting.from_text(text.strip()), Layer.OPTION, label, label)
        else:
            complain(f"--set {_unknown(section, name)}")


def _unknown(section: str, name: str) -> str:
    found = [each for each in SECTIONS if each.name == section]
    if not found:
        hint = f": {LATER[section]}" if section in LATER else did_you_mean(section, [each.name for each in SECTIONS])
        return f"{section}.{name}: section {section} does not exist{hint}"
    texts: list[str] = []
    found[0].by_name({name: ""}, texts.append)
    return f"{section}.{name}: {texts[0]}"


def _of_lease_duration(seconds: float | None, complain: Complain) -> Iterator[tuple[Key, Given]]:
    if seconds is None:
        return
    try:
        config = ClientConfig.for_lease(seconds)
    except ConfigurationError as error:
        complain(str(error))
        return
    for name in _LEASE:
        option = "--lease-duration"
        yield ("client", name), Given(getattr(config, name), Layer.OPTION, option, option)
