"""The actions of ``streamclient leases`` that only read. Each returns the exit code of the command."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from attrs import evolve

from streamclient.base import checks
from streamclient.base.reasons import counted
from streamclient.base.times import duration, now_micros, utc_text
from streamclient.cli.options import existing_store
from streamclient.cli.terminal.commands import EXIT_DONE, EXIT_REFUSED
from streamclient.cli.terminal.layout import Column, matching_id
from streamclient.cli.terminal.output import id_shortener, print_json, print_table, print_text
from streamclient.errors import ConfigurationError
from streamclient.operate.audit import read_audit
from streamclient.operate.cases import Explanation
from streamclient.operate.collection import FleetReader, readable
from streamclient.operate.evidence import evidence
from streamclient.operate.explanation import explain, explanations
from streamclient.operate.facts import FleetFacts, parked_counts
from streamclient.operate.fleet_reports import REPORTS_KEPT, ReportDirectory, fleet_report, shard_groups
from streamclient.operate.lease_moves import MOST_MOVES, LeaseMove, LeaseMoves
from streamclient.operate.operator_documents import (
    Document,
    audit_document,
    explanation_document,
    fleet_document,
    lease_document,
)
from streamclient.operate.overview import Overview, headline, overview
from streamclient.operate.site import Site
from streamclient.operate.snapshots import differences, load_snapshot, snapshot_of, snapshot_text
from streamclient.operate.verdict import parked_line
from streamclient.worker.lease.audit_rows import AuditRecord

COLUMNS = (
    Column("SHARD"),
    Column("OWNER", least=8),
    Column("STATE", least=12),
    Column("CHECKPOINT", drop=2),
    Column("PARENTS", drop=3, least=8),
    Column("LAG"),
    Column("TIME TO LOSS"),
    Column("PAUSED BY", drop=1, least=8),
)
AUDIT_COLUMNS = (
    Column("TIME", drop=1),
    Column("CHANGE", drop=4),
    Column("WHO", drop=3, least=8),
    Column("COMMAND", drop=2, least=12),
    Column("SHARD"),
    Column("OUTCOME", least=8),
    Column("REASON", least=8),
)

MOVE_COLUMNS = (
    Column("TIME", drop=1),
    Column("SHARD"),
    Column("MOVE", least=16),
    Column("FROM", drop=2, least=8),
    Column("TO", least=8),
    Column("WHO", drop=5, least=8),
    Column("OUTCOME", drop=3, least=8),
    Column("REASON", drop=4, least=8),
)

HISTORY_ROWS = 50
"""The largest number of changes of a lease that ``leases show`` lists."""


def list_leases(site: Site, arguments: argparse.Namespace) -> int:
    """Print a table of all leases, and of all shards that have no lease yet."""
    facts = readable(FleetReader(site).collect(() if arguments.no_lag else None))
    leases = [lease_document(facts, verdict) for verdict in explanations(facts, all_shards(facts))]
    if arguments.json:
        print_json({**fleet_document(facts), "leases": leases})
    else:
        short = shard_shortener(facts)
        rows = [[short(cell) for cell in _line(lease)] for lease in leases]
        print_table(COLUMNS, rows, "no leases: no worker has run yet")
    return EXIT_DONE


def show_lease(site: Site, arguments: argparse.Namespace) -> int:
    """Print one lease with its explanation, its evidence, and its history."""
    collector = FleetReader(site)
    facts = with_parked(site, arguments, readable(collector.collect()))
    shard_id = named_shard(facts, arguments.shard)
    facts = collector.with_heads(facts, collector.lineage_of(facts, shard_id))
    verdict = explain(facts, shard_id)
    history = read_audit(site, HISTORY_ROWS, shard_id)
    if arguments.json:
        print_json(
            {
                **fleet_document(facts),
                "lease": lease_document(facts, verdict),
                "explanation": explanation_document(facts, verdict),
                "history": [audit_document(record) for record in history],
            }
        )
    else:
        print_explanation(facts, verdict)
        short = shard_shortener(facts)
        print("history:" if history else "history: no operator has changed it")
        for record in history:
            print_text(short(f"  {_audit_text(record)}"))
    return EXIT_REFUSED if verdict.situation.name == "unknown-shard" else EXIT_DONE


def list_audit(site: Site, arguments: argparse.Namespace) -> int:
    """Print the changes that operators made to leases, newest first."""
    if arguments.limit <= 0:
        raise ConfigurationError(f"--limit must be above 0, not {arguments.limit}")
    facts = readable(FleetReader(site).collect())
    shard_id = None if arguments.shard is None else named_shard(facts, arguments.shard)
    records = read_audit(site, arguments.limit, shard_id)
    if arguments.json:
        print_json({"records": [audit_document(record) for record in records]})
    else:
        short = id_shortener({*all_shards(facts), *(record.shard_id for record in records)})
        rows = [
            (
                utc_text(record.at_micros),
                record.change_id,
                record.who,
                _without_shards(record.command, record.shard_id),
                short(record.shard_id),
                record.outcome,
                record.reason,
            )
            for record in records
        ]
        print_table(AUDIT_COLUMNS, rows, "no changes by operators")
    return EXIT_DONE


def list_moves(site: Site, arguments: argparse.Namespace) -> int:
    """Print the moves of leases between workers, and the orders of operators, newest first."""
    checks.positive.require("--limit", arguments.limit)
    facts = readable(FleetReader(site).collect())
    shard_id = None if arguments.shard is None else named_shard(facts, arguments.shard)
    rows = {key: row for key, row in facts.rows.items() if shard_id in (None, key)}
    moves = LeaseMoves()
    moves.read(evolve(facts, rows=rows))
    moves.audited(read_audit(site, MOST_MOVES, shard_id))
    document = moves.document()
    more = len(document["moves"]) - arguments.limit
    document["moves"] = document["moves"][: arguments.limit]
    if arguments.json:
        print_json(document)
        return EXIT_DONE
    short = id_shortener({*all_shards(facts), *(move["shard"] for move in document["moves"])})
    cells = [[short(cell) for cell in _move_cells(move)] for move in document["moves"]]
    print_table(MOVE_COLUMNS, cells, "no moves: no worker has run yet")
    if more > 0:
        print_text(f"({more} more: --limit shows them)")
    return EXIT_DONE


def _move_cells(move: LeaseMove) -> tuple[str, ...]:
    order = f"order: {_without_shards(move['command'], move['shard'])}" if move["command"] else move["kind"]
    return (
        utc_text(move["at_micros"]),
        move["shard"],
        order,
        move["from"] or "-",
        move["to"] or "-",
        move["who"] or "-",
        move["outcome"] or "-",
        move["reason"] or "-",
    )


def save_snapshot(site: Site, arguments: argparse.Namespace) -> int:
    """Save a snapshot of the fleet in a file, or print it for the file name ``-``."""
    facts = readable(FleetReader(site).collect())
    text = snapshot_text(facts)
    if arguments.file == "-":
        print(text, end="")
        return EXIT_DONE
    try:
        Path(arguments.file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"cannot write {arguments.file}: {error.strerror}") from error
    if arguments.json:
        print_json({"file": arguments.file, "leases": len(facts.rows), "workers": len(facts.workers)})
    else:
        saved = f"{counted(len(facts.rows), 'lease')} and {counted(len(facts.workers), 'worker')}"
        print_text(f"saved {saved} to {arguments.file}")
    return EXIT_DONE


def report(site: Site, arguments: argparse.Namespace) -> int:
    """Print lag and time to loss by groups of shards. With ``--directory``, save this report and a snapshot."""
    if arguments.keep is not None and arguments.directory is None:
        raise ConfigurationError("--keep limits the number of reports in a --directory; name one")
    checks.optional(checks.positive).require("--keep", arguments.keep)
    kept = REPORTS_KEPT if arguments.keep is None else arguments.keep
    directory = None if arguments.directory is None else ReportDirectory(arguments.directory, kept)
    view = overview(readable(FleetReader(site).collect(None)))
    saved = None if directory is None else _saved(directory, site.data_table, view)
    if arguments.json:
        print_json(fleet_report(view))
    else:
        lines = [headline(view), *map(str, shard_groups(view)), *_parked_lines(view.facts)]
        print_text(*map(shard_shortener(view.facts), lines))
        if saved is not None:
            print_text(f"saved as {saved}")
    return EXIT_DONE


def _parked_lines(facts: FleetFacts) -> list[str]:
    parked = parked_line(facts)
    return [f"{facts.stream.table_name}: {parked[0].lower()}{parked[1:].rstrip('.')}"] if parked else []


def _saved(directory: ReportDirectory, name: str, view: Overview) -> Path:
    try:
        return directory.save(name, view, now_micros())
    except OSError as error:
        raise ConfigurationError(f"cannot write the report: {error}") from error


def compare(site: Site, arguments: argparse.Namespace) -> int:
    """Print the differences between two snapshots, or between a snapshot and the present state."""
    before = load_snapshot(Path(arguments.before))
    after = (
        snapshot_of(readable(FleetReader(site).collect()))
        if arguments.after is None
        else load_snapshot(Path(arguments.after))
    )
    changes = differences(before, after)
    if arguments.json:
        print_json({"differences": [{"subject": d.subject, "kind": d.kind, "text": d.text} for d in changes]})
    else:
        short = id_shortener(
            entry["shard"] for state in (before, after) for entry in (*state["leases"], *state["shards"])
        )
        print_text(*([short(str(change)) for change in changes] or ["no difference"]))
    return EXIT_DONE


# --- shared with other commands ------------------------------------------------------------------------------------


def with_parked(site: Site, arguments: argparse.Namespace, facts: FleetFacts) -> FleetFacts:
    """Return ``facts`` with the number of parked keys of each shard, if the arguments name a parking store.

    Raises:
        ConfigurationError: the parking store does not exist.
    """
    table, directory = arguments.parking_table, arguments.parking_directory
    if facts.stream.stream_id is None or (table is None and directory is None):
        return facts
    store = existing_store(lambda: site.client, table, directory)
    return evolve(facts, parked=parked_counts(store.parked_keys(facts.stream.stream_id)))


def all_shards(facts: FleetFacts) -> list[str]:
    """Return the ids of all shards that have or had a lease row, or that the stream lists; ancestors first."""
    return facts.tree.ancestors_first({*facts.rows, *(facts.stream.listing or {}), *facts.former_rows})


def known_ids(facts: FleetFacts) -> set[str]:
    """Return the ids of all shards and of their parents, even of parents that are gone."""
    return {*all_shards(facts), *(parent for parents in facts.parents.values() for parent in parents)}


def shard_shortener(facts: FleetFacts) -> Callable[[str], str]:
    """Return a function that shortens the ids of the fleet's shards in a text, if the output is a terminal."""
    return id_shortener(known_ids(facts))


