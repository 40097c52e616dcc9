"""Changes to a fleet that a page in a browser requests, as JSON.

The first request returns a plan and its digest, and changes nothing. A second request has this digest, and carries the
plan out if the plan is still the same. A page may change leases, but it may not make changes that lose records or that
repeat them. It may also replay or discard parked records.
"""

from __future__ import annotations

import hashlib
import json
import shlex
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import field, frozen

from streamclient.base.checks import why_not_utf8
from streamclient.errors import ConfigurationError, StreamClientError
from streamclient.interfaces import IParkingStore
from streamclient.model import ParkedRecord
from streamclient.operate import lease_orders as orders
from streamclient.operate.audit import AuditLog
from streamclient.operate.collection import FleetReader
from streamclient.operate.fleet_documents import NO_PARKING, parked_in
from streamclient.operate.operator_documents import Document, report_document
from streamclient.operate.operator_orders import Order, OrderExecutor, OrderStatus, PlanChangedError, order_digest
from streamclient.operate.site import Site, text_of
from streamclient.worker.handlers.batches import RecordProcessorFactory
from streamclient.worker.lease.audit_rows import DONE, AuditRecord
from streamclient.worker.parking.parked_causes import of_cause, of_keys_with_cause
from streamclient.worker.parking.parked_fleets import require_one_fleet
from streamclient.worker.parking.parked_frames import key_text
from streamclient.worker.parking.parking_replay import replay_document, replay_records

MOST_SHARDS_NAMED = 1_000
"""The largest number of shard ids in one order. The options ``all`` and ``worker`` choose shards without their ids."""

MOST_REASON_CHARACTERS = 1_000
"""The largest number of characters in the reason of an order. It bounds the size of lease rows, which keep the reason,
and which every worker reads."""

MOST_TEXT_CHARACTERS = 255
"""The largest number of characters in every text of a request except the reason. The service limits the names of tables
to the same number."""

MOST_NAMED = 20
"""The largest number of parked records whose ids an audit row has. The row also has the total number of changed
records."""

ORDERS: Mapping[str, frozenset[str]] = {
    "pause": frozenset({"for", "worker", "all"}),
    "resume": frozenset({"worker", "all"}),
    "move": frozenset({"to"}),
    "release": frozenset({"force", "pause"}),
    "park": frozenset({"record"}),
}
"""The names of the orders about leases that a page may give, each with the options that the order may have."""

Arguments = Mapping[str, Any]


class ChangeRefusedError(ConfigurationError):
    """The error for a requested change that this module refuses. Nothing was written."""

    def __init__(self, code: str, text: str, advice: str = "") -> None:
        super().__init__(text)
        self.code = code
        self.advice = advice


@frozen(kw_only=True)
class PageRights:
    """The rights of one page in the browser: its operator, and the objects and settings by which it changes a fleet."""

    who: str
    """The operator as ``user@host``, for lease rows and audit rows."""
    command_options: Sequence[str] = ()
    """The options of the connection, without secrets. They are part of the command lines that the page shows for
    copying."""
    store: IParkingStore | None = field(default=None, repr=False)
    parking_table: str | None = None
    parking_directory: str | None = None
    processor: RecordProcessorFactory | None = field(default=None, repr=False)
    """The factory of the processors that replay parked records; ``None`` if the page cannot replay."""
    processor_name: str = "MODULE:NAME"

    def lease_command(self, site: Site, command: str) -> str:
        """Return ``command``, a line of ``streamclient leases``, with the options for tables and connection added."""
        tables = ["--data-table", site.data_table, "--status-table", site.status_table]
        return f"{command} {shlex.join([*tables, *self.command_options])}"

    def lease_commands(self, site: Site, shard_id: str) -> Mapping[str, str]:
        """Return a command line about the shard ``shard_id`` for each order in ``ORDERS``, by the name of the order.

        ``WHY`` and ``WORKER`` stand for values that the operator fills in. Without a parking store, ``park`` is left
        out. The command line of ``park`` is a dry run until the operator adds ``--yes``.
        """
        parking = {"--parking-table": self.parking_table, "--parking-directory": self.parking_directory}
        own: Mapping[str, Mapping[str, object | None]] = {"move": {"--to": "WORKER"}, "park": parking}
        given = [action for action in ORDERS if action != "park" or self.store is not None]
        return {action: self._about(site, shard_id, action, own.get(action, {})) for action in given}

    def _about(self, site: Site, shard_id: str, action: str, options: Mapping[str, object | None]) -> str:
        command = orders.command_text(action, [shard_id], options)
        return self.lease_command(site, f"streamclient leases {command} --reason WHY")

    def parked_command(self, action: str, stream_id: str, *which: str) -> str:
        """Return the command line that replays or discards the parked records chosen by the options ``which``."""
        words = ["streamclient", "parked", action]
        if self.parking_table is not None:
            words += ["--table", self.parking_table, *self.command_options]
        elif self.parking_directory is not None:
            words += ["--directory", self.parking_directory]
        processor = ["--processor", self.processor_name] if action == "replay" else []
        return shlex.join([*words, "--stream", stream_id, *which, *processor])


