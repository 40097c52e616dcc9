"""Column filters of GetRow, GetRange and BatchGetRow, and column conditions of writes.

``count_nodes`` limits the number of a filter's nodes before all other checks. ``parse_filter`` parses a filter once.
``judge_of`` turns the parsed filter into a function that says whether a row passes. For a condition, the function sees
the whole row before the write. For a read, it sees the primary key, and the requested columns and versions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from operator import eq, ge, gt, le, lt, ne
from types import MappingProxyType
from typing import Any

from attrs import frozen

from streamclient.errors import CodecError
from streamclient.records import ColumnValue, KeyValue
from streamclient.server import refusals, work
from streamclient.server.patterns import Pattern, compile_pattern
from streamclient.server.server_limits import INT64_MAX, MESSAGE_FIELDS, Limits
from streamclient.server.stored_rows import KeyNames
from streamclient.server.validation.message_frames import check_value_length
from streamclient.server.validation.table_names import check_attribute_name
from streamclient.wire import bounded, schema
from streamclient.wire.plainbuffer import KeyBound, decode_value
from streamclient.wire.puts import Columns
from streamclient.wire.schema import ComparatorType, FilterType, LogicalOperator, VariantType

_COMPARISONS: Mapping[ComparatorType, Callable[[Any, Any], bool]] = MappingProxyType(
    {
        ComparatorType.EQUAL: eq,
        ComparatorType.NOT_EQUAL: ne,
        ComparatorType.GREATER_THAN: gt,
        ComparatorType.GREATER_EQUAL: ge,
        ComparatorType.LESS_THAN: lt,
        ComparatorType.LESS_EQUAL: le,
    }
)

_EXISTENCE = (ComparatorType.EXIST, ComparatorType.NOT_EXIST)
"""The comparators that ignore the filter's value."""


@frozen
class CastRule:
    """A cast of a string column: the first group of a regular expression becomes a value of ``cast_type``."""

    pattern: Pattern
    cast_type: VariantType

    def apply(self, value: ColumnValue) -> ColumnValue | None:
        """Return the cast value; ``None`` if ``value`` is not a string, does not match, or cannot be converted."""
        text = self.pattern.first(value) if isinstance(value, str) else None
        return _cast(text, self.cast_type) if text is not None else None


_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_DOUBLE = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
"""The form of a floating-point number. Unlike Python, it excludes underscores, spaces, words such as ``inf``, and
digits of other scripts."""


def _cast(text: str, cast_type: VariantType) -> ColumnValue | None:
    if cast_type is VariantType.INTEGER:
        value = int(text) if _INTEGER.fullmatch(text) else None
        return value if value is not None and -INT64_MAX - 1 <= value <= INT64_MAX else None
    if cast_type is VariantType.DOUBLE:
        return float(text) if _DOUBLE.fullmatch(text) else None
    return text.encode() if cast_type is VariantType.BLOB else text


@frozen
class SingleColumn:
    """A filter that compares one column with a value, or tests whether the column exists."""

    comparator: ComparatorType
    column_name: str
    value: ColumnValue | None
    passes_if_missing: bool
    latest_version_only: bool = True
    """Whether only the newest version is compared. If false, one matching version of the column suffices."""
    cast_rule: CastRule | None = None


@frozen
class Composite:
    """A combination of filters: NOT of one filter, or AND or OR of at least two filters."""

    operator: LogicalOperator
    filters: tuple[RowFilter, ...]


RowFilter = SingleColumn | Composite
"""A filter that says whether a row passes."""


@frozen
class ColumnPagination:
    """A filter that selects a window of a row's columns, in the order of their names. Every row passes it."""

    offset: int
    limit: int


Judge = Callable[[tuple[KeyValue, ...] | None, Columns], bool]
"""A function that returns whether a row passes a filter. Its arguments are the row's key and the row's visible columns.
The key is ``None`` if the row is absent."""


