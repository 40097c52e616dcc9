"""The orders about leases that commands and the console give: typed arguments in, an ``Order`` out.

A command and the console give the same order: ``OrderExecutor`` plans the order, carries it out, and writes the audit.
"""

from __future__ import annotations

import os
import shlex
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from attrs import frozen

from streamclient.base.times import MICROS_PER_HOUR, MICROS_PER_SECOND, parse_duration
from streamclient.errors import ConfigurationError
from streamclient.model import Lease, Pause, RecordOrder
from streamclient.operate import order_plans, plans
from streamclient.operate.facts import FleetFacts
from streamclient.operate.operator_orders import Order
from streamclient.operate.plans import ChangePlan, Planner
from streamclient.operate.site import Site
from streamclient.records import StreamRecord
from streamclient.worker.parking.parked_frames import record_id

LONGEST_RETENTION_HOURS = 168
"""The longest time for which the service keeps records. If a stream does not tell its own retention, an order stands
for this time; after it, none of the order's records can come any more."""

OPTIONS = (
    "--to",
    "--record",
    "--records",
    "--order",
    "--parking-table",
    "--parking-directory",
    "--worker",
    "--for",
    "--pause",
)
"""The options with a value that the audit shows, in the order in which it shows them. Options of the connection, which
may hold secrets, are not among them."""

FLAGS = ("--all", "--with-descendants", "--yes", "--force")
"""The options without a value that the audit shows. They come after ``OPTIONS`` in the shown command."""


def command_text(action: str, shards: Sequence[str], options: Mapping[str, object | None]) -> str:
    """Return a command as an operator types it after ``streamclient leases``, for the audit and for copying.

    Args:
        action: the name of the action.
        shards: the ids of the shards that the command names.
        options: the values of ``OPTIONS`` and ``FLAGS``; ``None`` or ``False`` for an option that is not given. Other
            options are left out.
    """
    words = [action, *shards]
    for option in OPTIONS:
        value = options.get(option)
        words += [] if value is None else [option, str(value)]
    words += [flag for flag in FLAGS if options.get(flag)]
    return shlex.join(words)


def typed_command(order: Order) -> str:
    """Return the command line that gives an order, for copying. It lacks only the options of the connection."""
    reason = f" --reason {shlex.quote(order.reason)}" if order.reason else ""
    return f"streamclient leases {order.command}{reason}"


def new_change_id() -> str:
    """Return an id for the audit rows of one command."""
    return uuid.uuid4().hex[:8]


@frozen(kw_only=True)
class LeaseSelection:
    """The shards of an order: named ones, all of a worker, or all.

    Raises:
        ConfigurationError: none of the three is given, or more than one.
    """

    shards: tuple[str, ...] = ()
    """Whole ids."""
    worker: str | None = None
    every: bool = False

    def __attrs_post_init__(self) -> None:
        if sum((bool(self.shards), self.worker is not None, self.every)) != 1:
            raise ConfigurationError("name either shards, or --worker WORKER, or --all")

    @property
    def options(self) -> Mapping[str, object | None]:
        """The selection as options of a command."""
        return {"--worker": self.worker, "--all": self.every}

    def selected(self, facts: FleetFacts, is_wanted: Callable[[Lease], bool]) -> list[str]:
        """Return the named shards. Without names, return the worker's or all shards for which ``is_wanted`` holds.

        Raises:
            ConfigurationError: the worker owns no lease.
        """
        if self.shards:
            return sorted(set(self.shards))
        owners = {lease.owner for lease in facts.leases.values()}
        if self.worker is not None and self.worker not in owners:
            raise ConfigurationError(
                f"worker {self.worker!r} owns no lease; owners: {', '.join(sorted(owners - {''}))}"
            )
        return [
            key
            for key, lease in sorted(facts.leases.items())
            if is_wanted(lease) and self.worker in (None, lease.owner)
        ]


# --- pauses --------------------------------------------------------------------------------------------------------


def require_pause(reason: str, lasting: str | None) -> None:
    """Check the reason of a pause, and its duration as typed.

    Raises:
        ConfigurationError: the reason is empty, or the duration is not one.
    """
    if not reason:
        raise ConfigurationError("--reason is needed: it tells other operators why the shard is paused")
    if lasting is not None:
        parse_duration(lasting)


def pause_order(site: Site, selection: LeaseSelection, *, by: str, reason: str, lasting: str | None = None) -> Order:
    """Return the order to hold shards without reading them.

    Args:
        site: the fleet, by whose clock the pause ends.
        selection: the shards; of a worker's or of all shards, the unfinished ones.
        by: the operator, whom the row names.
        reason: the reason, which other operators read.
        lasting: a duration as typed, ``15m`` for example; ``None`` to pause until an operator resumes.

    Raises:
        ConfigurationError: the reason is empty, or the duration is not one.
    """
    require_pause(reason, lasting)
    until = None
    if lasting is not None:
        until = site.clock.now_micros() + round(parse_duration(lasting) * MICROS_PER_SECOND)
    pause = Pause(uuid.uuid4().hex[:12], by, reason, until)

    def prepare(facts: FleetFacts) -> Planner:
        shard_ids = selection.selected(facts, lambda lease: not lease.is_finished)
        return partial(plans.plan_pause, shard_ids=shard_ids, pause=pause)

    command = command_text("pause", selection.shards, {**selection.options, "--for": lasting})
    return Order(command=command, reason=reason, prepare=prepare, change_id=new_change_id())


