"""The last steps of an operator's order about records: its outcome goes to the audit, and the order leaves the row.

Laws:

* a worker removes an order from the row only after the audit says how the order ended;
* if no consumer has obeyed an order, a worker removes the order only when its time is over, or when the shard is
  finished;
* an operator may remove an order at any time. The consumer that had the order then reports which records it has taken
  out, and the worker notes their number in the audit. If the order appears in the row again, it is obeyed again.

If a worker dies before it has removed an order, the next owner obeys the order again, and notes the outcome again.
"""

from __future__ import annotations

from collections.abc import Iterator

from streamclient.core.events import GiveOrders, NoteOrder
from streamclient.core.held import Consuming, HeldLease
from streamclient.core.values import evolve
from streamclient.core.worker_state import WorkerState
from streamclient.model import RecordOrder


def heed_orders(state: WorkerState, held: HeldLease) -> HeldLease:
    """Give the running consumer the orders of the row, and send outcomes of orders to the audit. Return the lease."""
    lease, key = held.lease, held.lease.lease_key
    if held.consuming is Consuming.CONSUMER and lease.orders != held.orders_given:
        state.emit(GiveOrders(key, held.identifier, lease.orders))
        held = evolve(held, orders_given=lease.orders)
    held = _without_revived_withdrawals(held)
    for order, outcome in (*_ended(state, held), *held.orders_gone.values()):
        note = (key, order.request_id)
        if order.request_id not in held.noted and note not in state.notes_under_way:
            state.notes_under_way.add(note)
            at_micros = state.noted_at.setdefault(note, state.wall_micros)
            state.emit(NoteOrder(key, order, state.worker_id, outcome, at_micros))
    return held


def _without_revived_withdrawals(held: HeldLease) -> HeldLease:
    """Forget the withdrawal of each order that is in the row again, and return the changed lease.

    A Java worker may have overwritten the row meanwhile, for example.
    """
    back = held.orders_gone.keys() & {order.request_id for order in held.lease.orders}
    if not back:
        return held
    gone = {key: over for key, over in held.orders_gone.items() if key not in back}
    return evolve(held, orders_gone=gone, noted=held.noted - back)


def orders_left(state: WorkerState, held: HeldLease) -> tuple[RecordOrder, ...]:
    """Return the orders that stay in the row: all orders except those whose outcome is in the audit."""
    if not held.noted or held.keeps_orders:
        return held.lease.orders
    over = {order.request_id for order, _ in _ended(state, held)} & held.noted
    return tuple(order for order in held.lease.orders if order.request_id not in over)


def outcome_of(order: RecordOrder, taken: int) -> str:
    """Return in words the outcome of an order if the consumer took out ``taken`` of its records."""
    verb, total = "skipped" if order.is_skip else "parked", len(order.record_ids)
    if taken == total:
        return f"{verb} {_records(taken)}"
    return f"{verb} {taken} of {_records(total)}; the others were passed before this worker read the shard"


def withdrawn_outcome(order: RecordOrder, taken: int) -> str:
    """Return in words the outcome of a withdrawn order if the consumer took out ``taken`` of its records."""
    verb = "skipped" if order.is_skip else "parked"
    if taken == 0:
        return f"withdrawn before this worker {verb} a record"
    of_all = f"{taken} of {_records(len(order.record_ids))}"
    return f"withdrawn after this worker {verb} {of_all}; records after the stored checkpoint may still be delivered"


def _ended(state: WorkerState, held: HeldLease) -> Iterator[tuple[RecordOrder, str]]:
    """Yield the orders that can be removed, or were removed, each with its outcome."""
    yield from held.orders_over.values()
    for order in held.lease.orders:
        if order.request_id in held.orders_over:
            continue
        if held.lease.is_finished and held.consuming is Consuming.NO_CONSUMER:
            yield order, "not obeyed by this worker: the shard is finished"
        elif state.now >= state.moment_of(order.until_micros):
            yield order, "not obeyed: its time was over before the checkpoint was after its records"


def _records(count: int) -> str:
    return "one record" if count == 1 else f"{count} records"
