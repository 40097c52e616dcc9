"""The configuration file of a replication, in JSON or TOML, with the objects ``ots-reader`` and ``ots-writer``.

The names of the settings come from the replication program in Tablestore's examples. Further settings of this package
are optional. The message about a mistake has the setting's name, the given value and the expected value. All mistakes
are reported together, before any call of the service.
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
"""The largest number of rows that the service accepts in one BatchWriteRow."""

DEFAULT_BATCH_ROWS = 200


class SourceKind(Enum):
    """The way in which a replication reads the rows and changes of the source table."""

    TUNNEL = "tunnel"
    """Read full data and then changes by a tunnel. The Tunnel Service stores the progress."""
    STREAM = "stream"
    """Read pieces of the table and then its change stream, with leases. The status table stores the progress."""


class PoisonRow(Enum):
    """The treatment of a row that the destination refuses for good."""

    STOP = "stop"
    """End the replication with an error. The stored checkpoint stays before the refused row."""
    SKIP = "skip"
    """Write the refused row to ``poisonFile`` and go on. At the end, an error states the number of refused rows."""


@frozen(kw_only=True)
class Endpoint(Connection):
    """One side of a replication: a table, and the connection to its instance."""

    table_name: str


@frozen(kw_only=True)
class Settings:
    """The checked settings of a replication's configuration."""

    reader: Endpoint
    writer: Endpoint
    source: SourceKind = SourceKind.TUNNEL
    tunnel_name: str = ""
    status_table_name: str = ""
    piece_mebibytes: int = PIECE_MEBIBYTES
    end_time_micros: int | None = None
    """The time, in microseconds since 1970, up to which changes are copied; ``None`` for a replication without end."""
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
"""The names that connection settings have in Tablestore's replication program, if they differ from this package's."""


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
END_TIME = Setting("endTime", "the time up to which changes are copied; no end by default", _moment, parse_local_time)
SECTIONS = (
    _side(
        READER,
        choice("source", SourceKind, "`tunnel` (default), or `stream`: leases on it", default=SourceKind.TUNNEL),
        Setting("tunnelName", "found or made; keeps the progress", tunnel_name_check, default="", needed_with=_TUNNEL),
        Setting("statusTableName", "keeps the leases", default="", needed_with=_STREAM, only_with=_STREAM),
        Setting(
            "pieceMebibytes",
            "the smallest size of the pieces in which processes copy the table; 100 by default",
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
            "largest number of rows per request; 200 by default",
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
"""The sections of a replication's configuration file, with the settings of each section."""


def load_settings(path: Path, environment: Mapping[str, str]) -> Settings:
    """Return the checked settings of a configuration file: TOML if its name ends in ``.toml``, JSON otherwise.

    Raises:
        ConfigurationError: the file cannot be read, or settings are invalid. The message has a line for each mistake.
    """
    return parse_settings(load_document(path, is_toml=path.suffix == ".toml"), environment)


def parse_settings(document: Any, environment: Mapping[str, str]) -> Settings:
    """Return the checked settings of a configuration, given as the parsed JSON or TOML document.

    In a value, ``${NAME}`` stands for the environment variable ``NAME``. Settings with an empty or null value count as
    missing. A missing ``accessId`` or ``accessKey`` of the reader comes from the variable ``OTS_READER_ACCESS_ID`` or
    ``OTS_READER_ACCESS_KEY``. The variables for the writer have ``WRITER`` instead of ``READER`` in their names.

    Raises:
        ConfigurationError: settings are invalid. The message has a line for each mistake.
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
