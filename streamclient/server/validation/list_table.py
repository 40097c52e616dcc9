"""Rules of ListTable: there are none."""

from __future__ import annotations

from typing import Any

from streamclient.server.limits import Limits


def validate(request: Any, limits: Limits) -> None:
    """Nothing to read: the request is empty."""
