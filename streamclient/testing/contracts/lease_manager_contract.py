"""The contract of ``ILeaseManager``: run ``check_lease_manager`` on a lease manager of your own.

Each scenario checks one rule, and workers rely on every rule. A store that breaks a rule lets two workers read one
shard, or loses checkpoints.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any

from attrs import evolve

from streamclient.interfaces import ILeaseManager
from streamclient.model import CheckpointPosition, Lease, PendingCheckpoint
from streamclient.testing.contracts.contract import at_once, expect, named, scenario_named

MakeLeaseManager = Callable[[str], ILeaseManager]
"""A function that makes a manager for the leases of the stream with the given id. The manager's store may be shared
with other streams."""

Scenario = Callable[[ILeaseManager, str], None]

CONTENDERS = 8
"""The number of threads that write the same row at the same time. The number is large enough to make their writes
collide. It is small enough for any connection pool to have a connection for each thread."""

DRAWERS = 3
"""The number of threads that draw an epoch of one shard at the same time. This is more than happens in a fleet, where
at most two workers do so."""

ROUNDS = 12
"""The number of writes that each thread tries in the scenario ``the_counter_counts_accepted_writes``."""

MANY_LEASES = 123
"""The number of leases in scenarios with many leases. A store whose answers have a low limit needs several answers to
list this number."""


def check_lease_manager(make_manager: MakeLeaseManager) -> None:
    """Run every scenario of ``ILeaseManager``, each with a new manager and a new stream id.

    Raises:
        AssertionError: a rule is broken; the message names the scenario, the expected result and the actual one.
    """
    for name in LEASE_MANAGER_SCENARIOS:
        check_lease_manager_scenario(name, make_manager)


def check_lease_manager_scenario(name: str, make_manager: MakeLeaseManager) -> None:
    """Run the scenario ``name`` of ``LEASE_MANAGER_SCENARIOS``, with a new manager and a new stream id."""
    stream_id = f"stream-{uuid.uuid4().hex}"
    manager = make_manager(stream_id)
    manager.create_lease_table_if_not_exists()
    with scenario_named(name):
        expect("the store gets ready", manager.wait_until_lease_table_ready(), True)
        LEASE_MANAGER_SCENARIOS[name](manager, stream_id)


def _new(manager: ILeaseManager, stream_id: str, **fields: Any) -> Lease:
    """Store a lease of worker ``a``, changed by ``fields``, and return this lease."""
    lease = evolve(Lease("shard-1", stream_id, owner="a", counter=7, parent_shard_ids=frozenset({"p"})), **fields)
    expect(f"create of {lease}", manager.create_lease(lease), True)
    return lease


def _creation_is_idempotent(manager: ILeaseManager, stream_id: str) -> None:
    expect("the store exists already", manager.create_lease_table_if_not_exists(), False)


def _a_created_lease_reads_back_equal(manager: ILeaseManager, stream_id: str) -> None:
    fields: dict[str, Any] = {
        "lease_key": "shard-ü",
        "owner": "worker ä:1",
        "stealer": "b",
        "counter": 2**62,
        "checkpoint": "token==",
    }
    lease = _new(manager, stream_id, **fields, parent_shard_ids=frozenset({"p1", "p2"}))
    bare = _new(manager, stream_id, lease_key="bare", owner="", counter=0, parent_shard_ids=frozenset())
    expect("get", manager.get_lease("shard-ü"), lease)
    expect("get of a lease without owner and parents", manager.get_lease("bare"), bare)
    expect("get of an unknown key", manager.get_lease("other"), None)


def _create_leaves_an_existing_row_as_it_is(manager: ILeaseManager, stream_id: str) -> None:
    lease = _new(manager, stream_id, checkpoint="progress")
    expect("second create", manager.create_lease(Lease("shard-1", stream_id)), False)
    expect("row afterwards", manager.get_lease("shard-1"), lease)


def _listing_is_complete_and_ordered(manager: ILeaseManager, stream_id: str) -> None:
    expect("empty store", list(manager.list_leases()), [])
    keys = [f"shard-{number * 37 % MANY_LEASES}" for number in range(MANY_LEASES)]
    stored = [_new(manager, stream_id, lease_key=key, counter=number) for number, key in enumerate(keys)]
    expect("listing", list(manager.list_leases()), sorted(stored, key=lambda lease: lease.lease_key))


def _renewing_moves_only_the_counter(manager: ILeaseManager, stream_id: str) -> None:
    first = lease = _new(manager, stream_id, checkpoint="progress")
    for _ in range(10):
        expect(f"renew of {lease}", manager.renew_lease(lease), True)
        lease = evolve(lease, counter=lease.counter + 1)
        expect("row afterwards", manager.get_lease("shard-1"), lease)
    expect("renew with an old counter", manager.renew_lease(first), False)
    expect("renew with another owner", manager.renew_lease(evolve(lease, owner="b")), False)
    expect("row after refusals", manager.get_lease("shard-1"), lease)


def _a_mark_is_noticed_by_the_next_renewal(manager: ILeaseManager, stream_id: str) -> None:
    lease = _new(manager, stream_id)
    expect("mark", manager.steal_lease(lease, "b"), True)
    expect("renew without knowing of the mark", manager.renew_lease(lease), False)
    marked = evolve(lease, stealer="b")
    expect("renew knowing of the mark", manager.renew_lease(marked), True)
    expect("row afterwards", manager.get_lease("shard-1"), evolve(marked, counter=8))


def _taking_sets_the_owner_and_clears_the_mark(manager: ILeaseManager, stream_id: str) -> None:
    lease = _new(manager, stream_id, stealer="c", checkpoint="progress")
    expect("take with an old counter", manager.take_lease(evolve(lease, counter=6), "b"), False)
    expect("take with another owner", manager.take_lease(evolve(lease, owner="x"), "b"), False)
    expect("row after refusals", manager.get_lease("shard-1"), lease)
    expect("take", manager.take_lease(lease, "b"), True)
    taken = evolve(lease, owner="b", stealer="", counter=8)
    expect("row afterwards", manager.get_lease("shard-1"), taken)
    expect("second take with the row as seen before", manager.take_lease(lease, "c"), False)
    expect("take that restores a checkpoint", manager.take_lease(taken, "b", checkpoint="restored"), True)
    expect("row afterwards", manager.get_lease("shard-1"), evolve(taken, counter=9, checkpoint="restored"))


def _taking_does_not_mind_a_mark_it_has_not_seen(manager: ILeaseManager, stream_id: str) -> None:
    lease = _new(manager, stream_id)
    expect("mark", manager.steal_lease(lease, "b"), True)
    expect("take with the row as seen before the mark", manager.take_lease(lease, "c"), True)
    expect("row afterwards", manager.get_lease("shard-1"), evolve(lease, owner="c", counter=8))


def _marking_changes_nothing_but_the_stealer(manager: ILeaseManager, stream_id: str) -> None:
    lease = _new(manager, stream_id)
    expect("mark with an old counter", manager.steal_lease(evolve(lease, counter=3), "b"), True)
    expect("row afterwards", manager.get_lease("shard-1"), evolve(lease, stealer="b"))
    expect("second mark", manager.steal_lease(lease, "c"), False)
    expect("second mark, with the first mark seen", manager.steal_lease(evolve(lease, stealer="b"), "c"), False)
    expect("take", manager.take_lease(evolve(lease, stealer="b"), "d"), True)
    expect("mark of the former owner's lease", manager.steal_lease(lease, "c"), False)
    expect("mark after the take", manager.steal_lease(evolve(lease, owner="d"), "c"), True)
    expect("row at last", manager.get_lease("shard-1"), evolve(lease, owner="d", stealer="c", counter=8))


def _transferring_names_the_new_owner_twice(manager: ILeaseManager, stream_id: str) -> None:
    lease = _new(manager, stream_id, stealer="b", checkpoint="progress")
    expect("transfer with an old counter", manager.transfer_lease(evolve(lease, counter=6), "b"), False)
    expect("transfer with another owner", manager.transfer_lease(evolve(lease, owner="x"), "b"), False)
    expect("transfer", manager.transfer_lease(lease, "b"), True)
    handed_over = evolve(lease, owner="b", stealer="b", counter=8)
    expect("row afterwards", manager.get_lease("shard-1"), handed_over)
    expect("second transfer", manager.transfer_lease(lease, "b"), False)
    expect("renewal by the former owner", manager.renew_lease(lease), False)
    expect("take by the new owner", manager.take_lease(handed_over, "b"), True)
    unmarked = evolve(lease, owner="b", stealer="", counter=9)
    expect("transfer without a mark", manager.transfer_lease(unmarked, "c"), True)
    expect("row at last", manager.get_lease("shard-1"), evolve(unmarked, owner="c", stealer="c", counter=10))


def _a_checkpoint_counts_as_a_heartbeat(manager: ILeaseManager, stream_id: str) -> None:
    lease = _new(manager, stream_id)
    expect("mark", manager.steal_lease(lease, "b"), True)
    expect("checkpoint of a marked lease", manager.update_lease(lease, "progress"), True)
    stored = evolve(lease, stealer="b", counter=8, checkpoint="progress")
    expect("row afterwards", manager.get_lease("shard-1"), stored)
    expect("checkpoint with an old counter", manager.update_lease(lease, "older"), False)
    expect("checkpoint with another owner", manager.update_lease(evolve(stored, owner="b"), "other"), False)
    expect("row after refusals", manager.get_lease("shard-1"), stored)
    expect("end of the shard", manager.update_lease(stored, CheckpointPosition.SHARD_END), True)


def _a_pending_checkpoint_stands_beside_the_stored_one(manager: ILeaseManager, stream_id: str) -> None:
    """Check that a pending checkpoint leaves the stored checkpoint alone, if the manager stores pending ones."""
    if type(manager).prepare_lease is ILeaseManager.prepare_lease:
        return
    pending = PendingCheckpoint("next", b"\x00transaction 7", records=12, epoch=3)
    lease = _new(manager, stream_id, checkpoint="progress")
    expect("prepare with an old counter", manager.prepare_lease(evolve(lease, counter=6), pending), False)
    expect("prepare with another owner", manager.prepare_lease(evolve(lease, owner="b"), pending), False)
    expect("row after refusals", manager.get_lease("shard-1"), lease)
    expect("prepare", manager.prepare_lease(lease, pending), True)
    prepared = evolve(lease, counter=8, pending=pending)
    expect("row afterwards", manager.get_lease("shard-1"), prepared)
    expect("take by another worker", manager.take_lease(prepared, "b"), True)
    taken = evolve(prepared, owner="b", counter=9)
    expect("row afterwards", manager.get_lease("shard-1"), taken)
    again = PendingCheckpoint("next", b"", records=12, epoch=4)
    expect("prepare of the same position", manager.prepare_lease(taken, again), True)
    prepared = evolve(taken, counter=10, pending=again)
    expect("checkpoint at the stored position", manager.update_lease(prepared, "progress"), True)
    kept = evolve(prepared, counter=11)
    expect("row afterwards", manager.get_lease("shard-1"), kept)
    expect("checkpoint", manager.update_lease(kept, "next"), True)
    expect("row at last", manager.get_lease("shard-1"), evolve(lease, owner="b", counter=12, checkpoint="next"))


def _epochs_grow_with_each_acquisition(manager: ILeaseManager, stream_id: str) -> None:
    lease = _new(manager, stream_id, owner="", counter=0)
    epochs = []
    for owner in ("a", "b", "a"):
        expect(f"take by {owner}", manager.take_lease(lease, owner), True)
        lease = evolve(lease, owner=owner, counter=lease.counter + 1)
        epochs.append(manager.draw_epoch("shard-1"))
    expect("order of the epochs", epochs, sorted(set(epochs)))
    expect("the first epoch is above 0", epochs[0] > 0, True)
    if type(manager).draw_epoch is ILeaseManager.draw_epoch:
        return  # the default of ILeaseManager returns the row's counter, and the next checks would fail
    expect("delete", manager.delete_lease(lease), True)
    _new(manager, stream_id, owner="", counter=0)
    expect("an epoch of a row put anew is above all epochs before", manager.draw_epoch("shard-1") > epochs[-1], True)
    drawn = at_once([f"worker-{number}" for number in range(DRAWERS)], lambda name: manager.draw_epoch("shard-1"))
    expect("epochs drawn at once differ", len(set(drawn)), DRAWERS)


def _deleting_needs_the_row_as_seen(manager: ILeaseManager, stream_id: str) -> None:
    lease = _new(manager, stream_id)
    expect("delete with an old counter", manager.delete_lease(evolve(lease, counter=6)), False)
    expect("delete with another owner", manager.delete_lease(evolve(lease, owner="")), False)
    expect("row after refusals", manager.get_lease("shard-1"), lease)
    expect("delete", manager.delete_lease(lease), True)
    expect("row afterwards", manager.get_lease("shard-1"), None)
    expect("delete of an absent row", manager.delete_lease(lease), True)
    expect("create after delete", manager.create_lease(lease), True)


def _an_absent_row_fails_every_condition(manager: ILeaseManager, stream_id: str) -> None:
    lease = Lease("shard-1", stream_id, owner="a", counter=7)
    expect("renew", manager.renew_lease(lease), False)
    expect("take", manager.take_lease(lease, "b"), False)
    expect("take with a checkpoint", manager.take_lease(lease, "b", checkpoint="progress"), False)
    expect("steal", manager.steal_lease(lease, "b"), False)
    expect("transfer", manager.transfer_lease(lease, "b"), False)
    expect("checkpoint", manager.update_lease(lease, "progress"), False)
    expect("no row appeared", list(manager.list_leases()), [])


def _renewals_of_many_are_answered_one_by_one(manager: ILeaseManager, stream_id: str) -> None:
    keys = [f"shard-{number:03}" for number in range(MANY_LEASES)]
    leases = [_new(manager, stream_id, lease_key=key) for key in keys]
    expect("no renewals", list(manager.renew_leases([])), [])
    expect("mark", manager.steal_lease(leases[1], "b"), True)
    expect("take", manager.take_lease(leases[2], "b"), True)
    expect("delete", manager.delete_lease(leases[3]), True)
    answers = list(manager.renew_leases(leases))
    expect("answers", answers, [True, False, False, False] + [True] * (MANY_LEASES - 4))
    renewed = {lease.lease_key: lease.counter for lease in manager.list_leases()}
    expect("counter of a renewed lease", renewed[keys[0]], 8)
    expect("counter of the marked lease", renewed[keys[1]], 7)
    expect("rows", set(renewed), set(keys) - {keys[3]})


def _of_rival_writes_exactly_one_wins(manager: ILeaseManager, stream_id: str) -> None:
    lease = Lease("shard-1", stream_id, owner="a")
    names = [f"worker-{number}" for number in range(CONTENDERS)]
    created = at_once(names, lambda name: manager.create_lease(evolve(lease, owner=name)))
    expect("winners of create", created.count(True), 1)
    creator = manager.get_lease("shard-1")
    expect("the winner's row is stored", creator, evolve(lease, owner=names[created.index(True)]))
    assert creator is not None
    taken = at_once(names, lambda name: manager.take_lease(creator, name))
    expect("winners of take", taken.count(True), 1)
    taker = manager.get_lease("shard-1")
    expect("the winner owns the lease", taker, evolve(creator, owner=names[taken.index(True)], counter=1))
    assert taker is not None
    rivals = [f"rival-{number}" for number in range(CONTENDERS)]
    marked = at_once(rivals, lambda name: manager.steal_lease(taker, name))
    expect("winners of steal", marked.count(True), 1)
    expect("the winner's mark", manager.get_lease("shard-1"), evolve(taker, stealer=rivals[marked.index(True)]))


def _the_counter_counts_accepted_writes(manager: ILeaseManager, stream_id: str) -> None:
    """Let threads checkpoint, renew and take one lease at the same time.

    The counter must count each accepted write once, and no refused write.
    """
    _new(manager, stream_id, counter=0)

    def work(name: str) -> tuple[int, int]:
        accepted = checkpoints = 0
        for turn in range(ROUNDS):
            seen = manager.get_lease("shard-1")
            assert seen is not None
            if turn % 3 == 0:
                accepted += manager.take_lease(seen, name)
            elif turn % 3 == 1:
                accepted += manager.renew_lease(seen)
            elif manager.update_lease(seen, f"{name}-{turn}"):
                accepted, checkpoints = accepted + 1, checkpoints + 1
        return accepted, checkpoints

    counts = at_once([f"worker-{number}" for number in range(CONTENDERS)], work)
    row = manager.get_lease("shard-1")
    assert row is not None
    expect("counter", row.counter, sum(accepted for accepted, _ in counts))
    checkpointed = sum(checkpoints for _, checkpoints in counts) > 0
    expect("a checkpoint was stored", row.checkpoint != CheckpointPosition.TRIM_HORIZON, checkpointed)


LEASE_MANAGER_SCENARIOS: Mapping[str, Scenario] = named(
    _creation_is_idempotent,
    _a_created_lease_reads_back_equal,
    _create_leaves_an_existing_row_as_it_is,
    _listing_is_complete_and_ordered,
    _renewing_moves_only_the_counter,
    _a_mark_is_noticed_by_the_next_renewal,
    _taking_sets_the_owner_and_clears_the_mark,
    _taking_does_not_mind_a_mark_it_has_not_seen,
    _marking_changes_nothing_but_the_stealer,
    _transferring_names_the_new_owner_twice,
    _a_checkpoint_counts_as_a_heartbeat,
    _a_pending_checkpoint_stands_beside_the_stored_one,
    _epochs_grow_with_each_acquisition,
    _deleting_needs_the_row_as_seen,
    _an_absent_row_fails_every_condition,
    _renewals_of_many_are_answered_one_by_one,
    _of_rival_writes_exactly_one_wins,
    _the_counter_counts_accepted_writes,
)
"""The scenarios by name. Each name states the rule that its scenario checks."""
