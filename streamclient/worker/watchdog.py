"""Notices calls that take long: says so with the stack of their thread, and at last gives them up. Owner thread."""

from __future__ import annotations

import logging
import sys
import traceback
from typing import Protocol

from streamclient.reasons import Cause, Reason, text_of

_log = logging.getLogger(__name__)

NOTABLE_QUEUEING_SECONDS = 1.0
"""A call that waits longer than this for a thread is named in the shard's status."""

MOST_STACK_LINES = 60
"""Of a stack that is logged, its inner end."""


class CallUnderway(Protocol):
    """A call into user code, or a read. Both times are monotonic seconds."""

    queued_at: float
    started_at: float | None
    """``None`` while it waits for a thread."""
    thread_id: int | None


class CallWatch:
    """Watches one kind of call of one shard, one call after the other."""

    def __init__(self, shard_id: str, queued: Cause, runs: Cause, warn_after_millis: int, limit_millis: int) -> None:
        self._shard_id = shard_id
        self._queued = queued
        self._runs = runs
        self._warn_after_seconds = warn_after_millis / 1_000
        self._limit_seconds = limit_millis / 1_000
        self._call: CallUnderway | None = None
        self._next_warning = 0.0
        self._is_given_up = False

    def look(self, call: CallUnderway | None, name: str, now: float) -> str:
        """Log the call if it takes long, again at each doubling; once it is over the limit, why it is given up.

        The reason is given once per call; it is empty at any other time.
        """
        if call is not self._call:
            self._call, self._next_warning, self._is_given_up = call, self._warn_after_seconds, False
        if call is None:
            return ""
        waited = now - call.queued_at
        elapsed = waited if call.started_at is None else now - call.started_at
        if elapsed >= self._next_warning:
            self._next_warning = 2 * elapsed
            self._warn(call, name, elapsed)
        if not self._limit_seconds or waited < self._limit_seconds or self._is_given_up:
            return ""
        self._is_given_up = True
        return f"{text_of(self._reason(call, name, elapsed))}, over the limit of {self._limit_seconds:.0f} s"

    def delay_reason(self, call: CallUnderway | None, name: str, now: float) -> Reason | None:
        """That the shard waits for this call, if that is worth telling."""
        if call is None:
            return None
        notable = NOTABLE_QUEUEING_SECONDS if call.started_at is None else self._warn_after_seconds
        seconds = now - (call.queued_at if call.started_at is None else call.started_at)
        return self._reason(call, name, seconds) if seconds >= notable else None

    def _reason(self, call: CallUnderway, name: str, seconds: float) -> Reason:
        return Reason(self._queued if call.started_at is None else self._runs, name, f"{seconds:.0f} s")

    def _warn(self, call: CallUnderway, name: str, elapsed: float) -> None:
        stack = _stack_of(call.thread_id)
        _log.warning(
            "shard %s: %s%s",
            self._shard_id,
            text_of(self._reason(call, name, elapsed)),
            f", now at:\n{stack}" if stack else "",
        )


def _stack_of(thread_id: int | None) -> str:
    frame = None if thread_id is None else sys._current_frames().get(thread_id)
    if frame is None:
        return ""
    lines = "".join(traceback.format_stack(frame)).splitlines(keepends=True)
    return "".join(lines[-MOST_STACK_LINES:])
