"""The commit after a handler has returned. The shard goes on even if the commit gets no usable answer."""

from __future__ import annotations

import logging

from streamclient.base import logs
from streamclient.base.outages import OutageLog
from streamclient.errors import DependencyException, ShutdownException
from streamclient.model import ShutdownReason

_log = logs.logger(__name__)
_outages = OutageLog(_log)


def is_left_unstored(shard_id: str, error: Exception | None) -> bool:
    """Log an unsuccessful commit; return whether a later commit has to store the position as well.

    ``error`` is the error of the commit; it is ``None`` after success.

    Raises:
        Exception: ``error`` itself, if the position can never be stored, so that the batch has failed.
    """
    if error is None:
        return False
    if isinstance(error, ShutdownException):
        text = "shard %s: a batch was handled and not stored: %s"
        _log.info(text, shard_id, error, extra=logs.of_shard(shard_id))
        return False
    if isinstance(error, DependencyException):
        text = "shard %s: a batch was handled and is not known to be stored; the next commit stores it: %s"
        _outages.log(logging.WARNING, type(error).__name__, text, shard_id, error)
        return True
    raise error


def is_commit_due(reason: ShutdownReason, *, has_unstored: bool) -> bool:
    """Return whether the shard's end, or a position that was left unstored, must be committed after the last batch."""
    return reason is ShutdownReason.TERMINATE or (has_unstored and reason is not ShutdownReason.ZOMBIE)