def resume_order(selection: LeaseSelection, *, reason: str = "") -> Order:
    """Return the order to end pauses. If the selection is a worker's or all shards, it means those that are paused."""

    def prepare(facts: FleetFacts) -> Planner:
        shard_ids = selection.selected(facts, lambda lease: lease.pause is not None)
        return partial(plans.plan_resume, shard_ids=shard_ids)

    command = command_text("resume", selection.shards, selection.options)
    return Order(command=command, reason=reason, prepare=prepare, change_id=new_change_id())


# --- owners --------------------------------------------------------------------------------------------------------


def move_order(shard_id: str, receiver: str, *, reason: str = "") -> Order:
    """Return the order to hand a lease to the worker ``receiver``."""

    def prepare(facts: FleetFacts) -> Planner:
        return partial(plans.plan_move, shard_id=shard_id, receiver=receiver)

    command = command_text("move", [shard_id], {"--to": receiver})
    return Order(command=command, reason=reason, prepare=prepare, change_id=new_change_id())


def release_order(shard_id: str, *, vouched: bool = False, pause: str | None = None, reason: str = "") -> Order:
    """Return the order to take a lease from its owner.

    Args:
        shard_id: the shard.
        vouched: the operator confirms that the owner's process is gone; see ``plan_release``.
        pause: the longest time to wait for a running owner's pause, as typed, for the audit. The caller gives it to
            ``OrderExecutor.carry_out`` in seconds; ``None`` if a running owner is not paused.
        reason: the reason, for the audit.
    """

    def prepare(facts: FleetFacts) -> Planner:
        return partial(plans.plan_release, shard_id=shard_id, vouched=vouched)

    command = command_text("release", [shard_id], {"--pause": pause, "--force": vouched})
    return Order(command=command, reason=reason, prepare=prepare, change_id=new_change_id(), wakes_all=True)


# --- records -------------------------------------------------------------------------------------------------------


@frozen(kw_only=True)
class RecordChoice:
    """The records of a shard that an order takes out, and where they go.

    Raises:
        ConfigurationError: ``count`` is not a number of records that an order can name.
    """

    shard_id: str
    record: str | None = None
    """The id of one record. Without it and without ``count``, the record is the one at which the shard stopped."""
    count: int | None = None
    """The number of records that follow, in place of ``record``."""
    parking_table: str | None = None
    parking_directory: str | None = None
    """The directory of the store. Without table and directory the records are dropped."""

    def __attrs_post_init__(self) -> None:
        if self.count is not None and self.count > order_plans.MOST_RECORDS_ORDERED:
            raise ConfigurationError(
                f"--records {self.count} is above {order_plans.MOST_RECORDS_ORDERED}, the most in a row"
            )

    @property
    def is_skip(self) -> bool:
        """Whether the records are dropped."""
        return self.parking_table is None and self.parking_directory is None


def park_order(site: Site, choice: RecordChoice, *, by: str, reason: str = "", yes: bool = True) -> Order:
    """Return the order to take records out of a shard: to park them, or with ``choice.is_skip`` to drop them.

    Args:
        site: the fleet; the records are looked up in its stream.
        choice: the records.
        by: the operator, whom the row names.
        reason: the reason, for the row and the audit.
        yes: whether the audit shows ``--yes``, without which the command is a dry run.
    """
    directory = choice.parking_directory
    change_id, now = new_change_id(), site.clock.now_micros()

    def prepare(facts: FleetFacts) -> Planner:
        found = _records_named(site, facts, choice)
        records, problem = ([], found) if isinstance(found, str) else (found, "")
        kept_hours = facts.stream.expiration_hours or LONGEST_RETENTION_HOURS
        order = RecordOrder(
            request_id=change_id,
            by=by,
            reason=reason,
            at_micros=now,
            until_micros=now + kept_hours * MICROS_PER_HOUR,
            record_ids=tuple(map(record_id, records)),
            parking_table=choice.parking_table or "",
            parking_directory="" if directory is None else os.path.abspath(directory),
        )
        planner = partial(order_plans.plan_record_order, shard_id=choice.shard_id, order=order, problem=problem)
        return noting(planner, *map(order_plans.record_note, records))

    options = {
        "--record": choice.record,
        "--records": choice.count,
        "--parking-table": choice.parking_table,
        "--parking-directory": directory,
        "--yes": yes,
    }
    command = command_text("skip" if choice.is_skip else "park", [choice.shard_id], options)
    return Order(command=command, reason=reason, prepare=prepare, change_id=change_id)


def _records_named(site: Site, facts: FleetFacts, choice: RecordChoice) -> Sequence[StreamRecord] | str:
    """Return the records that the order names, or why it names none."""
    lease, halted = facts.lease(choice.shard_id), facts.halted_record(choice.shard_id)
    if lease is None or lease.is_finished:
        return "it has no records to take out"
    if choice.count is not None:
        return order_plans.next_records(site.streams, lease, choice.count, halted)
    if choice.record is None and not halted:
        return "its owner does not say that it stopped at one record: name the record with --record ID"
    found = order_plans.named_record(site.streams, lease, choice.record or halted)
    return found if isinstance(found, str) else [found]


def noting(planner: Planner, *notes: str) -> Planner:
    """Return the planner whose plans have further notes."""

    def plan(facts: FleetFacts, still: Collection[str]) -> ChangePlan:
        return planner(facts, still).with_notes(*notes)

    return plan