def judge_of(row_filter: RowFilter, names: KeyNames) -> Judge:
    """Return the function that judges rows by a filter; ``names`` are the table's key columns.

    All work that does not depend on the row is done in this call, only once.
    """
    if isinstance(row_filter, Composite):
        return _composite_judge(row_filter.operator, [judge_of(each, names) for each in row_filter.filters])
    if row_filter.comparator is ComparatorType.NOT_EXIST:
        return _opposite(_single_judge(row_filter, names, _existence_test(row_filter), if_missing=False))
    if row_filter.comparator is ComparatorType.EXIST:
        return _single_judge(row_filter, names, _existence_test(row_filter), if_missing=False)
    return _single_judge(row_filter, names, _comparison_test(row_filter), if_missing=row_filter.passes_if_missing)


def _single_judge(
    single: SingleColumn, names: KeyNames, test: Callable[[ColumnValue], bool], *, if_missing: bool
) -> Judge:
    """Return a judge that applies ``test`` to one column, which may be a key column.

    If the column is missing, the judge returns ``if_missing``.
    """
    name, latest_only = single.column_name, single.latest_version_only
    position = names.index(name) if name in names else None

    def judge(key: tuple[KeyValue, ...] | None, columns: Columns) -> bool:
        versions = columns.get(name)
        if versions is None:
            return if_missing if key is None or position is None else test(key[position])
        if latest_only:
            return test(versions[0][1])
        work.pay(work.VERSION_WORK * len(versions), "The filter looks at %d versions of a column", len(versions))
        return any(test(value) for _, value in versions)

    return judge


def _comparison_test(single: SingleColumn) -> Callable[[ColumnValue], bool]:
    """Return a function that compares one value of a column with the filter's value.

    Values of different types satisfy no comparison, not even NOT_EQUAL. BOOLEAN and INTEGER are different types here,
    although ``bool`` is a subclass of ``int``.
    """
    compare, expected, expected_type = _COMPARISONS[single.comparator], single.value, type(single.value)
    rule = single.cast_rule

    def test(value: ColumnValue) -> bool:
        subject = value if rule is None else rule.apply(value)
        return type(subject) is expected_type and compare(subject, expected)

    return test


def _existence_test(single: SingleColumn) -> Callable[[ColumnValue], bool]:
    """Return a function that tests whether one value of the column counts as existing.

    Without a cast rule, every value counts. With a cast rule, a value that cannot be cast does not count.
    """
    rule = single.cast_rule
    return lambda value: rule is None or rule.apply(value) is not None


def _opposite(judge: Judge) -> Judge:
    return lambda key, columns: not judge(key, columns)


def _composite_judge(operator: LogicalOperator, judges: Sequence[Judge]) -> Judge:
    if operator is LogicalOperator.NOT:
        return _opposite(judges[0])
    decisive = operator is LogicalOperator.OR

    def judge(key: tuple[KeyValue, ...] | None, columns: Columns) -> bool:
        for each in judges:
            if each(key, columns) is decisive:
                return decisive
        return not decisive

    return judge


def count_nodes(data: bytes, limits: Limits) -> None:
    """Raise ``ServiceError`` if a serialized filter has too many nodes, including composite nodes.

    The function reads no node beyond the limit, so that huge filters cost little.
    """
    waiting = [_read(schema.Filter, data)]
    count = 0
    while waiting:
        message = waiting.pop()
        count += 1
        if count + len(waiting) > limits.filters:
            raise refusals.FILTER_NODES(limit=limits.filters)
        if message is not None and message.type == FilterType.COMPOSITE_COLUMN_VALUE:
            composite = _read(schema.CompositeColumnValueFilter, message.filter)
            inner = () if composite is None else composite.sub_filters
            waiting += islice(inner, limits.filters)


def _read(message_class: Any, data: bytes) -> Any | None:
    """Return the parsed message, even if fields are missing; ``None`` for malformed bytes.

    ``parse_filter`` later refuses a filter with malformed bytes.
    """
    try:
        return bounded.read(message_class, data, MESSAGE_FIELDS)
    except CodecError:
        return None


