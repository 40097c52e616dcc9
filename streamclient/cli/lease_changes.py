"""The actions of ``streamclient leases`` that change leases. Each returns the exit code of the command."""

from __future__ import annotations

import argparse
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from attrs import evolve, frozen

from streamclient.base import checks
from streamclient.cli.lease_views import HISTORY_ROWS, named_shard, shard_shortener
from streamclient.cli.options import operator_name
from streamclient.cli.terminal.commands import EXIT_DONE, EXIT_REFUSED
from streamclient.cli.terminal.output import complain, print_json, print_text
from streamclient.errors import ConfigurationError
from streamclient.model import CheckpointPosition, Lease, Pause
from streamclient.operate import lease_orders, order_plans, plans
from streamclient.operate.audit import read_audit
from streamclient.operate.collection import FleetReader
from streamclient.operate.facts import FleetFacts
from streamclient.operate.lease_orders import (
    FLAGS,
    OPTIONS,
    LeaseSelection,
    command_text,
    new_change_id,
    noting,
)
from streamclient.operate.next_records import PARALLEL_READS
from streamclient.operate.operator_documents import plan_document, report_document
from streamclient.operate.operator_orders import Order, OrderExecutor, OrderReport, OrderStatus
from streamclient.operate.plans import Planner, Target
from streamclient.operate.site import Site
from streamclient.operate.targets import TargetDirection, TargetReader
from streamclient.records import readable_position

Answer = TypeVar("Answer")

GOOD = (OrderStatus.DONE, OrderStatus.UNCHANGED)


def rewind(site: Site, arguments: argparse.Namespace) -> int:
    """Set the checkpoint of a shard back to an earlier position, so that records are read again."""
    _require_other("--to", arguments.to, refused=("latest", "end"), instead="skip")

    def prepare(facts: FleetFacts) -> Planner:
        lease = _lease(facts, arguments.shard)
        target = _target(site, facts, lease, arguments.to)
        if lease is not None and _skips(site, lease, target):
            raise ConfigurationError(
                f"{target.text} is after the checkpoint of shard {arguments.shard}: going there skips records; use "
                "`leases skip`"
            )
        return partial(
            plans.plan_rewind, shard_id=arguments.shard, target=target, with_descendants=arguments.with_descendants
        )

    return _run(site, arguments, _order(arguments, prepare, wakes_all=True))


def skip(site: Site, arguments: argparse.Namespace) -> int:
    """Move the checkpoint of a shard forward, or drop single records. The skipped records are lost."""
    if arguments.to is None:
        return _take_out(site, arguments)
    _require_other("--to", arguments.to, refused=("oldest",), instead="rewind")

    def prepare(facts: FleetFacts) -> Planner:
        lease = _lease(facts, arguments.shard)
        target = _target(site, facts, lease, arguments.to)
        planner = partial(plans.plan_skip, shard_id=arguments.shard, target=target)
        if lease is None or lease.is_finished or lease.checkpoint == target.checkpoint:
            return planner
        if _reader(site).direction(lease.lease_key, lease.checkpoint, target.checkpoint) is TargetDirection.BACK:
            raise ConfigurationError(
                f"{target.text} is before the checkpoint of shard {arguments.shard}; use `leases rewind`"
            )
        distance = _reader(site).distance(arguments.shard, lease.checkpoint, target.checkpoint)
        _require_consent(arguments, f"this skips {distance} of shard {arguments.shard}, which are never delivered")
        return noting(planner, f"{distance} of shard {arguments.shard} are skipped and never delivered")

    return _run(site, arguments, _order(arguments, prepare, wakes_all=True))


def park(site: Site, arguments: argparse.Namespace) -> int:
    """Order the owner of a shard's lease to park one record of the shard, by an order in the lease."""
    return _take_out(site, arguments)


def _take_out(site: Site, arguments: argparse.Namespace) -> int:
    """Add an order to park or drop records of a shard. Without ``--yes`` the command is a dry run."""
    _require_yes(arguments, "give the order")
    count = getattr(arguments, "records", None)
    checks.optional(checks.positive).require("--records", count)

    def order() -> Order:
        choice = lease_orders.RecordChoice(
            shard_id=arguments.shard,
            record=arguments.record,
            count=count,
            parking_table=getattr(arguments, "parking_table", None),
            parking_directory=getattr(arguments, "parking_directory", None),
        )
        return lease_orders.park_order(site, choice, by=operator_name(), reason=arguments.reason, yes=arguments.yes)

    return _run(site, arguments, order)


