"""The actions of ``streamclient parked``, which list, show, replay or discard parked records."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, redirect_stdout, suppress
from functools import partial
from importlib import import_module

from streamclient.base.reasons import counted, failed_calls
from streamclient.base.times import utc_text
from streamclient.cli.options import command_client, existing_store
from streamclient.cli.terminal.commands import EXIT_DONE, CommandFailed
from streamclient.cli.terminal.layout import Column, matching_id, short_ids
from streamclient.cli.terminal.output import id_shortener, print_json, print_table, print_text, width_of
from streamclient.errors import ConfigurationError, printable
from streamclient.interfaces import IParkingStore
from streamclient.model import ParkedRecord
from streamclient.records import readable_position
from streamclient.worker.parking.parked_causes import cause_id, of_cause, of_keys_with_cause, parked_causes
from streamclient.worker.parking.parked_documents import document_of
from streamclient.worker.parking.parked_frames import key_text, parse_key
from streamclient.worker.parking.parking_replay import processor_named, replay_document, replay_records

EXIT_LEFT = 1
"""The exit code if records are still parked after a replay."""

COLUMNS = (
    Column("RECORD"),
    Column("WRITTEN", drop=2),
    Column("CHANGE", drop=1),
    Column("KEY", least=12),
    Column("ERROR", least=16),
)


CAUSE_COLUMNS = (
    Column("CAUSE"),
    Column("RECORDS"),
    Column("SHARDS", drop=2),
    Column("FIRST PARKED", drop=1),
    Column("LAST PARKED", drop=3),
    Column("ERROR", least=16),
)


def run_action(arguments: argparse.Namespace) -> int:
    """Carry out the chosen action and print its result; return the exit code."""
    try:
        store = open_store(arguments)
        return _ACTIONS[arguments.action](store, _chosen(store, arguments), arguments)
    except ValueError as error:
        raise CommandFailed(str(error)) from error


def open_store(arguments: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> IParkingStore:
    """Return the parking store that the options name. The options or the environment give the connection of a table.

    Raises:
        ConfigurationError: the directory or the table does not exist.
    """
    return existing_store(partial(command_client, arguments, environment), arguments.table, arguments.directory)


def _chosen(store: IParkingStore, arguments: argparse.Namespace) -> list[ParkedRecord]:
    keys = {parse_key(text) for text in arguments.key or ()}
    everything = list(store.parked(arguments.stream))
    if arguments.fleet is not None:
        # A replay needs the earlier records of a key, too, and an earlier version has named no fleet in them.
        fleets = {arguments.fleet, ""} if arguments.action == "replay" else {arguments.fleet}
        everything = [parked for parked in everything if parked.fleet in fleets]
    shard_id = getattr(arguments, "shard", None)
    if shard_id is not None:
        shard_id = matching_id(shard_id, {parked.shard_id for parked in everything}, "shard")
    everything = _of_cause(everything, arguments)
    wanted = {_full_record_id(given, everything) for given in getattr(arguments, "record", None) or ()}
    chosen = [
        parked
        for parked in everything
        if (not keys or parked.record.primary_key in keys)
        and shard_id in (None, parked.shard_id)
        and (not wanted or parked.record_id in wanted)
    ]
    missing = wanted - {parked.record_id for parked in chosen}
    if missing:
        raise ConfigurationError(f"no parked record has the id {', '.join(sorted(missing))}")
    return chosen


def _of_cause(records: list[ParkedRecord], arguments: argparse.Namespace) -> list[ParkedRecord]:
    given = getattr(arguments, "cause", None)
    if given is None:
        return records
    known = {cause_id(parked.error) for parked in records}
    named = matching_id(given, known, "cause")
    if named not in known:
        raise ConfigurationError(f"no parked record has the cause {given}; `streamclient parked causes` names all")
    return (of_keys_with_cause if arguments.action == "replay" else of_cause)(records, named)


def _full_record_id(given: str, records: Sequence[ParkedRecord]) -> str:
    """Return the record id that begins with ``given``, or whose last part begins with ``given``.

    The last part of a record id is unique.
    """
    ids = {parked.record_id for parked in records}
    by_digest: dict[str, str] = {_digest(full): full for full in ids}
    named = matching_id(given, by_digest, "record")
    return by_digest.get(named) or matching_id(given, ids, "record")


def _digest(record_id: str) -> str:
    return record_id.rpartition("-")[2]


def _list(store: IParkingStore, records: Sequence[ParkedRecord], arguments: argparse.Namespace) -> int:
    if arguments.json:
        print_json([document_of(parked) for parked in records])
        return EXIT_DONE
    if records:
        shorts = short_ids(_digest(parked.record_id) for parked in records)
        is_terminal = width_of(sys.stdout) is not None
        names = [shorts[_digest(parked.record_id)] if is_terminal else parked.record_id for parked in records]
        rows = [_cells(name, parked) for name, parked in zip(names, records, strict=True)]
        print_table(COLUMNS, rows, "")
    print_text(f"{counted(len(records), 'record')} parked")
    return EXIT_DONE


def _show(store: IParkingStore, records: Sequence[ParkedRecord], arguments: argparse.Namespace) -> int:
    if arguments.json:
        print_json([document_of(parked) for parked in records])
        return EXIT_DONE
    short = id_shortener(parked.shard_id for parked in records)
    for parked in records:
        print_text(*map(short, _page(parked)))
        print()
    print_text(f"{counted(len(records), 'record')} parked")
    return EXIT_DONE


def _causes(store: IParkingStore, records: Sequence[ParkedRecord], arguments: argparse.Namespace) -> int:
    causes = parked_causes(records)
    if arguments.json:
        print_json({"causes": causes})
        return EXIT_DONE
    if causes:
        rows = [
            (
                cause["id"],
                str(cause["records"]),
                str(cause["shards"]),
                utc_text(cause["oldest_micros"]),
                utc_text(cause["newest_micros"]),
                printable(cause["error"]),
            )
            for cause in causes
        ]
        print_table(CAUSE_COLUMNS, rows, "")
    print_text(f"{counted(len(records), 'record')} parked, {counted(len(causes), 'cause')}")
    return EXIT_DONE


def _replay(store: IParkingStore, records: Sequence[ParkedRecord], arguments: argparse.Namespace) -> int:
    if "" not in sys.path:
        sys.path.insert(0, "")  # find modules in the present directory, as `python -m` does
    # With --json, the processor's own output must not mix with the document on standard output.
    with redirect_stdout(sys.stderr) if arguments.json else nullcontext():
        report = replay_records(store, processor_named(arguments.processor, import_module), records)
    with suppress(BrokenPipeError):  # the exit code is about the records, whether or not the report is read
        if arguments.json:
            print_json(replay_document(report))
        else:
            for rest in report.left:
                print_text(str(rest))
            total = sum(rest.records for rest in report.left)
            print_text(f"{counted(report.replayed, 'record')} replayed, {total} left")
    return EXIT_LEFT if report.left else EXIT_DONE


def _discard(store: IParkingStore, records: Sequence[ParkedRecord], arguments: argparse.Namespace) -> int:
    chosen = (arguments.key, arguments.record, arguments.shard, arguments.cause, arguments.fleet, arguments.all)
    if not any(chosen):
        raise ConfigurationError("say which records to discard: --key, --record, --shard, --cause, --fleet or --all")
    store.remove(records)
    if arguments.json:
        print_json({"discarded": [parked.record_id for parked in records]})
    else:
        print_text(f"{counted(len(records), 'record')} discarded")
    return EXIT_DONE


_ACTIONS: Mapping[str, Callable[[IParkingStore, Sequence[ParkedRecord], argparse.Namespace], int]] = {
    "list": _list,
    "causes": _causes,
    "show": _show,
    "replay": _replay,
    "discard": _discard,
}


def _cells(name: str, parked: ParkedRecord) -> tuple[str, ...]:
    record = parked.record
    when = utc_text(record.sequence_info.timestamp_micros)
    return name, when, record.record_type.value, key_text(record.primary_key), printable(parked.error)


def _page(parked: ParkedRecord) -> list[str]:
    tried = failed_calls(parked.attempts) if parked.attempts else "not tried"
    return [
        f"record    {parked.record_id}",
        f"stream    {parked.stream_id}",
        f"shard     {parked.shard_id}",
        *([f"fleet     {parked.fleet}"] if parked.fleet else ()),
        f"position  {readable_position(parked.position)}, number {parked.index} after it",
        f"change    {parked.record}",
        f"written   {utc_text(parked.record.sequence_info.timestamp_micros)}",
        f"parked    {utc_text(parked.parked_micros)}, {tried}",
        f"error     {printable(parked.error)}",
        *(f"    {line}" for line in parked.traceback.splitlines()),
    ]
