"""Changes that a page asks for, as JSON: planned first, and carried out only with the digest of the same plan.

A page may give orders about leases that lose nothing and read nothing again, and may replay or discard parked records.
"""

from __future__ import annotations

import hashlib
import json
import shlex
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import field, frozen

from streamclient.base.times import parse_duration
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
from streamclient.worker.parking.parked_frames import key_text
from streamclient.worker.parking.parking_replay import replay_document, replay_records

MOST_SHARDS_NAMED = 1_000
"""The largest number of shards that one order names. The command has ``--all`` and ``--worker`` for more."""

MOST_REASON_CHARACTERS = 1_000
"""The largest number of characters in the reason of an order. The row keeps the reason, and every worker reads the
row."""

MOST_TEXT_CHARACTERS = 255
"""The largest number of characters in any other text: as many as in the name of a table."""

MOST_NAMED = 20
"""The largest number of parked records that an audit row names. The row also has the number of all."""

ORDERS: Mapping[str, frozenset[str]] = {
    "pause": frozenset({"for", "worker", "all"}),
    "resume": frozenset({"worker", "all"}),
    "move": frozenset({"to"}),
    "release": frozenset({"force", "pause"}),
    "park": frozenset({"record"}),
}
"""The orders about leases that a page may give, with their options."""

Arguments = Mapping[str, Any]


class ChangeRefusedError(ConfigurationError):
    """A page asked for a change that it cannot have. Nothing was written."""

    def __init__(self, code: str, text: str, advice: str = "") -> None:
        super().__init__(text)
        self.code = code
        self.advice = advice


@frozen(kw_only=True)
class PageRights:
    """The rights of a page, and the parts that it needs for them."""

    who: str
    """``user@host`` of the operator, for rows and audit."""
    command_options: Sequence[str] = ()
    """The options of the connection, without secrets, for commands to be copied."""
    store: IParkingStore | None = field(default=None, repr=False)
    parking_table: str | None = None
    parking_directory: str | None = None
    processor: RecordProcessorFactory | None = field(default=None, repr=False)
    """The maker of processors for replays; ``None`` if the page cannot replay."""
    processor_name: str = "MODULE:NAME"

    def parked_command(self, action: str, stream_id: str, *which: str) -> str:
        """Return the command line for ``replay`` or ``discard``; ``which`` are the options that choose records."""
        words = ["streamclient", "parked", action]
        if self.parking_table is not None:
            words += ["--table", self.parking_table, *self.command_options]
        elif self.parking_directory is not None:
            words += ["--directory", self.parking_directory]
        processor = ["--processor", self.processor_name] if action == "replay" else []
        return shlex.join([*words, "--stream", stream_id, *which, *processor])


@frozen(kw_only=True)
class AskedChanges:
    """The changes of one fleet that one operator asks for. Each call reads the fleet, and may take long."""

    site: Site
    rights: PageRights
    who: str
    """The operator, as row and audit name them."""

    def order(self, arguments: Arguments) -> Document:
        """Plan an order about leases, or carry it out: ``{command, shards, options, reason, plan?}``.

        Return the digest of its plan, the command line that does the same, and the report of the command.

        Raises:
            ChangeRefusedError: the order is not one that a page may give, or its plan does not have the digest.
            StreamClientError: a call failed, or the command refuses the order; nothing was changed.
        """
        agreed, pause = _text(arguments, "plan") or None, _text(_options(arguments), "pause") or None
        order = self._order_of(arguments)
        executor = OrderExecutor(self.site, FleetReader(self.site), self.who)
        seconds = None if pause is None else parse_duration(pause)
        try:
            report = executor.carry_out(order, dry_run=agreed is None, pause_seconds=seconds, agreed=agreed)
        except PlanChangedError as error:
            raise _changed() from error
        digest = order_digest(order, report.plan)
        if agreed not in (None, digest) and report.status in (OrderStatus.REFUSED, OrderStatus.UNCHANGED):
            raise _changed()
        command = self._command(orders.typed_command(order))
        return {"plan": digest, "command": command, "report": report_document(order.command, report)}

    def _order_of(self, arguments: Arguments) -> Order:
        reason, site, who = _reason(arguments), self.site, self.who
        action, shards, options = arguments.get("command"), arguments.get("shards", []), _options(arguments)
        if not isinstance(action, str) or action not in ORDERS:
            advice = "Give other orders with `streamclient leases`: they lose records or read them again."
            raise ChangeRefusedError("command", f"a page orders {', '.join(ORDERS)}", advice)
        if not isinstance(shards, list) or not all(isinstance(each, str) and each for each in shards):
            raise ChangeRefusedError("shards", "shards is a list of whole ids")
        if len(shards) > MOST_SHARDS_NAMED:
            raise ChangeRefusedError("shards", f"an order names at most {MOST_SHARDS_NAMED} shards")
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
                raise ChangeRefusedError("options", "move takes the worker as the option to")
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

    def _command(self, command: str) -> str:
        tables = ["--data-table", self.site.data_table, "--status-table", self.site.status_table]
        return f"{command} {shlex.join([*tables, *self.rights.command_options])}"

    def parked(self, action: str, arguments: Arguments) -> Document:
        """Plan to ``replay`` or ``discard`` parked records, or do so: ``{cause? or key? or record?, reason, plan?}``.

        A replay of a record begins with the first parked record of its key. The answer has the form of ``order``.

        Raises:
            ChangeRefusedError: there is no store, no processor, no such record, or other records than planned.
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
        except StreamClientError as error:  # what was done stands nevertheless
            done["notes"] = [f"the audit rows of change {records[0].change_id} stay incomplete: {text_of(error)}"]
        return {"plan": digest, "command": command, "report": {"status": "done", **plan, **done}}

    def _parked_command(self, action: str, chosen: Sequence[ParkedRecord], arguments: Arguments) -> str:
        record, cause = arguments.get("record"), arguments.get("cause")
        which = ["--cause", str(cause)] if cause else ["--key", key_text(chosen[-1].record.primary_key)]
        which += ["--record", str(record)] if record and action == "discard" else []
        return self.rights.parked_command(action, self.site.stream_id, *which)


def _audit_records(action: str, site: Site, chosen: Sequence[ParkedRecord], reason: str, who: str) -> list[AuditRecord]:
    """Return an audit row for each shard whose parked records an order is about."""
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
    """Return the records of a cause or of a key, or one record.

    For a replay, add the earlier records of the same keys.
    """
    given = {name: arguments[name] for name in ("cause", "key", "record") if arguments.get(name) is not None}
    if len(given) != 1:
        raise ChangeRefusedError("argument", "name one of cause, key and record")
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


def _changed() -> ChangeRefusedError:
    return ChangeRefusedError("changed", "the plan is another one by now; nothing was written", "Look at it again.")


def _reason(arguments: Arguments) -> str:
    reason = _text(arguments, "reason", MOST_REASON_CHARACTERS)
    if not reason.strip():
        raise ChangeRefusedError("reason", "a reason is needed: it tells other operators why")
    return reason


def _options(arguments: Arguments) -> Arguments:
    options = arguments.get("options") or {}
    if not isinstance(options, dict):
        raise ChangeRefusedError("options", "options is an object")
    return options


def _text(content: Arguments, name: str, most: int = MOST_TEXT_CHARACTERS) -> str:
    value = content.get(name, "")
    if value is None:
        return ""
    if not isinstance(value, str) or len(value) > most:
        raise ChangeRefusedError("argument", f"{name} is a text of at most {most} characters")
    return value
