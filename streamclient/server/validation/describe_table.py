"""Rules of DescribeTable."""

from __future__ import annotations

from typing import Any

from streamclient.server.limits import Limits
from streamclient.server.validation.names import check_table_name


def validate(request: Any, limits: Limits) -> str:
    """The name of the table to describe."""
    return check_table_name(request.table_name, limits)
