"""The configuration file of a mirror, in TOML, with the sections ``[source]``, ``[destination]`` and ``[mirror]``.

The section ``[mirror]`` is optional. In a value, ``${NAME}`` stands for an environment variable. If ``[source]`` lacks
the endpoint, the instance or the access keys, they come from the variables that all commands read, such as
``TABLESTORE_ENDPOINT``. All mistakes in the file are reported together, before any call of the service.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from attrs import frozen

from streamclient.base import checks
from streamclient.base.settings import (
    Section,
    Setting,
    choice,
    load_document,
    read_sections,
    require_no_mistakes,
)
from streamclient.config import ClientConfig
from streamclient.copying.mirror_shards import MergeLimits
from streamclient.copying.mirroring import HISTORY_SUFFIX, Mirror
from streamclient.copying.source_table import PIECE_MEBIBYTES
from streamclient.destinations.commit import Destination, MergingDestination
from streamclient.tablestore.instance import CONNECTION_SETTINGS, Connection


class DestinationKind(Enum):
    """The kinds of destinations that a mirror's configuration can name."""

    DELTA = "delta"
    POSTGRES = "postgres"


_options = checks.Check(
    "a table of texts",
    lambda value: isinstance(value, dict) and all(isinstance(each, str) for each in value.values()),
    hides=True,
)
_DELTA, _POSTGRES = ("kind", DestinationKind.DELTA), ("kind", DestinationKind.POSTGRES)

# No environment variable names the tables of a mirror. The variables may name the tables of workers, and a mirror must
# not share the workers' leases.
SECTIONS = (
    Section(
        "source",
        (
            *CONNECTION_SETTINGS,
            Setting("table", "the table", is_needed=True),
            Setting("status_table", "the table for the leases of this mirror; made if missing", is_needed=True),
        ),
    ),
    Section(
        "destination",
        (
            choice("kind", DestinationKind, "`delta` or `postgres`", is_needed=True),
            Setting("url", "Delta: the table's address", needed_with=_DELTA, only_with=_DELTA),
            Setting("options", "Delta: [options](destinations.md) of the store", _options, only_with=_DELTA),
            Setting("conninfo", "how to connect", checks.secret, needed_with=_POSTGRES, only_with=_POSTGRES),
            Setting("table", "PostgreSQL: name of the table", needed_with=_POSTGRES, only_with=_POSTGRES),
            Setting("application", "names the fleet in the destination's log; `default` unless given"),
            Setting("answer_seconds", "longest wait for the destination; 15 by default", checks.seconds),
        ),
    ),
    Section(
        "mirror",
        (
            Setting("history", "whether a second table keeps the changes themselves", checks.flag),
            Setting("worker", "name of the process, unique among the processes of the mirror"),
            Setting("lease_seconds", "how long a dead process keeps its shards; 20 by default", checks.seconds),
            Setting("max_records", "number of a shard's changes before a merge; 10,000 by default", checks.positive),
            Setting("max_mebibytes", "size of a shard's changes before a merge; 64 by default", checks.positive),
            Setting("max_age_seconds", "longest wait of a change for its merge; 2 by default", checks.seconds),
            Setting("expiry_seconds", "time between removals of expired cells; 300 by default", checks.seconds),
            Setting("piece_mebibytes", "size of a piece of the copy; 100 by default", checks.positive),
        ),
    ),
)
"""The sections of a mirror's configuration file, with the settings of each section."""


@frozen
class MirrorSettings:
    """The checked settings of a mirror's configuration file."""

    source: Mapping[str, Any]
    destination: Mapping[str, Any]
    mirror: Mapping[str, Any]

    def make(self) -> Mirror:
        """Return a mirror with these settings, without any call of the service or the destination.

        Raises:
            ConfigurationError: a library for the destination is not installed, or an address is invalid.
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
            piece_mebibytes=self.mirror.get("piece_mebibytes", PIECE_MEBIBYTES),
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
        if given["kind"] is DestinationKind.DELTA:
            url = given["url"].rstrip("/") + suffix
            return DeltaDestination(url, storage_options=given.get("options"), **options)
        return PostgresDestination(given["conninfo"], given["table"] + suffix, **options)


_LIMITS = ("max_records", "max_mebibytes", "max_age_seconds", "expiry_seconds")


def load_mirror_settings(path: Path, environment: Mapping[str, str]) -> MirrorSettings:
    """Return the checked settings of the mirror's configuration file at ``path``.

    Raises:
        ConfigurationError: the file cannot be read, or settings are invalid. The message has a line for each mistake.
    """
    mistakes: list[str] = []
    sections = read_sections(load_document(path, is_toml=True), SECTIONS, environment, mistakes.append)
    source = sections["source"]
    if source.get("table") is not None and source.get("table") == source.get("status_table"):
        mistakes.append(f"source.status_table: {source['table']!r} is the source table; name another table for leases")
    require_no_mistakes(str(path), mistakes)
    return MirrorSettings(**sections)
