"""``python -m benchmarks.twin``: rounds of the codec in Python, in a process without the compiled codec.

If the compiled codec is loaded, records are stored in its form, which the codec in Python then has to serve as well.
Users of the codec in Python have neither.
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
    """Return the process, started at the first call and closed with this one."""
    return RoundsProcess([sys.executable, "-m", "benchmarks.twin"], {**os.environ, "STREAMCLIENT_PURE_PYTHON": "1"})


def main() -> None:
    """Answer rounds ("decode", file, number of repetitions) until the input ends."""
    from streamclient.wire.record_decoding import PurePythonCodec  # noqa: PLC0415  # not in the process that asks

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
