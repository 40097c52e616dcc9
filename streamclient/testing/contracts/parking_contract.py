"""The contract of ``IParkingStore``: run ``check_parking_store`` on a parking store of your own."""

from __future__ import annotations

from collections.abc import Callable

from attrs import evolve

from streamclient.interfaces import IParkingStore
from streamclient.model import ParkedKey, ParkedRecord
from streamclient.records import ColumnOperation, RecordColumn, RecordType, SequenceInfo, StreamRecord
from streamclient.worker.parking.parked_frames import record_id

MakeStore = Callable[[], IParkingStore]
"""A function that opens the same store in each call, as a restarted process does. The store is empty at first."""

_KINDS = (
    RecordColumn("number", ColumnOperation.PUT, -(2**63), 1),
    RecordColumn("amount", ColumnOperation.PUT, 0.1, 2),
    RecordColumn("paid", ColumnOperation.PUT, True, 3),
    RecordColumn("name", ColumnOperation.PUT, "Zoë\n\u2028", 4),
    RecordColumn("photo", ColumnOperation.PUT, bytes(range(256)), 5),
    RecordColumn("old", ColumnOperation.DELETE_ONE_VERSION, None, 6),
    RecordColumn("gone", ColumnOperation.DELETE_ALL_VERSION),
)


def parked_record(
    key: str, number: int, *, stream: str = "orders_1", shard: str = "shard-1", generation: int = 1
) -> ParkedRecord:
    """Return a parked record with a column of every type. ``number`` is the record's position in the shard."""
    primary_key = (("id", key), ("part", number % 3), ("tag", bytes([number % 251])))
    original = (RecordColumn("amount", ColumnOperation.PUT, 0.05, 1),)
    record = StreamRecord(RecordType.UPDATE, primary_key, _KINDS, SequenceInfo(1, number, 0), original)
    return ParkedRecord(
        record_id=record_id(record),
        stream_id=stream,
        shard_id=shard,
        record=record,
        position="iterator/+=1",
        index=number,
        generation=generation,
        error='ValueError: "no"\nsecond line',
        traceback="Traceback (most recent call last):\n  ...\n",
        attempts=4,
        parked_micros=1_700_000_000_000_000,
    )


def check_parking_store(make_store: MakeStore) -> None:
    """Run every check on one store. Each check leaves the store empty.

    Raises:
        AssertionError: the store broke a rule.
    """
    for check in CHECKS:
        check(make_store)
        assert list(make_store().parked()) == [], f"{check.__name__} found records that were removed"


def check_records_survive_unchanged(make_store: MakeStore) -> None:
    """Check that a store opened later returns parked records unchanged, with every field and type of value."""
    records = [parked_record("a", 1), parked_record("b", 2)]
    make_store().park(records)
    assert list(make_store().parked()) == records
    make_store().remove(records)


def check_order_is_that_of_the_shards(make_store: MakeStore) -> None:
    """Check that a store lists records by stream, shard and position in the shard, not in the order of parking."""
    records = [
        parked_record(key, number, stream=stream, shard=shard)
        for stream in ("orders_1", "orders_2")
        for shard in ("s-1", "s-2")
        for key, number in (("z", 9), ("a", 10), ("m", 11))
    ]
    store = make_store()
    for parked in reversed(records):
        store.park([parked])
    assert list(store.parked()) == records
    assert list(store.parked("orders_2")) == records[6:]
    assert list(store.parked("orders")) == []
    store.remove(records)


def check_parking_again_changes_nothing(make_store: MakeStore) -> None:
    """Check that a store keeps its record unchanged when a worker parks this record again, as after a crash."""
    first = parked_record("a", 1)
    store = make_store()
    store.park([first, first])
    again = evolve(first, position="another", index=0, generation=7, attempts=1)
    make_store().park([again, parked_record("a", 2)])
    assert list(store.parked()) == [first, parked_record("a", 2)]
    store.remove(list(store.parked()))


def check_keys_are_named_by_shard(make_store: MakeStore) -> None:
    """Check that ``parked_keys`` lists each key with parked records once per shard, and only keys of the given stream.

    Each entry must have the id of the key's first parked record, and the generation of the key's parked records.
    """
    later, first = parked_record("a", 6, generation=1), parked_record("a", 3, generation=1)
    records = [
        later,
        first,
        parked_record("a", 9, shard="shard-2", generation=2),
        parked_record("b", 5, generation=1),
        parked_record("c", 5, stream="orders_2", generation=4),
    ]
    store = make_store()
    store.park(records)
    assert set(make_store().parked_keys("orders_1")) == {
        ParkedKey(parked.record.primary_key, parked.shard_id, parked.record_id, parked.generation)
        for parked in records[:4]
        if parked is not later or later.record.primary_key != first.record.primary_key
    }
    assert list(store.parked_keys("nothing")) == []
    store.remove(records)


def check_removing_takes_what_is_named(make_store: MakeStore) -> None:
    """Check that ``remove`` removes exactly the given records, and ignores records that are not parked.

    A worker may park a removed record again.
    """
    records = [parked_record("a", number) for number in range(4)]
    store = make_store()
    store.remove(records)
    store.park(records)
    make_store().remove([records[1], parked_record("z", 9)])
    assert list(store.parked()) == [records[0], *records[2:]]
    store.park([records[1]])
    assert list(make_store().parked()) == records
    store.remove(records)
    store.remove(records)


def check_removed_records_are_found_out(make_store: MakeStore) -> None:
    """Check that ``still_parked`` returns the records that are parked, in the given order, and leaves out others.

    A store may return a removed record if an earlier record of its key is parked, as the default of ``IParkingStore``
    does.
    """
    first, other = parked_record("a", 1), parked_record("b", 2, shard="shard-2")
    second = _with_key_of(first, parked_record("a", 4))
    foreign = parked_record("a", 1, stream="orders_2")
    store = make_store()
    assert list(store.still_parked([])) == []
    store.park([first, second, other])
    assert list(make_store().still_parked([other, foreign, second, first])) == [other, second, first]
    store.remove([first])
    assert list(make_store().still_parked([first, second, other])) == [second, other]
    store.remove([second, other])
    assert list(make_store().still_parked([first, second, other])) == []


def _with_key_of(first: ParkedRecord, later: ParkedRecord) -> ParkedRecord:
    record = evolve(later.record, primary_key=first.record.primary_key)
    return evolve(later, record=record, record_id=record_id(record))


def check_many_and_large_records(make_store: MakeStore) -> None:
    """Check that a store keeps more records than fit in one request, and a record larger than one table cell."""
    many = [parked_record("k", number) for number in range(250)]
    photo = RecordColumn("photo", ColumnOperation.PUT, b"x" * (3 * 1024 * 1024), 1)
    record = evolve(many[-1].record, columns=(photo,), sequence_info=SequenceInfo(1, 250, 0))
    many.append(evolve(many[-1], record=record, record_id=record_id(record), index=250))
    store = make_store()
    store.park(many)
    assert list(make_store().parked()) == many
    store.remove(many)


CHECKS = (
    check_records_survive_unchanged,
    check_order_is_that_of_the_shards,
    check_parking_again_changes_nothing,
    check_keys_are_named_by_shard,
    check_removing_takes_what_is_named,
    check_removed_records_are_found_out,
    check_many_and_large_records,
)
