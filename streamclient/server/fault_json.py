"""Fault rules as JSON objects, for the admin surface and the command line.

``{"operation": "PutRow", "table": "orders", "times": 3, "action": {"kind": "fail", "code": "OTSServerBusy"}}``
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from streamclient.base.checks import did_you_mean
from streamclient.server.fault_rules import Cut, Fail, FailRows, FaultAction, FaultRule, LateAnswer, Latency, LoseAnswer

ACTIONS: Mapping[str, type[FaultAction]] = {
    "latency": Latency,
    "fail": Fail,
    "cut": Cut,
    "lose-answer": LoseAnswer,
    "late-answer": LateAnswer,
    "fail-rows": FailRows,
}
"""The classes of fault actions, by their kind in JSON. The other JSON fields are the attributes of the class."""

_KINDS = {action: kind for kind, action in ACTIONS.items()}


def rule_to_json(rule: FaultRule) -> dict[str, Any]:
    """Return a rule as the JSON object that ``rule_from_json`` reads, without attributes that are ``None``."""
    content = attrs.asdict(rule, recurse=False)
    content["action"] = {"kind": _KINDS[type(rule.action)], **_given(attrs.asdict(rule.action))}
    return _given(content)


def rule_from_json(content: Mapping[str, Any]) -> FaultRule:
    """Return the fault rule that a JSON object describes. Without ``operation``, the rule is for all operations.

    Raises:
        ValueError: a name is unknown or missing, or a value is invalid; the message says which.
    """
    action = content.get("action")
    if not isinstance(action, Mapping):
        raise ValueError(f"action must be an object with a kind, one of {', '.join(ACTIONS)}, not {action!r}")
    kind = action.get("kind")
    if not isinstance(kind, str) or kind not in ACTIONS:
        raise ValueError(f"action kind must be one of {', '.join(ACTIONS)}, not {kind!r}")
    fields = {name: value for name, value in action.items() if name != "kind"}
    made = _make(ACTIONS[kind], fields, f"action {kind}")
    rule: FaultRule = _make(FaultRule, {"operation": "*", **content, "action": made}, "fault rule")
    return rule


def _given(content: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in content.items() if value is not None}


def _make(made: Any, fields: Mapping[str, Any], what: str) -> Any:
    known = {attribute.name: attribute for attribute in attrs.fields(made)}
    unknown = sorted(set(fields) - set(known))
    if unknown:
        raise ValueError(f"{what} has no {', '.join(unknown)}{did_you_mean(unknown[0], known) if known else ''}")
    missing = [name for name, attribute in known.items() if attribute.default is attrs.NOTHING and name not in fields]
    if missing:
        raise ValueError(f"{what} needs {', '.join(missing)}")
    try:
        return made(**fields)
    except TypeError as error:
        raise ValueError(f"{what}: {error}") from error
