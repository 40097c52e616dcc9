"""Options of ``format("tablestore")``: their names, their values, and the kinds of query that accept them.

The instance and the access keys may also come from environment variables of the driver. Spark passes the names of
options in lower case, and their values as strings. An unknown option is refused. Otherwise, a user would notice a
misspelt limit only when the cluster breaks down.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import Any

from attrs import evolve, field, frozen

from streamclient.base import checks
from streamclient.base.kept_formats import parse_json
from streamclient.base.settings import Section, Setting, choice, require_no_mistakes
from streamclient.base.times import parse_timestamp, utc
from streamclient.errors import ConfigurationError
from streamclient.tablestore.instance import CONNECTION_SETTINGS, Connection


class Use(Enum):
    """The kind of query for which Spark opens the data source."""

    STREAM = "readStream"
    ROWS = "read"
    WRITE = "write"


class Layout(Enum):
    """The set of columns that the data source infers if the user gives no schema."""

    ROWS = "rows"
    """The key columns, the attributes, and the column ``_unfit`` for values that do not fit their columns."""
    CHANGES = "changes"
    """The columns of ``ROWS``, and the columns that this package adds to describe a change."""


class WriteMode(Enum):
    """The way in which a row of the written frame changes the table's row with the same key."""

    PUT = "put"
    """The frame's row replaces the table's row, so columns that the frame lacks are deleted."""
    UPDATE = "update"
    """The frame's values are put into the table's row. A null leaves its column unchanged."""
    DELETE = "delete"
    """The table's row is deleted. The frame needs only the key columns."""


EARLIEST, LATEST = "earliest", "latest"


MOST_BATCH_ROWS = 200
"""The largest number of rows that the service accepts in one BatchWriteRow."""

MOST_IN_A_FIELD = 2**31 - 1
"""The upper limit of the options ``sampleRows`` and ``splitSizeMb``, whose values must fit a request's 32-bit field."""


_STREAM, _ROWS = frozenset({Use.STREAM}), frozenset({Use.ROWS})


def _number(text: str) -> Any:
    return int(text) if text.strip().removeprefix("-").isdecimal() else text


def _truth(text: str) -> Any:
    return {"true": True, "false": False}.get(text.strip().lower(), text)


