"""The share of the production core that some histories run: lines and branches, by the package ``coverage``.

Measuring begins before the core is imported. So it happens in a process of its own, and this module imports nothing of
the code that it measures.

usage: python -m tests.simulation.measuring [--tunnels]
"""

from __future__ import annotations

import argparse
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

HISTORIES = 100
"""More histories find hardly another line."""


class Reached(dict[Any, Any]):
    """A table that records which of its entries are looked up."""

    def __init__(self, table: Mapping[Any, Any], line_of: Callable[[Any], Any] = lambda state: state) -> None:
        """``line_of`` returns the line of the printed table for a state."""
        super().__init__(table)
        self.found: set[Any] = set()
        self._line_of = line_of

    def __getitem__(self, state: Any) -> Any:
        """Return the value, as any dictionary does."""
        self.found.add(state)
        return super().__getitem__(state)

    def get(self, state: Any, default: Any = None) -> Any:
        """Return the value, as any dictionary does."""
        self.found.add(state)
        return super().get(state, default)

    def __str__(self) -> str:
        every = self.lines(self)
        return f"{len(self.lines(self.found) & every)} of {len(every)}"

    def lines(self, states: Iterable[Any]) -> set[Any]:
        """Return the lines of some states; a state outside the table is a line of its own."""
        return {self._line_of(state) if state in self else state for state in states}


@frozen
class CoreCoverage:
    """The measured part of the core for a kind of history, as shares of the whole."""

    measured: str
    histories: int
    lines: float
    branches: float
    missed: Mapping[str, tuple[int, ...]]
    """Numbers of the lines that no history has run, by file."""
    tables: Mapping[str, str]
    """How many lines of each table were looked up."""

    def __str__(self) -> str:
        tables = "".join(f", {reached} {name}" for name, reached in self.tables.items())
        return (
            f"coverage of {self.measured} over {self.histories} histories: {100 * self.lines:.1f} % of the lines, "
            f"{100 * self.branches:.1f} % of the branches{tables}"
        )


def is_measurable() -> bool:
    """Return whether the package ``coverage`` is installed."""
    return find_spec("coverage") is not None


def measure_core(first_seed: int, histories: int, size: Size | None = None) -> CoreCoverage:
    """Run some histories in another process and measure them; each takes about four times as long as usual.

    Raises:
        ModuleNotFoundError: the package ``coverage`` is not installed.
    """
    is_tunnel = size is not None and size.name == "TUNNEL"
    # This module is loaded before the code to measure, so it imports none of that code at its top.
    from streamclient.testing.simulation.campaign import pool_of

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
    import coverage  # an extra, for development

    # Fleets have no tunnels, and clients of tunnels use nothing else of the core.
    source, omitted = (TUNNELS, []) if is_tunnel else (CORE, ["*/core/tunnel/*"])
    with tempfile.TemporaryDirectory() as directory:
        measure = coverage.Coverage(data_file=None, config_file=False, branch=True, source=[source], omit=omitted)
        measure.start()
        from streamclient.testing.simulation.campaign import run_seeds  # measured from its import on

        tables = _connections() if is_tunnel else _tables()
        run_seeds(range(first_seed, first_seed + histories), size)
        measure.stop()
        target = Path(directory, "report.json")
        measure.json_report(outfile=str(target))
        report: dict[str, Any] = json.loads(target.read_text(encoding="utf-8"))
        return report, {name: str(table) for name, table in tables.items()}


def _tables() -> dict[str, Reached]:
    """Make the decision tables of fleets record their lookups."""
    from streamclient.core import held
    from streamclient.core.consumer import transitions as table

    leases, consumers = reached_leases(), Reached(table.TRANSITIONS)
    held.NEXT, table.TRANSITIONS = leases, consumers  # in a process of its own
    return {"lines of the table of held leases": leases, "of that of consumers": consumers}


def reached_leases() -> Reached:
    """Return the table of held leases; states that differ only in the row, and act alike, share a printed line."""
    from streamclient.core.held import NEXT

    return Reached(NEXT, lambda state: (*state[:2], NEXT[state]))


def _connections() -> dict[str, Reached]:
    """Make connections to channels record their transitions."""
    from streamclient.core.tunnel.tunnel_connection import ChannelConnection, ConnectionState

    wait, running, closing, closed = ConnectionState
    changes = ((wait, running), (wait, closed), (running, closing), (running, closed), (closing, closed))
    reached = Reached(dict.fromkeys(changes))

    class Noting(ChannelConnection):
        def __setattr__(self, name: str, value: object) -> None:
            if name == "state":
                reached.get((getattr(self, "state", None), value))
            super().__setattr__(name, value)

    from streamclient.core.tunnel import tunnel_session

    tunnel_session.ChannelConnection = Noting  # type: ignore[attr-defined]  # in a process of its own
    return {"changes of state of connections": reached}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.measuring")
    parser.add_argument("--tunnels", action="store_true", help="of clients of a tunnel instead of fleets")
    is_tunnel = parser.parse_args().tunnels
    from streamclient.testing.simulation.drawing import Size

    print(measure_core(0, HISTORIES, Size.TUNNEL if is_tunnel else None))


if __name__ == "__main__":
    main()
