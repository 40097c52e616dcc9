"""``python -m benchmarks.twin``: rounds of the codec in Python, in a process without the compiled codec.

If the compiled codec were loaded, the codec in Python would have to make records in the form of the compiled codec.
Users of the codec in Python do not have the compiled codec.
"""

from __future__ import annotations

import json
import os
import sys
import time
from functools import cache
from pathlib import Path

from benchmarks.java import RoundsProcess


@cache
def twin_rounds() -> RoundsProcess:
    """Return the process of these rounds. The first call starts it, and it ends with the present process."""
    return RoundsProcess([sys.executable, "-m", "benchmarks.twin"], {**os.environ, "STREAMCLIENT_PURE_PYTHON": "1"})


def main() -> None:
    """Run each round ("decode", file, number of repetitions) of the standard input, and print its result."""
    from streamclient.wire.record_decoding import PurePythonCodec  # noqa: PLC0415  # only in the process of the rounds

    codec = PurePythonCodec()
    for line in sys.stdin:
        _, path, times = line.rstrip("\n").split("\t")
        body, records, begun = Path(path).read_bytes(), 0, time.process_time_ns()
        for _ in range(int(times)):
            for _ in codec.decode_page(body).records:
                records += 1
        print(json.dumps({"nanos": time.process_time_ns() - begun, "records": records}), flush=True)


if __name__ == "__main__":
    main()