def withdraw(site: Site, arguments: argparse.Namespace) -> int:
    """Withdraw an order to park or drop records. Without ``--yes`` the command is a dry run."""
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

    done = _execute(site, arguments, _order(arguments, prepare))
    if done.report.change_id:
        ended = order_plans.ends_noted(read_audit(site, HISTORY_ROWS, arguments.shard))
        new = [f"order {each} ended meanwhile: {words}" for each, words in ended.items() if each not in noted]
        done = done.noting(*new)  # an order that ended meanwhile needs no withdrawal
    return _show(arguments, done)


def _require_yes(arguments: argparse.Namespace, what: str) -> None:
    """Make the command a dry run, and say so to the user, if neither ``--yes`` nor ``--dry-run`` is given.

    ``what`` names the action for which the user must add ``--yes``.
    """
    if not arguments.yes and not arguments.dry_run:
        arguments.dry_run = True
        complain(f"this is a dry run; add --yes to {what}")


def reset(site: Site, arguments: argparse.Namespace) -> int:
    """Set the checkpoints of all shards to one position."""
    _require_other("--to", arguments.to, refused=("end",), instead="skip")

    def prepare(facts: FleetFacts) -> Planner:
        leases = dict(sorted(facts.leases.items()))
        targets = _for_each(leases, lambda lease: _target(site, facts, lease, arguments.to))
        skips = _for_each(leases, lambda lease: _skips(site, lease, targets[lease.lease_key]))
        forth = [key for key, is_skip in skips.items() if is_skip]
        planner = partial(plans.plan_reset, targets=targets)
        if not forth:
            return planner
        reader = _reader(site)
        losses = [
            f"{reader.distance(key, facts.leases[key].checkpoint, targets[key].checkpoint)} of shard {key}"
            for key in forth
        ]
        _require_consent(arguments, f"this skips {', '.join(losses)}, which are never delivered")
        return noting(planner, f"skipped and never delivered: {', '.join(losses)}")

    return _run(site, arguments, _order(arguments, prepare, wakes_all=True))


def accept_end(site: Site, arguments: argparse.Namespace) -> int:
    """Accept the end of a shard although the list of shards does not show the end."""

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

    return _run(site, arguments, _order(arguments, prepare))


def release(site: Site, arguments: argparse.Namespace) -> int:
    """Release a lease: take it from its owner, so that any worker may take it."""
    return _run(
        site,
        arguments,
        lambda: lease_orders.release_order(
            arguments.shard, vouched=arguments.force, pause=arguments.pause, reason=arguments.reason
        ),
    )


def move(site: Site, arguments: argparse.Namespace) -> int:
    """Ask the owner of a shard's lease to hand the lease over to the worker ``--to``."""
    return _run(
        site, arguments, lambda: lease_orders.move_order(arguments.shard, arguments.to, reason=arguments.reason)
    )


def pause(site: Site, arguments: argparse.Namespace) -> int:
    """Pause shards, and wait until no worker reads them any more."""
    lease_orders.require_pause(arguments.reason, arguments.lasting)
    _selection(arguments)
    wait_seconds = lease_orders.waiting_seconds(arguments.wait)

    def order() -> Order:
        return lease_orders.pause_order(
            site, _selection(arguments), by=operator_name(), reason=arguments.reason, lasting=arguments.lasting
        )

    ended = _execute(site, arguments, order)
    if ended.report.status is OrderStatus.DONE and not arguments.no_wait:
        late = ended.executor.await_pauses([change.shard_id for change in ended.report.plan.changes], wait_seconds)
        if late:
            note = f"still read after {arguments.wait}: {', '.join(late)}; `streamclient explain` says why"
            ended = ended.noting(note, status=OrderStatus.GIVEN_UP)
    return _show(arguments, ended)


def resume(site: Site, arguments: argparse.Namespace) -> int:
    """End the pauses of shards."""
    _selection(arguments)
    return _run(site, arguments, lambda: lease_orders.resume_order(_selection(arguments), reason=arguments.reason))


def _selection(arguments: argparse.Namespace) -> LeaseSelection:
    """Return the selection of shards that the arguments describe."""
    return LeaseSelection(shards=tuple(arguments.shards), worker=arguments.worker, every=arguments.all)


# --- positions -----------------------------------------------------------------------------------------------------


def _require_other(option: str, value: str, *, refused: Sequence[str], instead: str) -> None:
    if value in refused:
        raise ConfigurationError(f"{option} {value} is not for this action; see `leases {instead}`")


def _reader(site: Site) -> TargetReader:
    return TargetReader(site.streams, site.stream_id)


