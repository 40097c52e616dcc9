"""Calls that create tables and write rows of a local Tablestore, with plain Python values.

The engine executes each call like a request that came over HTTP. But no fault applies to the call, no counter counts
it, and no observer sees it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from streamclient.base import checks
from streamclient.errors import CodecError, ConfigurationError
from streamclient.records import ColumnValue, KeyValue
from streamclient.server.engine import Engine
from streamclient.server.operations import OPERATIONS
from streamclient.server.server_errors import ServiceError
from streamclient.server.server_limits import DEFAULT_LIMITS
from streamclient.wire import schema
from streamclient.wire.plainbuffer import Cell, CellOperation, KeyBound, Row, encode_row
from streamclient.wire.schema import PrimaryKeyOption, PrimaryKeyType, RowExistenceExpectation

KeyTypes = Mapping[str, type[int] | type[str] | type[bytes]]
"""The key columns of a table, in key order, with their types."""

_TYPES: Mapping[type, PrimaryKeyType] = {
    int: PrimaryKeyType.INTEGER,
    str: PrimaryKeyType.STRING,
    bytes: PrimaryKeyType.BINARY,
}

_tables = checks.Check(
    "a mapping of tables to their key columns, such as {'orders': {'id': str}}, or None",
    lambda value: (
        value is None or (isinstance(value, Mapping) and all(isinstance(key, Mapping) for key in value.values()))
    ),
)
_key_type = checks.Check("int, str or bytes", lambda kind: any(kind is each for each in _TYPES))

BAD_REQUEST = 400
"""The HTTP status with which the server refuses a request that can never succeed."""


def new_tables(tables: Mapping[str, KeyTypes] | None) -> dict[str, Any]:
    """Return a CreateTable request, with a stream, for each table of ``tables``. The keys are the names of the tables.

    Raises:
        ConfigurationError: the server would refuse a name or a key.
    """
    _tables.require("tables", tables)
    return {name: _new_table(name, key) for name, key in (tables or {}).items()}


def _new_table(name: str, key: KeyTypes) -> Any:
    checks.identifier.require("the name of a table", name)
    columns = [
        schema.PrimaryKeySchema(
            name=checks.identifier.require(f"the name of a key column of table {name!r}", column),
            type=_TYPES[_key_type.require(f"key column {column!r} of table {name!r}", kind)],
        )
        for column, kind in key.items()
    ]
    request = schema.CreateTableRequest(
        table_meta=schema.TableMeta(table_name=name, primary_key=columns),
        reserved_throughput=schema.ReservedThroughput(capacity_unit=schema.CapacityUnit(read=0, write=0)),
        table_options=schema.TableOptions(time_to_live=-1, max_versions=1),
        stream_spec=schema.StreamSpecification(enable_stream=True),
    )
    try:
        OPERATIONS["CreateTable"].validate(request, DEFAULT_LIMITS)
    except ServiceError as error:
        raise ConfigurationError(f"table {name!r} cannot be made: {error.message}") from error
    return request


class LocalTables:
    """The methods that create tables and write rows in one engine. Thread-safe.

    All methods raise ``ConfigurationError`` for invalid arguments, and ``ServiceError`` for all other refusals.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def create(self, requests: Mapping[str, Any]) -> None:
        """Create tables from the ``requests`` of ``new_tables``. A table that exists with the same key stays unchanged.

        Raises:
            ConfigurationError: a table exists with another key.
        """
        for name, request in requests.items():
            try:
                self._engine.answer("CreateTable", b"", request)
            except ServiceError as error:
                if error.code != "OTSObjectAlreadyExist":
                    raise
                present, wanted = self._key_of(name), request.table_meta.primary_key
                if _described(present) != _described(wanted):
                    raise ConfigurationError(
                        f"table {name!r} exists with the key {_described(present)}, not {_described(wanted)}; give the "
                        "existing key, or another data_dir"
                    ) from error

    def put(self, table: str, values: Mapping[str, ColumnValue]) -> None:
        """Put the row ``values``, key columns included. An AUTO_INCREMENT column may be left out."""
        key, columns = self._split(table, values, generates=True)
        self._write("PutRow", table, "row", Row(key, _cells(columns)))

    def update(self, table: str, values: Mapping[str, ColumnValue], remove: Sequence[str]) -> None:
        """Update the row whose key is in ``values``.

        Set the attribute columns of ``values``, and remove the columns ``remove``. Other columns stay unchanged.
        """
        key, columns = self._split(table, values)
        checks.names.require("remove", remove)
        if wrong := (columns.keys() | dict(key).keys()) & set(remove):
            raise ConfigurationError(
                f"column {min(wrong)!r} cannot be removed: it is set in the same update, or it is in the key"
            )
        if not columns and not remove:
            raise ConfigurationError(f"an update of table {table!r} must set a column, or remove=[name]")
        removed = [Cell(name, None, CellOperation.DELETE_ALL_VERSIONS) for name in remove]
        self._write("UpdateRow", table, "row_change", Row(key, (*_cells(columns), *removed)))

    def delete(self, table: str, values: Mapping[str, ColumnValue]) -> None:
        """Delete the row whose key is ``values``. The row may be absent."""
        key, columns = self._split(table, values)
        if columns:
            described = _described(self._key_of(table))
            raise ConfigurationError(f"{min(columns)!r} is not in the key of table {table!r}, which is {described}")
        self._write("DeleteRow", table, "primary_key", Row(key, delete_marker=True))

    def _split(
        self, table: str, values: Mapping[str, ColumnValue], *, generates: bool = False
    ) -> tuple[tuple[tuple[str, KeyValue | KeyBound], ...], dict[str, ColumnValue]]:
        """Divide ``values`` into the key and the attribute columns; return both.

        With ``generates``, an AUTO_INCREMENT column may be missing.
        """
        schema_of_key, others = self._key_of(table), dict(values)
        key: list[tuple[str, KeyValue | KeyBound]] = []
        for column in schema_of_key:
            if column.name in others:
                key.append((column.name, _key_value(table, column, others.pop(column.name))))
            elif generates and column.option == PrimaryKeyOption.AUTO_INCREMENT:
                key.append((column.name, KeyBound.AUTO_INCREMENT))
            else:
                raise ConfigurationError(
                    f"key column {column.name!r} is missing; the key of table {table!r} is {_described(schema_of_key)}"
                )
        return tuple(key), others

    def _key_of(self, table: str) -> Sequence[Any]:
        request = schema.DescribeTableRequest(table_name=checks.identifier.require("table", table))
        try:
            answer = self._engine.answer("DescribeTable", b"", request)
        except ServiceError as error:
            listed = schema.parse(schema.ListTableResponse, self._engine.execute("ListTable", b""))
            names = ", ".join(listed.table_names) or "none"
            raise ConfigurationError(
                f"table {table!r} does not exist; the server has these tables: {names}. Name the table in "
                "LocalTablestore(tables=...), or create it with a client"
            ) from error
        return list(schema.parse(schema.DescribeTableResponse, answer.body).table_meta.primary_key)

    def _write(self, operation: str, table: str, field: str, row: Row) -> None:
        condition = schema.Condition(row_existence=RowExistenceExpectation.IGNORE)
        try:
            request = schema.OPERATIONS[operation].request(
                table_name=table, condition=condition, **{field: encode_row(row)}
            )
            self._engine.answer(operation, b"", request)
        except CodecError as error:
            raise ConfigurationError(f"a row of table {table!r} cannot be written: {error}") from error
        except ServiceError as error:
            if error.http_status != BAD_REQUEST:
                raise
            raise ConfigurationError(f"a row of table {table!r} cannot be written: {error.message}") from error


def _cells(columns: Mapping[str, ColumnValue]) -> tuple[Cell, ...]:
    return tuple(Cell(name, value) for name, value in columns.items())


def _kind_of(column: Any) -> type:
    return next(kind for kind, number in _TYPES.items() if number == column.type)


def _key_value(table: str, column: Any, value: object) -> Any:
    kind = _kind_of(column)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ConfigurationError(
            f"key column {column.name!r} of table {table!r} must be of type {kind.__name__}, not {checks.shown(value)}"
        )
    return value


def _described(key: Sequence[Any]) -> str:
    return ", ".join(f"{column.name} ({_kind_of(column).__name__})" for column in key)
