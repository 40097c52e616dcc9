"""Options of ``format("tablestore")``: their names, their values, and the uses of the source that accept them.

The module is pure except for the environment of the driver, which gives instance and keys if no option does. Spark
passes names in lower case and values as text. An unknown option is refused, because a misspelt limit that is silently
ignored is noticed only when the cluster breaks down.
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
    """The use for which a source is opened."""

    STREAM = "readStream"
    ROWS = "read"
    WRITE = "write"


class Layout(Enum):
    """The columns of a schema that the user did not give."""

    ROWS = "rows"
    """The key, the attributes, and a column for values that do not fit."""
    CHANGES = "changes"
    """The columns of ``ROWS``, and the columns that describe the change."""


class WriteMode(Enum):
    """The change that a row of the frame makes to the table's row with the same key."""

    PUT = "put"
    """The table's row is replaced; columns that the frame lacks are deleted."""
    UPDATE = "update"
    """The frame's columns are set; null leaves a column unchanged."""
    DELETE = "delete"
    """The table's row is deleted. The frame needs only the key."""


EARLIEST, LATEST = "earliest", "latest"


MOST_BATCH_ROWS = 200
"""The largest number of rows that the service accepts in one BatchWriteRow."""

MOST_IN_A_FIELD = 2**31 - 1
"""The greatest number in a request's field of 32 bits: far more rows than a query samples, and far more megabytes than
any table has."""


_STREAM, _ROWS = frozenset({Use.STREAM}), frozenset({Use.ROWS})


def _number(text: str) -> Any:
    return int(text) if text.strip().removeprefix("-").isdecimal() else text


def _truth(text: str) -> Any:
    return {"true": True, "false": False}.get(text.strip().lower(), text)


def _named_once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON. Refuse a repeated name, because one of its two values would be dropped silently."""
    for name, times in Counter(name for name, _ in pairs).items():
        if times > 1:
            raise ValueError(f"{checks.shown(name)} occurs twice")
    return dict(pairs)


def _starting(text: str) -> Mapping[str, str] | str:
    """Return ``earliest``, ``latest``, or a mapping from shard ids to one of these or to an iterator."""
    if text.strip().lower() in (EARLIEST, LATEST):
        return text.strip().lower()
    try:
        given = json.loads(text, object_pairs_hook=_named_once)
    except ValueError as error:
        raise ConfigurationError(str(error)) from error
    if not isinstance(given, dict) or not given or not all(isinstance(at, str) and at for at in given.values()):
        raise ConfigurationError("it must give earliest, latest or an iterator for each shard")
    return {shard: start.lower() if start.lower() in (EARLIEST, LATEST) else start for shard, start in given.items()}


def _of_spark(setting: Setting) -> Setting:
    """Return a connection's setting in the spelling of Spark's options. The EMR connector's is also accepted."""
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
        Setting("startingOffsets", "the start; `earliest` by default", _offsets, _starting, attribute="starting"),
        Setting("startingTimestamp", "the starting time, instead", _time, parse_timestamp, attribute="starting_micros"),
        _numbers("maxOffsetsPerTrigger", "records of one batch; no bound by default", attribute="max_per_trigger"),
        _numbers(
            "maxOffsetsPerShard",
            "records of one shard in one batch; 100,000 by default",
            others=("maxOffsetsPerChannel",),
            attribute="max_per_shard",
        ),
        _numbers("maxRecordsPerPartition", "records of a shard that one task reads", attribute="max_per_partition"),
        _switches("failOnDataLoss", "`true` by default: loss ends the query", attribute="fails_on_data_loss"),
        Setting("tunnelId", "the tunnel to read instead of the stream", others=("tunnel.id",)),
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
"""The options that each use of the source accepts."""

OF_SPARK = frozenset({"checkpointlocation", "queryname"})
"""Options that Spark uses itself, and passes to the source as well."""

