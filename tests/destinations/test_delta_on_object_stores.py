"""Delta on stores that answer like S3 and OSS, and on stores that lie: nothing lost, nothing twice, liars refused."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count, cycle, islice
from math import inf

import pytest
from object_store import PROBE, Fault, ObjectStore

from streamclient.destinations import Commit, DeltaDestination, FencedCommit, Key
from streamclient.destinations.delta.maintenance import Compaction, clean, compact
from streamclient.errors import ConfigurationError, DependencyException, ErrorKind, StreamClientException
from streamclient.testing.contracts.destination_contract import (
    DESTINATION_SCENARIOS,
    batch,
    change,
    check_destination_scenario,
    rows_for,
    store,
    stored_numbers,
)
from tests.patience import PATIENCE_SECONDS
from tests.rings import every

pytestmark = pytest.mark.slow

MODES = ("s3", "oss")


def opened(objects: ObjectStore, name: str = "table", **options: object) -> DeltaDestination:
    return DeltaDestination(objects.url(name), storage_options=objects.options, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("scenario", every(2, DESTINATION_SCENARIOS))
@pytest.mark.parametrize("mode", MODES)
def test_the_contract_holds_on_an_object_store(mode: str, scenario: str) -> None:
    with ObjectStore(mode) as objects:
        check_destination_scenario(
            scenario,
            lambda name, application: opened(objects, name, application=application, answer_seconds=60.0),
        )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("fault", [Fault.LOSE_ANSWER, Fault.STORE_AND_FAIL, Fault.FAIL, Fault.LOSE_REQUEST])
def test_a_fault_in_each_commit_neither_loses_nor_doubles(mode: str, fault: Fault) -> None:
    """Stored and answered 500, the writer finds its own commit and takes it for another's: look again, then decide."""
    with ObjectStore(mode) as objects:
        destination = opened(objects, answer_seconds=60.0)
        last = store(destination, None, [change(0)])
        objects.fail_commits(islice(cycle([fault, Fault.NONE]), 24))
        for number in range(1, 13):
            last = store(destination, last, [change(number)])
        met = objects.met.count(fault)

        assert met >= 6
        assert stored_numbers(opened(objects)) == list(range(13))
        assert opened(objects).last_commits(["shard-1"])["shard-1"] == last


@pytest.mark.parametrize("mode", MODES)
def test_two_racing_owners_under_lost_answers_store_what_was_acknowledged(mode: str) -> None:
    with ObjectStore(mode) as objects:
        store(opened(objects, answer_seconds=60.0), None, [change(0)], epoch=1)
        objects.fail_commits(islice(cycle([Fault.NONE, Fault.LOSE_ANSWER, Fault.STORE_AND_FAIL, Fault.FAIL]), 60))
        start = threading.Barrier(2)
        acknowledged: list[int] = []

        def write(epoch: int, numbers: Iterator[int], wanted: float) -> bool:
            destination, stored = opened(objects, answer_seconds=60.0), 0
            start.wait(PATIENCE_SECONDS)
            while stored < wanted:
                number = next(numbers)
                last = destination.last_commits(["shard-1"])["shard-1"]
                record = change(number)
                commit = batch(last, [record], epoch=epoch)
                try:
                    destination.commit(rows_for(destination, [record], commit), [commit])
                except FencedCommit:
                    return True
                except StreamClientException:
                    continue  # the other one was quicker
                acknowledged.append(number)
                stored += 1
            return False

        with ThreadPoolExecutor(2) as pool:
            older = pool.submit(write, 1, count(1, 2), inf)  # until it is refused
            newer = pool.submit(write, 2, count(2, 2), 8)

        assert older.result()
        assert not newer.result()
        assert stored_numbers(opened(objects)) == sorted([0, *acknowledged])


def test_a_commit_that_no_try_brings_in_is_said_to_be_unknown() -> None:
    with ObjectStore() as objects:
        destination = opened(objects, answer_seconds=2.0)
        last = store(destination, None, [change(0)])
        objects.fail_commits([Fault.FAIL] * 10_000)
        commit = batch(last, [change(1)])
        with pytest.raises(DependencyException) as raised:
            destination.commit(rows_for(destination, [change(1)], commit), [commit])
        objects.faults.clear()
        destination.commit(rows_for(destination, [change(1)], commit), [commit])

        assert raised.value.kind is ErrorKind.AMBIGUOUS
        assert stored_numbers(destination) == [0, 1]


def test_a_store_that_lets_an_object_be_created_twice_is_refused() -> None:
    """It loses acknowledged commits, and no error ever says so."""
    with ObjectStore("ignore") as objects:
        with pytest.raises(ConfigurationError, match="created twice"):
            opened(objects).probe()
        with pytest.raises(ConfigurationError, match="created twice"):
            store(opened(objects), None, [change(1)])

        assert objects.objects == {}


