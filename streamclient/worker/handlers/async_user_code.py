"""The coroutines of user code for one shard, from an ``async def`` handler or from an async processor."""

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
"""A function that makes the coroutine of one call."""

Store = Callable[[str | None], Awaitable[None]]
"""An async function that stores a position; with ``None``, the largest permitted position."""


def require_none(answer: object) -> None:
    """Refuse a handler's result other than ``None``. The handler may have made a processor, or forgotten an ``await``.

    Raises:
        ApplicationException: ``answer`` is not ``None``, so the handler has failed.
    """
    checks.done("the handler", answer)
    if answer is not None:
        raise ApplicationException(
            f"the handler returned {checks.shown(answer)}, so it may not have done its work: a handler returns nothing"
        )


class AsyncUserCode(ABC):
    """The coroutines of user code for one shard. They run in one event loop, one at a time."""

    commits_by_itself = False
    """Whether the batch is committed at the end of ``handle``, without a call of ``commit``."""

    @property
    def needs_initialize(self) -> bool:
        """Whether ``initialize`` has work to do, and so must be awaited first."""
        return True

    async def initialize(self, given: InitializationInput) -> None:  # noqa: B027  # handlers have nothing to prepare
        """Prepare to process the shard. By default, do nothing."""

    @abstractmethod
    async def handle(self, batch: AsyncBatch) -> None:
        """Process one batch of the shard."""

    @abstractmethod
    def last_work(
        self, reason: ShutdownReason, end: tuple[AsyncBatch, Settlement], commit: Callable[[], Awaitable[None]]
    ) -> MakeCoroutine | None:
        """Return a function that makes the coroutine for the last work of user code for the shard.

        The result is ``None`` if there is no such work. ``end`` is a batch without records, which stands for the end of
        the shard, together with the settlement of this batch. ``commit`` stores the largest permitted position.
        """

    @abstractmethod
    def is_store_due(self, reason: ShutdownReason, *, has_stored_all: bool, has_unstored: bool) -> bool:
        """Return whether a shutdown for ``reason`` must store the largest permitted position.

        The method is called only if user code has no last work.

        ``has_stored_all`` says whether the positions of all batches are stored. ``has_unstored`` says whether
        the commit of a handled batch got no answer from the status table.
        """


async def run_batch(code: AsyncUserCode, batch: AsyncBatch, settlement: Settlement) -> None:
    """Let user code process a batch; raise if the batch has failed."""
    try:
        await code.handle(batch)
        if settlement.error is not None:
            raise settlement.error
    finally:
        settlement.end()


class HandlerCode(AsyncUserCode):
    """The user code of an ``async def`` that takes one batch."""

    def __init__(self, handler: AsyncBatchHandler, commit: Commit) -> None:
        self._handler = handler
        self.commits_by_itself: bool = commit == "turn"

    @property
    def needs_initialize(self) -> bool:
        """``False``, because ``initialize`` has nothing to do."""
        return False

    async def handle(self, batch: AsyncBatch) -> None:
        """Call the handler with the batch."""
        require_none(cast(object, await self._handler(batch)))

    def last_work(
        self, reason: ShutdownReason, end: tuple[AsyncBatch, Settlement], commit: Callable[[], Awaitable[None]]
    ) -> MakeCoroutine | None:
        """Return the call of the handler for the shard's end, if commits are explicit; otherwise ``None``."""
        is_told = reason is ShutdownReason.TERMINATE and not self.commits_by_itself
        return partial(run_batch, self, *end) if is_told else None

    def is_store_due(self, reason: ShutdownReason, *, has_stored_all: bool, has_unstored: bool) -> bool:
        """Return whether the shard's end, or a batch whose commit got no answer, must be committed."""
        return is_commit_due(reason, has_unstored=has_unstored)


class ProcessorCode(AsyncUserCode):
    """The user code of an ``AsyncRecordProcessor``. ``initialize`` makes that processor, in the event loop."""

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
            ConfigurationError: the program's function did not make an ``AsyncRecordProcessor``.
        """
        made: object = self._make()
        checks.done("the processor factory", made)
        if not isinstance(made, AsyncRecordProcessor):
            raise ConfigurationError(f"the factory must make an AsyncRecordProcessor, not {checks.shown(made)}")
        self._processor = made
        checks.done("initialize", cast(object, await made.initialize(given)))

    async def handle(self, batch: AsyncBatch) -> None:
        """Call ``process_records`` of the processor."""
        checks.done("process_records", cast(object, await self._made.process_records(batch)))

    def last_work(
        self, reason: ShutdownReason, end: tuple[AsyncBatch, Settlement], commit: Callable[[], Awaitable[None]]
    ) -> MakeCoroutine | None:
        """Return the call of ``shutdown`` if the processor overrides that method, otherwise ``None``."""
        has_shutdown = type(self._processor).shutdown is not AsyncRecordProcessor.shutdown if self._processor else False
        return partial(self._shutdown, reason, commit) if has_shutdown else None

    async def _shutdown(self, reason: ShutdownReason, commit: Callable[[], Awaitable[None]]) -> None:
        checks.done("shutdown", cast(object, await self._made.shutdown(reason, commit)))

    def is_store_due(self, reason: ShutdownReason, *, has_stored_all: bool, has_unstored: bool) -> bool:
        """Return whether to store the shard's end for a processor without ``shutdown``."""
        return self._processor is not None and reason is ShutdownReason.TERMINATE and has_stored_all


def async_code_maker(kind: ProcessorKind, given: object, commit: Commit) -> Callable[[], AsyncUserCode]:
    """Return a function that makes the ``AsyncUserCode`` of a shard from ``given``, of the kind ``kind``."""
    if kind is ProcessorKind.ASYNC_HANDLER:
        return partial(HandlerCode, cast(AsyncBatchHandler, given), commit)
    return partial(ProcessorCode, cast(Callable[[], AsyncRecordProcessor], given))
