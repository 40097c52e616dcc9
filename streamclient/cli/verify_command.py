"""``streamclient verify``: prove by a destination's log and rows that the destination holds each record once."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext, suppress
from typing import TYPE_CHECKING, Any

from streamclient.base.reasons import counted
from streamclient.cli.options import TABLES, command_client, connection_parent, option_value
from streamclient.cli.terminal.commands import EXIT_DONE, EXIT_REFUSED, CommandFailed, runs
from streamclient.cli.terminal.layout import Column
from streamclient.cli.terminal.output import id_shortener, print_json, print_table, print_text, shown_meanwhile
from streamclient.errors import StreamClientError
from streamclient.records import readable_position

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from streamclient.destinations.commit import Destination
    from streamclient.destinations.proof.verification import Proof
    from streamclient.operate.facts import FleetFacts

SHARD_COLUMNS = (
    Column("SHARD"),
    Column("APPLICATION", drop=2, least=8),
    Column("COMMITS"),
    Column("EPOCH", drop=1),
    Column("POSITION", least=12),
)


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand ``verify``."""
    parser = commands.add_parser(
        "verify",
        help="prove that a destination holds each record once",
        description="Prove from its log that a destination has no hole and no overlap. With --data-table and "
        "--status-table, also prove that it follows the tree of shards, and has not lost its last commits. "
        "Exit code 0: nothing is wrong; 1: something is wrong; 2: it cannot be read, or holds no commit.",
        parents=[connection_parent(tables=TABLES, title="the stream and the leases of the fleet that writes")],
    )
    parser.add_argument(
        "destination",
        help="directory or address of a Delta table; with --table, how to connect to PostgreSQL; with --catalog, an "
        "Iceberg table, such as lake.orders",
    )
    parser.add_argument("--table", metavar="NAME", help="PostgreSQL: the table, perhaps with its schema before it")
    parser.add_argument("--catalog", metavar="NAME", help="Iceberg: the catalog, as pyiceberg's configuration names it")
    add_store_option(parser)
    add_application_option(parser)
    parser.add_argument("--rows", action="store_true", help="also read, count and compare all rows")
    runs(parser, _verify)


def _verify(arguments: argparse.Namespace) -> int:
    from streamclient.destinations.proof.verification import verify  # noqa: PLC0415

    fleet = _fleet_of(arguments)
    with ExitStack() as opened, shown_meanwhile("reading all rows") if arguments.rows else nullcontext():
        proof = verify(
            _opened(arguments, opened),
            parents=_parents(fleet()) if fleet else None,
            checkpoints=(lambda: _checkpoints(fleet())) if fleet else None,
            with_rows=arguments.rows,
        )
    require_commits(proof, arguments.application)
    with suppress(BrokenPipeError):  # the exit code is about the proof, whether or not the report is read
        if getattr(arguments, "json", False):
            print_json(_document(proof))
        else:
            _print(proof)
    return EXIT_DONE if proof.is_whole else EXIT_REFUSED


def _fleet_of(arguments: argparse.Namespace) -> Callable[[], FleetFacts] | None:
    """Return a function that reads the fleet's leases and shards; ``None`` if the options name no table of a fleet.

    If only the environment names the data table and the status table, the result is ``None``, too, because these tables
    may belong to another fleet.
    """
    if not any(hasattr(arguments, name.replace("-", "_")) for name in TABLES):
        return None
    from streamclient.operate.collection import FleetReader, readable  # noqa: PLC0415
    from streamclient.operate.site import Site  # noqa: PLC0415

    data_table, status_table = (option_value(name, arguments) for name in TABLES)
    reader = FleetReader(Site(command_client(arguments), data_table, status_table))

    def read() -> FleetFacts:
        facts = readable(reader.collect())
        if not facts.leases:
            raise CommandFailed(f"{status_table} has no lease of the stream of {data_table}: nothing to compare with")
        return facts

    return read


def _parents(facts: FleetFacts) -> dict[str, frozenset[str]]:
    """Return, by shard id, the parents of each shard, but only the parents with a lease.

    A parent without a lease had ended before the fleet began, or its lease was deleted.
    """
    return {shard: parents.intersection(facts.leases) for shard, parents in facts.parents.items()}


def _checkpoints(facts: FleetFacts) -> dict[str, str]:
    return {shard: lease.checkpoint for shard, lease in facts.leases.items()}


def _opened(arguments: argparse.Namespace, opened: ExitStack) -> Destination:
    """Open the destination that the arguments name. ``opened`` closes the destination, and the catalog of Iceberg."""
    destination = _destination(arguments, opened)
    opened.callback(destination.close)
    return destination


