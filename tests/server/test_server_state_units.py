"""Capacity units: what reads and writes are charged for."""

from __future__ import annotations

from typing import Any

import pytest
from server_state_driver import EXIST, NOT_EXIST, Driver, delete_all, frame, put, single, table_driver

from streamclient.wire.plainbuffer import Cell, KeyBound, encode_value
from streamclient.wire.schema import ComparatorType

DAY_SECONDS = 86_400


def test_capacity_is_counted_in_pages_of_four_kilobytes() -> None:
    driver = table_driver(options={"max_versions": 3})
    small = driver.put("a", put("x", "y")).consumed.capacity_unit
    large = driver.put("b", put("x", "y" * 8192)).consumed.capacity_unit
    conditional = driver.put("b", put("x", 1), expect=EXIST).consumed.capacity_unit

    assert [(unit.read, unit.write) for unit in (small, large, conditional)] == [(0, 1), (0, 3), (1, 1)]


def units(answer: Any) -> tuple[int, int]:
    unit = answer.consumed.capacity_unit
    return unit.read, unit.write


@pytest.fixture
def plain() -> Driver:
    """A table that keeps one version for ever, which does not count timestamps."""
    return table_driver(key=(("PK1", "STRING"),))


def wide(*names: str, size: int = 2048) -> list[Cell]:
    return [put(name, "v" * size) for name in names]


def read_units(driver: Driver, key: Any = "a", **fields: Any) -> int:
    answer = driver.call("GetRow", table_name="t", primary_key=frame((("PK1", key),)), **{"max_versions": 1, **fields})
    return units(answer)[0]


def test_a_read_is_charged_for_the_key_and_what_it_selects(plain: Driver) -> None:
    plain.put((("PK1", "a"),), *wide(*"abcde"))
    plain.put((("PK1", "o"),), put("a", "v" * 5000))

    assert read_units(plain, "absent") == 1
    assert read_units(plain, "absent", columns_to_get=["a"]) == 1
    assert read_units(plain, "o") == 2
    assert read_units(plain) == 3
    assert read_units(plain, columns_to_get=["a", "b"]) == 2
    assert read_units(plain, columns_to_get=["a", "x"]) == 1
    assert read_units(plain, columns_to_get=["x", "y"]) == 1
    assert read_units(plain, filter=single(ComparatorType.EQUAL, "a", encode_value(1))) == 3


def test_a_range_is_charged_once_for_all_scanned_rows(plain: Driver) -> None:
    low, high = (("PK1", KeyBound.INF_MIN),), (("PK1", KeyBound.INF_MAX),)

    def charged(**fields: Any) -> int:
        return units(plain.range_page(low, high, **fields))[0]

    assert (charged(), charged(columns_to_get=["a"])) == (1, 1)
    plain.put((("PK1", "a"),), *wide("a", "b", "c", size=4096))
    assert charged() == 4
    plain.put((("PK1", "b"),), *wide("a", "b", "d", size=4096))
    assert charged() == 7
    assert charged(columns_to_get=["a", "b"]) == 5
    assert charged(columns_to_get=["x", "y"]) == 1
    assert charged(columns_to_get=["c", "d"]) == 3
    assert charged(filter=single(ComparatorType.EQUAL, "a", encode_value(1))) == 7


def test_an_expectation_reads_the_key_only(plain: Driver) -> None:
    key = (("PK1", "a"),)

    assert units(plain.put(key, *wide("a", "b", size=4096))) == (0, 3)
    assert units(plain.delete(key)) == (0, 1)
    assert units(plain.put(key, *wide("a", "b", size=4096), expect=NOT_EXIST)) == (1, 3)
    assert units(plain.put(key, *wide("a", "b", "c", size=4096), expect=EXIST)) == (1, 4)
    changes = [*wide("a", "b", size=4096), delete_all("c"), delete_all("d")]
    assert units(plain.update(key, *changes, expect=EXIST)) == (1, 3)
    assert units(plain.delete(key)) == (0, 1)
    assert units(plain.delete(key, expect=NOT_EXIST)) == (1, 1)


@pytest.mark.parametrize(
    "options",
    [{}, {"max_versions": 2}, {"time_to_live": DAY_SECONDS}],
    ids=["one version for ever", "versions", "a time to live"],
)
def test_reads_are_not_charged_for_timestamps(options: dict[str, int]) -> None:
    driver = table_driver(key=(("PK1", "STRING"),), options=options)
    low, high = (("PK1", KeyBound.INF_MIN),), (("PK1", KeyBound.INF_MAX),)
    # Key 4 bytes, column name 1: 4,090 bytes of row, and 8 more with its timestamp.
    answer = driver.update((("PK1", "a"),), put("c", "v" * 4085))
    condition = single(ComparatorType.EQUAL, "c", encode_value("v" * 4085))

    assert units(answer) == (0, 1)
    assert read_units(driver) == read_units(driver, columns_to_get=["c"]) == 1
    assert units(driver.range_page(low, high)) == units(driver.range_page(low, high, columns_to_get=["c"])) == (1, 0)
    assert units(driver.put((("PK1", "a"),), column_condition=condition)) == (1, 1)


def test_lengths_of_names_are_bytes(plain: Driver) -> None:
    key = (("PK1", "a"),)
    fits, exceeds = put("公司", "v" * (4096 - 4 - 6)), put("公司", "v" * (4096 - 4 - 6 + 1))

    assert [units(plain.put(key, cell))[1] for cell in (fits, exceeds)] == [1, 2]
    assert read_units(plain) == 2


@pytest.mark.parametrize("operation", ["PutRow", "UpdateRow"])
def test_lengths_of_texts_are_bytes(plain: Driver, operation: str) -> None:
    write = plain.put if operation == "PutRow" else plain.update
    fits, exceeds = (("PK1", "é"),), (("PK1", "éé"),)  # 5 and 7 bytes, the name with them
    text = "ü" * ((4096 - 5 - 1) // 2)

    assert [units(write(key, put("c", text)))[1] for key in (fits, exceeds)] == [1, 2]
    assert [read_units(plain, key[0][1]) for key in (fits, exceeds)] == [1, 2]
