"""What ``streamclient parked`` does."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

from streamclient.errors import ConfigurationError, StreamClientError
from streamclient.interfaces import IParkingStore
from streamclient.model import ParkedRecord, utc_text
from streamclient.parking.command import CONNECTION
from streamclient.parking.documents import document_of
from streamclient.parking.files import FileParkingStore
from streamclient.parking.frames import key_text, parse_key
from streamclient.parking.replay import processor_named, replay_records

EXIT_DONE = 0
EXIT_LEFT = 1
"""A replay left records parked."""
EXIT_UNUSABLE = 2
"""Wrong arguments, or a store that cannot be read."""


def run_action(arguments: argparse.Namespace) -> int:
    """Do it, and print what came of it; the exit code."""
    try:
        store = open_store(arguments)
        return _ACTIONS[arguments.action](store, _chosen(store, arguments), arguments)
    except (StreamClientError, ValueError) as error:
        print(f"streamclient parked: {error}", file=sys.stderr)
        return EXIT_UNUSABLE


def open_store(arguments: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> IParkingStore:
    """The store that the options name, connected as they or else the environment say.

    Raises:
        ConfigurationError: there is no such directory.
    """
    if arguments.directory is not None:
        if not os.path.isdir(arguments.directory):
            raise ConfigurationError(f"{arguments.directory} is no directory of parked records")
        return FileParkingStore(arguments.directory)
    # Imported here: the SDK takes a third of a second, which a store in files should not cost.
    from tablestore import OTSClient  # noqa: PLC0415

    from streamclient.parking.table import TableParkingStore  # noqa: PLC0415

    values = {}
    for option, variable, default, _ in CONNECTION:
        given = getattr(arguments, option.replace("-", "_"))
        values[option] = given if given is not None else environment.get(variable, default)
    client = OTSClient(
        values["endpoint"],
        values["access-key-id"],
        values["access-key-secret"],
        values["instance"],
        sts_token=values["sts-token"] or None,
    )
    return TableParkingStore(client, arguments.table)


def _chosen(store: IParkingStore, arguments: argparse.Namespace) -> list[ParkedRecord]:
    keys = {parse_key(text) for text in arguments.key or ()}
    shard_id, wanted = getattr(arguments, "shard", None), set(getattr(arguments, "record", None) or ())
    found = [
        parked
        for parked in store.parked(arguments.stream)
        if (not keys or parked.record.primary_key in keys)
        and shard_id in (None, parked.shard_id)
        and (not wanted or parked.record_id in wanted)
    ]
    missing = wanted - {parked.record_id for parked in found}
    if missing:
        raise ConfigurationError(f"no parked record has the id {', '.join(sorted(missing))}")
    return found


def _list(store: IParkingStore, records: Sequence[ParkedRecord], arguments: argparse.Namespace) -> int:
    return _print_all(records, arguments, _line)


def _show(store: IParkingStore, records: Sequence[ParkedRecord], arguments: argparse.Namespace) -> int:
    return _print_all(records, arguments, _page)


def _replay(store: IParkingStore, records: Sequence[ParkedRecord], arguments: argparse.Namespace) -> int:
    if "" not in sys.path:
        sys.path.insert(0, "")  # as for `python -m`: a program beside which the command is called
    report = replay_records(store, processor_named(arguments.processor, import_module), records)
    if arguments.json:
        left = [
            {
                "stream_id": each.stream_id,
                "key": json.loads(key_text(each.key)),
                "records": each.records,
                "error": each.error,
            }
            for each in report.left
        ]
        _print_json({"replayed": report.replayed, "left": left})
    else:
        for each in report.left:
            print(each)
        print(f"{_count(report.replayed)} replayed, {sum(each.records for each in report.left)} left")
    return EXIT_LEFT if report.left else EXIT_DONE


def _discard(store: IParkingStore, records: Sequence[ParkedRecord], arguments: argparse.Namespace) -> int:
    if not (arguments.all or arguments.key or arguments.record or arguments.shard):
        raise ConfigurationError("say which records to discard: --key, --record, --shard or --all")
    store.remove(records)
    if arguments.json:
        _print_json({"discarded": [parked.record_id for parked in records]})
    else:
        print(f"{_count(len(records))} discarded")
    return EXIT_DONE


_ACTIONS: Mapping[str, Callable[[IParkingStore, Sequence[ParkedRecord], argparse.Namespace], int]] = {
    "list": _list,
    "show": _show,
    "replay": _replay,
    "discard": _discard,
}


def _print_all(
    records: Sequence[ParkedRecord], arguments: argparse.Namespace, text: Callable[[ParkedRecord], str]
) -> int:
    if arguments.json:
        _print_json([document_of(parked) for parked in records])
        return EXIT_DONE
    for parked in records:
        print(text(parked))
    print(f"{_count(len(records))} parked")
    return EXIT_DONE


def _print_json(document: Any) -> None:
    print(json.dumps(document, ensure_ascii=False, indent=2))


def _line(parked: ParkedRecord) -> str:
    record = parked.record
    when = utc_text(record.sequence_info.timestamp_micros)
    error = next(iter(parked.error.splitlines()), "")
    return f"{parked.record_id}  {when}  {record.record_type.value}  {key_text(record.primary_key)}  {error}"


def _page(parked: ParkedRecord) -> str:
    tried = f"{parked.attempts} failed calls" if parked.attempts else "not tried"
    lines = [
        f"record    {parked.record_id}",
        f"stream    {parked.stream_id}",
        f"shard     {parked.shard_id}",
        f"position  {parked.position}, number {parked.index} behind it",
        f"change    {parked.record}",
        f"written   {utc_text(parked.record.sequence_info.timestamp_micros)}",
        f"parked    {utc_text(parked.parked_micros)}, {tried}",
        f"error     {parked.error}",
        *(f"    {line}" for line in parked.traceback.splitlines()),
    ]
    return "\n".join(lines) + "\n"


def _count(records: int) -> str:
    return "1 record" if records == 1 else f"{records} records"
