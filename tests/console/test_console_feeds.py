"""Feeds: read only while there is a viewer, made once for all of them, patches that lead to the same document."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection
from typing import Any

import pytest
from console_tools import Scene, patched
from hypothesis import given
from hypothesis import strategies as st

from streamclient.console import feeds
from streamclient.console.feeds import Document, Watch, patch_of
from streamclient.console.tables import LocalPages
from streamclient.server import ServiceError
from tests.patience import FOREVER_SECONDS, PATIENCE_SECONDS, until


@pytest.fixture
def documents_made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Topics of the documents that all consoles make, as they make them."""
    made: list[str] = []
    document = LocalPages.document
    monkeypatch.setattr(LocalPages, "document", lambda self, topic: (made.append(topic), document(self, topic))[1])
    return made


def test_an_unwatched_console_reads_nothing_and_has_no_observer(
    scene: Scene, documents_made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "LINGER_SECONDS", 0.05)
    scene.local.client().list_table()
    assert (scene.observer_count, documents_made) == (0, [])
    with scene.feed("verdict,requests") as feed:
        feed.until(lambda documents: len(documents) == 2)
        assert scene.observer_count == 1
    until(lambda: scene.observer_count == 0, "the end of the watch")
    made = len(documents_made)
    scene.local.client().list_table()
    scene.local.put("orders", id="a")

    assert (scene.observer_count, len(documents_made)) == (0, made)
    assert [(count.operation, count.requests) for count in scene.local.requests()] == [("ListTable", 2)]


def test_a_watch_that_ended_begins_again(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "LINGER_SECONDS", 0.05)
    for number in range(2):
        with scene.feed("requests") as feed:
            feed.until(lambda documents: "requests" in documents)
            scene.local.client().list_table()
            heads = feed.until(lambda documents: documents["requests"]["heads"] != [])["requests"]["heads"]
            assert len(heads) == 1, number
        until(lambda: scene.observer_count == 0, "the end of the watch")


class Counted:
    """Documents that count how often they are made, or are what ``make`` returns."""

    def __init__(self, make: Callable[[], Document] | None = None) -> None:
        self.make = make
        self.made: list[str] = []
        self.followings: list[set[str]] = []

    def begin(self, wake: Callable[[], None]) -> None:
        self.wake = wake

    def end(self) -> None:
        self.followings.append(set())

    def followed(self, topics: Collection[str]) -> None:
        self.followings.append(set(topics))

    def document(self, topic: str) -> Document:
        self.made.append(topic)
        return {"n": len(self.made)} if self.make is None else self.make()


def run(body: Callable[[Watch, list[str]], Any], make: Callable[[], Document] | None = None) -> None:
    """Run ``body`` with a watch that makes ``make()``, or counts its documents."""

    async def main() -> None:
        documents = Counted(make)
        watch = Watch(documents)
        try:
            await asyncio.wait_for(body(watch, documents.made), PATIENCE_SECONDS)
        finally:
            await watch.stop()

    asyncio.run(main())


def test_ten_viewers_cost_what_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "TICK_SECONDS", FOREVER_SECONDS)
    monkeypatch.setattr(feeds, "LINGER_SECONDS", FOREVER_SECONDS)

    async def body(watch: Watch, made: list[str]) -> None:
        viewers = [watch.join(["a"]) for _ in range(10)]
        while len(made) < 2:  # one when the first joined, one in the first round
            await asyncio.sleep(0)
        for viewer in viewers:
            watch.take(viewer)
        watch.wake()
        for viewer in viewers:
            await viewer.changed.wait()

        assert made == ["a"] * 3
        assert [watch.take(viewer)[0]["patch"]["set"] for viewer in viewers] == [{"n": 3}] * 10

    run(body)


def test_the_documents_are_told_which_of_them_have_viewers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "LINGER_SECONDS", 0)
    monkeypatch.setattr(feeds, "ROUND_SECONDS", 0)
    documents = Counted()

    async def main() -> None:
        watch = Watch(documents)
        first, second = watch.join(["a", "b"]), watch.join(["b"])
        watch.leave(first)
        while documents.followings[-1] != {"b"}:
            await asyncio.sleep(0)
        watch.leave(second)
        while watch.is_running:
            await asyncio.sleep(0)

    asyncio.run(main())

    assert documents.followings == [{"a", "b"}, {"a", "b"}, {"b"}, set(), set()], "the last one is the end"


def test_a_viewer_that_comes_back_gets_what_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "LINGER_SECONDS", FOREVER_SECONDS)
    made = {"n": 1}

    async def body(watch: Watch, _: list[str]) -> None:
        first = watch.join(["a", "b"])
        assert len(watch.take(first)) == 2
        watch.leave(first)
        second = watch.join(["a", "b"], have=watch.version)
        assert watch.take(second) == []
        watch.leave(second)
        have, made["n"] = watch.version, 2
        while watch.version < have + 2:
            watch.wake()
            await asyncio.sleep(0)

        assert [message["of"] for message in watch.take(watch.join(["a", "b"], have))] == ["a", "b"]

    run(body, make=lambda: dict(made))


def test_few_documents_are_kept_without_a_viewer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "LINGER_SECONDS", FOREVER_SECONDS)
    monkeypatch.setattr(feeds, "MOST_KEPT", 3)
    monkeypatch.setattr(feeds, "ROUND_SECONDS", 0)

    async def body(watch: Watch, made: list[str]) -> None:
        watch.join(["here"])
        for number in range(20):
            watch.leave(watch.join([str(number)]))
        begun = len(made)
        while len(made) < begun + 30:
            watch.wake()
            await asyncio.sleep(0)

        assert set(made[-8:]) == {"17", "18", "19", "here"}

    run(body)


