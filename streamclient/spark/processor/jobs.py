"""The Spark jobs of one batch, with a way to cancel them from another thread."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from streamclient.base import logs
from streamclient.base.pools import start_thread
from streamclient.errors import NoThreadError, ShutdownException
from streamclient.spark.spark_session import is_connect, private_copy

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logs.logger(__name__)

_AGAIN_SECONDS = 0.25
"""The seconds between two cancellations of a batch's jobs. After the first one, a transform may start new jobs."""

CANCELLED = "the batch was cancelled: none of its leases is held any more"


class CancellableJobs:
    """All jobs that Spark runs for one batch, in the committing thread and through the session of the batch's frame.

    Each batch has its own object, so that a late cancellation does not end another batch. Spark finds the jobs by a
    tag. A job group does not suffice, because a sink may set a job group of its own.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tag = f"streamclient-{uuid.uuid4().hex}"
        self._end_jobs: Callable[[], object] | None = None
        self._is_over = threading.Event()
        self._is_cancelled = self._is_repeating = False

    @contextmanager
    def of(self, session: SparkSession) -> Iterator[SparkSession]:
        """Let ``cancel`` end all jobs that are started in this context; yield the session for the batch's frame.

        The yielded session is a copy of ``session``, and the caller may change the settings of the copy. With Spark
        Connect, ``session`` itself is yielded.

        Raises:
            ShutdownException: the jobs were cancelled.
        """
        # A session of Spark Connect has no Spark context, and tags its operations itself.
        context = None if is_connect(session) else session.sparkContext
        own = session if context is None else private_copy(session)

        def end_jobs() -> None:
            if context is None:
                own.interruptTag(self._tag)
            else:
                context.cancelJobsWithTag(self._tag)
                own.interruptAll()

        with self._lock:
            if self._is_cancelled:
                raise ShutdownException(CANCELLED)
            self._end_jobs = end_jobs
            self._is_over = threading.Event()
        if context is None:
            session.addTag(self._tag)
        else:
            context.addJobTag(self._tag)
            context.setInterruptOnCancel(True)
        try:
            yield own
        except Exception as error:
            if self._is_cancelled:
                raise ShutdownException(CANCELLED) from error
            raise
        finally:
            with self._lock:
                self._end_jobs = None
                self._is_over.set()
            _unless_stopped(lambda: self._remove_tag(session))

    def _remove_tag(self, session: SparkSession) -> None:
        if is_connect(session):
            session.removeTag(self._tag)
        else:
            session.sparkContext.removeJobTag(self._tag)

    def cancel(self) -> None:
        """Cancel the batch's running jobs, and jobs that it starts later. Any thread may call this."""
        with self._lock:
            end_jobs, is_over = self._end_jobs, self._is_over
            self._is_cancelled = True
            is_first, self._is_repeating = not self._is_repeating, end_jobs is not None
        if end_jobs is None or not is_first:
            return
        _unless_stopped(end_jobs)

        def repeat() -> None:
            while not is_over.wait(_AGAIN_SECONDS):
                _unless_stopped(end_jobs)

        try:
            start_thread(repeat, "streamclient-spark-cancel")
        except NoThreadError as error:
            # Without the thread, each call of this method cancels the jobs once. Waiting threads call it repeatedly.
            self._is_repeating = False
            _log.info("no thread could be started to repeat the cancellation of a batch's Spark jobs: %s", error)


def _unless_stopped(step: Callable[[], object]) -> None:
    """Call ``step``, which calls Spark. If it fails, only log the error: a stopped Spark has no jobs to cancel."""
    try:
        step()
    except Exception as error:
        _log.info("the Spark jobs of a batch could not be cancelled or untagged: %s: %s", type(error).__name__, error)