def _message(message_class: Any, data: bytes, name: str) -> Any:
    try:
        return schema.complete(bounded.read(message_class, data, MESSAGE_FIELDS))
    except CodecError as error:
        raise refusals.FILTER_BROKEN(kind=name) from error


def parse_filter(data: bytes, limits: Limits) -> RowFilter | ColumnPagination:
    """Parse the serialized filter of a read.

    Raises:
        ServiceError: the filter has too many nodes, is malformed, or combines filters wrongly.
    """
    count_nodes(data, limits)
    return _parse(_message(schema.Filter, data, "filter"), limits)


def parse_condition(data: bytes, limits: Limits) -> RowFilter:
    """Parse the serialized column condition of a write: any filter except a column pagination."""
    parsed = parse_filter(data, limits)
    if isinstance(parsed, ColumnPagination):
        raise refusals.PAGINATION_CONDITION()
    return parsed


def _parse(message: Any, limits: Limits) -> RowFilter | ColumnPagination:
    """Parse a filter message. The limit on the number of nodes also limits the depth of the recursion."""
    if message.type == FilterType.COLUMN_PAGINATION:
        return _parse_pagination(_message(schema.ColumnPaginationFilter, message.filter, "column pagination filter"))
    return _parse_judging(message, limits, "filter")


def _parse_judging(message: Any, limits: Limits, role: str) -> RowFilter:
    if message.type == FilterType.SINGLE_COLUMN_VALUE:
        return _parse_single(_message(schema.SingleColumnValueFilter, message.filter, "relation filter"), limits)
    if message.type == FilterType.COMPOSITE_COLUMN_VALUE:
        return _parse_composite(_message(schema.CompositeColumnValueFilter, message.filter, "composite filter"), limits)
    raise refusals.FILTER_TYPE(role=role, given=message.type)


def _parse_pagination(message: Any) -> ColumnPagination:
    if message.offset < 0:
        raise refusals.PAGINATION_OFFSET()
    if message.limit <= 0:
        raise refusals.PAGINATION_LIMIT()
    return ColumnPagination(message.offset, message.limit)


def _parse_composite(message: Any, limits: Limits) -> Composite:
    try:
        operator = LogicalOperator(message.combinator)
    except ValueError as error:
        raise refusals.FILTER_BROKEN(kind="composite filter") from error
    count = len(message.sub_filters)
    if operator is LogicalOperator.NOT and count != 1:
        raise refusals.FILTER_NOT()
    if operator is not LogicalOperator.NOT and count < 2:
        raise refusals.FILTER_AND_OR()
    return Composite(operator, tuple(_parse_judging(each, limits, "sub-filter") for each in message.sub_filters))


def _parse_single(message: Any, limits: Limits) -> SingleColumn:
    try:
        comparator = ComparatorType(message.comparator)
    except ValueError as error:
        raise refusals.FILTER_COMPARATOR(given=message.comparator) from error
    try:
        value = _filter_value(comparator, message.column_value)
    except (CodecError, ValueError) as error:
        raise refusals.FILTER_BROKEN(kind="relation filter") from error
    check_attribute_name(message.column_name, limits)
    check_value_length(message.column_name, value, limits)
    return SingleColumn(
        comparator=comparator,
        column_name=message.column_name,
        value=value,
        passes_if_missing=not message.filter_if_missing,
        latest_version_only=message.latest_version_only,
        cast_rule=_parse_rule(message.value_trans_rule) if message.HasField("value_trans_rule") else None,
    )


def _filter_value(comparator: ComparatorType, data: bytes) -> ColumnValue | None:
    if comparator in _EXISTENCE:
        return None
    value = decode_value(data)
    if value is None or isinstance(value, KeyBound):
        raise ValueError("a filter needs a value to compare with")
    return value


def _parse_rule(message: Any) -> CastRule:
    try:
        return CastRule(compile_pattern(message.regex), VariantType(message.cast_type))
    except ValueError as error:
        raise refusals.FILTER_BROKEN(kind="relation filter") from error
