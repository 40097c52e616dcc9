"""Spark jobs of one thread that another thread may end."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from streamclient.errors import ShutdownException
from streamclient.spark.session import is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_AGAIN_SECONDS = 0.25
"""How often jobs are ended of which Spark did not know when it was asked first: a transform may start one any time."""

CANCELLED = "the batch was cancelled: none of its leases is held any more"


class CancellableJobs:
    """Whatever Spark runs for a thread between the beginning and the end of ``of``.

    By a tag and not by a job group, which a sink may set for itself.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tag = f"streamclient-{uuid.uuid4().hex}"
        self._end_jobs: Callable[[str], object] | None = None
        self._is_over = threading.Event()
        self._is_cancelled = False

    def begin(self) -> None:
        """Forget that earlier jobs were cancelled."""
        with self._lock:
            self._is_cancelled = False

    @contextmanager
    def of(self, session: SparkSession) -> Iterator[None]:
        """Jobs that are started here by this thread can be cancelled.

        Raises:
            ShutdownException: they were cancelled, since ``begin``; whatever the jobs raised is its cause.
        """
        with self._lock:
            if self._is_cancelled:
                raise ShutdownException(CANCELLED)
            # A Connect session has no context, and tags what it runs itself.
            context = None if is_connect(session) else session.sparkContext
            self._end_jobs = session.interruptTag if context is None else context.cancelJobsWithTag
            self._is_over = threading.Event()
        if context is None:
            session.addTag(self._tag)
        else:
            context.addJobTag(self._tag)
            context.setInterruptOnCancel(True)
        try:
            yield
        except Exception as error:
            if self._is_cancelled:
                raise ShutdownException(CANCELLED) from error
            raise
        finally:
            if context is None:
                session.removeTag(self._tag)
            else:
                context.removeJobTag(self._tag)
            with self._lock:
                self._end_jobs = None
                self._is_over.set()

    def cancel(self) -> None:
        """End the jobs that run, and those that are still started; nothing happens if none can be. Any thread."""
        with self._lock:
            end_jobs, is_over = self._end_jobs, self._is_over
            is_first, self._is_cancelled = not self._is_cancelled, True
        if end_jobs is None or not is_first:
            return
        end_jobs(self._tag)

        def repeat() -> None:
            while not is_over.wait(_AGAIN_SECONDS):
                end_jobs(self._tag)

        threading.Thread(target=repeat, name="streamclient-spark-cancel", daemon=True).start()