@frozen(kw_only=True)
class AskedChanges:
    """Plans and makes the changes that one operator requests to one fleet. Each method waits for the service."""

    site: Site
    rights: PageRights
    who: str
    """The operator's name, which is stored in lease rows and audit rows."""

    def order(self, arguments: Arguments) -> Document:
        """Plan an order about leases, and carry it out if ``arguments`` has the digest of this plan.

        ``arguments`` is ``{command, shards, options, reason, plan?}``, where ``plan`` is the digest. Return the digest,
        the command line that gives the same order, and the report of the order.

        Raises:
            ChangeRefusedError: a page may not give this order, or the plan has changed and so has another digest.
            StreamClientError: a call failed, or the order is not possible in this fleet.
        """
        agreed, pause = _text(arguments, "plan") or None, _text(_options(arguments), "pause") or None
        order = self._order_of(arguments)
        executor = OrderExecutor(self.site, FleetReader(self.site), self.who)
        seconds = None if pause is None else orders.waiting_seconds(pause)
        try:
            report = executor.carry_out(order, dry_run=agreed is None, pause_seconds=seconds, agreed=agreed)
        except PlanChangedError as error:
            raise _changed() from error
        digest = order_digest(order, report.plan)
        if agreed not in (None, digest) and report.status in (OrderStatus.REFUSED, OrderStatus.UNCHANGED):
            raise _changed()
        command = self.rights.lease_command(self.site, orders.typed_command(order))
        return {"plan": digest, "command": command, "report": report_document(order.command, report)}

    def _order_of(self, arguments: Arguments) -> Order:
        reason, site, who = _reason(arguments), self.site, self.who
        action, options = arguments.get("command"), _options(arguments)
        if not isinstance(action, str) or action not in ORDERS:
            advice = "Give other orders with `streamclient leases`: they lose records or read them again."
            raise ChangeRefusedError("command", f"command must be one of {', '.join(ORDERS)}", advice)
        shards = _shards(arguments)
        if unknown := options.keys() - ORDERS[action]:
            raise ChangeRefusedError("options", f"{action} has no option {', '.join(map(str, sorted(unknown)))[:100]}")
        if action in ("pause", "resume"):
            worker, every = _text(options, "worker") or None, options.get("all") is True
            selection = orders.LeaseSelection(shards=tuple(shards), worker=worker, every=every)
            if action == "resume":
                return orders.resume_order(selection, reason=reason)
            return orders.pause_order(site, selection, by=who, reason=reason, lasting=_text(options, "for") or None)
        if len(shards) != 1:
            raise ChangeRefusedError("shards", f"{action} takes one shard")
        (shard,) = shards
        if action == "move":
            if not options.get("to"):
                raise ChangeRefusedError("options", "move needs the option `to` with the name of a worker")
            return orders.move_order(shard, _text(options, "to"), reason=reason)
        if action == "release":
            pause = _text(options, "pause") or None
            return orders.release_order(shard, vouched=options.get("force") is True, pause=pause, reason=reason)
        if self.rights.store is None:
            raise ChangeRefusedError(*NO_PARKING)
        choice = orders.RecordChoice(
            shard_id=shard,
            record=_text(options, "record") or None,
            parking_table=self.rights.parking_table,
            parking_directory=self.rights.parking_directory,
        )
        return orders.park_order(site, choice, by=who, reason=reason)

    def parked(self, action: str, arguments: Arguments) -> Document:
        """Plan to replay or discard parked records, and do so if ``arguments`` has the digest of this plan.

        ``action`` is ``replay`` or ``discard``. ``arguments`` is ``{cause? or key? or record?, reason, plan?}``. A
        replay of one record begins with the first parked record of the same key. The result has the same form as the
        result of ``order``.

        Raises:
            ChangeRefusedError: there is no parking store, no processor for a replay, or no such record; or the plan has
                changed.
            StreamClientError: a call failed.
        """
        site, reason = self.site, _reason(arguments)
        store, processor, agreed = self.rights.store, self.rights.processor, _text(arguments, "plan")
        if store is None:
            raise ChangeRefusedError(*NO_PARKING)
        chosen = _chosen(action, parked_in(store, site.stream_id), arguments)
        command = self._parked_command(action, chosen, arguments)
        if action == "replay" and processor is None:
            raise ChangeRefusedError("no-processor", "this console has no processor for a replay", f"Run: {command}")
        if action == "replay":
            _require_one_fleet(chosen)
        named = json.dumps([action, reason, sorted(parked.record_id for parked in chosen)])
        digest = hashlib.sha256(named.encode()).hexdigest()[:16]
        keys = {key_text(parked.record.primary_key): None for parked in chosen}
        plan = {"records": len(chosen), "keys": [json.loads(key) for key in keys]}
        if not agreed:
            return {"plan": digest, "command": command, "report": {"status": "planned", **plan}}
        if agreed != digest:
            raise _changed()
        log = AuditLog(site.client, site.status_table, site.stream_id)
        records = _audit_records(action, site, chosen, reason, self.who)
        log.intend(records)
        if action == "discard" or processor is None:
            store.remove(chosen)
            done: Document = {"discarded": [parked.record_id for parked in chosen]}
        else:
            done = replay_document(replay_records(store, processor, chosen))
        outcome = f"{sum(left['records'] for left in done['left'])} records left" if done.get("left") else DONE
        try:
            log.complete(records, dict.fromkeys((record.shard_id for record in records), outcome))
        except StreamClientError as error:  # the change is made already, so only report the error
            done["notes"] = [f"the audit rows of change {records[0].change_id} stay incomplete: {text_of(error)}"]
        return {"plan": digest, "command": command, "report": {"status": "done", **plan, **done}}

    def _parked_command(self, action: str, chosen: Sequence[ParkedRecord], arguments: Arguments) -> str:
        record, cause = arguments.get("record"), arguments.get("cause")
        which = ["--cause", str(cause)] if cause else ["--key", key_text(chosen[-1].record.primary_key)]
        which += ["--record", str(record)] if record and action == "discard" else []
        return self.rights.parked_command(action, self.site.stream_id, *which)


