"""``streamclient settings``: print the settings that a run with the same arguments would have, and their origins."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from enum import Enum
from typing import TYPE_CHECKING, Any

from streamclient.cli.options import connection_parent
from streamclient.cli.run_command import add_settings
from streamclient.cli.terminal.commands import EXIT_DONE, runs
from streamclient.cli.terminal.layout import Column
from streamclient.cli.terminal.output import print_json, print_table

if TYPE_CHECKING:
    from streamclient.cli.run_sections import Key
    from streamclient.cli.run_settings import RunParts, RunSettings

COLUMNS = (Column("SETTING", least=24), Column("VALUE", least=10), Column("WHENCE", least=12))

HIDDEN = "(set)"
"""The text that is printed instead of a secret."""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand ``settings``."""
    parser = commands.add_parser(
        "settings",
        help="show the settings of a run, and where each comes from",
        description="Show every setting that `streamclient run` with the same options would have, and where it comes "
        "from: an option, the environment, the file, or the default. Nothing is imported or called.",
        parents=[connection_parent(tables=("data-table", "status-table"))],
    )
    add_settings(parser)
    parser.add_argument("--given", action="store_true", help="leave out settings that have their defaults")
    runs(parser, run)


def run(arguments: argparse.Namespace) -> int:
    """Print the settings; return the exit code."""
    from streamclient.cli.run_settings import RunSettings  # noqa: PLC0415

    settings = RunSettings.read(arguments, os.environ)
    rows = list(_rows(settings, settings.parts(), only_given=arguments.given))
    if arguments.json:
        print_json({"settings": rows})
        return EXIT_DONE
    cells = [(f"{row['section']}.{row['name']}", _shown(row["value"]), _whence(row)) for row in rows]
    print_table(COLUMNS, cells, "nothing is given: every setting has its default")
    return EXIT_DONE


def _rows(settings: RunSettings, parts: RunParts, *, only_given: bool) -> Iterator[dict[str, Any]]:
    from streamclient.cli.run_sections import SETTINGS  # noqa: PLC0415

    for key in SETTINGS:
        given = settings.found.get(key)
        if given is None and only_given:
            continue
        yield {
            "section": key[0],
            "name": key[1],
            "value": _value(settings, parts, key),
            "whence": "default" if given is None else given.layer.name.lower(),
            "whence_name": None if given is None else given.name,
        }


def _value(settings: RunSettings, parts: RunParts, key: Key) -> Any:
    """Return the value of a setting as a JSON value. A secret is replaced by ``HIDDEN``."""
    from streamclient.cli.run_sections import SETTINGS  # noqa: PLC0415

    section, name = key
    if section == "connection":
        value = settings.values.get(key, _default_of_connection(settings, name))
        return HIDDEN if value and SETTINGS[key].check.hides else value
    if key in settings.found:
        value = settings.found[key].value if name == "initial_position" else settings.values[key]
    else:
        value = settings.default(parts, key)
    return value if isinstance(value, bool | int | float | str | None) else _text(value)


def _text(value: object) -> str:
    return str(value.value) if isinstance(value, Enum) else str(value)


def _default_of_connection(settings: RunSettings, name: str) -> str | None:
    """Return the default of a connection setting; ``None`` if a client object or a secret's file replaces it."""
    from streamclient.tablestore.instance import CONNECTION_SETTINGS  # noqa: PLC0415

    has_file = name == "access_key_secret" and settings.value("connection", "access_key_secret_file") is not None
    if settings.has_own_client or has_file:
        return None
    return {setting.name: setting.default or None for setting in CONNECTION_SETTINGS}.get(name)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "-" if value is None else str(value)


def _whence(row: dict[str, Any]) -> str:
    return f"{row['whence']} {row['whence_name'] or ''}".strip()
