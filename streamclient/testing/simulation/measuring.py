"""How much of the production core some histories run through: lines and branches, by the package ``coverage``.

Measuring begins before the core is imported, so it happens in a process of its own, and this module imports nothing of
what it measures.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import frozen

if TYPE_CHECKING:
    from streamclient.testing.simulation.drawing import Size

CORE, TUNNELS = "streamclient.core", "streamclient.core.tunnel"


class Reached(dict[Any, Any]):
    """A table that notes what is looked up in it."""

    def __init__(self, table: Mapping[Any, Any], line_of: Callable[[Any], Any] = lambda state: state) -> None:
        """``line_of`` says which line of the printed table a state belongs to."""
        super().__init__(table)
        self.found: set[Any] = set()
        self._line_of = line_of

    def __getitem__(self, state: Any) -> Any:
        """As of any dictionary."""
        self.found.add(state)
        return super().__getitem__(state)

    def get(self, state: Any, default: Any = None) -> Any:
        """As of any dictionary."""
        self.found.add(state)
        return super().get(state, default)

    def __str__(self) -> str:
        every = self.lines(self)
        return f"{len(self.lines(self.found) & every)} of {len(every)}"

    def lines(self, states: Iterable[Any]) -> set[Any]:
        """The lines of some states; what is not in the table is a line of its own."""
        return {self._line_of(state) if state in self else state for state in states}


@frozen
class CoreCoverage:
    """What was run of that part of the core which a kind of history tests, as shares of what there is."""

    measured: str
    histories: int
    lines: float
    branches: float
    missed: Mapping[str, tuple[int, ...]]
    """Numbers of the lines that no history ran through, by file."""
    tables: Mapping[str, str]
    """How many lines of each table were looked up."""

    def __str__(self) -> str:
        tables = "".join(f", {reached} {name}" for name, reached in self.tables.items())
        return (
            f"coverage of {self.measured} over {self.histories} histories: {100 * self.lines:.1f} % of the lines, "
            f"{100 * self.branches:.1f} % of the branches{tables}"
        )


def is_measurable() -> bool:
    """Whether the package ``coverage`` is there."""
    return find_spec("coverage") is not None


def measure_core(first_seed: int, histories: int, size: Size | None = None) -> CoreCoverage:
    """Run some histories in another process and measure them; slow, some four times the usual time each.

    Raises:
        ModuleNotFoundError: the package ``coverage`` is not installed.
    """
    is_tunnel = size is not None and size.name == "TUNNEL"
    # Where it measures, this module is loaded before what is measured; so nothing of that is imported above.
    from streamclient.testing.simulation.campaign import pool_of  # noqa: PLC0415

    with pool_of(1) as pool:
        report, tables = pool.submit(_measured, first_seed, histories, size, is_tunnel=is_tunnel).result()
    totals = report["totals"]
    missed = {Path(name).name: tuple(entry["missing_lines"]) for name, entry in sorted(report["files"].items())}
    return CoreCoverage(
        TUNNELS if is_tunnel else CORE,
        histories,
        totals["covered_lines"] / totals["num_statements"],
        totals["covered_branches"] / totals["num_branches"],
        {name: lines for name, lines in missed.items() if lines},
        tables,
    )


def _measured(
    first_seed: int, histories: int, size: Size | None, *, is_tunnel: bool
) -> tuple[dict[str, Any], dict[str, str]]:
    import coverage  # noqa: PLC0415  # an extra, for development

    # Fleets have no tunnels, and clients of tunnels have nothing else of the core.
    source, omitted = (TUNNELS, []) if is_tunnel else (CORE, ["*/core/tunnel/*"])
    with tempfile.TemporaryDirectory() as directory:
        measure = coverage.Coverage(data_file=None, config_file=False, branch=True, source=[source], omit=omitted)
        measure.start()
        from streamclient.testing.simulation.campaign import run_seeds  # noqa: PLC0415  # measured from its import on

        tables = _connections() if is_tunnel else _tables()
        run_seeds(range(first_seed, first_seed + histories), size)
        measure.stop()
        target = Path(directory, "report.json")
        measure.json_report(outfile=str(target))
        report: dict[str, Any] = json.loads(target.read_text(encoding="utf-8"))
        return report, {name: str(table) for name, table in tables.items()}


def _tables() -> dict[str, Reached]:
    """Have the tables that decide in fleets note what is looked up."""
    from streamclient.core import held  # noqa: PLC0415
    from streamclient.core.consumer import transitions as table  # noqa: PLC0415

    leases, consumers = reached_leases(), Reached(table.TRANSITIONS)
    held.NEXT, table.TRANSITIONS = leases, consumers  # in a process of its own
    return {"lines of the table of held leases": leases, "of that of consumers": consumers}


def reached_leases() -> Reached:
    """The table of held leases: states that differ by the row alone, and ask for the same, are printed as one line."""
    from streamclient.core.held import NEXT  # noqa: PLC0415

    return Reached(NEXT, lambda state: (*state[:2], NEXT[state]))


def _connections() -> dict[str, Reached]:
    """Have connections to channels note from what state to what they go."""
    from streamclient.core.tunnel.tunnel_connection import ChannelConnection, ConnectionState  # noqa: PLC0415

    wait, running, closing, closed = ConnectionState
    changes = ((wait, running), (wait, closed), (running, closing), (running, closed), (closing, closed))
    reached = Reached(dict.fromkeys(changes))

    class Noting(ChannelConnection):
        def __setattr__(self, name: str, value: object) -> None:
            if name == "state":
                reached.get((getattr(self, "state", None), value))
            super().__setattr__(name, value)

    from streamclient.core.tunnel import tunnel_session  # noqa: PLC0415

    tunnel_session.ChannelConnection = Noting  # type: ignore[attr-defined]  # in a process of its own
    return {"changes of state of connections": reached}
