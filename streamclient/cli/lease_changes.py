"""The actions of ``streamclient leases`` that change leases."""

from __future__ import annotations

import argparse
import os
import shlex
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from attrs import evolve

from streamclient.base import checks
from streamclient.base.times import MICROS_PER_HOUR, MICROS_PER_SECOND, parse_duration
from streamclient.cli.lease_views import HISTORY_ROWS, named_shard, read_audit, shard_shortener
from streamclient.cli.options import operator_name
from streamclient.cli.terminal.commands import EXIT_DONE, EXIT_REFUSED
from streamclient.cli.terminal.output import complain, print_json, print_text
from streamclient.errors import ConfigurationError
from streamclient.model import CheckpointPosition, Lease, Pause, RecordOrder
from streamclient.operate import order_plans, plans
from streamclient.operate.collection import FleetReader
from streamclient.operate.facts import FleetFacts
from streamclient.operate.next_records import PARALLEL_READS
from streamclient.operate.operator_documents import plan_document, report_document
from streamclient.operate.operator_orders import Order, OrderExecutor, OrderReport, OrderStatus
from streamclient.operate.plans import ChangePlan, Planner, Target
from streamclient.operate.site import Site
from streamclient.operate.targets import TargetDirection, TargetReader
from streamclient.records import StreamRecord, readable_position
from streamclient.worker.parking.parked_frames import record_id

Answer = TypeVar("Answer")
Shortener = Callable[[str], str]

LONGEST_RETENTION_HOURS = 168
"""The longest time for which the service keeps records, for a stream that does not tell its own. An order stands for
that time: none of its records can come any more after it."""

GOOD = (OrderStatus.DONE, OrderStatus.UNCHANGED)


def rewind(site: Site, arguments: argparse.Namespace) -> int:
    """Read a shard again from an earlier position."""
    _require_other("--to", arguments.to, refused=("latest", "end"), instead="skip")

    def prepare(facts: FleetFacts) -> Planner:
        lease = _lease(facts, arguments.shard)
        target = _target(site, facts, lease, arguments.to)
        if lease is not None and _direction(site, lease, target) is TargetDirection.FORTH:
            raise ConfigurationError(
                f"{target.text} is after the checkpoint of shard {arguments.shard}: going there skips records; use "
                "`leases skip`"
            )
        return partial(
            plans.plan_rewind, shard_id=arguments.shard, target=target, with_descendants=arguments.with_descendants
        )

    return _run(site, arguments, prepare, wakes_all=True)


def skip(site: Site, arguments: argparse.Namespace) -> int:
    """Go on at a later position, and say how many records that loses; or drop single records."""
    if arguments.to is None:
        return _take_out(site, arguments)
    _require_other("--to", arguments.to, refused=("oldest",), instead="rewind")

    def prepare(facts: FleetFacts) -> Planner:
        lease = _lease(facts, arguments.shard)
        target = _target(site, facts, lease, arguments.to)
        planner = partial(plans.plan_skip, shard_id=arguments.shard, target=target)
        if lease is None or lease.is_finished:
            return planner
        if _direction(site, lease, target) is TargetDirection.BACK:
            raise ConfigurationError(
                f"{target.text} is before the checkpoint of shard {arguments.shard}; use `leases rewind`"
            )
        distance = _reader(site).distance(arguments.shard, lease.checkpoint, target.checkpoint)
        _require_consent(arguments, f"this skips {distance} of shard {arguments.shard}, which are never delivered")
        return _noting(planner, f"{distance} of shard {arguments.shard} are skipped and never delivered")

    return _run(site, arguments, prepare, wakes_all=True)


def park(site: Site, arguments: argparse.Namespace) -> int:
    """Have one record of a shard parked."""
    return _take_out(site, arguments)


