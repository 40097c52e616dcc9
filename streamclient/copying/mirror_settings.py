"""The configuration file of a mirror, in TOML: ``[source]``, ``[destination]`` and perhaps ``[mirror]``.

A text ``${NAME}`` stands for an environment variable. Endpoint, instance and keys that ``[source]`` lacks come from
``TABLESTORE_ENDPOINT`` and the other variables of every command. All mistakes are reported at once, before any call.
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
    """The kinds of destinations."""

    DELTA = "delta"
    POSTGRES = "postgres"


_options = checks.Check(
    "a table of texts",
    lambda value: isinstance(value, dict) and all(isinstance(each, str) for each in value.values()),
    hides=True,
)
_DELTA, _POSTGRES = ("kind", DestinationKind.DELTA), ("kind", DestinationKind.POSTGRES)

# Tables do not come from the environment: a mirror on the status table of workers would share their leases, too.
SECTIONS = (
    Section(
        "source",
        (
            *CONNECTION_SETTINGS,
            Setting("table", "the table", is_needed=True),
            Setting("status_table", "keeps the leases of the processes; one per mirror, created", is_needed=True),
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
            Setting("answer_seconds", "wait for an answer of the destination, or a commit; 15", checks.seconds),
        ),
    ),
    Section(
        "mirror",
        (
            Setting("history", "whether the changes are kept, too, in a second table", checks.flag),
            Setting("worker", "name of the process, unique among the processes of the mirror"),
            Setting("lease_seconds", "how long a dead process keeps its shards; 20", checks.seconds),
            Setting("max_records", "changes of a shard that are merged at once; 10,000", checks.positive),
            Setting("max_mebibytes", "their size; 64", checks.positive),
            Setting("max_age_seconds", "how long the first of them waits; 2", checks.seconds),
            Setting("expiry_seconds", "between two removals of expired cells; 300", checks.seconds),
            Setting("piece_mebibytes", "size of a piece of the copy; 100", checks.positive),
        ),
    ),
)
"""The settings of each section."""


@frozen
class MirrorSettings:
    """A valid configuration."""

    source: Mapping[str, Any]
    destination: Mapping[str, Any]
    mirror: Mapping[str, Any]

    def make(self) -> Mirror:
        """Make the mirror, without any call.

        Raises:
            ConfigurationError: a library is not installed, or an address is invalid.
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
    """Read a configuration file.

    Raises:
        ConfigurationError: the file cannot be read, or a setting is invalid; the text has one line per mistake.
    """
    mistakes: list[str] = []
    sections = read_sections(load_document(path, is_toml=True), SECTIONS, environment, mistakes.append)
    source = sections["source"]
    if source.get("table") is not None and source.get("table") == source.get("status_table"):
        mistakes.append(f"source.status_table: {source['table']!r} is the source table; leases need another one")
    require_no_mistakes(str(path), mistakes)
    return MirrorSettings(**sections)
