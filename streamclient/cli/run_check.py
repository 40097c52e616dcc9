"""``streamclient run --check``: ask the service, and print what a run would do, without writing anything."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streamclient.base.extras import load
from streamclient.base.reasons import counted, described, times
from streamclient.base.times import utc_text
from streamclient.cli.run_sections import Key
from streamclient.cli.run_settings import RunParts, RunSettings, import_from_here
from streamclient.cli.terminal.commands import EXIT_DONE
from streamclient.cli.terminal.output import print_text
from streamclient.errors import ConfigurationError, DependencyException, StreamClientError
from streamclient.model import InitialPosition, OnFailure
from streamclient.operate.site import READ_RETRY, problem_code
from streamclient.tablestore.own_table import OwnTable, TablePurpose
from streamclient.tablestore.stream_operations import TablestoreStreamApi
from streamclient.wire.service_errors import OBJECT_NOT_EXIST
from streamclient.worker.lease.lease_rows import STATUS_TABLE
from streamclient.worker.lease.status_connection import without_retries
from streamclient.worker.parking.parking_table import PARKING_TABLE
from streamclient.worker.stream_run import find_stream_id

if TYPE_CHECKING:
    from streamclient.config import FailurePolicy


def check(settings: RunSettings) -> int:
    """Print what the run would do; return the exit code.

    Raises:
        ConfigurationError: settings are invalid, or the service refuses them; the message lists all mistakes.
    """
    parts = settings.parts(_import)
    settings.worker_of(parts)
    settings.mistakes.extend(_mistakes_here(settings))
    facts = _answers(settings, parts)
    settings.require_none_wrong()
    print_text(*_processes(settings), *facts, *_failure(settings, parts.client.failure_policy), *_serving(settings))
    print_text("nothing was written or created")
    return EXIT_DONE


def _import(module: str) -> object:
    """Import a module.

    Raises:
        ImportError: the import failed with any kind of error. The caller reports this error as one of the mistakes.
    """
    try:
        return import_from_here(module)
    except ImportError:
        raise
    except Exception as error:
        raise ImportError(f"importing {module} failed: {described(error)}") from error


# --- the service -----------------------------------------------------------------------------------------------------


def _answers(settings: RunSettings, parts: RunParts) -> Sequence[str]:
    """Ask the service about each table of the run; return a sentence about each table that the run can use.

    For each other table, add a mistake to ``settings.mistakes``. If the service refuses the keys or cannot be reached,
    add one mistake and ask no more.
    """
    client = without_retries(parts.stream.client)
    api = TablestoreStreamApi(client, retry=READ_RETRY)
    questions: list[tuple[Key, Callable[[], str]]] = [
        (("stream", "data_table_name"), lambda: _stream(api, parts)),
        (("stream", "status_table_name"), lambda: _leases(client, parts)),
    ]
    if settings.store == ("parking", "table"):
        questions.append((("parking", "table"), lambda: _parking_table(client, settings)))
    facts = []
    for key, question in questions:
        try:
            facts.append(question())
        except StreamClientError as error:
            is_of_tables = problem_code(error) in ("misfit", "missing")
            settings.mistakes.append(f"{settings.label(*key)}: {error}" if is_of_tables else _unanswered(error))
            if not is_of_tables:
                break  # the service refuses the key or is unreachable, so further questions would fail alike
    return facts


def _unanswered(error: StreamClientError) -> str:
    advice = {"refused": "Check the keys and their permissions.", "unreachable": "Check endpoint and network."}
    return f"asking the service failed: {error}. {advice.get(problem_code(error), 'Try again later.')}"


def _stream(api: TablestoreStreamApi, parts: RunParts) -> str:
    table = parts.stream.data_table_name
    try:
        api.describe_table(table)
    except DependencyException as error:
        if error.code != OBJECT_NOT_EXIST:
            raise
        raise ConfigurationError(f"table {table!r} does not exist: check the name and the instance") from error
    described_stream = api.describe_stream(find_stream_id(api, table))
    kept = counted(described_stream.expiration_time_hours, "hour")
    return f"reads table {table}: {counted(len(described_stream.shards), 'shard')}, changes are kept for {kept}"


def _leases(client: Any, parts: RunParts) -> str:
    table = parts.stream.status_table_name
    if parts.stream.lease_manager is not None:
        return f"leases: kept by {parts.stream.lease_manager!r}"
    there = "which exists" if _exists(client, table, STATUS_TABLE) else "which the first worker creates"
    return f"leases: in status table {table}, {there}; shards without one begin at {_beginning(parts)}"


def _beginning(parts: RunParts) -> str:
    position: InitialPosition = parts.stream.initial_position
    if position.timestamp_micros is not None:
        return utc_text(position.timestamp_micros)
    return f"the {position.kind} record"


def _parking_table(client: Any, settings: RunSettings) -> str:
    table = settings.value("parking", "table")
    there = "which exists" if _exists(client, table, PARKING_TABLE) else "which is created for the first record"
    return f"parked records: in table {table}, {there}"


def _exists(client: Any, name: str, purpose: TablePurpose) -> bool:
    return OwnTable(client, name, purpose).exists()


# --- this machine ----------------------------------------------------------------------------------------------------


def _mistakes_here(settings: RunSettings) -> Iterator[str]:
    """Yield why this machine, as it is now, would refuse the run."""
    if settings.value("serve", "port") is not None:
        try:
            load("prometheus_client", "prometheus")
        except ConfigurationError as error:
            yield str(error)
    if settings.store == ("parking", "directory"):
        directory = Path(settings.value("parking", "directory"))
        why = _why_no_directory(directory)
        if why is not None:
            label = settings.label("parking", "directory")
            yield f"{label}: {directory} cannot be a directory of parked records: {why}"


def _why_no_directory(directory: Path) -> OSError | None:
    """Return why no records could be parked in ``directory``; ``None`` if it can be written, or can be made."""
    there = directory
    try:
        number = 0 if stat.S_ISDIR(os.stat(directory).st_mode) else errno.EEXIST
    except FileNotFoundError:
        there = next(path for path in directory.absolute().parents if path.exists())
        number = errno.EEXIST if directory.is_symlink() else 0
    except OSError as error:
        return error
    if not number and not os.access(there, os.W_OK | os.X_OK):
        number = errno.EACCES
    return OSError(number, os.strerror(number), str(directory)) if number else None


# --- the settings ----------------------------------------------------------------------------------------------------


def _processes(settings: RunSettings) -> Iterator[str]:
    count = settings.value("run", "processes")
    if count is None:
        yield f"one worker, {settings.worker}"
    else:
        names = f"{settings.worker}-1" + (f" to {settings.worker}-{count}" if count > 1 else "")
        yield f"{counted(count, 'worker')}, {names}, each in a process of its own"


def _failure(settings: RunSettings, policy: FailurePolicy) -> Iterator[str]:
    after = {
        OnFailure.RESTART: "a new processor starts at the checkpoint",
        OnFailure.STOP_SHARD: "its shard stops at the record",
        OnFailure.PARK: "the record is parked and its shard goes on",
    }
    retries = policy.retries
    again = f"is delivered again {times(retries)}, then " if retries else ""
    yield f"a batch that fails: {again}{after[policy.then]}"
    if settings.store == ("parking", "directory"):
        yield f"parked records: in directory {settings.value('parking', 'directory')}"
    elif settings.store == ("failure", "parking"):
        yield f"parked records: kept by {settings.value('failure', 'parking')}"


def _serving(settings: RunSettings) -> Iterator[str]:
    port, address = (settings.value("serve", name) for name in ("port", "address"))
    if port is None:
        yield "metrics: not served"
    else:
        where = f"http://{address}:{port}" if port else f"{address}, on a free port"
        more = ", each further process on the next port" if settings.value("run", "processes") and port else ""
        yield f"metrics and health: {where}{more}"
