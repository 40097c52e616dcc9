"""The configuration file of a replication: two objects, ``ots-reader`` and ``ots-writer``, in JSON or TOML.

The keys are those of the replication program in Tablestore's examples; ours beside them have defaults. A mistake is
named by its key, what stands there, and what is expected; all mistakes at once, and before anything is done.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from datetime import timezone, tzinfo
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from attrs import evolve, field, frozen

from streamclient.base import checks
from streamclient.base.checks import did_you_mean
from streamclient.base.times import parse_local_time
from streamclient.errors import ConfigurationError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

READER, WRITER = "ots-reader", "ots-writer"
MOST_BATCH_ROWS = 200
"""What the service takes in one BatchWriteRow."""

DEFAULT_BATCH_ROWS = 200
_ENVIRONMENT = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_Kind = TypeVar("_Kind", bound=Enum)


class SourceKind(Enum):
    """Where changes are read."""

    TUNNEL = "tunnel"
    """The Tunnel Service: full data, then increments; progress is kept there."""
    STREAM = "stream"
    """The table's change stream with leases of our own; full data by a scan. Progress is kept in a status table."""


class PoisonRow(Enum):
    """What to do with a row that the destination refuses for good."""

    STOP = "stop"
    """End with an error; nothing behind the row is stored as done."""
    SKIP = "skip"
    """Write it to ``poisonFile``, go on, and end with an error that counts such rows."""


@frozen
class Endpoint:
    """One side: which table, and how to get there."""

    endpoint: str
    instance_name: str
    table_name: str
    access_id: str
    access_key: str = field(repr=False)
    security_token: str | None = field(default=None, repr=False)
    region: str | None = None
    """Signs with V4 if given."""


@frozen(kw_only=True)
class Settings:
    """A valid configuration."""

    reader: Endpoint
    writer: Endpoint
    source: SourceKind = SourceKind.TUNNEL
    tunnel_name: str = ""
    status_table_name: str = ""
    end_time_micros: int | None = None
    """Changes written after this are not copied; ``None`` follows for ever."""
    batch_rows: int = DEFAULT_BATCH_ROWS
    poison_row: PoisonRow = PoisonRow.STOP
    poison_file: Path | None = None


