"""The configuration file of a mirror, in TOML: ``[source]``, ``[destination]`` and perhaps ``[mirror]``.

A text ``${NAME}`` stands for an environment variable. Where ``[source]`` does not say where and with which keys,
``TABLESTORE_ENDPOINT`` and the others do, as for every command. All mistakes are told at once, before
anything is called.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from attrs import frozen

from streamclient.base import checks
from streamclient.base.checks import did_you_mean
from streamclient.config import ClientConfig
from streamclient.copying.mirror_shards import MergeLimits
from streamclient.copying.mirroring import HISTORY_SUFFIX, Mirror
from streamclient.destinations.commit import Destination, MergingDestination
from streamclient.errors import ConfigurationError
from streamclient.tablestore.instance import Connection

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_ENVIRONMENT = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


class DestinationKind(Enum):
    """Where a mirror can be."""

    DELTA = "delta"
    POSTGRES = "postgres"


_options = checks.Check(
    "a table of texts",
    lambda value: isinstance(value, dict) and all(isinstance(one, str) for one in value.values()),
    hides=True,
)

_KEYS: Mapping[str, Mapping[str, checks.Check]] = {
    "source": {
        "endpoint": checks.text,
        "instance": checks.text,
        "table": checks.text,
        "status_table": checks.text,
        "access_key_id": checks.text,
        "access_key_secret": checks.secret,
        "sts_token": checks.secret,
        "region": checks.text,
    },
    "destination": {
        "kind": checks.Check("'delta' or 'postgres'", tuple(one.value for one in DestinationKind).__contains__),
        "url": checks.text,
        "options": _options,
        "conninfo": checks.secret,
        "table": checks.text,
        "application": checks.text,
        "answer_seconds": checks.seconds,
    },
    "mirror": {
        "history": checks.flag,
        "worker": checks.text,
        "lease_seconds": checks.seconds,
        "max_records": checks.positive,
        "max_mebibytes": checks.positive,
        "max_age_seconds": checks.seconds,
        "expiry_seconds": checks.seconds,
        "piece_mebibytes": checks.positive,
    },
}
"""What each section may have."""

_FROM_ENVIRONMENT = ("endpoint", "instance", "access_key_id", "access_key_secret", "sts_token", "region")
"""No tables: a mirror that shared the status table of workers would share their leases, too."""

_NEEDED = {
    "source": ("endpoint", "instance", "table", "status_table", "access_key_id", "access_key_secret"),
    "destination": ("kind",),
    "mirror": (),
}
_NEEDED_BY_KIND = {"delta": ("url",), "postgres": ("conninfo", "table")}
_ONLY_OF_KIND = {"delta": ("conninfo", "table"), "postgres": ("url", "options")}


@frozen
class MirrorSettings:
    """A valid configuration."""

    source: Mapping[str, Any]
    destination: Mapping[str, Any]
    mirror: Mapping[str, Any]

    def make(self) -> Mirror:
        """The mirror. Calls nobody.

        Raises:
            ConfigurationError: a library is not installed, or an address cannot work.
        """
        source = dict(self.source)
        table, status_table = source.pop("table"), source.pop("status_table")
        limits = {name: self.mirror[name] for name in _LIMITS if name in self.mirror}
        return Mirror(
            Connection(**source).quiet_client(),
            table,
            status_table,
            self._destination(""),
            history=self._history(),
            worker_name=self.mirror.get("worker"),
            client_config=self._client_config(),
            limits=MergeLimits(**limits),
            piece_mebibytes=self.mirror.get("piece_mebibytes", 100),
        )

    def _client_config(self) -> ClientConfig:
        if "lease_seconds" not in self.mirror:
            return ClientConfig()
        return ClientConfig.for_lease(self.mirror["lease_seconds"])

    def _history(self) -> Destination | None:
        return self._destination(HISTORY_SUFFIX) if self.mirror.get("history") else None

    def _destination(self, suffix: str) -> MergingDestination:
        from streamclient.destinations import DeltaDestination, PostgresDestination  # noqa: PLC0415

        given = self.destination
        options: dict[str, Any] = {"application": given.get("application", "default")}
        if "answer_seconds" in given:
            options["answer_seconds"] = given["answer_seconds"]
        if given["kind"] == DestinationKind.DELTA.value:
            url = given["url"].rstrip("/") + suffix
            return DeltaDestination(url, storage_options=given.get("options"), **options)
        return PostgresDestination(given["conninfo"], given["table"] + suffix, **options)


_LIMITS = ("max_records", "max_mebibytes", "max_age_seconds", "expiry_seconds")


def load_mirror_settings(path: Path, environment: Mapping[str, str]) -> MirrorSettings:
    """Read a configuration file.

    Raises:
        ConfigurationError: it cannot be read, or something in it cannot work; the text has one line per mistake.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"cannot read the configuration {path}: {error}") from error
    except ValueError as error:
        raise ConfigurationError(f"{path} is no TOML: {error}") from error
    mistakes: list[str] = []
    given = {name: document.get(name, {}) for name in _KEYS}
    if isinstance(given["source"], dict):
        given["source"] = {**_source_by(environment), **given["source"]}
    sections = {name: _section(name, given[name], environment, mistakes.append) for name in _KEYS}
    for name in sorted({*document} - {*_KEYS}):
        mistakes.append(f"{name}: unknown{did_you_mean(name, _KEYS)}")
    _check_destination(sections["destination"], mistakes.append)
    source = sections["source"]
    if source.get("table") is not None and source.get("table") == source.get("status_table"):
        mistakes.append(f"source.status_table: {source['table']!r} is the source table; leases need another one")
    if mistakes:
        raise ConfigurationError(f"{path} cannot work:", *(f"  {line}" for line in mistakes))
    return MirrorSettings(**sections)


