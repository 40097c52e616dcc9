"""Options of ``format("tablestore")``: names, values, and which use of the source takes which.

Pure but for the environment of the driver, which says where and with which keys if no option does. Spark hands over
names in lower case and values as text. An option that nothing takes is refused: a misspelt limit that is silently
ignored is found when the cluster falls over.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any

from attrs import field, frozen

from streamclient.base import checks
from streamclient.base.times import parse_timestamp, utc
from streamclient.errors import ConfigurationError
from streamclient.tablestore.instance import Connection


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

_ANY = frozenset(Use)
_STREAM, _ROWS, _WRITE = frozenset({Use.STREAM}), frozenset({Use.ROWS}), frozenset({Use.WRITE})
_READS = _STREAM | _ROWS


MOST_BATCH_ROWS = 200
"""More rows the service refuses in one BatchWriteRow."""

MOST_IN_A_FIELD = 2**31 - 1
"""The greatest number that a request's field of 32 bits carries; far more than any table has of rows to look at before
a query, or of megabytes."""


def _whole(least: int, most: int | None = None) -> Callable[[str, str], int]:
    def read(name: str, text: str) -> int:
        is_number = text.strip().removeprefix("-").isdecimal()
        return checks.whole(least, most).require(name, int(text) if is_number else text)  # type: ignore[return-value]

    return read


def _flag(name: str, text: str) -> bool:
    value = {"true": True, "false": False}.get(text.strip().lower())
    if value is None:
        raise ConfigurationError(f"{name} must be true or false, not {checks.shown(text)}")
    return value


def _text(name: str, text: str) -> str:
    return checks.text.require(name, text)


def _member(kind: type[Enum]) -> Callable[[str, str], Enum]:
    def read(name: str, text: str) -> Enum:
        found = next((one for one in kind if one.value == text.strip().lower()), None)
        if found is None:
            raise ConfigurationError(
                f"{name} must be {' or '.join(one.value for one in kind)}, not {checks.shown(text)}"
            )
        return found

    return read


def _named_once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON. Of two places for a shard, one would be left out without a word."""
    for name, times in Counter(name for name, _ in pairs).items():
        if times > 1:
            raise ValueError(f"{checks.shown(name)} stands there twice")
    return dict(pairs)


def _starting(name: str, text: str) -> Mapping[str, str] | str:
    """``earliest``, ``latest``, or for shards by id one of these or an iterator."""
    if text.strip().lower() in (EARLIEST, LATEST):
        return text.strip().lower()
    expected = f'{name} must be earliest, latest or JSON such as {{"SHARD": "latest"}}'
    try:
        given = json.loads(text, object_pairs_hook=_named_once)
    except ValueError as error:
        raise ConfigurationError(f"{expected}, not {checks.shown(text)}: {error}") from error
    if not isinstance(given, dict) or not given or not all(isinstance(one, str) and one for one in given.values()):
        raise ConfigurationError(
            f"{expected}: for each shard earliest, latest or an iterator, not {checks.shown(text)}"
        )
    return {shard: place.lower() if place.lower() in (EARLIEST, LATEST) else place for shard, place in given.items()}


@frozen
class _Option:
    name: str
    uses: frozenset[Use]
    read: Callable[[str, str], Any] = _text
    others: tuple[str, ...] = ()
    """Other spellings with the same meaning: those of the EMR connector, and this package's."""
    variable: str = ""
    """Looked at in the environment if the option is not given."""


_OPTIONS = (
    _Option("endpoint", _ANY, variable="TABLESTORE_ENDPOINT"),
    _Option("instance", _ANY, others=("instance.name", "instanceName"), variable="TABLESTORE_INSTANCE"),
    _Option("table", _ANY, others=("table.name", "tableName")),
    _Option("accessKeyId", _ANY, others=("access.key.id",), variable="TABLESTORE_ACCESS_KEY_ID"),
    _Option("accessKeySecret", _ANY, others=("access.key.secret",), variable="TABLESTORE_ACCESS_KEY_SECRET"),
    _Option("stsToken", _ANY, others=("sts.token",), variable="TABLESTORE_STS_TOKEN"),
    _Option("region", _ANY, variable="TABLESTORE_REGION"),
    _Option("startingOffsets", _STREAM, _starting),
    _Option("startingTimestamp", _STREAM, parse_timestamp),
    _Option("maxOffsetsPerTrigger", _STREAM, _whole(1)),
    _Option("maxOffsetsPerShard", _STREAM, _whole(1), others=("maxOffsetsPerChannel",)),
    _Option("maxRecordsPerPartition", _STREAM, _whole(1)),
    _Option("failOnDataLoss", _STREAM, _flag),
    _Option("tunnelId", _STREAM, others=("tunnel.id",)),
    _Option("layout", _READS, _member(Layout)),
    _Option("sampleRows", _READS, _whole(0, MOST_IN_A_FIELD)),
    _Option("splitSizeMb", _ROWS, _whole(1, MOST_IN_A_FIELD), others=("split.size.mbs",)),
    _Option("pushFilters", _ROWS, _flag),
    _Option("writeMode", _WRITE, _member(WriteMode)),
    _Option("batchRows", _WRITE, _whole(1, MOST_BATCH_ROWS)),
)
_BY_SPELLING = {spelling.lower(): option for option in _OPTIONS for spelling in (option.name, *option.others)}
_NEEDED = ("endpoint", "instance", "table", "accessKeyId", "accessKeySecret")

