"""Options of ``format("tablestore")``: names, values, and which use of the source takes which.

Pure but for the environment of the driver, which says where and with which keys if no option does. Spark hands over
names in lower case and values as text. An option that nothing takes is refused: a misspelt limit that is silently
ignored is found when the cluster falls over.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import Any

from attrs import evolve, field, frozen

from streamclient.base import checks
from streamclient.base.settings import Section, Setting, choice, require_no_mistakes
from streamclient.base.times import parse_timestamp, utc
from streamclient.errors import ConfigurationError
from streamclient.tablestore.instance import CONNECTION_SETTINGS, Connection


class Use(Enum):
    """What a source is opened for."""

    STREAM = "readStream"
    ROWS = "read"
    WRITE = "write"


class Layout(Enum):
    """Which columns a schema has that nobody gave."""

    ROWS = "rows"
    """The key, the attributes, and what does not fit them."""
    CHANGES = "changes"
    """The same, and what happened to the row."""


class WriteMode(Enum):
    """What becomes of the row that a row of the frame names."""

    PUT = "put"
    """It is replaced: columns that the frame lacks are gone."""
    UPDATE = "update"
    """The frame's columns are set, null leaves a column alone."""
    DELETE = "delete"
    """It is deleted; the frame needs no more than the key."""


EARLIEST, LATEST = "earliest", "latest"


MOST_BATCH_ROWS = 200
"""More rows the service refuses in one BatchWriteRow."""

MOST_IN_A_FIELD = 2**31 - 1
"""The greatest number that a request's field of 32 bits carries; far more than any table has of rows to look at before
a query, or of megabytes."""


_STREAM, _ROWS = frozenset({Use.STREAM}), frozenset({Use.ROWS})


def _number(text: str) -> Any:
    return int(text) if text.strip().removeprefix("-").isdecimal() else text


def _truth(text: str) -> Any:
    return {"true": True, "false": False}.get(text.strip().lower(), text)


