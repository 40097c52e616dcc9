"""The coroutines of user code for one shard: of an ``async def`` handler, or of an async processor."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, cast

from streamclient.base import checks
from streamclient.config import ProcessorKind
from streamclient.errors import ApplicationException, ConfigurationError
from streamclient.interfaces import InitializationInput
from streamclient.model import ShutdownReason
from streamclient.worker.handlers.batches import AsyncBatch, AsyncBatchHandler, AsyncRecordProcessor, Commit, Settlement
from streamclient.worker.handlers.turn_commits import is_commit_due

MakeCoroutine = Callable[[], Coroutine[Any, Any, None]]
"""Makes the coroutine of one call."""

Store = Callable[[str | None], Awaitable[None]]
"""Stores a position, or the largest permitted one."""


def require_none(answer: object) -> None:
    """Refuse the answer of a handler that is not ``None``: it made a processor, or forgot an ``await``.

    Raises:
        ApplicationException: the handler has failed.
    """
    checks.done("the handler", answer)
    if answer is not None:
        raise ApplicationException(
            f"the handler returned {checks.shown(answer)}, so it may not have done its work: a handler returns nothing"
        )


class AsyncUserCode(ABC):
    """The coroutines for one shard, which run in one event loop and never two at a time."""

    commits_by_itself = False
    """Whether the end of ``handle`` commits the batch."""

    @property
    def is_made_first(self) -> bool:
        """Whether ``initialize`` has something to do."""
        return True

    async def initialize(self, given: InitializationInput) -> None:  # noqa: B027  # handlers have nothing to prepare
        """Prepare for the shard."""

    @abstractmethod
    async def handle(self, batch: AsyncBatch) -> None:
        """Process one batch."""

    @abstractmethod
    def last_work(
        self, reason: ShutdownReason, end: tuple[AsyncBatch, Settlement], commit: Callable[[], Awaitable[None]]
    ) -> MakeCoroutine | None:
        """Return the last work for the shard, if user code has any.

        ``end`` is a batch without records for the end of the shard; ``commit`` stores the largest permitted position.
        """

    @abstractmethod
    def stores_at(self, reason: ShutdownReason, *, has_stored_all: bool, has_unstored: bool) -> bool:
        """Return whether the largest permitted position is stored after the last batch, if there is no last work.

        ``has_stored_all`` says whether everything that user code received is stored. ``has_unstored`` says whether the
        status table has not answered the commit of a batch that was handled.
        """


async def run_batch(code: AsyncUserCode, batch: AsyncBatch, settlement: Settlement) -> None:
    """Let user code process a batch; raise if it has failed."""
    try:
        await code.handle(batch)
        if settlement.error is not None:
            raise settlement.error
    finally:
        settlement.end()


class HandlerCode(AsyncUserCode):
    """An ``async def`` of one batch."""

    def __init__(self, handler: AsyncBatchHandler, commit: Commit) -> None:
        self._handler = handler
        self.commits_by_itself: bool = commit == "turn"

    @property
    def is_made_first(self) -> bool:
        """``False``, because ``initialize`` has nothing to do."""
        return False

    async def handle(self, batch: AsyncBatch) -> None:
        """Call the handler."""
        require_none(cast(object, await self._handler(batch)))

    def last_work(
        self, reason: ShutdownReason, end: tuple[AsyncBatch, Settlement], commit: Callable[[], Awaitable[None]]
    ) -> MakeCoroutine | None:
        """With explicit commits, return the call of the handler for the shard's end."""
        is_told = reason is ShutdownReason.TERMINATE and not self.commits_by_itself
        return partial(run_batch, self, *end) if is_told else None

    def stores_at(self, reason: ShutdownReason, *, has_stored_all: bool, has_unstored: bool) -> bool:
        """Return whether a commit of a turn is due: of the shard's end, or of a batch whose commit has no answer."""
        return is_commit_due(reason, has_unstored=has_unstored)


class ProcessorCode(AsyncUserCode):
    """An ``AsyncRecordProcessor``, made in the event loop."""

    def __init__(self, make: Callable[[], AsyncRecordProcessor]) -> None:
        self._make = make
        self._processor: AsyncRecordProcessor | None = None

    @property
    def _made(self) -> AsyncRecordProcessor:
        if self._processor is None:
            raise ValueError("the processor is not made yet")
        return self._processor

    async def initialize(self, given: InitializationInput) -> None:
        """Make the processor and initialise it.

        Raises:
            ConfigurationError: the function made something else.
        """
        made: object = self._make()
        checks.done("the processor factory", made)
        if not isinstance(made, AsyncRecordProcessor):
            raise ConfigurationError(f"the function must make an AsyncRecordProcessor, not {checks.shown(made)}")
        self._processor = made
        checks.done("initialize", cast(object, await made.initialize(given)))

    async def handle(self, batch: AsyncBatch) -> None:
        """Call ``process_records``."""
        checks.done("process_records", cast(object, await self._made.process_records(batch)))

    def last_work(
        self, reason: ShutdownReason, end: tuple[AsyncBatch, Settlement], commit: Callable[[], Awaitable[None]]
    ) -> MakeCoroutine | None:
        """Return the call of ``shutdown``, if the processor has that method."""
        has_shutdown = type(self._processor).shutdown is not AsyncRecordProcessor.shutdown if self._processor else False
        return partial(self._shutdown, reason, commit) if has_shutdown else None

    async def _shutdown(self, reason: ShutdownReason, commit: Callable[[], Awaitable[None]]) -> None:
        checks.done("shutdown", cast(object, await self._made.shutdown(reason, commit)))

    def stores_at(self, reason: ShutdownReason, *, has_stored_all: bool, has_unstored: bool) -> bool:
        """Return whether the shard's end is stored for a processor without ``shutdown``."""
        return self._processor is not None and reason is ShutdownReason.TERMINATE and has_stored_all


def async_code_maker(kind: ProcessorKind, given: object, commit: Commit) -> Callable[[], AsyncUserCode]:
    """Return what makes the user code of each shard from an ``async def`` or a class of async processors."""
    if kind is ProcessorKind.ASYNC_HANDLER:
        return partial(HandlerCode, cast(AsyncBatchHandler, given), commit)
    return partial(ProcessorCode, cast(Callable[[], AsyncRecordProcessor], given))
