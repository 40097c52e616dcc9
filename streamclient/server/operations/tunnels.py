"""The operations of the Tunnel Service. The module ``streamclient.server.tunnels.tunnel_actions`` implements them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from streamclient.server.operation import ServedOperation
from streamclient.server.server_state import ServerState
from streamclient.server.tunnels import tunnel_actions
from streamclient.wire import schema


def _operation(verb: str, act: Callable[[ServerState, Any], Any]) -> ServedOperation:
    return ServedOperation(messages=schema.TUNNEL_OPERATIONS[f"tunnel/{verb}"], act=act)


OPERATIONS = (
    _operation("checkpoint", tunnel_actions.checkpoint),
    _operation("connect", tunnel_actions.connect),
    _operation("create", tunnel_actions.create),
    _operation("delete", tunnel_actions.delete),
    _operation("describe", tunnel_actions.describe),
    _operation("getcheckpoint", tunnel_actions.get_checkpoint),
    _operation("getrpo", tunnel_actions.get_rpo),
    _operation("getrpobyoffset", tunnel_actions.get_rpo),
    _operation("heartbeat", tunnel_actions.heartbeat),
    _operation("list", tunnel_actions.list_tunnels),
    _operation("readrecords", tunnel_actions.read_records),
    _operation("schedule", tunnel_actions.schedule),
    _operation("shutdown", tunnel_actions.shutdown),
)
