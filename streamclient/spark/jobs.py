"""Spark jobs of one thread that another thread may end."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from streamclient.errors import ShutdownException

if TYPE_CHECKING:
    from pyspark import SparkContext


CANCELLED = "the batch was cancelled: none of its leases is held any more"


class CancellableJobs:
    """Whatever Spark runs for a thread between the beginning and the end of ``of``.

    By a tag and not by a job group, which a sink may set for itself.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tag = f"streamclient-{uuid.uuid4().hex}"
        self._context: SparkContext | None = None
        self._is_cancelled = False

    def begin(self) -> None:
        """Forget that earlier jobs were cancelled."""
        with self._lock:
            self._is_cancelled = False

    @contextmanager
    def of(self, context: SparkContext) -> Iterator[None]:
        """Jobs that are started here by this thread can be cancelled.

        Raises:
            ShutdownException: they were cancelled, since ``begin``; whatever the jobs raised is its cause.
        """
        with self._lock:
            if self._is_cancelled:
                raise ShutdownException(CANCELLED)
            self._context = context
        context.addJobTag(self._tag)
        context.setInterruptOnCancel(True)
        try:
            yield
        except Exception as error:
            if self._is_cancelled:
                raise ShutdownException(CANCELLED) from error
            raise
        finally:
            context.removeJobTag(self._tag)
            with self._lock:
                self._context = None

    def cancel(self) -> None:
        """End the jobs that run; nothing happens if none do. Any thread."""
        with self._lock:
            context, self._is_cancelled = self._context, True
        if context is not None:
            context.cancelJobsWithTag(self._tag)
