"""Rules of DeleteRow."""

from __future__ import annotations

from typing import Any

from streamclient.server.limits import Limits
from streamclient.server.validation.row_writes import SingleWrite, validate_single
from streamclient.wire.schema import OperationType


def validate(request: Any, limits: Limits) -> SingleWrite:
    """The row to delete, with its condition."""
    return validate_single(OperationType.DELETE, request, request.primary_key, limits)