OF_SPARK = frozenset({"checkpointlocation", "queryname"})
"""Options that Spark takes for itself, and hands on to the source as well."""

_INSTEAD = {
    "catalog": "give the columns by .schema(...) instead",
    "path": "name the table by the option table, and call load() or save() without a path",
}


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
        values = _values(given)
        _refuse_beside_tunnel(values)
        _refuse_two_starts(values)
        known = dict(values)
        for option in _OPTIONS:
            if option.variable and option.name not in known and environment.get(option.variable):
                known[option.name] = environment[option.variable]
        for name in _NEEDED:
            if name not in known:
                variable = next(option.variable for option in _OPTIONS if option.name == name)
                also = f", or the variable {variable} in the environment of the driver" if variable else ""
                raise ConfigurationError(f'format("tablestore") needs the option {name}{also}')
        connection = Connection(
            endpoint=known["endpoint"],
            instance=known["instance"],
            access_key_id=known["accessKeyId"],
            access_key_secret=known["accessKeySecret"],
            sts_token=known.get("stsToken", ""),
            region=known.get("region", ""),
        )
        settings = {_FIELDS[name]: value for name, value in values.items() if name in _FIELDS}
        return cls(connection=connection, table=known["table"], given=frozenset(values), **settings)

    def check_use(self, use: Use) -> SourceOptions:
        """These, if each that was given is one for this use.

        Raises:
            ConfigurationError: one is for another use.
        """
        for option in _OPTIONS:
            if option.name in self.given and use not in option.uses:
                other = " and ".join(sorted(one.value for one in option.uses))
                raise ConfigurationError(f"option {option.name} is for {other}, not for {use.value}")
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
        is_stream = any(option.uses == _STREAM and option.name in self.given for option in _OPTIONS)
        return Layout.CHANGES if is_stream else Layout.ROWS


_FIELDS = {
    "startingOffsets": "starting",
    "startingTimestamp": "starting_micros",
    "maxOffsetsPerTrigger": "max_per_trigger",
    "maxOffsetsPerShard": "max_per_shard",
    "maxRecordsPerPartition": "max_per_partition",
    "failOnDataLoss": "fails_on_data_loss",
    "tunnelId": "tunnel_id",
    "layout": "layout",
    "sampleRows": "sample_rows",
    "splitSizeMb": "split_megabytes",
    "pushFilters": "pushes_filters",
    "writeMode": "write_mode",
    "batchRows": "batch_rows",
}


def _values(given: Mapping[str, str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    spelt: dict[str, str] = {}
    for spelling, text in given.items():
        if spelling.lower() in OF_SPARK:
            continue
        option = _BY_SPELLING.get(spelling.lower())
        if option is None:
            instead = _INSTEAD.get(spelling.lower())
            hint = f": {instead}" if instead else checks.did_you_mean(_known_case(spelling), _all_names())
            raise ConfigurationError(f'format("tablestore") has no option {spelling}{hint}')
        value = option.read(option.name, text)
        if values.setdefault(option.name, value) != value:
            raise ConfigurationError(f"options {spelt[option.name]} and {spelling} are the same and differ in value")
        spelt[option.name] = spelling
    return values


def _all_names() -> list[str]:
    return [option.name for option in _OPTIONS]


def _known_case(spelling: str) -> str:
    """A name in the case that its letters have in the names here, as Spark hands it over without."""
    from difflib import get_close_matches  # noqa: PLC0415  # only on the way to an error

    found = get_close_matches(spelling.lower(), _BY_SPELLING, n=1, cutoff=checks.CLOSE_ENOUGH)
    return _BY_SPELLING[found[0]].name if found else spelling


_OF_THE_TUNNEL = {
    "startingOffsets": "the tunnel says itself where it begins",
    "startingTimestamp": "the tunnel says itself where it begins",
    "maxRecordsPerPartition": "a tunnel can be read on only where one of its pages ends",
}


def _refuse_beside_tunnel(values: Mapping[str, Any]) -> None:
    if "tunnelId" not in values:
        return
    for name, why in _OF_THE_TUNNEL.items():
        if name in values:
            raise ConfigurationError(f"options tunnelId and {name} contradict each other: {why}")
    if not values.get("failOnDataLoss", True):
        raise ConfigurationError(
            "options tunnelId and failOnDataLoss=false contradict each other: a tunnel that has lost records has "
            "expired and cannot be read on. Make a new tunnel, and begin with a new checkpoint"
        )


def _refuse_two_starts(values: Mapping[str, Any]) -> None:
    if "startingOffsets" in values and "startingTimestamp" in values:
        raise ConfigurationError("startingOffsets and startingTimestamp both say where to begin: give one of them")