def _source_by(environment: Mapping[str, str]) -> dict[str, str]:
    names = {key: f"TABLESTORE_{key.upper()}" for key in _FROM_ENVIRONMENT}
    return {key: environment[name] for key, name in names.items() if environment.get(name)}


def _section(
    name: str, content: Any, environment: Mapping[str, str], complain: Callable[[str], None]
) -> dict[str, Any]:
    if not isinstance(content, dict):
        complain(f"{name}: expected a section [{name}], got {content!r}")
        return {}
    known, found = _KEYS[name], {}
    for key, given in content.items():
        if key not in known:
            complain(f"{name}.{key}: unknown{did_you_mean(key, known)}")
            continue
        value, missing = _with_environment(given, environment)
        for variable in missing:
            complain(f"{name}.{key}: the environment has no variable {variable}")
        if not known[key].fits(value):
            shown = "" if known[key].hides else f", got {value!r}"
            complain(f"{name}.{key}: expected {known[key].expected}{shown}")
            continue
        found[key] = value
    for key in _NEEDED[name]:
        if key not in content:
            complain(f"{name}.{key}: missing; expected {known[key].expected}")
    return found


def _with_environment(value: Any, environment: Mapping[str, str]) -> tuple[Any, list[str]]:
    """The value with its variables replaced, and those that are not there."""
    if isinstance(value, dict):
        found = {key: _with_environment(one, environment) for key, one in value.items()}
        return {key: one for key, (one, _) in found.items()}, [
            each for _, missing in found.values() for each in missing
        ]
    if not isinstance(value, str):
        return value, []
    missing = [name for name in _ENVIRONMENT.findall(value) if name not in environment]
    return _ENVIRONMENT.sub(lambda match: environment.get(match[1], ""), value), missing


def _check_destination(given: Mapping[str, Any], complain: Callable[[str], None]) -> None:
    kind = given.get("kind")
    if kind is None:
        return
    for key in _NEEDED_BY_KIND[kind]:
        if key not in given:
            complain(f"destination.{key}: missing; needed with kind = {kind!r}")
    for key in _ONLY_OF_KIND[kind]:
        if key in given:
            complain(f"destination.{key}: not used with kind = {kind!r}")