def _named_once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return the JSON object of ``pairs``. Refuse a name that occurs twice, because one of its values would be lost."""
    for name, times in Counter(name for name, _ in pairs).items():
        if times > 1:
            raise ValueError(f"{checks.shown(name)} occurs twice")
    return dict(pairs)


def _starting(text: str) -> Mapping[str, str] | str:
    """Return the parsed option ``startingOffsets``: ``earliest``, ``latest``, or a mapping by shard id.

    The values of the mapping are ``earliest``, ``latest`` or iterators.
    """
    if text.strip().lower() in (EARLIEST, LATEST):
        return text.strip().lower()
    try:
        given = parse_json(text, object_pairs_hook=_named_once)
    except ValueError as error:
        raise ConfigurationError(str(error)) from error
    if not isinstance(given, dict) or not given or not all(isinstance(at, str) and at for at in given.values()):
        raise ConfigurationError("expected earliest, latest or an iterator for each shard")
    return {shard: start.lower() if start.lower() in (EARLIEST, LATEST) else start for shard, start in given.items()}


def _of_spark(setting: Setting) -> Setting:
    """Return a connection setting under a name in Spark's style, with the EMR connector's names as alternatives."""
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
        Setting("startingTimestamp", "the time of the start", _time, parse_timestamp, attribute="starting_micros"),
        _numbers(
            "maxOffsetsPerTrigger",
            "the largest number of records in a batch; no limit by default",
            attribute="max_per_trigger",
        ),
        _numbers(
            "maxOffsetsPerShard",
            "the largest number of records of each shard in a batch; 100,000 by default",
            others=("maxOffsetsPerChannel",),
            attribute="max_per_shard",
        ),
        _numbers(
            "maxRecordsPerPartition",
            "the largest number of records of a shard that one task reads; no limit by default",
            attribute="max_per_partition",
        ),
        _switches("failOnDataLoss", "`true` by default: loss ends the query", attribute="fails_on_data_loss"),
        Setting("tunnelId", "the tunnel to read instead of the stream", others=("tunnel.id",)),
    ),
    _STREAM | _ROWS: (
        choice("layout", Layout, "`rows` or `changes`: the columns of a frame without a schema"),
        _numbers(
            "sampleRows",
            "the number of rows read to find columns; 1,000 by default",
            check=checks.whole(0, MOST_IN_A_FIELD),
        ),
    ),
    _ROWS: (
        _numbers(
            "splitSizeMb",
            "the size of the key range that a task reads, in megabytes; 100 by default",
            check=_field,
            others=("split.size.mbs",),
            attribute="split_megabytes",
        ),
        _switches("pushFilters", "whether the service applies filters; `false` by default", attribute="pushes_filters"),
    ),
    frozenset({Use.WRITE}): (
        choice("writeMode", WriteMode, "`put` (default), `update` or `delete`"),
        _numbers(
            "batchRows",
            "the largest number of rows in one request; 200 by default",
            check=checks.whole(1, MOST_BATCH_ROWS),
        ),
    ),
}
"""The options of the data source. The keys are the kinds of query that accept the options."""

OF_SPARK = frozenset({"checkpointlocation", "queryname"})
"""The names of options for Spark itself. Spark also passes them to the data source, which ignores them."""

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
    """The checked options of a query. The driver makes them. Executors get a copy, and ignore their own environment."""

    connection: Connection
    table: str
    starting: Mapping[str, str] | str = EARLIEST
    starting_micros: int | None = None
    """The time, in microseconds since 1970, from which on the query reads records. If set, it replaces ``starting``."""
    max_per_trigger: int | None = None
    max_per_shard: int = 100_000
    """The largest number of records of each shard in one batch. Without a limit, the planner would count a whole
    backlog, page by page, before Spark processes the first row."""
    max_per_partition: int | None = None
    """The largest number of records of a shard that one task reads. With ``None``, one task reads all records of a
    shard in a batch."""
    fails_on_data_loss: bool = True
    tunnel_id: str | None = None
    """The id of the tunnel that a query reads instead of the stream."""
    layout: Layout | None = None
    sample_rows: int = 1_000
    """The number of rows that the source reads to find columns that the table does not declare."""
    split_megabytes: int = 100
    pushes_filters: bool = False
    """Whether the service applies Spark's filters. This is safe only for a frame with one query and one filter."""
    write_mode: WriteMode = WriteMode.PUT
    batch_rows: int = MOST_BATCH_ROWS
    given: frozenset[str] = field(factory=frozenset, repr=False)
    """The names of the options that the user has given."""

    @classmethod
    def read(cls, given: Mapping[str, str], environment: Mapping[str, str] = os.environ) -> SourceOptions:
        """Return the checked options, read from the options that Spark passes and from ``environment``.

        Raises:
            ConfigurationError: an option is unknown, missing, or invalid, or contradicts another option.
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
        """Return these options if all options that the user has given are valid for the kind of query ``use``.

        Raises:
            ConfigurationError: an option belongs to another kind of query only.
        """
        for uses, settings in OPTIONS.items():
            for setting in settings:
                if setting.name in self.given and use not in uses:
                    other = " and ".join(sorted(other_use.value for other_use in uses))
                    raise ConfigurationError(f"option {setting.name} is for {other}, not for {use.value}")
        return self

    def check_start(self, latest_micros: int) -> None:
        """Refuse a ``startingTimestamp`` after ``latest_micros``.

        For a time that is yet to come, the service would return the iterator of the present, so the query would start
        too early.

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
        """The layout of an inferred schema: the option ``layout`` if the user has given it.

        By default, it is ``CHANGES`` if the user has given an option that is only for streams, and otherwise ``ROWS``.
        """
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