def _take_out(site: Site, arguments: argparse.Namespace) -> int:
    """Order records parked or dropped; without ``--yes`` nothing is written."""
    _require_yes(arguments, "give the order")
    checks.optional(checks.positive).require("--records", getattr(arguments, "records", None))
    directory = getattr(arguments, "parking_directory", None)
    change_id, now = uuid.uuid4().hex[:8], site.clock.now_micros()

    def prepare(facts: FleetFacts) -> Planner:
        found = _records_named(site, facts, arguments)
        records, problem = ([], found) if isinstance(found, str) else (found, "")
        kept_hours = facts.stream.expiration_hours or LONGEST_RETENTION_HOURS
        order = RecordOrder(
            request_id=change_id,
            by=operator_name(),
            reason=arguments.reason,
            at_micros=now,
            until_micros=now + kept_hours * MICROS_PER_HOUR,
            record_ids=tuple(map(record_id, records)),
            parking_table=getattr(arguments, "parking_table", None) or "",
            parking_directory="" if directory is None else os.path.abspath(directory),
        )
        planner = partial(order_plans.plan_record_order, shard_id=arguments.shard, order=order, problem=problem)
        return _noting(planner, *map(order_plans.record_note, records))

    return _run(site, arguments, prepare, change_id=change_id)


def withdraw(site: Site, arguments: argparse.Namespace) -> int:
    """Withdraw an order about records; without ``--yes`` nothing is written."""
    _require_yes(arguments, "withdraw the order")
    noted: dict[str, str] = {}

    def prepare(facts: FleetFacts) -> Planner:
        history = read_audit(site, HISTORY_ROWS, arguments.shard)
        noted.update(order_plans.ends_noted(history))
        lease = _lease(facts, arguments.shard)
        order = None if lease is None else order_plans.chosen_order(lease, arguments.order or "")
        return partial(
            order_plans.plan_withdrawal,
            shard_id=arguments.shard,
            order_id=arguments.order or "" if order is None else order.request_id,
            over=order_plans.orders_over(history),
            passed=None if lease is None or order is None else order_plans.records_passed(site.streams, lease, order),
        )

    _, report, short = _execute(site, arguments, prepare)
    if report.change_id:
        ended = order_plans.ends_noted(read_audit(site, HISTORY_ROWS, arguments.shard))
        new = [f"order {each} ended meanwhile: {words}" for each, words in ended.items() if each not in noted]
        report = evolve(report, notes=(*report.notes, *new))  # an order is over from its end on, whatever its row says
    return _show(arguments, report, short)


def _require_yes(arguments: argparse.Namespace, what: str) -> None:
    """Make the command a dry run unless it has ``--yes``, and say so."""
    if not arguments.yes and not arguments.dry_run:
        arguments.dry_run = True
        complain(f"this is a dry run; add --yes to {what}")


def _records_named(site: Site, facts: FleetFacts, arguments: argparse.Namespace) -> Sequence[StreamRecord] | str:
    """Return the records that the command names, or why it names none."""
    lease, halted = _lease(facts, arguments.shard), facts.halted_record(arguments.shard)
    if lease is None or lease.is_finished:
        return "it has no records to take out"
    count = getattr(arguments, "records", None)
    if count is not None:
        if count > order_plans.MOST_RECORDS_ORDERED:
            raise ConfigurationError(
                f"--records {count} is above {order_plans.MOST_RECORDS_ORDERED}, the most in a row"
            )
        return order_plans.next_records(site.streams, lease, count, halted)
    if arguments.record is None and not halted:
        return "its owner does not say that it stopped at one record: name the record with --record ID"
    found = order_plans.named_record(site.streams, lease, arguments.record or halted)
    return found if isinstance(found, str) else [found]


