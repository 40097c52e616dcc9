"""Column filters of GetRow, GetRange and BatchGetRow, and column conditions of writes.

``count_nodes`` bounds a filter before all other checks. ``parse_filter`` turns the filter into frozen values once, and
``judge_of`` turns these values into a function that judges rows by their visible part. For a condition the visible part
is the row before the write; for a read it is the requested selection; the primary key is always visible.
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
"""Comparators that ignore the value of the filter."""


@frozen
class CastRule:
    """A cast of a string: the first group of a regular expression, as a value of another type."""

    pattern: Pattern
    cast_type: VariantType

    def apply(self, value: ColumnValue) -> ColumnValue | None:
        """Return the cast value; ``None`` if the value is not a string, does not match, or does not parse."""
        text = self.pattern.first(value) if isinstance(value, str) else None
        return _cast(text, self.cast_type) if text is not None else None


_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_DOUBLE = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
"""The form of a number. Underscores, spaces, digits of other scripts, and words, which Python would accept, are
excluded."""


def _cast(text: str, cast_type: VariantType) -> ColumnValue | None:
    if cast_type is VariantType.INTEGER:
        value = int(text) if _INTEGER.fullmatch(text) else None
        return value if value is not None and -INT64_MAX - 1 <= value <= INT64_MAX else None
    if cast_type is VariantType.DOUBLE:
        return float(text) if _DOUBLE.fullmatch(text) else None
    return text.encode() if cast_type is VariantType.BLOB else text


@frozen
class SingleColumn:
    """Compare one column with a value."""

    comparator: ComparatorType
    column_name: str
    value: ColumnValue | None
    passes_if_missing: bool
    latest_version_only: bool = True
    """Whether only the newest version counts. Otherwise any version that satisfies the comparison suffices."""
    cast_rule: CastRule | None = None


@frozen
class Composite:
    """A combination of filters: NOT of one filter, AND or OR of two or more."""

    operator: LogicalOperator
    filters: tuple[RowFilter, ...]


RowFilter = SingleColumn | Composite
"""A filter that judges rows."""


@frozen
class ColumnPagination:
    """A window of a row's columns, in the order of their names. It selects columns and does not judge rows."""

    offset: int
    limit: int


Judge = Callable[[tuple[KeyValue, ...] | None, Columns], bool]
"""Judges whether a row passes, by its key (``None`` if the row is absent) and its visible columns."""


def judge_of(row_filter: RowFilter, names: KeyNames) -> Judge:
    """Return the judge for rows with this key. Work that does not depend on the row is done only once."""
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
    """Return a judge by one column. The versions of a column come newest first; a key column has one version."""
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
    """Return the test of a comparison.

    Values of different types satisfy no comparison, not even NOT_EQUAL. BOOLEAN and INTEGER are different types,
    although Python's are not.
    """
    compare, expected, expected_type = _COMPARISONS[single.comparator], single.value, type(single.value)
    rule = single.cast_rule

    def test(value: ColumnValue) -> bool:
        subject = value if rule is None else rule.apply(value)
        return type(subject) is expected_type and compare(subject, expected)

    return test


def _existence_test(single: SingleColumn) -> Callable[[ColumnValue], bool]:
    """Return the test of existence. With a cast rule, only values that can be cast exist."""
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
    """Refuse a filter with too many nodes, composites included, whatever its shape and depth are.

    Nothing after the first excess node is read.
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
    """Read the message, complete or not. Return ``None`` for malformed bytes; the parser reports their error."""
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
    """Parse a serialized filter.

    Raises:
        ServiceError: the filter has too many nodes, is malformed, or combines filters wrongly.
    """
    count_nodes(data, limits)
    return _parse(_message(schema.Filter, data, "filter"), limits)


def parse_condition(data: bytes, limits: Limits) -> RowFilter:
    """Parse a serialized column condition: any filter that judges rows."""
    parsed = parse_filter(data, limits)
    if isinstance(parsed, ColumnPagination):
        raise refusals.PAGINATION_CONDITION()
    return parsed


def _parse(message: Any, limits: Limits) -> RowFilter | ColumnPagination:
    """Parse a filter message. The number of nodes bounds the recursion."""
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
        raise ValueError("a filter compares with a value")
    return value


def _parse_rule(message: Any) -> CastRule:
    try:
        return CastRule(compile_pattern(message.regex), VariantType(message.cast_type))
    except ValueError as error:
        raise refusals.FILTER_BROKEN(kind="relation filter") from error
