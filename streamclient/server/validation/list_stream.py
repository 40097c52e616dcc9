"""Rules of ListStream."""

from __future__ import annotations

from typing import Any

from streamclient.server.limits import Limits
from streamclient.server.validation.names import check_table_name


def validate(request: Any, limits: Limits) -> str | None:
    """The table whose stream to list, or ``None`` for all."""
    return check_table_name(request.table_name, limits) if request.table_name else None