def reset(site: Site, arguments: argparse.Namespace) -> int:
    """Read all shards again from a position."""
    _require_other("--to", arguments.to, refused=("end",), instead="skip")

    def prepare(facts: FleetFacts) -> Planner:
        leases = dict(sorted(facts.leases.items()))
        targets = _for_each(leases, lambda lease: _target(site, facts, lease, arguments.to))
        directions = _for_each(leases, lambda lease: _direction(site, lease, targets[lease.lease_key]))
        forth = [key for key, direction in directions.items() if direction is TargetDirection.FORTH]
        planner = partial(plans.plan_reset, targets=targets)
        if not forth:
            return planner
        reader = _reader(site)
        losses = [
            f"{reader.distance(key, facts.leases[key].checkpoint, targets[key].checkpoint)} of shard {key}"
            for key in forth
        ]
        _require_consent(arguments, f"this skips {', '.join(losses)}, which are never delivered")
        return _noting(planner, f"skipped and never delivered: {', '.join(losses)}")

    return _run(site, arguments, prepare, wakes_all=True)


def accept_end(site: Site, arguments: argparse.Namespace) -> int:
    """Let a shard end although the list of shards does not show its end."""

    def prepare(facts: FleetFacts) -> Planner:
        if not arguments.yes and not arguments.dry_run:
            raise ConfigurationError(
                f"if shard {arguments.shard} is open, records written to it from now on are never delivered; add --yes "
                "if you know that it is closed"
            )
        lease = _lease(facts, arguments.shard)
        ends_here = lease is not None and _reader(site).ends(arguments.shard, lease.checkpoint)
        now = site.clock.now_micros()
        order = Pause(uuid.uuid4().hex[:12], operator_name(), arguments.reason, now, accepts_end=True)
        return partial(plans.plan_accept_end, shard_id=arguments.shard, order=order, ends_here=ends_here)

    return _run(site, arguments, prepare)


def release(site: Site, arguments: argparse.Namespace) -> int:
    """Take a lease from its owner."""

    def prepare(facts: FleetFacts) -> Planner:
        return partial(plans.plan_release, shard_id=arguments.shard, vouched=arguments.force)

    return _run(site, arguments, prepare, wakes_all=True)


def move(site: Site, arguments: argparse.Namespace) -> int:
    """Have a lease handed to a worker."""

    def prepare(facts: FleetFacts) -> Planner:
        return partial(plans.plan_move, shard_id=arguments.shard, receiver=arguments.to)

    return _run(site, arguments, prepare)


def pause(site: Site, arguments: argparse.Namespace) -> int:
    """Hold shards without reading them, and wait until no worker reads them."""
    if not arguments.reason:
        raise ConfigurationError("--reason is needed: it tells other operators why the shard is paused")
    _require_selection(arguments)
    wait_seconds = parse_duration(arguments.wait)
    until = None
    if arguments.lasting is not None:
        until = site.clock.now_micros() + round(parse_duration(arguments.lasting) * MICROS_PER_SECOND)
    order = Pause(uuid.uuid4().hex[:12], operator_name(), arguments.reason, until)

    def prepare(facts: FleetFacts) -> Planner:
        shard_ids = _selected(facts, arguments, lambda lease: not lease.is_finished)
        return partial(plans.plan_pause, shard_ids=shard_ids, pause=order)

    executor, report, short = _execute(site, arguments, prepare)
    if report.status is OrderStatus.DONE and not arguments.no_wait:
        late = executor.await_pauses([change.shard_id for change in report.plan.changes], wait_seconds)
        if late:
            note = f"still read after {arguments.wait}: {', '.join(late)}; `streamclient explain` says why"
            report = evolve(report, status=OrderStatus.GIVEN_UP, notes=(*report.notes, note))
    return _show(arguments, report, short)


def resume(site: Site, arguments: argparse.Namespace) -> int:
    """End pauses."""
    _require_selection(arguments)

    def prepare(facts: FleetFacts) -> Planner:
        shard_ids = _selected(facts, arguments, lambda lease: lease.pause is not None)
        return partial(plans.plan_resume, shard_ids=shard_ids)

    return _run(site, arguments, prepare)


# --- positions -----------------------------------------------------------------------------------------------------


def _require_other(option: str, value: str, *, refused: Sequence[str], instead: str) -> None:
    if value in refused:
        raise ConfigurationError(f"{option} {value} is not for this action; see `leases {instead}`")