def _audit_records(action: str, site: Site, chosen: Sequence[ParkedRecord], reason: str, who: str) -> list[AuditRecord]:
    """Return one audit row for each shard that has records in ``chosen``."""
    change_id, now = uuid.uuid4().hex[:8], site.clock.now_micros()
    ids: dict[str, list[str]] = {}
    for parked in chosen:
        ids.setdefault(parked.shard_id, []).append(parked.record_id)
    return [
        AuditRecord(
            at_micros=now,
            change_id=change_id,
            number=number,
            who=who,
            command=f"parked {action}",
            shard_id=shard_id,
            before=json.dumps({"parked": parked[:MOST_NAMED], "records": len(parked)}),
            after="{}",
            reason=reason,
        )
        for number, (shard_id, parked) in enumerate(sorted(ids.items()))
    ]


def _chosen(action: str, everything: list[ParkedRecord], arguments: Arguments) -> list[ParkedRecord]:
    """Return the parked records that ``arguments`` chooses by their cause, by their key, or by a record's id.

    For a replay, include the earlier parked records of the same keys.
    """
    given = {name: arguments[name] for name in ("cause", "key", "record") if arguments.get(name) is not None}
    if len(given) != 1:
        raise ChangeRefusedError("argument", "give exactly one of cause, key and record")
    ((name, value),) = given.items()
    if name == "cause":
        chosen = (of_keys_with_cause if action == "replay" else of_cause)(everything, str(value))
    elif name == "key":
        chosen = [parked for parked in everything if json.loads(key_text(parked.record.primary_key)) == value]
    else:
        chosen = [parked for parked in everything if parked.record_id == value]
        if chosen and action == "replay":
            last = chosen[0]
            chosen = [
                parked
                for parked in everything
                if (parked.stream_id, parked.record.primary_key) == (last.stream_id, last.record.primary_key)
                and (parked.generation, parked.record_id) <= (last.generation, last.record_id)
            ]
    if not chosen:
        raise ChangeRefusedError("not-parked", "no such record is parked any more")
    return chosen


def _require_one_fleet(chosen: Sequence[ParkedRecord]) -> None:
    try:
        require_one_fleet(chosen)
    except ConfigurationError as error:
        raise ChangeRefusedError("two-fleets", str(error)) from error


def _changed() -> ChangeRefusedError:
    return ChangeRefusedError("changed", "the plan has changed; nothing was written", "Look at it again.")


def _reason(arguments: Arguments) -> str:
    reason = _text(arguments, "reason", MOST_REASON_CHARACTERS)
    if not reason.strip():
        raise ChangeRefusedError("reason", "a reason is needed: it tells other operators why")
    return reason


def _shards(arguments: Arguments) -> list[str]:
    shards = arguments.get("shards", [])
    if not isinstance(shards, list) or not all(isinstance(each, str) and each for each in shards):
        raise ChangeRefusedError("shards", "shards must be a list of complete shard ids")
    if why := next(filter(None, map(why_not_utf8, shards)), ""):
        raise ChangeRefusedError("shards", f"shards must be a list of complete shard ids; of one, {why}")
    if len(shards) > MOST_SHARDS_NAMED:
        raise ChangeRefusedError("shards", f"an order must name at most {MOST_SHARDS_NAMED} shards")
    return shards


def _options(arguments: Arguments) -> Arguments:
    options = arguments.get("options") or {}
    if not isinstance(options, dict):
        raise ChangeRefusedError("options", "options must be a JSON object")
    return options


def _text(content: Arguments, name: str, most: int = MOST_TEXT_CHARACTERS) -> str:
    value = content.get(name, "")
    if value is None:
        return ""
    if not isinstance(value, str) or len(value) > most:
        raise ChangeRefusedError("argument", f"{name} must be a text of at most {most} characters")
    if why := why_not_utf8(value):
        raise ChangeRefusedError("argument", f"{name} must be a text: {why}")
    return value
