"""A status table looked at past its manager, and pauses that pass at once."""

from __future__ import annotations

from typing import Any

from tablestore import Condition, OTSClient, Row, RowExistenceExpectation

from streamclient.server import LocalTablestore

TABLE = "status"
STREAM = "stream-1"
ANY_STATE = Condition(RowExistenceExpectation.IGNORE)


class Pauses(list[float]):
    """Records pauses instead of sleeping; also a clock that they move."""

    def __call__(self, seconds: float) -> None:
        self.append(seconds)

    def now(self) -> float:
        return sum(self)


def key_of(name: str = "s1", status_type: str = "LeaseKey") -> list[tuple[str, str]]:
    return [("StreamId", STREAM), ("StatusType", status_type), ("StatusValue", name)]


def put_row(client: OTSClient, cells: dict[str, Any], key: str = "s1", status_type: str = "LeaseKey") -> None:
    client.put_row(TABLE, Row(key_of(key, status_type), list(cells.items())), ANY_STATE)


def stored_cells(client: OTSClient, key: str = "s1", status_type: str = "LeaseKey") -> dict[str, Any]:
    _, row, _ = client.get_row(TABLE, key_of(key, status_type), max_version=1)
    return {name: value for name, value, _ in row.attribute_columns} if row else {}


def requests(server: LocalTablestore, operation: str) -> int:
    """How many requests of an operation reached the server since the last reset."""
    return sum(count.requests for count in server.requests() if count.operation == operation)