def test_a_versioned_bucket_of_oss_is_refused() -> None:
    with ObjectStore("oss") as objects:
        objects.is_versioned = True
        with pytest.raises(ConfigurationError, match="versioning"):
            opened(objects).probe()

        assert objects.objects == {}


def test_oss_by_the_scheme_of_s3_is_refused_at_the_probe() -> None:
    with ObjectStore("oss") as objects:
        options = {
            **objects.options,
            "AWS_ENDPOINT_URL": objects.endpoint,
            "AWS_ACCESS_KEY_ID": "a",
            "AWS_SECRET_ACCESS_KEY": "b",
        }
        destination = DeltaDestination("s3://bucket/table", storage_options=options)
        with pytest.raises(ConfigurationError, match="501"):
            destination.probe()


def test_the_probe_leaves_nothing_behind_and_is_signed() -> None:
    for mode, signature in (("s3", "AWS4-HMAC-SHA256"), ("oss", "OSS")):
        with ObjectStore(mode) as objects:
            opened(objects).probe()

            assert (objects.objects, objects.authorizations) == ({}, {signature})


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("creation", "fault"),
    [*((1, one) for one in Fault if one is not Fault.NONE), (2, Fault.FAIL), (2, Fault.LOSE_REQUEST)],
)
def test_a_store_in_trouble_is_asked_again_and_not_judged(mode: str, creation: int, fault: Fault) -> None:
    """Whatever was stored without an answer is removed all the same."""
    with ObjectStore(mode) as objects:
        objects.failing = PROBE
        objects.fail_commits([Fault.NONE] * (creation - 1) + [fault])
        destination = opened(objects)
        with pytest.raises(DependencyException) as raised:
            destination.probe()

        assert (raised.value.kind, objects.objects) == (ErrorKind.TRANSIENT, {})
        store(destination, None, [change(1)])
        assert stored_numbers(destination) == [1]


@pytest.mark.parametrize("mode", MODES)
def test_cleaning_removes_what_a_table_no_longer_has(mode: str) -> None:
    """Objects of this store are all years old, so whatever the table has and had lately is kept by its log alone."""
    with ObjectStore(mode) as objects:
        destination = opened(objects, partition_by=Key("id"))
        store(destination, None, [change(0), change(1)])
        compact(destination)
        kept = {key for key in objects.objects if key.endswith(".parquet")}
        leftovers = {f"{kept_key}.refused.parquet" for kept_key in kept}
        objects.objects.update(dict.fromkeys(leftovers, b""))

        assert clean(destination).files == len(leftovers) == 2
        assert {key for key in objects.objects if key.endswith(".parquet") and "_delta_log" not in key} == kept
        assert stored_numbers(opened(objects, partition_by=Key("id"))) == [0, 1]


@pytest.mark.parametrize("fault", [Fault.LOSE_ANSWER, Fault.STORE_AND_FAIL])
@pytest.mark.parametrize("mode", MODES)
def test_a_compaction_whose_answer_is_lost_is_not_called_refused(mode: str, fault: Fault) -> None:
    """On S3 it conflicts with itself when it is sent again, on OSS it is an error at once; it is in both times."""
    with ObjectStore(mode) as objects:
        destination = opened(objects, answer_seconds=60.0)
        last: Commit | None = None
        for number in range(4):
            last = store(destination, last, [change(number)])
        objects.fail_commits([fault])

        assert compact(destination) == Compaction(4, 1)
        assert objects.met.count(fault) == 1
        assert stored_numbers(opened(objects)) == [0, 1, 2, 3]


@pytest.mark.parametrize("mode", MODES)
def test_a_compaction_that_a_store_does_not_take_is_an_error(mode: str) -> None:
    with ObjectStore(mode) as objects:
        destination = opened(objects, answer_seconds=2.0)
        store(destination, store(destination, None, [change(0)]), [change(1)])
        objects.fail_commits([Fault.FAIL] * 10_000)
        with pytest.raises(DependencyException, match=r"bucket/table cannot be used .*_delta_log"):
            compact(destination)
        objects.faults.clear()

        assert compact(destination) == Compaction(2, 1)


def test_a_kept_handle_makes_few_requests_per_commit() -> None:
    """Bringing it up to date costs a few requests, whatever the length of the log."""
    with ObjectStore() as objects:
        destination = opened(objects, checkpoint_interval=10)
        last: Commit | None = None
        for number in range(20):
            last = store(destination, last, [change(number)])
        before = len(objects.requests)
        for number in range(20, 40):
            last = store(destination, last, [change(number)])

        assert (len(objects.requests) - before) / 20 <= 40
