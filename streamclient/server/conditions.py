"""The conditions of a write: requirements that the row must meet before the write."""

from __future__ import annotations

from attrs import frozen

from streamclient.server import refusals
from streamclient.server.filters import RowFilter, judge_of
from streamclient.server.stored_rows import KeyNames, StoredRow
from streamclient.wire.schema import RowExistenceExpectation


@frozen
class Condition:
    """The two conditions of a write, on the existence of the row and on its columns. Both must hold."""

    expectation: RowExistenceExpectation = RowExistenceExpectation.IGNORE
    column_filter: RowFilter | None = None

    @property
    def is_trivial(self) -> bool:
        """Whether the conditions always hold, even if the row is absent."""
        return self.expectation is RowExistenceExpectation.IGNORE and self.column_filter is None


def check_condition(condition: Condition, names: KeyNames, row: StoredRow | None) -> None:
    """Raise ``OTSConditionCheckFail`` if ``row`` does not meet the conditions of a write.

    ``row`` is ``None`` if the row is absent. In an absent row all columns count as missing, including the key columns.
    """
    if condition.expectation is RowExistenceExpectation.EXPECT_EXIST and row is None:
        raise refusals.CONDITION_FAILED()
    if condition.expectation is RowExistenceExpectation.EXPECT_NOT_EXIST and row is not None:
        raise refusals.CONDITION_FAILED()
    if condition.column_filter is None:
        return
    key, columns = (None, {}) if row is None else row.parts()
    if not judge_of(condition.column_filter, names)(key, columns):
        raise refusals.CONDITION_FAILED()
