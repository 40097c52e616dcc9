"""The contract of ``MergingDestination``: run ``check_merging_destination`` after ``check_destination``."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from functools import partial
from threading import Barrier
from typing import TYPE_CHECKING, Any

from streamclient.destinations.commit import Commit, FencedCommit, MergingDestination
from streamclient.destinations.destination_packages import pyarrow
from streamclient.errors import UnfitValueError
from streamclient.testing.contracts.contract import RACE_SECONDS, expect, refused, scenario_named, side_by_side
from streamclient.testing.contracts.destination_contract import ROUNDS, batch

if TYPE_CHECKING:
    from pyarrow import Table


def check_merging_destination(make_destination: Callable[[str, str], MergingDestination]) -> None:
    """Run every scenario of ``MergingDestination``, each on a table of its own.

    ``make_destination`` opens a handle for a table name and an application name, as for ``check_destination``.

    Raises:
        AssertionError: a rule is broken; the message names the scenario, the expected result and the actual one.
    """
    for name in MERGING_SCENARIOS:
        check_merging_scenario(name, make_destination)


def check_merging_scenario(name: str, make_destination: Callable[[str, str], MergingDestination]) -> None:
    """Run the scenario ``name`` of ``MERGING_SCENARIOS``, on a table of its own."""
    place = f"m{uuid.uuid4().hex}"
    handles: list[MergingDestination] = []

    def open_handle() -> MergingDestination:
        handles.append(make_destination(place, "default"))
        handles[-1].key_by(["id", "part"])
        return handles[-1]

    try:
        with scenario_named(name):
            MERGING_SCENARIOS[name](open_handle)
    finally:
        for handle in handles:
            handle.close()


_OpenMerging = Callable[[], MergingDestination]

_NEW = 1_000
"""The id of a row that is not in the table when a scenario begins."""


def _keyed(*rows: tuple[Any, ...], column: str = "text") -> Table:
    """Return ``rows`` as a table of three columns: the key columns ``id`` and ``part``, and ``column``."""
    pa = pyarrow()
    ids, parts, texts = zip(*rows, strict=True) if rows else ((), (), ())
    return pa.table(
        {"id": pa.array(ids, pa.int64()), "part": pa.array(parts, pa.string()), column: pa.array(texts, pa.string())}
    )


def _merge(
    destination: MergingDestination, last: Commit | None, after: Table, *keys: tuple[int, str], **changes: Any
) -> Commit:
    """Replace the rows with the keys ``keys`` by the rows of the table ``after``, in one commit that follows ``last``.

    Return the commit. ``changes`` are further arguments of ``batch``.
    """
    commit = batch(last, [], **changes)
    destination.merge(_keyed(*((*key, None) for key in keys)).select(["id", "part"]), lambda present: after, [commit])
    return commit


def _texts(destination: MergingDestination, column: str = "text") -> dict[tuple[int, str], Any]:
    handle = destination.another()
    try:
        lines = [line for table in handle.rows() for line in table.to_pylist()]
    finally:
        handle.close()
    expect("a key is there once", len({(line["id"], line["part"]) for line in lines}), len(lines))
    return {(line["id"], line["part"]): line.get(column) for line in lines}


def _begun(open_handle: _OpenMerging, count: int = 3) -> tuple[MergingDestination, Commit]:
    destination = open_handle()
    first = batch(None, [])
    destination.commit(_keyed(*((number, "", f"old {number}") for number in range(count))), [first])
    return destination, first


def _rows_are_replaced_added_and_removed_in_one_step(open_handle: _OpenMerging) -> None:
    destination, first = _begun(open_handle)
    second = _merge(destination, first, _keyed((1, "", "new"), (1, "x", "added")), (1, ""), (1, "x"), (2, ""), (9, ""))
    expect("rows afterwards", _texts(destination), {(0, ""): "old 0", (1, ""): "new", (1, "x"): "added"})
    expect("the commit is there", open_handle().last_commits(["shard-1"]), {"shard-1": second})


def _keys_of_text_are_found(open_handle: _OpenMerging) -> None:
    destination = open_handle()
    first = batch(None, [])
    texts = ("", "a", "m\"'", "公", "z" * 2_000)
    destination.commit(_keyed(*((1, text, "old") for text in texts)), [first])
    _merge(destination, first, _keyed((1, "m\"'", "new"), (1, "n", "added")), (1, "m\"'"), (1, "n"), (1, "公"))
    rows = {(1, ""): "old", (1, "a"): "old", (1, "m\"'"): "new", (1, "n"): "added", (1, "z" * 2_000): "old"}
    expect("rows afterwards", _texts(destination), rows)


def _the_rows_that_are_there_are_given(open_handle: _OpenMerging) -> None:
    destination, first = _begun(open_handle)
    given: list[Any] = []

    def fold(present: Table) -> Table:
        given.append(sorted(present.select(["id", "part", "text"]).to_pylist(), key=repr))
        return present

    destination.merge(_keyed((0, "", None), (1, "other", None)).select(["id", "part"]), fold, [batch(first, [])])
    expect("rows with these keys only", given[-1], [{"id": 0, "part": "", "text": "old 0"}])
    expect("rows afterwards", _texts(destination), {(number, ""): f"old {number}" for number in range(3)})


def _a_merge_that_changes_nothing_is_remembered(open_handle: _OpenMerging) -> None:
    destination, first = _begun(open_handle)
    last = first
    for keys in ((), ((77, ""),), ((0, ""),)):
        last = batch(last, [])
        wanted = _keyed(*((*key, None) for key in keys)).select(["id", "part"])
        destination.merge(wanted, lambda present: present, [last])
        expect("the last commit", open_handle().last_commits(["shard-1"]), {"shard-1": last})


def _a_repeated_merge_changes_nothing(open_handle: _OpenMerging) -> None:
    destination, first = _begun(open_handle)
    second = _merge(destination, first, _keyed((1, "", "new")), (1, ""))
    third = _merge(destination, second, _keyed((1, "", "newest")), (1, ""))
    open_handle().merge(_keyed((1, "", None)).select(["id", "part"]), lambda present: _keyed((1, "", "wrong")), [third])
    expect("rows afterwards", _texts(destination)[1, ""], "newest")


def _an_older_owner_merges_nothing(open_handle: _OpenMerging) -> None:
    destination, first = _begun(open_handle)
    late = open_handle()
    late.last_commits(["shard-1"])
    _merge(destination, first, _keyed((1, "", "new")), (1, ""), epoch=5)
    merge = partial(_merge, late, first, _keyed((1, "", "late")), (1, ""), epoch=2, end="late")
    refused("an older epoch", FencedCommit, merge)
    expect("rows afterwards", _texts(destination)[1, ""], "new")


def _merges_of_racing_writers_are_each_made_of_what_is_there(open_handle: _OpenMerging) -> None:
    _begun(open_handle)
    shards = ("shard-a", "shard-b")
    start = Barrier(len(shards))

    def count_up(shard: str) -> None:
        destination = open_handle()
        last: Commit | None = None
        start.wait(RACE_SECONDS)
        for _ in range(ROUNDS):
            for number in (0, _NEW):
                last = batch(last, [], shard=shard)
                wanted = _keyed((number, "", None)).select(["id", "part"])
                destination.merge(wanted, partial(_lengthened, number), [last])

    side_by_side(shards, count_up)
    texts, marks = _texts(open_handle()), "+" * ROUNDS * len(shards)
    expect("each merge counts", texts[0, ""], "old 0" + marks)
    expect("a row that both writers add is there once", texts[_NEW, ""], marks)


def _lengthened(number: int, present: Table) -> Table:
    (text,) = present.column("text").to_pylist() or [""]
    return _keyed((number, "", text + "+"))


def _a_column_comes_with_a_merge(open_handle: _OpenMerging) -> None:
    destination, first = _begun(open_handle)
    name = 'new "column" `of` a.b 公司 %s'
    _merge(destination, first, _keyed((1, "", "new"), column=name), (1, ""))
    expect("the new column", _texts(open_handle(), name), {(0, ""): None, (1, ""): "new", (2, ""): None})
    pa = pyarrow()
    wrong = _keyed((1, "", "1")).set_column(2, name, pa.array([1], pa.int64()))
    last = open_handle().last_commits(["shard-1"])["shard-1"]
    refused("a value of another type", UnfitValueError, lambda: _merge(destination, last, wrong, (1, "")))


def _rows_below_a_bound_are_found(open_handle: _OpenMerging) -> None:
    destination, _ = _begun(open_handle, 5)
    found = [number for table in destination.rows_below("id", 2) for number in table.column("id").to_pylist()]
    expect("rows below 2", sorted(found), [0, 1])


MERGING_SCENARIOS: dict[str, Callable[[_OpenMerging], None]] = {
    scenario.__name__.strip("_").replace("_", " "): scenario
    for scenario in (
        _rows_are_replaced_added_and_removed_in_one_step,
        _keys_of_text_are_found,
        _the_rows_that_are_there_are_given,
        _a_merge_that_changes_nothing_is_remembered,
        _a_repeated_merge_changes_nothing,
        _an_older_owner_merges_nothing,
        _merges_of_racing_writers_are_each_made_of_what_is_there,
        _a_column_comes_with_a_merge,
        _rows_below_a_bound_are_found,
    )
}
"""The scenarios by name, for test frameworks that report each scenario on its own."""