@pytest.mark.parametrize("turns", range(6))
def test_a_watch_that_is_woken_while_it_stops_ends(turns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "ROUND_SECONDS", 0)

    async def main() -> None:
        watch = Watch(Counted(lambda: {"n": 1}))
        watch.join(["a"])
        for _ in range(20):  # until it waits to be woken
            await asyncio.sleep(0)
        watch.wake()
        for _ in range(turns):
            await asyncio.sleep(0)
        await asyncio.wait_for(watch.stop(), PATIENCE_SECONDS)

        assert not watch.is_running

    asyncio.run(main())


def test_many_wakes_make_one_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "TICK_SECONDS", FOREVER_SECONDS)
    monkeypatch.setattr(feeds, "LINGER_SECONDS", FOREVER_SECONDS)

    async def body(watch: Watch, made: list[str]) -> None:
        viewer = watch.join(["a"])
        while len(made) < 2:
            await asyncio.sleep(0)
        watch.take(viewer)
        for _ in range(1000):
            watch.wake()
        await viewer.changed.wait()

        assert len(made) == 3

    run(body)


def test_a_viewer_that_missed_a_version_gets_the_whole_newest_document() -> None:
    async def body(watch: Watch, made: list[str]) -> None:
        slow = watch.join(["a"])
        (first,) = watch.take(slow)
        while len(made) < 4:
            watch.wake()
            await asyncio.sleep(0)
        (message,) = watch.take(slow)

        assert first == {"of": "a", "document": {"n": 1}}
        assert message == {"of": "a", "document": {"n": len(made)}}
        assert watch.take(slow) == []

    run(body)


def test_nothing_is_sent_while_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(watch: Watch, made: list[str]) -> None:
        viewer = watch.join(["a", "b"])
        watch.take(viewer)
        while len(made) < 8:
            watch.wake()
            await asyncio.sleep(0)

        assert not viewer.changed.is_set()
        assert watch.version == 2

    monkeypatch.setattr(feeds, "ROUND_SECONDS", 0)
    run(body, make=lambda: {"n": 1})


row = st.fixed_dictionaries({"id": st.integers(0, 5), "v": st.integers(0, 3)})
rows = st.lists(row, max_size=6, unique_by=lambda made: made["id"])
members = st.one_of(st.integers(0, 3), st.none(), rows, st.lists(st.integers(0, 3), max_size=3))
documents = st.dictionaries(st.sampled_from("abc"), members)


@given(documents, documents)
def test_a_document_and_a_patch_make_the_next_document(old: Document, new: Document) -> None:
    patch = json.loads(json.dumps(patch_of(old, new)))

    assert patched(old, patch) == new


def test_a_feed_brings_what_clients_do_as_patches(scene: Scene) -> None:
    with scene.feed("tables,changes:orders,rows:orders,story:orders,verdict") as feed:
        feed.until(lambda documents: len(documents) == 5)
        scene.local.client().put_row("orders", _row("a"))
        feed.until(lambda documents: documents["changes:orders"]["changes"] != [])
        scene.local.client().put_row("orders", _row("b"))
        feed.until(lambda documents: len(documents["changes:orders"]["changes"]) == 2)
        scene.local.split("orders")  # which no request tells of
        feed.until(lambda documents: len(documents["story:orders"]["bands"]) == 3)
        told = feed.until(lambda documents: documents["tables"]["tables"][0]["open_shard_count"] == 2)

        assert feed.kinds.count("document") == 5
        assert told["rows:orders"] == scene.get("server/tables/orders/rows")
        assert told["changes:orders"] == scene.get("server/tables/orders/changes")


def test_a_document_that_cannot_be_made_is_an_error_until_it_can(scene: Scene) -> None:
    with scene.feed("rows:later,nothing,verdict:orders") as feed:
        told = feed.until(lambda documents: len(documents) == 3)
        assert {document["error"]["code"] for document in told.values()} == {"OTSObjectNotExist", "topic"}
        scene.local.create_table("later", {"id": int})
        feed.until(lambda documents: documents["rows:later"].get("rows") == [])


def test_a_client_behind_a_proxy_polls_for_news(scene: Scene) -> None:
    first = scene.get("feed?of=tables,rows:orders&have=0")
    scene.local.put("orders", id="a")
    second = scene.get(f"feed?of=tables,rows:orders&have={first['id']}")

    assert [message["of"] for message in first["messages"]] == ["tables", "rows:orders"]
    assert "rows:orders" in {message["of"] for message in second["messages"]}
    assert second["id"] > first["id"]
    assert len(scene.get("feed?of=tables&have=1000000")["messages"]) == 1, "an id of a console before this one"


def test_a_stop_ends_feeds(scene: Scene) -> None:
    with scene.feed("verdict") as feed:
        feed.until(lambda documents: "verdict" in documents)
        scene.console.stop()
        with pytest.raises(AssertionError, match="the feed ended"):
            feed.until(lambda documents: False)
    assert scene.observer_count == 0


def test_feeds_tell_of_a_refusal_by_the_service_as_its_error(scene: Scene) -> None:
    with pytest.raises(ServiceError):
        scene.local.control.changes("none")
    assert scene.ask("GET", "/api/v1/server/tables/none/changes").content["error"]["code"] == "OTSObjectNotExist"


def _row(key: str) -> Any:
    from tablestore import Row

    return Row([("id", key)], [("n", 1)])