def _named_once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON. Of two positions for a shard, one would be left out silently."""
    for name, times in Counter(name for name, _ in pairs).items():
        if times > 1:
            raise ValueError(f"{checks.shown(name)} stands there twice")
    return dict(pairs)


def _starting(text: str) -> Mapping[str, str] | str:
    """Return ``earliest``, ``latest``, or for shards by id one of these or an iterator."""
    if text.strip().lower() in (EARLIEST, LATEST):
        return text.strip().lower()
    try:
        given = json.loads(text, object_pairs_hook=_named_once)
    except ValueError as error:
        raise ConfigurationError(str(error)) from error
    if not isinstance(given, dict) or not given or not all(isinstance(one, str) and one for one in given.values()):
        raise ConfigurationError("it must name for each shard earliest, latest or an iterator")
    return {shard: place.lower() if place.lower() in (EARLIEST, LATEST) else place for shard, place in given.items()}


def _of_spark(setting: Setting) -> Setting:
    """Return a connection's setting in the spelling of Spark's options, with that of the EMR connector."""
    first, *rest = setting.name.split("_")
    emr = {"instance": ("instance.name", "instanceName")}.get(setting.name, (setting.name.replace("_", "."),))
    return evolve(setting, name=first + "".join(map(str.capitalize, rest)), others=emr)


_numbers = partial(Setting, read=_number, check=checks.positive)
_switches = partial(Setting, read=_truth, check=checks.Check("true or false", checks.flag.fits))
_offsets = checks.Check('earliest, latest or JSON such as {"SHARD": "latest"}', bool)
_time = checks.Check("milliseconds since 1970, or a time such as 2026-01-31T12:00:00Z", checks.is_whole)
_field = checks.whole(1, MOST_IN_A_FIELD)

OPTIONS: Mapping[frozenset[Use], tuple[Setting, ...]] = {
    frozenset(Use): (
        *map(_of_spark, CONNECTION_SETTINGS),
        Setting("table", "the table", others=("table.name", "tableName"), is_needed=True),
    ),
    _STREAM: (
        Setting("startingOffsets", "where to begin; `earliest` by default", _offsets, _starting, attribute="starting"),
        Setting("startingTimestamp", "when to begin, instead", _time, parse_timestamp, attribute="starting_micros"),
        _numbers("maxOffsetsPerTrigger", "records of one batch; no bound by default", attribute="max_per_trigger"),
        _numbers(
            "maxOffsetsPerShard",
            "records of one shard in one batch; 100,000 by default",
            others=("maxOffsetsPerChannel",),
            attribute="max_per_shard",
        ),
        _numbers("maxRecordsPerPartition", "records of a shard that one task reads", attribute="max_per_partition"),
        _switches("failOnDataLoss", "`true` by default: loss ends the query", attribute="fails_on_data_loss"),
        Setting("tunnelId", "the tunnel to read in place of the stream", others=("tunnel.id",)),
    ),
    _STREAM | _ROWS: (
        choice("layout", Layout, "`rows` or `changes`: the columns of a frame without a schema"),
        _numbers("sampleRows", "rows to find columns in; 1,000 by default", check=checks.whole(0, MOST_IN_A_FIELD)),
    ),
    _ROWS: (
        _numbers(
            "splitSizeMb",
            "size of the ranges that tasks read; 100 by default",
            check=_field,
            others=("split.size.mbs",),
            attribute="split_megabytes",
        ),
        _switches("pushFilters", "whether filters narrow what is read; not by default", attribute="pushes_filters"),
    ),
    frozenset({Use.WRITE}): (
        choice("writeMode", WriteMode, "`put` (default), `update` or `delete`"),
        _numbers("batchRows", "rows of one request; 200 by default", check=checks.whole(1, MOST_BATCH_ROWS)),
    ),
}
"""All options, by the uses that take them."""

OF_SPARK = frozenset({"checkpointlocation", "queryname"})
"""Options that Spark takes for itself, and hands on to the source as well."""

_SECTION = Section(
    'format("tablestore")',
    [each for group in OPTIONS.values() for each in group],
    noun="option",
    prefix="option ",
    ignores_case=True,
    instead={
        "catalog": "give the columns by .schema(...) instead",
        "path": "name the table by the option table, and call load() or save() without a path",
    },
)


@frozen(kw_only=True)
class SourceOptions:
    """Checked options. Made in the driver; what executors get is a copy, so that theirs needs no environment."""

    connection: Connection
    table: str
    starting: Mapping[str, str] | str = EARLIEST
    starting_micros: int | None = None
    """From when on to read, in place of ``starting``."""
    max_per_trigger: int | None = None
    max_per_shard: int = 100_000
    """Of each shard in one batch. The planner reads each page to count it, so a batch without bound would be counted to
    the end of a backlog before its first row is worked on."""
    max_per_partition: int | None = None
    """Of a shard's part of a batch in one task; ``None`` for all of them, in order."""
    fails_on_data_loss: bool = True
    tunnel_id: str | None = None
    """The tunnel that a query reads in place of the stream."""
    layout: Layout | None = None
    sample_rows: int = 1_000
    """Rows of the table to find columns in that it does not declare."""
    split_megabytes: int = 100
    pushes_filters: bool = False
    """Whether a frame lets Spark narrow what is read, which is safe for one query with one filter alone."""
    write_mode: WriteMode = WriteMode.PUT
    batch_rows: int = MOST_BATCH_ROWS
    given: frozenset[str] = field(factory=frozenset, repr=False)
    """Names of the options that were given."""

    @classmethod
    def read(cls, given: Mapping[str, str], environment: Mapping[str, str] = os.environ) -> SourceOptions:
        """From what Spark hands over.

        Raises:
            ConfigurationError: an option is unknown, missing, contradicts another one, or has a value that it cannot.
        """
        mistakes: list[str] = []
        own = {name: text for name, text in given.items() if name.lower() not in OF_SPARK}
        values = _SECTION.read(own, environment, mistakes.append)
        named = frozenset(each.name for each in _SECTION.settings if values.get(each.attribute) not in (None, ""))
        mistakes += _contradictions(named, values)
        if len(mistakes) == 1:
            raise ConfigurationError(mistakes[0])
        require_no_mistakes(_SECTION.name, mistakes)
        connection = Connection(**{each.name: values.pop(each.name) for each in CONNECTION_SETTINGS})
        return cls(connection=connection, given=named, **values)

    def check_use(self, use: Use) -> SourceOptions:
        """These, if each that was given is one for this use.

        Raises:
            ConfigurationError: one is for another use.
        """
        for uses, settings in OPTIONS.items():
            for each in settings:
                if each.name in self.given and use not in uses:
                    other = " and ".join(sorted(one.value for one in uses))
                    raise ConfigurationError(f"option {each.name} is for {other}, not for {use.value}")
        return self

    def check_start(self, latest_micros: int) -> None:
        """Refuse a start that is later: the service has no iterator for a time to come, and would begin at once.

        Raises:
            ConfigurationError: ``startingTimestamp`` is.
        """
        if self.starting_micros is not None and self.starting_micros > latest_micros:
            moment = utc(self.starting_micros)
            raise ConfigurationError(
                f"startingTimestamp is {moment.isoformat()}, which is yet to come: give startingOffsets=latest to "
                "begin with what is written from now on"
            )

    @property
    def inferred_layout(self) -> Layout:
        """Of a schema that nobody gave. Spark does not say what it asks for, so options of a stream tell."""
        if self.layout is not None:
            return self.layout
        is_stream = any(each.name in self.given for each in OPTIONS[_STREAM])
        return Layout.CHANGES if is_stream else Layout.ROWS


_BESIDE_A_TUNNEL = {
    "startingOffsets": "the tunnel says itself where it begins",
    "startingTimestamp": "the tunnel says itself where it begins",
    "maxRecordsPerPartition": "a tunnel can be read on only where one of its pages ends",
}


def _contradictions(named: frozenset[str], values: Mapping[str, Any]) -> Iterator[str]:
    if "tunnelId" in named:
        for name, why in _BESIDE_A_TUNNEL.items():
            if name in named:
                yield f"options tunnelId and {name} contradict each other: {why}"
        if not values.get("fails_on_data_loss", True):
            yield (
                "options tunnelId and failOnDataLoss=false contradict each other: a tunnel that has lost records has "
                "expired and cannot be read on. Make a new tunnel, and begin with a new checkpoint"
            )
    if {"startingOffsets", "startingTimestamp"} <= named:
        yield "startingOffsets and startingTimestamp both say where to begin: give one of them"