_SECTION = Section(
    'format("tablestore")',
    [setting for group in OPTIONS.values() for setting in group],
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
    """Checked options, made in the driver. Executors get a copy, so that they do not read their own environment."""

    connection: Connection
    table: str
    starting: Mapping[str, str] | str = EARLIEST
    starting_micros: int | None = None
    """The time from which on records are read, in microseconds since 1970, instead of ``starting``."""
    max_per_trigger: int | None = None
    max_per_shard: int = 100_000
    """The largest number of records of each shard in one batch. The planner reads each page to count it, so a batch
    without a limit would be counted to the end of a backlog before its first row is processed."""
    max_per_partition: int | None = None
    """The largest number of records of a shard in one task; ``None`` gives a task all of the shard's part of a batch,
    in order."""
    fails_on_data_loss: bool = True
    tunnel_id: str | None = None
    """The tunnel that a query reads instead of the stream."""
    layout: Layout | None = None
    sample_rows: int = 1_000
    """The number of rows that are searched for columns that are not declared."""
    split_megabytes: int = 100
    pushes_filters: bool = False
    """Whether Spark's filters narrow the read rows, which is safe only for one query with one filter."""
    write_mode: WriteMode = WriteMode.PUT
    batch_rows: int = MOST_BATCH_ROWS
    given: frozenset[str] = field(factory=frozenset, repr=False)
    """The names of the given options."""

    @classmethod
    def read(cls, given: Mapping[str, str], environment: Mapping[str, str] = os.environ) -> SourceOptions:
        """Read the options that Spark passes.

        Raises:
            ConfigurationError: an option is unknown, missing, contradicts another one, or has an impossible value.
        """
        mistakes: list[str] = []
        own = {name: text for name, text in given.items() if name.lower() not in OF_SPARK}
        values = _SECTION.read(own, environment, mistakes.append)
        named = frozenset(
            setting.name for setting in _SECTION.settings if values.get(setting.attribute) not in (None, "")
        )
        mistakes += _contradictions(named, values)
        if len(mistakes) == 1:
            raise ConfigurationError(mistakes[0])
        require_no_mistakes(_SECTION.name, mistakes)
        connection = Connection(**{setting.name: values.pop(setting.name) for setting in CONNECTION_SETTINGS})
        return cls(connection=connection, given=named, **values)

    def check_use(self, use: Use) -> SourceOptions:
        """Return these options if all given ones suit ``use``.

        Raises:
            ConfigurationError: an option is for another use.
        """
        for uses, settings in OPTIONS.items():
            for setting in settings:
                if setting.name in self.given and use not in uses:
                    other = " and ".join(sorted(other_use.value for other_use in uses))
                    raise ConfigurationError(f"option {setting.name} is for {other}, not for {use.value}")
        return self

    def check_start(self, latest_micros: int) -> None:
        """Refuse a start after ``latest_micros``.

        The service has no iterator for a future time, and would begin at once.

        Raises:
            ConfigurationError: ``startingTimestamp`` is after ``latest_micros``.
        """
        if self.starting_micros is not None and self.starting_micros > latest_micros:
            moment = utc(self.starting_micros)
            raise ConfigurationError(
                f"startingTimestamp is {moment.isoformat()}, which is yet to come: give startingOffsets=latest to "
                "begin with records that are written from now on"
            )

    @property
    def inferred_layout(self) -> Layout:
        """The layout of an inferred schema. Spark does not name the use when it asks, so options of a stream decide."""
        if self.layout is not None:
            return self.layout
        is_stream = any(setting.name in self.given for setting in OPTIONS[_STREAM])
        return Layout.CHANGES if is_stream else Layout.ROWS


_BESIDE_A_TUNNEL = {
    "startingOffsets": "the tunnel has its own start",
    "startingTimestamp": "the tunnel has its own start",
    "maxRecordsPerPartition": "reading of a tunnel can resume only at the end of a page",
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
        yield "startingOffsets and startingTimestamp both set the start: give one of them"
