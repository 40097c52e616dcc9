"""The removal of a Delta table's files, in a separate process.

While a store removes a file, delta-rs keeps the interpreter's lock. So a worker in the same process could not renew its
leases.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence

from streamclient.base.extras import load
from streamclient.destinations.delta.object_stores import Location
from streamclient.errors import DependencyException


def remove_files(location: Location, names: Sequence[str]) -> int:
    """Remove the files ``names``, named as in delta-rs' lists of files. Return how many of the files existed.

    Raises:
        DependencyException: the store failed to remove a file. Other files may have been removed.
    """
    if not names:
        return 0
    # The options hold secrets. They are passed through standard input, because every user of the machine can see the
    # command line.
    given = json.dumps({"url": location.url, "options": dict(location.options), "names": list(names)})
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", __name__]
    done = subprocess.run(command, input=given, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise DependencyException(f"files of {location.url} could not be removed: {done.stderr[-1000:]}")
    return int(done.stdout)


def _remove(url: str, options: dict[str, str], names: Sequence[str]) -> int:
    handler = load("deltalake.fs", "delta").DeltaStorageHandler(url, options)
    removed = 0
    for name in names:
        try:
            handler.delete_file(name)
            removed += 1
        except FileNotFoundError:
            pass  # another clean-up has removed the file
    return removed


if __name__ == "__main__":
    print(_remove(**json.load(sys.stdin)))
