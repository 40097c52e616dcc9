"""Rules of UpdateRow."""

from __future__ import annotations

from typing import Any

from streamclient.server.limits import Limits
from streamclient.server.validation.row_writes import SingleWrite, validate_single
from streamclient.wire.schema import OperationType


def validate(request: Any, limits: Limits) -> SingleWrite:
    """The row to update, with its condition."""
    return validate_single(OperationType.UPDATE, request, request.row_change, limits)
