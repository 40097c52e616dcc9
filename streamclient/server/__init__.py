"""The local Tablestore: a real HTTP server that the official SDKs use unmodified.

In Python, use ``with LocalTablestore() as local: client = local.client()``. For other languages, run the command
``streamclient server``.

The package imports larger modules, such as the HTTP server, at first use, so that the command line starts quickly.
"""

from typing import TYPE_CHECKING

from streamclient.base._lazy import loader
from streamclient.server.auth import (
    DEFAULT_ACCESS_KEY_ID,
    DEFAULT_ACCESS_KEY_SECRET,
    DEFAULT_INSTANCE,
)
from streamclient.server.counters import RequestCount
from streamclient.server.fault_rules import Cut, Fail, FailRows, FaultRule, FaultStatus, LateAnswer, Latency, LoseAnswer
from streamclient.server.observing import Exchange, Observer
from streamclient.server.server_clock import Clock
from streamclient.server.server_errors import DataDirectoryError, ServiceError

if TYPE_CHECKING:
    from streamclient.server.control import Control
    from streamclient.server.engine import ShardView
    from streamclient.server.local import LocalTablestore
    from streamclient.server.table_views import (
        ChangesView,
        ChangeView,
        ChannelView,
        RowView,
        ShardSpan,
        TableView,
        TunnelView,
    )

__all__ = [
    "DEFAULT_ACCESS_KEY_ID",
    "DEFAULT_ACCESS_KEY_SECRET",
    "DEFAULT_INSTANCE",
    "ChangeView",
    "ChangesView",
    "ChannelView",
    "Clock",
    "Control",
    "Cut",
    "DataDirectoryError",
    "Exchange",
    "Fail",
    "FailRows",
    "FaultRule",
    "FaultStatus",
    "LateAnswer",
    "Latency",
    "LocalTablestore",
    "LoseAnswer",
    "Observer",
    "RequestCount",
    "RowView",
    "ServiceError",
    "ShardSpan",
    "ShardView",
    "TableView",
    "TunnelView",
]

_LOADED_LATER = {
    "Control": "control",
    "LocalTablestore": "local",
    "ShardView": "engine",
    **dict.fromkeys(
        ("ChangeView", "ChangesView", "ChannelView", "RowView", "ShardSpan", "TableView", "TunnelView"), "table_views"
    ),
}


__getattr__ = loader(__name__, _LOADED_LATER)
