"""The orders about leases that commands and the console give: functions that make an ``Order`` from typed arguments.

``OrderExecutor`` plans an order, carries it out, and writes the audit.
"""

from __future__ import annotations

import os
import shlex
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from attrs import frozen

from streamclient.base.times import (
    MICROS_PER_HOUR,
    MICROS_PER_SECOND,
    SECONDS_PER_DAY,
    duration,
    parse_duration,
    require_moment,
)
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
"""The longest retention of any stream, in hours. An order about records is valid for the retention of its stream, or
for this time if the retention is unknown. After that, the stream no longer has the records."""

LONGEST_WAIT_SECONDS = SECONDS_PER_DAY
"""The longest time, in seconds, for which an order waits until owners have paused. Owners pause at the end of a batch,
so a longer time probably has a wrong unit. In a console, an order that waits keeps one of a few threads."""

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
"""The options that take a value and that the audit shows; the audit shows them in this order. Options of the connection
are left out, because they may hold secrets."""

FLAGS = ("--all", "--with-descendants", "--yes", "--force")
"""The options that take no value and that the audit shows. They come after ``OPTIONS`` in the shown command."""


def command_text(action: str, shards: Sequence[str], options: Mapping[str, object | None]) -> str:
    """Return the text that an operator types after ``streamclient leases``, for the audit and for copying.

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
    """Return the command line that gives an order, for copying. Only the options of the connection are missing."""
    reason = f" --reason {shlex.quote(order.reason)}" if order.reason else ""
    return f"streamclient leases {order.command}{reason}"


def new_change_id() -> str:
    """Return a new id, which the audit rows of one command will share."""
    return uuid.uuid4().hex[:8]


@frozen(kw_only=True)
class LeaseSelection:
    """The shards of an order: named shards, all shards of a worker, or all shards.

    Raises:
        ConfigurationError: not exactly one of ``shards``, ``worker`` and ``every`` is given.
    """

    shards: tuple[str, ...] = ()
    """The full ids of the named shards; empty if ``worker`` or ``every`` chooses the shards."""
    worker: str | None = None
    every: bool = False

    def __attrs_post_init__(self) -> None:
        if sum((bool(self.shards), self.worker is not None, self.every)) != 1:
            raise ConfigurationError("name either shards, or --worker WORKER, or --all")

    @property
    def options(self) -> Mapping[str, object | None]:
        """The selection in the form of the options ``--worker`` and ``--all``."""
        return {"--worker": self.worker, "--all": self.every}

    def selected(self, facts: FleetFacts, is_wanted: Callable[[Lease], bool]) -> list[str]:
        """Return the ids of the selected shards.

        If no shard is named, return those shards of the worker, or of the whole fleet, whose lease satisfies
        ``is_wanted``.

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
    """Check the reason of a pause, and its duration ``lasting`` as typed.

    Raises:
        ConfigurationError: the reason is empty, or ``lasting`` is not a duration.
    """
    if not reason:
        raise ConfigurationError("--reason is needed: it tells other operators why the shard is paused")
    if lasting is not None:
        parse_duration(lasting)


def waiting_seconds(text: str) -> float:
    """Return the seconds of a duration as typed, for which an order waits until owners have paused.

    Raises:
        ConfigurationError: the text is not a duration, or is longer than ``LONGEST_WAIT_SECONDS``.
    """
    seconds = parse_duration(text)
    if seconds > LONGEST_WAIT_SECONDS:
        raise ConfigurationError(f"an order waits for owners for at most {duration(LONGEST_WAIT_SECONDS)}, not {text}")
    return seconds


