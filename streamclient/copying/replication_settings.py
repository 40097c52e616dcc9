"""The configuration file of a replication: two objects, ``ots-reader`` and ``ots-writer``, in JSON or TOML.

The keys are the same as for the replication program in Tablestore's examples; additional ones have defaults. A mistake
is named by its key, the given value and the expected one. All mistakes are reported at once, before any call.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone, tzinfo
from enum import Enum
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from attrs import evolve, frozen

from streamclient.base import checks
from streamclient.base.settings import (
    Complain,
    Section,
    Setting,
    choice,
    load_document,
    read_sections,
    require_no_mistakes,
)
from streamclient.base.times import parse_local_time, zoned_micros
from streamclient.copying.source_table import PIECE_MEBIBYTES
from streamclient.errors import ConfigurationError
from streamclient.tablestore.instance import CONNECTION_SETTINGS, Connection
from streamclient.tunnel.tunnel_client import tunnel_name_check

READER, WRITER = "ots-reader", "ots-writer"
MOST_BATCH_ROWS = 200
"""The largest number of rows that the service takes in one BatchWriteRow."""

DEFAULT_BATCH_ROWS = 200


class SourceKind(Enum):
    """The source of rows and changes."""

    TUNNEL = "tunnel"
    """The Tunnel Service: full data, then increments. The service keeps the progress."""
    STREAM = "stream"
    """The pieces of the table, then its change stream, with leases in a status table, which keeps the progress."""


class PoisonRow(Enum):
    """The treatment of a row that the destination refuses for good."""

    STOP = "stop"
    """End with an error. No position after the row is stored."""
    SKIP = "skip"
    """Write it to ``poisonFile``, go on, and end with an error that counts such rows."""


@frozen(kw_only=True)
class Endpoint(Connection):
    """One side: a table, and the connection to it."""

    table_name: str


@frozen(kw_only=True)
class Settings:
    """A valid configuration."""

    reader: Endpoint
    writer: Endpoint
    source: SourceKind = SourceKind.TUNNEL
    tunnel_name: str = ""
    status_table_name: str = ""
    piece_mebibytes: int = PIECE_MEBIBYTES
    end_time_micros: int | None = None
    """The end time. Changes written after it are not copied; ``None`` follows for ever."""
    batch_rows: int = DEFAULT_BATCH_ROWS
    poison_row: PoisonRow = PoisonRow.STOP
    poison_file: Path | None = None


def _zone(name: str) -> tzinfo:
    return timezone.utc if name == "UTC" else ZoneInfo(name)


_NAMES = {
    "instance": "instanceName",
    "access_key_id": "accessId",
    "access_key_secret": "accessKey",
    "sts_token": "securityToken",
}
"""The original program's names of these settings."""


def _side(name: str, *own: Setting) -> Section:
    def here(setting: Setting) -> Setting:
        key = _NAMES.get(setting.name, setting.name)
        is_key = setting.name.startswith("access")
        variable = f"{name.replace('-', '_')}_{checks.words(key)}".upper() if is_key else ""
        return evolve(setting, name=key, attribute=setting.name, variable=variable)

    table = Setting("tableName", "the table", is_needed=True)
    return Section(name, (*map(here, CONNECTION_SETTINGS), table, *own))


