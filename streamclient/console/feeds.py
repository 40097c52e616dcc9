"""Feeds, which send documents to viewers; each document is made once for all of its viewers.

Laws:

- Documents are made only while a watch runs. The watch begins with the first viewer, and ends 10 seconds after the last
  viewer has left.
- A document is kept for 10 seconds after its last viewer has left. A viewer that returns in time gets only the changes.
- In each round a document is made once for all its viewers, who get a message only if the document changed.
- A slow viewer may miss versions, but never the newest version. A viewer that has the previous version gets a patch.
  Any other viewer gets the whole document.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any, Protocol, TypeGuard

from attrs import define

from streamclient.base import logs

_log = logs.logger(__name__)

Document = Mapping[str, Any]

LINGER_SECONDS = 10.0
"""The seconds for which a watch keeps a document up to date after its last viewer has left. In this time, a reloaded
page gets the document immediately, and so does the next long poll of a page behind a proxy."""

MOST_KEPT = 512
"""The largest number of documents that are kept without a viewer. A page follows at most four documents."""

ROUND_SECONDS = 0.1
"""The shortest time, in seconds, between the beginnings of two rounds. A round makes all followed documents anew. There
are at most ten rounds a second, however many requests come."""

TICK_SECONDS = 0.5
"""The longest time, in seconds, that a watch waits for ``wake`` before the next round. Some changes come without a
request, so nothing calls ``wake``, for example if a program splits a shard of its local Tablestore. The next round
finds these changes, too."""


class Documents(Protocol):
    """The source of a watch's documents. The event loop calls the methods, so no method may block."""

    def begin(self, wake: Callable[[], None]) -> None:
        """Begin to observe the data. From now on, call ``wake``, in any thread, when documents may have changed."""

    def end(self) -> None:
        """Stop observing the data, because the last viewer has left some seconds ago."""

    def followed(self, topics: Collection[str]) -> None:
        """Note which documents are followed from now on: exactly the documents with the names ``topics``."""

    def document(self, topic: str) -> Document:
        """Return the newest document with the name ``topic``; ``{"error": {...}}`` if it does not exist."""


@define
class _Followed:
    """The newest version of a document that viewers follow."""

    document: Document
    version: int
    patch: Document | None = None
    """The changes since the version ``patched_version``; ``None`` for the first version."""
    patched_version: int = 0


class Viewer:
    """One viewer, the documents that it follows, and the versions that it has. Only for use in the event loop."""

    def __init__(self, topics: Iterable[str], have: int) -> None:
        self.topics = tuple(topics)
        self.changed = asyncio.Event()
        self._sent = dict.fromkeys(self.topics, have)

    def take(self, followed: Mapping[str, _Followed]) -> list[dict[str, Any]]:
        """Return the messages that bring this viewer up to date, one for each document that changed."""
        self.changed.clear()
        messages = []
        for topic in self.topics:
            found, sent = followed.get(topic), self._sent[topic]
            if found is None or found.version <= sent:
                continue
            is_next = found.patch is not None and sent == found.patched_version
            messages.append({"of": topic, **({"patch": found.patch} if is_next else {"document": found.document})})
            self._sent[topic] = found.version
        return messages


