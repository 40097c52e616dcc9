"""``make demo``: keep a lake equal to a table while shards split and workers die, on one machine."""

from __future__ import annotations

import argparse
import os
import sys
import time
from datetime import datetime, timezone
from pathlib import Path

from streamclient import StreamClientError
from streamclient.server import LocalTablestore
from streamclient.spark import find_java
from streamclient.testing import Fleet, read_deliveries, read_history

try:
    import pyspark  # noqa: F401  # pyright: ignore[reportUnusedImport]  # the worker processes need it

    from samples.demo.comparison import Outcome, compare
except ModuleNotFoundError as missing:
    sys.exit(f'{missing}: run  pip install ".[spark,delta,server]"  where streamclient was installed from')
from samples.demo.story import Stage, play
from samples.demo.writer import TABLE

CHANGES = 12_000
WRITE_SECONDS = 30.0


def parse_arguments() -> argparse.Namespace:
    """Return the demo's options, parsed from the command line."""
    parser = argparse.ArgumentParser(prog="python -m samples.demo", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="seed of the changes; the same seed gives the same changes")
    parser.add_argument("--changes", type=int, default=CHANGES)
    parser.add_argument("--seconds", type=float, default=WRITE_SECONDS, help="approximate duration of the writes")
    parser.add_argument("--output", type=Path, default=Path("demo-output"))
    return parser.parse_args()


def main() -> int:
    """Run the demo; return the exit code, which is 0 only if lake and table are equal."""
    options = parse_arguments()
    try:
        find_java()
    except StreamClientError as error:
        print(error, file=sys.stderr)
        return 2
    started = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - started:6.1f} s  {text}", flush=True)

    directory = options.output.resolve() / datetime.now(timezone.utc).strftime("%Y%m%d-%H%M%S")
    with LocalTablestore() as local, Fleet(directory) as fleet:
        say(f"local Tablestore at {local.endpoint}, seed {options.seed}")
        stage = Stage(directory, local, local.client(), fleet, say)
        acknowledged = play(stage, seed=options.seed, count=options.changes, seconds=options.seconds)
        say("comparing lake, table and stream")
        outcome = judge(stage, acknowledged)
    summarize(outcome, stage, time.monotonic() - started)
    print(outcome.last_line(), flush=True)
    return 0 if outcome.is_ok else 1


def judge(stage: Stage, acknowledged: int) -> Outcome:
    """Compare lake, table and stream, without Spark, and without the code of this package that wrote the lake."""
    stream_id = stage.streams.list_stream(TABLE)[0].stream_id
    return compare(
        stage.lake,
        client=stage.client,
        table=TABLE,
        history=read_history(stage.streams, stream_id),
        deliveries=read_deliveries(sorted(stage.directory.glob("*.lines"))),
        acknowledged=acknowledged,
    )


def summarize(outcome: Outcome, stage: Stage, seconds: float) -> None:
    """Print the counts of the comparison, and the command that shows the lake."""
    look = f"{os.path.relpath(sys.executable)} -m samples.demo.look {stage.lake}"
    print(
        f"\n"
        f"  the writer had {outcome.acknowledged} changes acknowledged; the stream holds {outcome.changes}\n"
        f"  the fleet delivered {outcome.delivered} of them, {outcome.repeats} again after the kill\n"
        f"  in the lake: {outcome.lost} missing, {outcome.duplicates_in_lake} twice, {outcome.invented} unknown\n"
        f"  order: {outcome.out_of_order} changes out of order within their key\n"
        f"  the table has {outcome.table_rows} rows; {outcome.different_rows} differ from the rows of the lake\n"
        f"  took {seconds:.0f} s; everything is in {stage.directory}\n"
        f"  look into the lake: {look}\n"
    )


if __name__ == "__main__":
    sys.exit(main())