def load_settings(path: Path, environment: Mapping[str, str]) -> Settings:
    """Read a configuration file: TOML if its name ends in ``.toml``, JSON otherwise.

    Raises:
        ConfigurationError: it cannot be read, or something in it cannot work; the text has one line per mistake.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"cannot read the configuration {path}: {error}") from error
    try:
        document = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except ValueError as error:
        kind = "TOML" if path.suffix == ".toml" else "JSON"
        raise ConfigurationError(f"{path} is no {kind}: {error}") from error
    return parse_settings(document, environment)


def parse_settings(document: Any, environment: Mapping[str, str]) -> Settings:
    """Check a configuration that was read.

    A text ``${NAME}`` is replaced by the environment variable of that name. ``accessId`` and ``accessKey`` that are
    missing or empty come from ``OTS_READER_ACCESS_ID``, ``OTS_READER_ACCESS_KEY`` and the same with ``WRITER``.

    Raises:
        ConfigurationError: something cannot work; one line per mistake.
    """
    if not isinstance(document, dict):
        raise ConfigurationError(f"expected an object with {READER!r} and {WRITER!r}, got {type(document).__name__}")
    reader = _Section(READER, document.get(READER), environment)
    writer = _Section(WRITER, document.get(WRITER), environment)
    sections = (READER, WRITER)
    unknown = [f"{name}: unknown{did_you_mean(name, sections)}" for name in sorted({*document} - {*sections})]
    settings = _settings(reader, writer)
    mistakes = [*unknown, *reader.finish(), *writer.finish()]
    if mistakes or settings is None:
        raise ConfigurationError("the configuration cannot work:", *(f"  {line}" for line in mistakes))
    return settings


def _settings(reader: _Section, writer: _Section) -> Settings | None:
    source = reader.choice("source", SourceKind, SourceKind.TUNNEL)
    zone = reader.zone("timeZone")
    poison = writer.choice("onPoisonRow", PoisonRow, PoisonRow.STOP)
    poison_file = writer.optional_text("poisonFile")
    if poison is PoisonRow.SKIP and poison_file is None:
        writer.complain("poisonFile", 'missing; needed where refused rows are written with onPoisonRow "skip"')
    ends = reader.endpoint(), writer.endpoint()
    if _are_the_same(*ends):
        writer.complain("tableName", f"{ends[1].table_name!r} is the source table itself; name another one")
    status_table_name = reader.text("statusTableName") if source is SourceKind.STREAM else ""
    if status_table_name and status_table_name == ends[0].table_name:
        reader.complain("statusTableName", f"{status_table_name!r} is the source table; leases need another one")
    if status_table_name and _are_the_same(evolve(ends[0], table_name=status_table_name), ends[1]):
        reader.complain("statusTableName", f"{status_table_name!r} is the destination table; leases need another one")
    return Settings(
        reader=ends[0],
        writer=ends[1],
        source=source,
        tunnel_name=reader.text("tunnelName")
        if source is SourceKind.TUNNEL
        else reader.optional_text("tunnelName") or "",
        status_table_name=status_table_name,
        end_time_micros=reader.time("endTime", zone),
        batch_rows=writer.number("batchWriteCount", DEFAULT_BATCH_ROWS, 1, MOST_BATCH_ROWS),
        poison_row=poison,
        poison_file=None if poison_file is None else Path(poison_file),
    )


def _are_the_same(reader: Endpoint, writer: Endpoint) -> bool:
    places = [(side.endpoint.rstrip("/"), side.instance_name, side.table_name) for side in (reader, writer)]
    return bool(reader.table_name) and places[0] == places[1]


class _Section:
    """One object of the file. Asking for a key notes what is wrong with it; ``finish`` names keys nobody asked for."""

    def __init__(self, name: str, content: Any, environment: Mapping[str, str]) -> None:
        self._name = name
        self._environment = environment
        self._mistakes: list[str] = []
        self._asked: set[str] = set()
        self._is_object = isinstance(content, dict)
        self._content: dict[str, Any] = content if isinstance(content, dict) else {}
        if content is None:
            self._mistakes.append(f"{name}: missing; expected an object")
        elif not self._is_object:
            self._mistakes.append(f"{name}: expected an object, got {content!r}")

    def complain(self, key: str, text: str) -> None:
        self._mistakes.append(f"{self._name}.{key}: {text}")

    def finish(self) -> list[str]:
        if not self._is_object:
            return self._mistakes[:1]
        unknown = sorted(self._content.keys() - self._asked)
        hints = (f"{self._name}.{key}: unknown{did_you_mean(key, self._asked)}" for key in unknown)
        return [*self._mistakes, *hints]

    def _value(self, key: str) -> Any:
        self._asked.add(key)
        value = self._content.get(key)
        return self._with_environment(key, value) if isinstance(value, str) else value

    def _with_environment(self, key: str, text: str) -> str:
        for name in _ENVIRONMENT.findall(text):
            if name not in self._environment:
                self.complain(key, f"the environment has no variable {name}")
        return _ENVIRONMENT.sub(lambda match: self._environment.get(match[1], ""), text)

    def text(self, key: str) -> str:
        value = self._value(key)
        if not isinstance(value, str) or not value:
            self.complain(key, "missing; expected a text" if value in (None, "") else f"expected a text, got {value!r}")
            return ""
        return value

    def optional_text(self, key: str) -> str | None:
        value = self._value(key)
        if value is not None and not isinstance(value, str):
            self.complain(key, f"expected a text, got {value!r}")
            return None
        return value or None

    def secret(self, key: str) -> str:
        variable = f"{self._name.replace('-', '_').upper()}_{_snake(key).upper()}"
        value = self.optional_text(key) or self._environment.get(variable)
        if not value:
            self.complain(key, f"missing; give it here or in the environment variable {variable}")
        return value or ""

    def number(self, key: str, default: int, least: int, most: int) -> int:
        value = self._value(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            self.complain(key, f"expected a whole number from {least} to {most}, got {value!r}")
            return default
        return value

    def choice(self, key: str, kind: type[_Kind], default: _Kind) -> _Kind:
        value = self._value(key)
        if value is None:
            return default
        try:
            return kind(value.lower() if isinstance(value, str) else value)
        except ValueError:
            known = " or ".join(repr(member.value) for member in kind)
            self.complain(key, f"expected {known}, got {value!r}")
            return default

    def zone(self, key: str) -> tzinfo | None:
        """``None`` for the time zone of this machine, as the original program has it."""
        name = self.optional_text(key)
        if name is None:
            return None
        try:
            return timezone.utc if name == "UTC" else ZoneInfo(name)
        except (ZoneInfoNotFoundError, ValueError, OSError):  # a directory of zones, such as 'Asia', is no zone
            self.complain(key, f"no time zone is called {name!r}; expected a name such as 'UTC' or 'Asia/Shanghai'")
            return None

    def time(self, key: str, zone: tzinfo | None) -> int | None:
        text = self.optional_text(key)
        if text is None:
            return None
        try:
            return parse_local_time(text, zone)
        except ConfigurationError as error:
            self.complain(key, str(error))
            return None

    def endpoint(self) -> Endpoint:
        url = self.text("endpoint")
        if url:
            self._check_endpoint(url)
        return Endpoint(
            url,
            self.text("instanceName"),
            self.text("tableName"),
            self.secret("accessId"),
            self.secret("accessKey"),
            self.optional_text("securityToken"),
            self.optional_text("region"),
        )

    def _check_endpoint(self, url: str) -> None:
        try:
            checks.host_and_port(url)
            is_plain = urlsplit(url).scheme in ("http", "https") and not urlsplit(url).path.strip("/")
        except ConfigurationError:
            is_plain = False
        if not is_plain:
            self.complain("endpoint", f"expected http(s)://host[:port], got {url!r}")


def _snake(name: str) -> str:
    return re.sub(r"(?=[A-Z])", "_", name)