def _target(site: Site, facts: FleetFacts, lease: Lease | None, text: str) -> Target:
    """Return the position that ``text`` names in the shard of ``lease``.

    Without a lease, return a placeholder, because the plan refuses such a shard anyway.
    """
    if lease is None:
        return Target(checkpoint=CheckpointPosition.TRIM_HORIZON, text=text)
    return _reader(site).resolve(lease.lease_key, text, facts.now_micros)


def _for_each(leases: Mapping[str, Lease], look: Callable[[Lease], Answer]) -> dict[str, Answer]:
    """Call ``look`` for each lease, several leases at a time; return the results by shard id."""
    with ThreadPoolExecutor(PARALLEL_READS) as pool:
        return dict(zip(leases, pool.map(look, leases.values()), strict=True))


def _skips(site: Site, lease: Lease, target: Target) -> bool:
    """Return whether records would be skipped if the lease went to ``target``. No position is before the beginning."""
    if target.checkpoint == CheckpointPosition.TRIM_HORIZON:
        return False
    return _reader(site).direction(lease.lease_key, lease.checkpoint, target.checkpoint) is TargetDirection.FORTH


def _lease(facts: FleetFacts, shard_id: str) -> Lease | None:
    return facts.lease(shard_id)


def _require_consent(arguments: argparse.Namespace, loss: str) -> None:
    if not arguments.yes and not arguments.dry_run:
        raise ConfigurationError(f"{loss}; add --yes to accept that")


# --- carrying out --------------------------------------------------------------------------------------------------


@frozen
class _Ended:
    """An order that was carried out, or only planned, with its report."""

    executor: OrderExecutor
    order: Order
    report: OrderReport
    short: Callable[[str], str]
    """A function that shortens the shard ids in a text, if the output is a terminal."""

    def noting(self, *notes: str, status: OrderStatus | None = None) -> _Ended:
        """Return a copy whose report has further ``notes``, and the ``status`` if it is given."""
        report = evolve(self.report, status=status or self.report.status, notes=(*self.report.notes, *notes))
        return evolve(self, report=report)


def _run(site: Site, arguments: argparse.Namespace, order: Callable[[], Order]) -> int:
    return _show(arguments, _execute(site, arguments, order))


def _execute(site: Site, arguments: argparse.Namespace, make: Callable[[], Order]) -> _Ended:
    """Complete the short shard ids in the arguments, then carry out the order that ``make`` returns.

    Error messages show short ids.
    """
    limit = getattr(arguments, "pause", None)
    pause_seconds = None if limit is None else lease_orders.waiting_seconds(limit)
    collector = FleetReader(site)
    facts = collector.collect()
    _complete_ids(facts, arguments)
    short = shard_shortener(facts)
    executor = OrderExecutor(site, collector, operator_name(), say=complain)
    order = make()
    try:
        report = executor.carry_out(order, dry_run=arguments.dry_run, pause_seconds=pause_seconds)
    except ConfigurationError as error:
        raise ConfigurationError(short(str(error))) from error
    return _Ended(executor, order, report, short)


def _order(
    arguments: argparse.Namespace, prepare: Callable[[FleetFacts], Planner], *, wakes_all: bool = False
) -> Callable[[], Order]:
    """Return a function that makes an order from the arguments.

    ``prepare`` takes the state of the fleet, and returns the function that plans the changes. With ``wakes_all``, the
    order wakes all workers of the fleet, and not only the workers whose leases change.
    """
    return lambda: Order(
        command=_command(arguments),
        reason=arguments.reason,
        prepare=prepare,
        change_id=new_change_id(),
        wakes_all=wakes_all,
    )


def _complete_ids(facts: FleetFacts, arguments: argparse.Namespace) -> None:
    """Replace abbreviated shard ids in the arguments by whole ids, before an order is planned or recorded."""
    if getattr(arguments, "shard", None):
        arguments.shard = named_shard(facts, arguments.shard)
    if getattr(arguments, "shards", None):
        arguments.shards = [named_shard(facts, given) for given in arguments.shards]


def _command(arguments: argparse.Namespace) -> str:
    """Return the command as the user typed it, without the options of the connection."""
    shards = [arguments.shard] if getattr(arguments, "shard", None) else getattr(arguments, "shards", [])
    names = {option: option.removeprefix("--").replace("-", "_") for option in (*OPTIONS, *FLAGS)}
    given = {option: getattr(arguments, name, None) for option, name in names.items()}
    return command_text(arguments.action, shards, given)


def _show(arguments: argparse.Namespace, ended: _Ended) -> int:
    report = ended.report
    refused = bool(report.plan.refusals)
    with suppress(BrokenPipeError):  # the exit code is about the leases, whether or not the report is read
        if arguments.json:
            print_json(report_document(ended.order.command, report))
        else:
            print_text(*map(ended.short, _lines(report)))
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