def named_shard(facts: FleetFacts, given: str) -> str:
    """Return the shard id that begins with ``given``; ``given`` itself if no shard id begins with it.

    Raises:
        ConfigurationError: several ids begin with ``given``.
    """
    return matching_id(given, all_shards(facts), "shard")


def print_explanation(facts: FleetFacts, verdict: Explanation) -> None:
    """Print the first line of an explanation, its advice, and its evidence."""
    lines = [
        verdict.first_line,
        f"  what to do: {verdict.situation.advice}",
        *(f"  {line}" for line in evidence(facts, verdict.shard_id)),
    ]
    print_text(*map(shard_shortener(facts), lines))


def _without_shards(command: str, shard_id: str) -> str:
    """Return a recorded command without the shard id, for a table with a column for the shard."""
    words = [word for word in command.split(" ") if word != shard_id]
    return " ".join(words)


def _line(lease: Document) -> tuple[str, ...]:
    pause = lease["pause"]
    paused = "" if pause is None else f"{pause['by']}{'' if lease['pause_acknowledged'] else ' (pending)'}"
    return (
        lease["shard"],
        lease["owner"] or "-",
        lease["situation"],
        lease["checkpoint_kind"] or "-",
        ",".join(lease["parents"] or ()) or "-",
        _seconds(lease["lag_seconds"]),
        _seconds(lease["seconds_to_loss"]),
        paused or "-",
    )


def _seconds(value: float | None) -> str:
    return "-" if value is None else duration(value)


def _audit_text(record: AuditRecord) -> str:
    reason = f" ({record.reason})" if record.reason else ""
    return f"{utc_text(record.at_micros)} {record.who}: {record.command}{reason}: {record.outcome}"
