"""The fuzzer of requests: a short run of it, and that it can find what it looks for."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from server_state_driver import condition_fields, frame, put

from streamclient.server import refusals
from streamclient.server.engine import OPERATIONS
from streamclient.wire import schema
from tests.server_fuzz.__main__ import play
from tests.server_fuzz.world import Finding, World

STEPS = 800


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 1], ids=["in memory", "in a directory"])
def test_strange_requests_are_answered_and_refusals_have_no_effect(number: int) -> None:
    world = play(1, number, STEPS)

    assert world.statuses[200] > STEPS / 10, "too few requests get far enough to do harm"
    assert world.statuses[400] > STEPS / 10
    assert {"StartLocalTransaction", "BatchWriteRow", "BulkImport", "BatchGetRow", "tunnel/checkpoint"} <= set(
        world.successes
    )
    assert {"CommitTransaction", "AbortTransaction"} & set(world.successes)


def test_what_a_request_over_the_wire_does_is_done_when_the_next_one_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the server is; its answer may not be waited for."""
    monkeypatch.setattr("tests.server_fuzz.world.ANSWER_SECONDS", 1e-6)
    with World(random.Random(1), None).open() as world:
        late = schema.PutRowRequest(table_name="t", row=frame("late", put("a", 1)), **condition_fields())
        sent = world._signed("PutRow", late.SerializeToString())
        monkeypatch.setattr(world, "_request", lambda: sent)
        monkeypatch.setattr(world.maker, "damaged", lambda data: data)
        before = world._snapshot()
        world._over_the_wire()

        assert world._snapshot() != before


def test_a_refusal_that_leaves_a_transaction_changed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with World(random.Random(1), None).open() as world:
        starting = schema.StartLocalTransactionRequest(table_name="u", key=frame("a"))
        begun = world._must("StartLocalTransaction", starting)

        def abort(state: Any, request: Any) -> Any:
            state.transactions.end(state.transaction(begun.transaction_id))
            raise refusals.TRANSACTION_ID()

        replace_operation(monkeypatch, "AbortTransaction", abort)
        body = schema.AbortTransactionRequest(transaction_id=begun.transaction_id).SerializeToString()
        with pytest.raises(Finding, match="a refused request changed transactions"):
            world._ask(world._signed("AbortTransaction", body))


def replace_operation(monkeypatch: pytest.MonkeyPatch, name: str, act: Any) -> None:
    operations = {**OPERATIONS, name: evolve(OPERATIONS[name], act=act)}
    monkeypatch.setattr("streamclient.server.engine.OPERATIONS", operations)


def test_a_refusal_with_an_effect_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison itself can fail, for tunnels too."""

    def shutdown(state: Any, request: Any) -> Any:
        state.tunnels[request.tunnel_id].end_session(request.client_id)
        raise refusals.TRANSACTION_ID()

    replace_operation(monkeypatch, "tunnel/shutdown", shutdown)
    with World(random.Random(1), tmp_path).open() as world:
        tunnel_id, tunnel = next(iter(world._state.tunnels.items()))
        request = schema.ShutdownRequest(tunnel_id=tunnel_id, client_id=next(iter(tunnel.clients)))
        with pytest.raises(Finding, match="a refused request changed tunnels"):
            world._ask(world._signed("tunnel/shutdown", request.SerializeToString()))