_moment = checks.Check("a time such as '2019-06-19 17:00:00'", lambda value: isinstance(value, datetime))
_zones = checks.Check("the name of a time zone such as 'UTC' or 'Asia/Shanghai'", lambda it: isinstance(it, tzinfo))
_TUNNEL, _STREAM = ("source", SourceKind.TUNNEL), ("source", SourceKind.STREAM)
END_TIME = Setting(
    "endTime", "changes after it are not copied; without it, all are followed", _moment, parse_local_time
)
SECTIONS = (
    _side(
        READER,
        choice("source", SourceKind, "`tunnel` (default), or `stream`: leases on it", default=SourceKind.TUNNEL),
        Setting("tunnelName", "found or made; keeps the progress", tunnel_name_check, default="", needed_with=_TUNNEL),
        Setting("statusTableName", "keeps the leases", default="", needed_with=_STREAM, only_with=_STREAM),
        Setting(
            "pieceMebibytes",
            "least size of a piece of the table, which one process copies at a time; 100",
            checks.positive,
            default=PIECE_MEBIBYTES,
            only_with=_STREAM,
        ),
        END_TIME,
        Setting("timeZone", "zone of `endTime`; the machine's by default", _zones, _zone),
    ),
    _side(
        WRITER,
        Setting(
            "batchWriteCount",
            "rows per request; 200 by default",
            checks.whole(1, MOST_BATCH_ROWS),
            default=DEFAULT_BATCH_ROWS,
            attribute="batch_rows",
        ),
        choice(
            "onPoisonRow",
            PoisonRow,
            "for rows that the destination refuses for good: `stop` (default), or `skip` them into a file",
            default=PoisonRow.STOP,
            attribute="poison_row",
        ),
        Setting("poisonFile", "made at the start", checks.path, Path, needed_with=("onPoisonRow", PoisonRow.SKIP)),
    ),
)
"""The settings of each section."""


def load_settings(path: Path, environment: Mapping[str, str]) -> Settings:
    """Read a configuration file: TOML if its name ends in ``.toml``, JSON otherwise.

    Raises:
        ConfigurationError: the file cannot be read, or a setting is invalid; the text has one line per mistake.
    """
    return parse_settings(load_document(path, is_toml=path.suffix == ".toml"), environment)


def parse_settings(document: Any, environment: Mapping[str, str]) -> Settings:
    """Check a configuration as it stands in the file.

    A text ``${NAME}`` is replaced by the environment variable of that name. Keys that are empty or null are missing.
    ``accessId`` and ``accessKey`` then come from ``OTS_READER_ACCESS_ID``, ``OTS_READER_ACCESS_KEY`` and the same with
    ``WRITER``.

    Raises:
        ConfigurationError: a setting is invalid; one line per mistake.
    """
    if not isinstance(document, dict):
        raise ConfigurationError(f"expected an object with {READER!r} and {WRITER!r}, got {type(document).__name__}")
    mistakes: list[str] = []
    given = {name: _without_empty(content) for name, content in document.items()}
    reader, writer = read_sections(given, SECTIONS, environment, mistakes.append).values()
    _check_tables(reader, writer, mistakes.append)
    end_micros = _end_micros(reader, mistakes.append)
    require_no_mistakes("the configuration", mistakes)
    return Settings(
        reader=_endpoint(reader),
        writer=_endpoint(writer),
        source=reader["source"],
        tunnel_name=reader["tunnel_name"],
        status_table_name=reader["status_table_name"],
        piece_mebibytes=reader["piece_mebibytes"],
        end_time_micros=end_micros,
        batch_rows=writer["batch_rows"],
        poison_row=writer["poison_row"],
        poison_file=writer.get("poison_file"),
    )


def _without_empty(content: Any) -> Any:
    if not isinstance(content, dict):
        return content
    return {key: value for key, value in content.items() if value is not None and value != ""}


def _endpoint(side: Mapping[str, Any]) -> Endpoint:
    return Endpoint(**{name: side[name] for name in (*(each.name for each in CONNECTION_SETTINGS), "table_name")})


def _check_tables(reader: Mapping[str, Any], writer: Mapping[str, Any], complain: Complain) -> None:
    source, table, leases = (reader.get("table_name"), writer.get("table_name"), reader["status_table_name"])
    places = [(side["endpoint"].rstrip("/"), side["instance"]) for side in (reader, writer)]
    if source and source == table and places[0] == places[1]:
        complain(f"{WRITER}.tableName: {table!r} is the source table itself; name another one")
    for name, copied in (("source", source), ("destination", table if places[0] == places[1] else None)):
        if leases and leases == copied:
            complain(f"{READER}.statusTableName: {leases!r} is the {name} table; leases need another one")


def _end_micros(reader: Mapping[str, Any], complain: Complain) -> int | None:
    moment: datetime | None = reader.get("end_time")
    if moment is None:
        return None
    try:
        return zoned_micros(moment, reader.get("time_zone"))
    except ConfigurationError:
        complain(str(END_TIME.check.refusal(f"{READER}.{END_TIME.name}", str(moment))))
        return None