class Watch:
    """A watch, which makes the documents of all viewers in rounds. Only for use in the event loop, except ``wake``."""

    def __init__(self, documents: Documents) -> None:
        """Store ``documents``. The watch calls ``begin`` of ``documents`` when it begins, and ``end`` when it ends."""
        self._documents = documents
        self._loop: asyncio.AbstractEventLoop | None = None
        self._woken = asyncio.Event()
        self._is_woken = False
        self._viewers: set[Viewer] = set()
        self._viewed: dict[str, float] = {}
        """For each document, the time at which it last had a viewer, by the event loop's clock. The oldest time comes
        first."""
        self._followed: dict[str, _Followed] = {}
        self._task: asyncio.Task[None] | None = None
        self._is_stopped = False
        self.version: int = 0
        """The highest version number of all documents. Each new version of any document gets the next number."""

    @property
    def viewer_count(self) -> int:
        """The number of present viewers."""
        return len(self._viewers)

    @property
    def is_running(self) -> bool:
        """Whether the watch makes documents at the moment."""
        return self._task is not None

    def join(self, topics: Iterable[str], have: int = 0) -> Viewer:
        """Add a viewer that already has all versions up to ``have``. Begin the watch if it does not run."""
        viewer = Viewer(topics, have if have <= self.version else 0)
        self._viewers.add(viewer)
        if self._task is None:
            self._loop = asyncio.get_running_loop()
            self._documents.begin(self.wake)
            self._task = self._loop.create_task(self._run())
        self._note_viewed()
        self._documents.followed(self._viewed.keys())
        self._look(topic for topic in viewer.topics if topic not in self._followed)
        viewer.changed.set()
        return viewer

    def leave(self, viewer: Viewer) -> None:
        """Remove a viewer; documents without another viewer are kept for ``LINGER_SECONDS``."""
        self._note_viewed()
        self._viewers.discard(viewer)

    def take(self, viewer: Viewer) -> list[dict[str, Any]]:
        """Return the messages that bring a viewer up to date."""
        return viewer.take(self._followed)

    def wake(self) -> None:
        """Begin a round soon. Any thread may call this method, also many times."""
        if not self._is_woken and self._loop is not None:
            self._is_woken = True
            with suppress(RuntimeError):  # the error of an event loop that has ended
                self._loop.call_soon_threadsafe(self._woken.set)

    async def stop(self) -> None:
        """End the watch without waiting for its viewers to leave."""
        # The task is not cancelled: before Python 3.12, ``wait_for`` drops a cancellation that comes with its result.
        self._is_stopped = True
        self._woken.set()
        for viewer in self._viewers:
            viewer.changed.set()
        if self._task is not None:
            await self._task

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._viewed and not self._is_stopped:
                began = loop.time()
                self._look(list(self._viewed))
                await asyncio.sleep(max(0.0, began + ROUND_SECONDS - loop.time()))
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._woken.wait(), min(TICK_SECONDS, LINGER_SECONDS))
                self._woken.clear()
                self._is_woken = False
                if self._note_viewed():
                    self._documents.followed(self._viewed.keys())
        finally:
            self._task = None
            self._viewed.clear()
            self._followed.clear()
            self._documents.end()

    def _note_viewed(self) -> bool:
        """Forget documents that had no viewer for too long; return whether the set of followed documents changed."""
        before, now = self._viewed.keys(), asyncio.get_running_loop().time()
        viewed = dict.fromkeys((topic for viewer in self._viewers for topic in viewer.topics), now)
        kept = [(topic, at) for topic, at in self._viewed.items() if topic not in viewed and now - at < LINGER_SECONDS]
        self._viewed = {**dict(kept[-MOST_KEPT:]), **viewed}
        for topic in self._followed.keys() - self._viewed.keys():
            del self._followed[topic]
        return self._viewed.keys() != before

    def _look(self, topics: Iterable[str]) -> None:
        """Make the documents ``topics`` anew, and wake the viewers of each document that changed."""
        changed = set()
        for topic in topics:
            document, before = self._documents.document(topic), self._followed.get(topic)
            if before is not None and before.document == document:
                continue
            self.version += 1
            patch = None if before is None else patch_of(before.document, document)
            self._followed[topic] = _Followed(document, self.version, patch, 0 if before is None else before.version)
            changed.add(topic)
        for viewer in self._viewers:
            if not changed.isdisjoint(viewer.topics):
                viewer.changed.set()


def patch_of(old: Document, new: Document) -> Document:
    """Return the changes from the document ``old`` to the document ``new``.

    The result has three members. ``gone`` has the names of the members that only ``old`` has. ``rows`` has an entry for
    each changed member that is a list of rows with ids: ``ids`` has all ids in their new order, and ``changed`` has the
    rows that are new or changed. ``set`` has all other new or changed members.
    """
    values: dict[str, Any] = {}
    rows: dict[str, Any] = {}
    for name, value in new.items():
        before = old.get(name)
        if name in old and before == value:
            continue
        if _has_ids(before) and _has_ids(value):
            known = {row["id"]: row for row in before}
            rows[name] = {
                "ids": [row["id"] for row in value],
                "changed": [row for row in value if known.get(row["id"]) != row],
            }
        else:
            values[name] = value
    gone = [name for name in old if name not in new]
    return {"set": values, "rows": rows, "gone": gone}


def _has_ids(value: object) -> TypeGuard[list[dict[str, Any]]]:
    """Return whether ``value`` is a list of rows in which each row has a different id."""
    if not isinstance(value, list) or not all(isinstance(row, dict) and "id" in row for row in value):
        return False
    return len({row["id"] for row in value}) == len(value)
