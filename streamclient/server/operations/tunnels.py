"""The operations of the Tunnel Service; see ``streamclient.server.tunnels.actions``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from streamclient.server.operation import ServedOperation
from streamclient.server.state import ServerState
from streamclient.server.tunnels import actions
from streamclient.wire import schema


def _operation(verb: str, act: Callable[[ServerState, Any], Any]) -> ServedOperation:
    return ServedOperation(messages=schema.TUNNEL_OPERATIONS[f"tunnel/{verb}"], act=act)


OPERATIONS = (
    _operation("checkpoint", actions.checkpoint),
    _operation("connect", actions.connect),
    _operation("create", actions.create),
    _operation("delete", actions.delete),
    _operation("describe", actions.describe),
    _operation("getcheckpoint", actions.get_checkpoint),
    _operation("getrpo", actions.get_rpo),
    _operation("getrpobyoffset", actions.get_rpo),
    _operation("heartbeat", actions.heartbeat),
    _operation("list", actions.list_tunnels),
    _operation("readrecords", actions.read_records),
    _operation("schedule", actions.schedule),
    _operation("shutdown", actions.shutdown),
)