def _reader(site: Site) -> TargetReader:
    return TargetReader(site.streams, site.stream_id)


def _target(site: Site, facts: FleetFacts, lease: Lease | None, text: str) -> Target:
    """Return the position that ``text`` names; for a shard without lease, which the plan refuses, return a stand-in."""
    if lease is None:
        return Target(checkpoint=CheckpointPosition.TRIM_HORIZON, text=text)
    return _reader(site).resolve(lease.lease_key, text, facts.now_micros)


def _for_each(leases: Mapping[str, Lease], look: Callable[[Lease], Answer]) -> dict[str, Answer]:
    """Call ``look`` for each lease, several at a time; return the answers by shard."""
    with ThreadPoolExecutor(PARALLEL_READS) as pool:
        return dict(zip(leases, pool.map(look, leases.values()), strict=True))


def _direction(site: Site, lease: Lease, target: Target) -> TargetDirection:
    if target.checkpoint == CheckpointPosition.TRIM_HORIZON:
        return TargetDirection.BACK
    return _reader(site).direction(lease.lease_key, lease.checkpoint, target.checkpoint)


def _lease(facts: FleetFacts, shard_id: str) -> Lease | None:
    return facts.lease(shard_id)


def _require_consent(arguments: argparse.Namespace, loss: str) -> None:
    if not arguments.yes and not arguments.dry_run:
        raise ConfigurationError(f"{loss}; add --yes to accept that")


def _noting(planner: Planner, *notes: str) -> Planner:
    def plan(facts: FleetFacts, still: object) -> ChangePlan:
        return planner(facts, still).with_notes(*notes)  # type: ignore[arg-type]  # passed on unchanged

    return plan


# --- selection -----------------------------------------------------------------------------------------------------


def _require_selection(arguments: argparse.Namespace) -> None:
    given = sum((bool(arguments.shards), arguments.worker is not None, arguments.all))
    if given != 1:
        raise ConfigurationError("name either shards, or --worker WORKER, or --all")


def _selected(facts: FleetFacts, arguments: argparse.Namespace, is_wanted: Callable[[Lease], bool]) -> list[str]:
    """Return the named shards; or, of a worker's shards or of all shards, those for which ``is_wanted`` holds."""
    if arguments.shards:
        return sorted(set(arguments.shards))
    owners = {lease.owner for lease in facts.leases.values()}
    if arguments.worker is not None and arguments.worker not in owners:
        raise ConfigurationError(
            f"worker {arguments.worker!r} owns no lease; owners: {', '.join(sorted(owners - {''}))}"
        )
    return [
        key
        for key, lease in sorted(facts.leases.items())
        if is_wanted(lease) and arguments.worker in (None, lease.owner)
    ]


# --- carrying out --------------------------------------------------------------------------------------------------


def _run(
    site: Site,
    arguments: argparse.Namespace,
    prepare: Callable[[FleetFacts], Planner],
    *,
    wakes_all: bool = False,
    change_id: str | None = None,
) -> int:
    _, report, short = _execute(site, arguments, prepare, wakes_all=wakes_all, change_id=change_id)
    return _show(arguments, report, short)


def _execute(
    site: Site,
    arguments: argparse.Namespace,
    prepare: Callable[[FleetFacts], Planner],
    *,
    wakes_all: bool = False,
    change_id: str | None = None,
) -> tuple[OrderExecutor, OrderReport, Shortener]:
    """Carry the order out; return its report, and a function that shortens ids in a text. Ids in errors are short."""
    limit = getattr(arguments, "pause", None)
    pause_seconds = None if limit is None else parse_duration(limit)
    collector = FleetReader(site)
    facts = collector.collect()
    _complete_ids(facts, arguments)
    short = shard_shortener(facts)
    executor = OrderExecutor(site, collector, operator_name(), say=complain)
    order = Order(
        command=_command(arguments),
        reason=arguments.reason,
        prepare=prepare,
        change_id=change_id or uuid.uuid4().hex[:8],
        wakes_all=wakes_all,
    )
    try:
        report = executor.carry_out(order, dry_run=arguments.dry_run, pause_seconds=pause_seconds)
    except ConfigurationError as error:
        raise ConfigurationError(short(str(error))) from error
    return executor, report, short


