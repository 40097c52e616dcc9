"""What a commit is, and what every destination decides with it."""

from __future__ import annotations

import json
from hashlib import sha256

import pytest
from attrs import evolve

from streamclient.destinations.commit import Commit, FencedCommit, LogEntry, is_stored, last_of
from streamclient.errors import CodecError, ConfigurationError, FencedException, StreamClientException
from streamclient.model import CheckpointPosition
from streamclient.testing.contracts.destination_contract import batch, change

FIRST = batch(None, [change(1)], epoch=3)
SECOND = batch(FIRST, [change(2)], epoch=3)
TAKEN = batch(FIRST, [change(2)], epoch=4)


def test_a_commit_survives_as_json() -> None:
    assert Commit.from_json(SECOND.to_json()) == SECOND
    assert list(json.loads(SECOND.to_json())) == [
        "application",
        "shard",
        "epoch",
        "number",
        "from",
        "to",
        "count",
        "content",
        "previous",
        "digest",
    ]


def test_the_digest_is_what_the_page_says_it_is() -> None:
    one = SECOND
    text = json.dumps(
        [
            "streamclient-commit-1",
            FIRST.digest,
            one.application,
            one.shard,
            2,
            one.start,
            one.end,
            one.count,
            one.content,
        ],
        separators=(",", ":"),
    )

    assert one.digest == sha256(text.encode()).hexdigest()


@pytest.mark.parametrize(
    "change_of",
    [
        {"application": "x"},
        {"shard": "x"},
        {"number": 3},
        {"start": "x"},
        {"end": "x"},
        {"count": 2},
        {"content": "x"},
        {"previous_digest": "x"},
        {"digest": "x"},
    ],
    ids=lambda one: next(iter(one)),
)
def test_every_value_is_in_the_digest(change_of: dict[str, object]) -> None:
    assert SECOND.is_intact
    assert not evolve(SECOND, **change_of).is_intact


def test_a_successor_that_finishes_the_batch_has_the_same_digest() -> None:
    assert TAKEN.digest == SECOND.digest
    assert TAKEN.order > SECOND.order


def test_order_grows_with_the_owner_first() -> None:
    late = evolve(SECOND, epoch=2, number=1_000)

    assert sorted([TAKEN, SECOND, FIRST, late], key=lambda one: one.order) == [late, FIRST, SECOND, TAKEN]


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"application": 1}', FIRST.to_json().replace(':1,"from"', ':true,"from"')]
)
def test_what_is_no_commit_is_refused(text: str) -> None:
    with pytest.raises(CodecError):
        Commit.from_json(text)


@pytest.mark.parametrize("values", [{"epoch": 2**31}, {"epoch": -1}, {"count": -1}, {"end": ""}, {"shard": ""}])
def test_values_out_of_range_are_refused(values: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(values))):
        batch(None, [], **values)


def test_a_destination_that_ends_elsewhere_than_the_checkpoint_is_an_error_that_is_shown() -> None:
    """After a power loss, or if a checkpoint was moved: going on would leave a hole, or repeat rows."""
    with pytest.raises(StreamClientException, match="has lost or restored commits"):
        batch(FIRST, [change(5)], start="iterator/further")


def test_nothing_follows_the_end_of_a_shard() -> None:
    ended = batch(FIRST, [], end=CheckpointPosition.SHARD_END)
    with pytest.raises(StreamClientException, match="SHARD_END"):
        batch(ended, [change(2)])


def test_what_follows_may_be_stored_and_what_is_last_is_stored() -> None:
    assert not is_stored({}, [FIRST])
    assert not is_stored({FIRST.shard: FIRST}, [SECOND])
    assert is_stored({FIRST.shard: SECOND}, [SECOND])
    assert is_stored({FIRST.shard: SECOND}, [TAKEN])


def test_an_older_owner_is_fenced_and_both_epochs_are_named() -> None:
    later = batch(TAKEN, [change(3)], epoch=4)
    late = batch(SECOND, [change(3), change(4)], epoch=3)
    with pytest.raises(FencedCommit, match="committed by epoch 4, this writer has epoch 3") as raised:
        is_stored({late.shard: later}, [late])

    assert raised.value.shards == {late.shard}
    assert isinstance(raised.value, FencedException)


def test_a_step_of_which_a_part_is_stored_is_refused() -> None:
    other = batch(None, [change(9)], shard="other")
    with pytest.raises(StreamClientException, match="sent as one"):
        is_stored({FIRST.shard: FIRST}, [FIRST, other])


def test_a_damaged_entry_is_said_to_be_one() -> None:
    whole = LogEntry("7", (FIRST,), (SECOND,))

    assert LogEntry.from_json("7", whole.to_json()) == whole
    for text in (whole.to_json()[:-3], "[]", '{"commits": [{}]}', '{"commits": 5}'):
        assert "entry 7 is unreadable" in LogEntry.from_json("7", text).damage


def test_the_last_commit_is_the_one_of_the_highest_order_wherever_it_stands() -> None:
    entries = [
        LogEntry("1", (SECOND,)),
        LogEntry("2", carried=(FIRST,)),
        LogEntry("3", (evolve(FIRST, application="x"),)),
    ]

    assert last_of(entries, "default") == {FIRST.shard: SECOND}