def _destination(arguments: argparse.Namespace, opened: ExitStack) -> Destination:
    from streamclient.destinations import DeltaDestination, IcebergDestination, PostgresDestination  # noqa: PLC0415

    given = [name for name in ("table", "catalog", "option") if getattr(arguments, name)]
    if len(given) > 1:
        raise CommandFailed("--table is for PostgreSQL, --catalog for Iceberg, --option for Delta: give one of them")
    address, application = arguments.destination, arguments.application
    if arguments.table:
        return PostgresDestination(address, arguments.table, application=application)
    if arguments.catalog:
        catalog = _catalog(arguments.catalog)
        opened.callback(catalog.close)
        return IcebergDestination(catalog, address, application=application)
    return DeltaDestination(address, application=application, storage_options=store_options(arguments))


def require_commits(proof: Proof, application: str) -> None:
    """Require that the proof covers commits, so that a misspelt destination or application does not pass.

    Raises:
        CommandFailed: the destination holds no commit, or no commit of ``application``.
    """
    if not proof.is_whole:
        return  # the caller reports the findings, which are more important
    if not proof.commits and not proof.lasts:
        raise CommandFailed("the destination does not exist or holds no commit, so there is nothing to verify")
    applications = sorted({name for name, _ in proof.lasts})
    if applications and application not in applications:
        raise CommandFailed(
            f"the destination holds no commit of the application {application!r}, so this application's fences cannot "
            f"be compared with the destination's log; give --application {' or '.join(map(repr, applications))}"
        )


def add_application_option(parser: argparse.ArgumentParser) -> None:
    """Add the option ``--application``, the name of the fleet that writes to the destination.

    The proof compares this fleet's fences in the destination with this fleet's commits in the destination's log.
    """
    parser.add_argument(
        "--application", default="default", metavar="NAME", help="the fleet that writes; default: %(default)s"
    )


def _catalog(name: str) -> Catalog:
    from streamclient.destinations.catalog_calls import load_catalog  # noqa: PLC0415

    try:
        catalog: Catalog = load_catalog(name)
    except StreamClientError:
        raise
    except Exception as error:  # each kind of catalog uses another library, with its own errors
        raise CommandFailed(
            f"catalog {name!r} cannot be used ({error}): describe it in .pyiceberg.yaml, or by variables such as "
            f"PYICEBERG_CATALOG__{name.upper()}__URI"
        ) from error
    return catalog


def add_store_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--option``, which gives options of the object store that holds a Delta table."""
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="Delta: an option of the store; repeatable. Secrets are better off in the environment",
    )


def store_options(arguments: argparse.Namespace) -> dict[str, str] | None:
    """Return the options of the object store that ``--option`` gives, by key; ``None`` without options."""
    options = {}
    for text in arguments.option:
        key, separator, value = text.partition("=")
        if not key or not separator:
            raise CommandFailed("--option must be KEY=VALUE")  # without the given text, which may be a secret
        options[key] = value
    return options or None


def _print(proof: Proof) -> None:
    from streamclient.copying.mirror_comparison import readable_end  # noqa: PLC0415 -- --help does not wait for it

    short = _shortener(proof)
    rows = [
        (short(shard), application, str(last.number), str(last.epoch), readable_end(shard, last.end))
        for (application, shard), last in sorted(proof.lasts.items())
    ]
    print_table(SHARD_COLUMNS, rows, "no shards")
    print()
    read = "" if proof.rows is None else f", {counted(proof.rows, 'row')} read"
    whole = "no hole and no overlap" if proof.rows is None else "each record once"
    result = whole if proof.is_whole else counted(len(proof.findings), "finding")
    numbers = (counted(len(rows), "shard"), counted(proof.commits, "commit"), counted(proof.records, "record"))
    print_text(f"{', '.join(numbers)}{read}: {result}")
    for line in finding_lines(proof):
        print_text(line)


def finding_lines(proof: Proof) -> Iterator[str]:
    """Yield a line of text for each finding of a proof."""
    short = _shortener(proof)
    for finding in proof.findings:
        start, end = (readable_position(text) if text else "?" for text in (finding.start, finding.end))
        yield f"{finding.flaw.value}: shard {short(finding.shard) or '?'} from {start} to {end}: {short(finding.text)}"


def _shortener(proof: Proof) -> Callable[[str], str]:
    return id_shortener(
        {shard for _, shard in proof.lasts} | {finding.shard for finding in proof.findings if finding.shard}
    )


def _document(proof: Proof) -> dict[str, Any]:
    return {
        "is_whole": proof.is_whole,
        "commits": proof.commits,
        "records": proof.records,
        "rows": proof.rows,
        "shards": [
            {"shard": shard, "application": application, **_position(last)}
            for (application, shard), last in sorted(proof.lasts.items())
        ],
        "findings": [
            {
                "flaw": finding.flaw.value,
                "shard": finding.shard or None,
                "from": finding.start or None,
                "to": finding.end or None,
                "text": finding.text,
            }
            for finding in proof.findings
        ],
    }


def _position(last: Any) -> dict[str, Any]:
    return {"commits": last.number, "epoch": last.epoch, "position": last.end, "digest": last.digest}
