"""``python -m streamclient.testing.simulation.tunnels``: many histories of tunnel clients, or one of them in full."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections import Counter

from streamclient.testing.simulation.tunnels.campaign import history
from streamclient.testing.simulation.tunnels.laws import TunnelViolation
from streamclient.testing.simulation.tunnels.world import TunnelWorld

PROGRESS_SECONDS = 10.0


def main() -> int:
    """Run what was asked for; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m streamclient.testing.simulation.tunnels", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1_000, metavar="N")
    parser.add_argument("--from", type=int, default=0, dest="first", metavar="S")
    parser.add_argument("--processes", type=int, default=multiprocessing.cpu_count(), metavar="P")
    parser.add_argument("--replay", type=int, metavar="SEED", help="print the history of one seed, line by line")
    options = parser.parse_args()
    if options.replay is not None:
        return replay(options.replay)
    began = shown = time.monotonic()
    seeds = range(options.first, options.first + options.seeds)
    histories, violations, simulated, injected = 0, 0, 0.0, Counter[str]()
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        for found in pool.imap(history, seeds, chunksize=8):
            histories += 1
            simulated += found.seconds
            injected += found.injected
            if found.violation:
                violations += 1
                print(found.violation, file=sys.stderr)
            if time.monotonic() - shown > PROGRESS_SECONDS:
                shown = time.monotonic()
                print(f"{histories} of {len(seeds)} histories, {violations} violations", file=sys.stderr, flush=True)
    seconds = time.monotonic() - began
    print(f"{histories} histories of tunnel clients, {violations} violations")
    print(f"{60 * histories / seconds:.0f} histories per minute, {simulated / 3_600:.0f} simulated hours")
    print("faults: " + ", ".join(f"{count} {kind}" for kind, count in sorted(injected.items())))
    return 1 if violations else 0


def replay(seed: int) -> int:
    """Print everything that happens in one history."""
    world = TunnelWorld(seed)
    violation = ""
    try:
        world.run()
    except TunnelViolation as broken:
        violation = str(broken).splitlines()[0]
    print("\n".join(world.laws.trace))
    print(violation or f"no violation, digest {world.laws.digest}")
    return 1 if violation else 0


if __name__ == "__main__":
    sys.exit(main())
