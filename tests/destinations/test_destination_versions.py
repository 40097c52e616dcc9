"""A log in which a later version has committed is left alone by every destination, with words that name both."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from streamclient.base.kept_formats import FORMAT_MEMBER
from streamclient.destinations import Commit, verify
from streamclient.destinations.commit import COMMIT_FORMAT, Destination
from streamclient.errors import StreamClientException
from streamclient.testing.contracts.destination_contract import change, store, stored_numbers
from tests.destinations.rounds_worker import opened as opened_at

REFUSAL = "the commit has format 2, and this version of streamclient reads format 1: use the version that wrote it"


@pytest.fixture(params=["delta", "iceberg", "postgres"])
def open_handle(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Destination]]:
    """Opens a further handle over the table of a test."""
    if request.param == "postgres":
        yield request.getfixturevalue("opened")
        return
    made: list[Destination] = []

    def handle() -> Destination:
        made.append(opened_at(request.param, str(tmp_path)))
        return made[-1]

    if request.param == "iceberg":
        from pyiceberg.catalog.sql import SqlCatalog

        place = f"sqlite:///{tmp_path}/catalog.db?timeout=60"
        with SqlCatalog("rounds", uri=place, warehouse=f"file://{tmp_path}/data") as catalog:
            catalog.create_namespace("lake")
    yield handle
    for each in made:
        each.close()


def uses(handle: Destination, lasts: Sequence[Commit]) -> Iterator[Callable[[], object]]:
    """What a program of this version does with a log, to follow each of `lasts` among the rest."""
    yield lambda: handle.last_commits(["shard-1"])
    yield lambda: list(handle.log())
    yield lambda: verify(handle)
    for last in lasts:
        yield partial(store, handle, last, [change(3, v=3)], epoch=2)


@pytest.mark.slow
def test_a_log_with_a_commit_of_a_later_version_is_left_alone(
    open_handle: Callable[[], Destination], monkeypatch: pytest.MonkeyPatch
) -> None:
    known, plain = open_handle(), Commit.to_plain
    first = store(known, None, [change(1, v=1)])

    def of_later_version(commit: Commit) -> dict[str, Any]:
        return {**plain(commit), FORMAT_MEMBER: COMMIT_FORMAT.version + 1}

    with monkeypatch.context() as later:
        later.setattr(Commit, "to_plain", of_later_version)
        second = store(open_handle(), first, [change(2, v=2)])

    for handle in (known, open_handle()):
        for use in uses(handle, (first, second)):
            with pytest.raises(StreamClientException) as raised:
                use()
            assert REFUSAL in str(raised.value)
    assert stored_numbers(open_handle()) == [1, 2]