def pause_order(site: Site, selection: LeaseSelection, *, by: str, reason: str, lasting: str | None = None) -> Order:
    """Return the order to pause shards: their owners keep the leases, but do not read.

    Args:
        site: the fleet. The pause ends by the clock of its service.
        selection: the shards. If ``selection`` names no shards, only unfinished shards are paused.
        by: the operator, whom the lease row names.
        reason: the reason, which other operators read.
        lasting: a duration as typed, ``15m`` for example; ``None`` to pause until an operator resumes.

    Raises:
        ConfigurationError: the reason is empty, ``lasting`` is not a duration, or the pause would end after the year
            9999.
    """
    require_pause(reason, lasting)
    until = None
    if lasting is not None:
        end = site.clock.now_micros() + round(parse_duration(lasting) * MICROS_PER_SECOND)
        until = require_moment(f"the end of a pause of {lasting}", end)
    pause = Pause(uuid.uuid4().hex[:12], by, reason, until)

    def prepare(facts: FleetFacts) -> Planner:
        shard_ids = selection.selected(facts, lambda lease: not lease.is_finished)
        return partial(plans.plan_pause, shard_ids=shard_ids, pause=pause)

    command = command_text("pause", selection.shards, {**selection.options, "--for": lasting})
    return Order(command=command, reason=reason, prepare=prepare, change_id=new_change_id())


def resume_order(selection: LeaseSelection, *, reason: str = "") -> Order:
    """Return the order to end pauses. If ``selection`` names no shards, the order concerns only paused shards."""

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
        vouched: whether the operator confirms that the owner's process is gone; see ``plan_release``.
        pause: the longest time, as typed, to wait until a running owner has paused; ``None`` to refuse the order if the
            owner runs. This function uses ``pause`` only for the audit. The caller also passes it to
            ``OrderExecutor.carry_out``, in seconds.
        reason: the reason, for the audit.
    """

    def prepare(facts: FleetFacts) -> Planner:
        return partial(plans.plan_release, shard_id=shard_id, vouched=vouched)

    command = command_text("release", [shard_id], {"--pause": pause, "--force": vouched})
    return Order(command=command, reason=reason, prepare=prepare, change_id=new_change_id(), wakes_all=True)


# --- records -------------------------------------------------------------------------------------------------------


@frozen(kw_only=True)
class RecordChoice:
    """The records that an order takes out of a shard, and the store that parks them.

    Raises:
        ConfigurationError: ``count`` is larger than the number of records that an order can name.
    """

    shard_id: str
    record: str | None = None
    """The id of one record. If neither ``record`` nor ``count`` is given, the order takes out the record at which the
    shard stopped."""
    count: int | None = None
    """The number of next records to take out. If it is given, ``record`` is not used."""
    parking_table: str | None = None
    parking_directory: str | None = None
    """The directory of the store. Without table and directory, the records are dropped."""

    def __attrs_post_init__(self) -> None:
        if self.count is not None and self.count > order_plans.MOST_RECORDS_ORDERED:
            raise ConfigurationError(
                f"--records {self.count} is above {order_plans.MOST_RECORDS_ORDERED}, the most that a lease row names"
            )

    @property
    def is_skip(self) -> bool:
        """Whether the records are dropped instead of parked."""
        return self.parking_table is None and self.parking_directory is None


def park_order(site: Site, choice: RecordChoice, *, by: str, reason: str = "", yes: bool = True) -> Order:
    """Return the order to take records out of a shard: to park them, or with ``choice.is_skip`` to drop them.

    Args:
        site: the fleet; the records are looked up in its stream.
        choice: the records, and the store for them.
        by: the operator, whom the lease row names.
        reason: the reason, for the lease row and the audit.
        yes: whether the audit shows ``--yes``. A command without ``--yes`` is a dry run.
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
    """Return the records that ``choice`` names, or the reason why it names no record."""
    lease, halted = facts.lease(choice.shard_id), facts.halted_record(choice.shard_id)
    if lease is None or lease.is_finished:
        return "it has no records to take out"
    if choice.count is not None:
        return order_plans.next_records(site.streams, lease, choice.count, halted)
    if choice.record is None and not halted:
        return "its owner names no record at which the shard stopped: name the record with --record ID"
    found = order_plans.named_record(site.streams, lease, choice.record or halted)
    return found if isinstance(found, str) else [found]


def noting(planner: Planner, *notes: str) -> Planner:
    """Return ``planner`` with ``notes`` added to each of its plans."""

    def plan(facts: FleetFacts, still: Collection[str]) -> ChangePlan:
        return planner(facts, still).with_notes(*notes)

    return plan