def _complete_ids(facts: FleetFacts, arguments: argparse.Namespace) -> None:
    """Replace beginnings of ids in the arguments by the whole ids, before anything is planned or recorded."""
    if getattr(arguments, "shard", None):
        arguments.shard = named_shard(facts, arguments.shard)
    if getattr(arguments, "shards", None):
        arguments.shards = [named_shard(facts, given) for given in arguments.shards]


_VALUES = {
    "to": "--to",
    "record": "--record",
    "records": "--records",
    "order": "--order",
    "parking_table": "--parking-table",
    "parking_directory": "--parking-directory",
    "worker": "--worker",
    "lasting": "--for",
    "pause": "--pause",
}
"""The options with a value that the audit shows."""


def _command(arguments: argparse.Namespace) -> str:
    """Return the command as typed, without the options of the connection, which may hold secrets."""
    words = [arguments.action]
    words += [arguments.shard] if getattr(arguments, "shard", None) else getattr(arguments, "shards", [])
    for name, option in _VALUES.items():
        value = getattr(arguments, name, None)
        words += [] if value is None else [option, str(value)]
    flags = ("all", "with_descendants", "yes", "force")
    words += [f"--{name.replace('_', '-')}" for name in flags if getattr(arguments, name, False)]
    return shlex.join(words)


def _show(arguments: argparse.Namespace, report: OrderReport, short: Shortener) -> int:
    refused = bool(report.plan.refusals)
    if arguments.json:
        print_json(report_document(_command(arguments), report))
    else:
        print_text(*map(short, _lines(report)))
    if report.status is OrderStatus.PLANNED:
        return EXIT_REFUSED if refused else EXIT_DONE
    return EXIT_DONE if report.status in GOOD else EXIT_REFUSED


def _lines(report: OrderReport) -> list[str]:
    is_dry = report.status is OrderStatus.PLANNED
    lines = []
    for entry in plan_document(report.plan, report.outcomes)["changes"]:
        outcome = "would be written" if is_dry else entry["outcome"] or "not written"
        lines.append(f"shard {entry['shard']}: {entry['effect']}: {outcome}")
        if is_dry:
            lines.append(f"  {entry['write']}: {_columns(entry['before'])} -> {_columns(entry['after'])}")
    lines += [f"shard {refusal.shard_id}: refused: {refusal.reason}" for refusal in report.plan.refusals]
    lines += [f"note: {note}" for note in (*report.plan.notes, *report.notes)]
    return [*lines, _summary(report)]


def _columns(columns: dict[str, object]) -> str:
    return ", ".join(f"{name}={_shown(name, value)}" for name, value in columns.items())


def _shown(name: str, value: object) -> str:
    if name == "checkpoint" and isinstance(value, str):
        return readable_position(value)
    if name == "orders" and isinstance(value, list):
        return f"[{', '.join(map(_order_shown, value))}]"
    if name == "pending" and isinstance(value, dict):
        value = {**value, "value": readable_position(value["value"])}
    return repr(value)


def _order_shown(order: Mapping[str, Any]) -> str:
    is_park = order["parking_table"] or order["parking_directory"]
    return f"{'park' if is_park else 'skip'} {len(order['record_ids'])} by {order['by']}"


def _summary(report: OrderReport) -> str:
    change = f" (change {report.change_id})" if report.change_id else ""
    return {
        OrderStatus.PLANNED: "dry run: nothing was written",
        OrderStatus.DONE: f"done{change}",
        OrderStatus.UNCHANGED: "nothing to change",
        OrderStatus.REFUSED: "refused: nothing was written",
        OrderStatus.GIVEN_UP: f"given up{change}",
        OrderStatus.FAILED: f"not everything was written{change}",
    }[report.status]
