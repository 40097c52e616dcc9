"""The changes of a shop's orders: a random, skewed mix of puts, updates and deletes. Pure: no clock, no I/O."""

from __future__ import annotations

import random
from collections.abc import Iterator
from enum import Enum

from attrs import field, frozen

Key = tuple[tuple[str, str], tuple[str, int]]
"""A primary key of the orders table: customer, then order id."""

CUSTOMERS = 400
HOT_CUSTOMER_EXPONENT = 1.1
"""The exponent of the Zipf distribution of customers. A few customers make most of the orders, as in real shops."""

STATUSES = ("created", "paid", "packed", "shipped", "delivered")


class Kind(Enum):
    """The operation of a change on its row."""

    PUT = "put"
    UPDATE = "update"
    DELETE = "delete"


@frozen
class Change:
    """One write to one row of the orders table."""

    kind: Kind
    key: Key
    put_columns: tuple[tuple[str, int | float | str | bool], ...] = ()
    deleted_columns: tuple[str, ...] = ()


@frozen
class _Shop:
    random: random.Random
    weights: tuple[float, ...]
    open_orders: dict[Key, int] = field(factory=dict)
    keys: list[Key] = field(factory=list)


def changes(seed: int, count: int) -> Iterator[Change]:
    """Yield the first ``count`` changes of the shop with ``seed``; the same seed gives the same changes everywhere."""
    weights = tuple(1 / (rank + 1) ** HOT_CUSTOMER_EXPONENT for rank in range(CUSTOMERS))
    shop = _Shop(random.Random(seed), weights)
    for number in range(count):
        yield _next_change(shop, number)


def _next_change(shop: _Shop, number: int) -> Change:
    dice = shop.random.random()
    if not shop.keys or dice < 0.40:
        return _new_order(shop, number)
    index = shop.random.randrange(max(0, len(shop.keys) - 500), len(shop.keys))
    key = shop.keys[index]
    if dice < 0.90:
        return _progress(shop, key, number)
    shop.keys.pop(index)
    del shop.open_orders[key]
    return Change(Kind.DELETE, key)


def _new_order(shop: _Shop, number: int) -> Change:
    customer = shop.random.choices(range(CUSTOMERS), shop.weights)[0]
    key: Key = (("customer", f"customer-{customer:03d}"), ("order_id", number))
    shop.open_orders[key] = 0
    shop.keys.append(key)
    columns = (
        ("status", STATUSES[0]),
        ("amount", round(shop.random.uniform(1, 500), 2)),
        ("items", shop.random.randint(1, 9)),
        ("gift", shop.random.random() < 0.1),
        ("note", shop.random.choice(("", "call first", "leave at the door", "愿安"))),
        ("revision", number),
    )
    return Change(Kind.PUT, key, columns)


def _progress(shop: _Shop, key: Key, number: int) -> Change:
    stage = min(shop.open_orders[key] + 1, len(STATUSES) - 1)
    shop.open_orders[key] = stage
    columns: list[tuple[str, int | float | str | bool]] = [("status", STATUSES[stage]), ("revision", number)]
    if shop.random.random() < 0.3:
        columns.append(("courier", f"courier-{shop.random.randint(1, 12)}"))
    deleted = ("note",) if shop.random.random() < 0.2 else ()
    return Change(Kind.UPDATE, key, tuple(columns), deleted)
