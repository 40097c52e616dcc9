"""Column filters: what GetRow, GetRange and BatchGetRow read by, and what column conditions of writes are made of.

``parse_filter`` turns the message into frozen values once; ``matches`` judges a row. A condition sees the row before
the write, a read sees the live row, all columns either way, whatever columns were asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import eq, ge, gt, le, lt, ne
from types import MappingProxyType
from typing import Any

from attrs import frozen

from streamclient.errors import CodecError
from streamclient.records import ColumnValue
from streamclient.server.errors import ServiceError, invalid
from streamclient.server.limits import Limits
from streamclient.server.patterns import Pattern, compile_pattern
from streamclient.server.rows import Columns
from streamclient.wire import schema
from streamclient.wire.plainbuffer import KeyBound, decode_value
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

_DEPTH_MAX = 10
"""Filters in one condition are at most ten, so deeper nesting is always an error; checked before recursing."""


@frozen
class CastRule:
    """Take the first group of a regular expression out of a string, as a value of another type."""

    pattern: Pattern
    cast_type: VariantType

    def apply(self, value: ColumnValue) -> ColumnValue | None:
        """The cast value; ``None`` if the value is no string, does not match, or does not read as the type."""
        text = self.pattern.first(value) if isinstance(value, str) else None
        return _cast(text, self.cast_type) if text is not None else None


def _cast(text: str, cast_type: VariantType) -> ColumnValue | None:
    try:
        if cast_type is VariantType.INTEGER:
            return int(text)
        if cast_type is VariantType.DOUBLE:
            return float(text)
    except ValueError:
        return None
    return text.encode() if cast_type is VariantType.BLOB else text


@frozen
class SingleColumn:
    """Compare one column with a value."""

    comparator: ComparatorType
    column_name: str
    value: ColumnValue | None
    passes_if_missing: bool
    latest_version_only: bool = True
    """Otherwise one version that satisfies is enough."""
    cast_rule: CastRule | None = None


@frozen
class Composite:
    """Several filters as one: NOT of one, AND or OR of two or more."""

    operator: LogicalOperator
    filters: tuple[RowFilter, ...]


RowFilter = SingleColumn | Composite
"""What judges a row."""


@frozen
class ColumnPagination:
    """A window of a row's columns, in the order of their names. It selects columns and judges no row."""

    offset: int
    limit: int


def _compare(single: SingleColumn, value: ColumnValue) -> bool:
    subject = value if single.cast_rule is None else single.cast_rule.apply(value)
    # Unlike types satisfy nothing, not even NOT_EQUAL; BOOLEAN and INTEGER are unlike although Python's are not.
    return type(subject) is type(single.value) and _COMPARISONS[single.comparator](subject, single.value)


def matches(row_filter: RowFilter, columns: Columns) -> bool:
    """Whether a row with these columns satisfies the filter; an absent row has none."""
    if isinstance(row_filter, Composite):
        return _matches_composite(row_filter, columns)
    versions = columns.get(row_filter.column_name, ())
    considered = versions[:1] if row_filter.latest_version_only else versions
    if row_filter.comparator in _EXISTENCE:
        exists = any(_exists(row_filter, value) for _, value in considered)
        return exists is (row_filter.comparator is ComparatorType.EXIST)
    if not versions:
        return row_filter.passes_if_missing
    return any(_compare(row_filter, value) for _, value in considered)


def _exists(single: SingleColumn, value: ColumnValue) -> bool:
    """A value exists for a filter; with a cast rule only one that the rule can cast."""
    return single.cast_rule is None or single.cast_rule.apply(value) is not None


def _matches_composite(composite: Composite, columns: Columns) -> bool:
    if composite.operator is LogicalOperator.NOT:
        return not matches(composite.filters[0], columns)
    results = (matches(each, columns) for each in composite.filters)
    return all(results) if composite.operator is LogicalOperator.AND else any(results)


def _broken() -> ServiceError:
    return invalid("Deserialize filter failed.")


def _message(message_class: Any, data: bytes) -> Any:
    try:
        return schema.parse(message_class, data)
    except CodecError as error:
        raise _broken() from error


def parse_filter(data: bytes, limits: Limits) -> RowFilter | ColumnPagination:
    """The filter in its serialized form.

    Raises:
        ServiceError: it is malformed, combines wrongly, or holds too many filters.
    """
    parsed = _parse(_message(schema.Filter, data), 1)
    count = _count(parsed)
    if count > limits.filters:
        raise invalid(f"The count of filter exceeds the max: {limits.filters}.")
    return parsed


def parse_condition(data: bytes, limits: Limits) -> RowFilter:
    """A column condition in its serialized form: any filter that judges rows."""
    parsed = parse_filter(data, limits)
    if isinstance(parsed, ColumnPagination):
        raise invalid("ColumnPaginationFilter can't be used as the condition of a write.")
    return parsed


def _count(parsed: RowFilter | ColumnPagination) -> int:
    return sum(map(_count, parsed.filters)) if isinstance(parsed, Composite) else 1


def _parse(message: Any, depth: int) -> RowFilter | ColumnPagination:
    if depth > _DEPTH_MAX:
        raise invalid(f"The nesting of filter exceeds the max: {_DEPTH_MAX}.")
    if message.type == FilterType.SINGLE_COLUMN_VALUE:
        return _parse_single(_message(schema.SingleColumnValueFilter, message.filter))
    if message.type == FilterType.COMPOSITE_COLUMN_VALUE:
        return _parse_composite(_message(schema.CompositeColumnValueFilter, message.filter), depth)
    if message.type == FilterType.COLUMN_PAGINATION:
        return _parse_pagination(_message(schema.ColumnPaginationFilter, message.filter))
    raise _broken()


def _parse_pagination(message: Any) -> ColumnPagination:
    if message.offset < 0:
        raise invalid("Offset in ColumnPaginationFilter must be greater than or equal to 0.")
    if message.limit <= 0:
        raise invalid("Limit in ColumnPaginationFilter must be greater than 0.")
    return ColumnPagination(message.offset, message.limit)


def _parse_composite(message: Any, depth: int) -> Composite:
    try:
        operator = LogicalOperator(message.combinator)
    except ValueError as error:
        raise _broken() from error
    filters = [_parse(sub_filter, depth + 1) for sub_filter in message.sub_filters]
    if operator is LogicalOperator.NOT and len(filters) != 1:
        raise invalid("The size of sub filters of logical operator NOT must be 1.")
    if operator is not LogicalOperator.NOT and len(filters) < 2:
        raise invalid(f"The size of sub filters of logical operator {operator.name} must be 2.")
    return Composite(operator, tuple(_judging(each) for each in filters))


def _judging(parsed: RowFilter | ColumnPagination) -> RowFilter:
    if isinstance(parsed, ColumnPagination):
        raise invalid("ColumnPaginationFilter can't be combined with other filters.")
    return parsed


def _parse_single(message: Any) -> SingleColumn:
    try:
        comparator = ComparatorType(message.comparator)
        value = _filter_value(comparator, message.column_value)
    except (CodecError, ValueError) as error:
        raise _broken() from error
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
        raise _broken() from error
