"""``python -m tests.replicate.drill``: replicate a table under a concurrent writer, killed and resumed, then compared.

Source and destination are two local servers. The seed decides what is written; the machine decides only how fast.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

from attrs import frozen
from tablestore import DeleteRowItem, OTSClient, Row, UpdateRowItem

from streamclient.server import LocalTablestore
from streamclient.testing.fleet import Fleet, WorkerProcess
from tests.drill_kit import directory_of, options, put
from tests.patience import until
from tests.stage import IGNORE, make_table, write

SOURCE, DESTINATION = "orders", "orders_copy"
WRITE_PAUSE_SECONDS = 0.02
LONGEST_SECONDS = 900.0
ZONE = "UTC"
POLLS = ("--poll-seconds", "0.5")


@frozen
class DrillResult:
    """What one drill showed."""

    rows: int
    changes: int
    kills: int
    compared: int
    differences: int
    seconds: float

    def __str__(self) -> str:
        return (
            f"drill rows={self.rows} changes={self.changes} kills={self.kills} compared={self.compared} "
            f"differences={self.differences} seconds={self.seconds:.1f}"
        )


class Writer:
    """Puts, updates and deletes rows at random until stopped."""

    def __init__(self, client: OTSClient, rows: int, seed: int) -> None:
        self._client = client
        self._rows = rows
        self._dice = random.Random(seed)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="writer")
        self.changes = 0
        self.error: BaseException | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            while not self._stop.wait(WRITE_PAUSE_SECONDS):
                self._write()
        except BaseException as error:
            self.error = error

    def _write(self) -> None:
        keys = self._dice.sample(range(self._rows + self._rows // 10 + 1), 20)
        self.changes += len(keys)
        write(self._client, SOURCE, [self._change(key) for key in keys])

    def _change(self, key: int) -> object:
        kind, value = self._dice.random(), self._dice.randrange(1_000_000)
        if kind < 0.1:
            return DeleteRowItem(Row([("id", key)]), IGNORE)
        if kind < 0.6:
            return put(key, ("value", value), ("note", "x" * self._dice.randrange(50)))
        changed: dict[str, list[object]] = {"PUT": [("value", value)]}
        if kind < 0.7:
            changed["DELETE_ALL"] = ["note"]
        return UpdateRowItem(Row([("id", key)], changed), IGNORE)


def make_source(client: OTSClient, rows: int, note: str = "new") -> None:
    make_table(client, SOURCE, [("id", "INTEGER")])
    write(client, SOURCE, [put(key, ("value", key), ("note", note)) for key in range(rows)])


def configuration(source: LocalTablestore, destination: LocalTablestore, /, **reader: object) -> dict[str, object]:
    def side(local: LocalTablestore, table: str) -> dict[str, object]:
        return {
            "endpoint": local.endpoint,
            "instanceName": local.instance,
            "tableName": table,
            "accessId": local.access_key_id,
            "accessKey": local.access_key_secret,
        }

    return {
        "ots-reader": {**side(source, SOURCE), "tunnelName": "copy", "timeZone": ZONE, **reader},
        "ots-writer": {**side(destination, DESTINATION), "batchWriteCount": 200},
    }


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "streamclient.cli.main", "replicate", *arguments]


def drill(
    rows: int, kills: int, seed: int, directory: Path, *, source_kind: str = "tunnel", processes: int = 1
) -> DrillResult:
    """Copy under a writer by `processes`; kill one of them `kills` times; stop writing; let the copy end; compare."""
    started = time.monotonic()
    directory.mkdir(parents=True, exist_ok=True)
    with LocalTablestore() as source, LocalTablestore() as destination:
        make_source(source.client(), rows, "new" * (100 if processes > 1 else 1))  # so that there are several pieces
        stream = {"source": "stream", "statusTableName": "copy_status", "pieceMebibytes": 1}
        reader = stream if source_kind == "stream" else {}
        config = directory / "copy.json"
        config.write_text(json.dumps(configuration(source, destination, **reader)))
        writer = Writer(source.client(), rows, seed)
        writer.start()
        with Fleet(directory) as fleet:
            for number in range(kills):
                while len(fleet.running()) < processes:
                    start(fleet, config, f"{number}-{len(fleet.running())}")
                kill_at(fleet, destination.client(), rows * (number + 1) // (kills + 1))
            fleet.stop()
        source.split(SOURCE)
        writer.stop()
        finish(config, source, destination, reader)
        compared, differences = verify(config)
        return DrillResult(rows, writer.changes, kills, compared, differences, time.monotonic() - started)


def start(fleet: Fleet, config: Path, name: str, *arguments: str) -> WorkerProcess:
    """Start a process that replicates."""
    return fleet.start(name, command(str(config), *POLLS, *arguments)[1:])


def kill_at(fleet: Fleet, client: OTSClient, rows: int) -> None:
    """Run until the destination has a row near `rows`, then ``kill -9`` the oldest process."""
    processes = fleet.running()
    until(lambda: has_row(client, rows) or len(fleet.running()) < len(processes), f"row {rows}; see {fleet.directory}")
    assert fleet.running() == processes, f"a replication ended before row {rows}; see {fleet.directory}"
    processes[0].kill()


def has_row(client: OTSClient, rows: int) -> bool:
    """Return whether a row near the given key was copied: the rows of a piece are copied in key order."""
    if DESTINATION not in client.list_table():
        return False
    return any(client.get_row(DESTINATION, [("id", key)])[1] is not None for key in range(max(0, rows - 5), rows))


def finish(config: Path, source: LocalTablestore, destination: LocalTablestore, reader: dict[str, object]) -> None:
    """Run with an end time just after the last change, until it ends by itself."""
    threading.Event().wait(1.1)
    end = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
    config.write_text(json.dumps(configuration(source, destination, endTime=end, **reader)))
    with Fleet(config.parent) as fleet:
        process = start(fleet, config, "last")
        code = process.wait(LONGEST_SECONDS)
    assert code == 0, f"the replication ended with {code}; see {process.log}:\n{process.log.read_text()[-2000:]}"


def verify(config: Path) -> tuple[int, int]:
    ended = subprocess.run(command(str(config), "--verify", "--json"), capture_output=True, text=True, check=False)
    if ended.returncode not in (0, 3):
        raise AssertionError(f"--verify failed: {ended.stderr}")
    counts = json.loads(ended.stdout)
    if counts["differences"]:
        print(ended.stderr[-2_000:], file=sys.stderr)
    return int(counts["rows"]), int(counts["differences"])


def main() -> None:
    given = options(rows=100_000, kills=3, seed=1, source=("tunnel", "stream"), processes=1)
    with directory_of("drill") as directory:
        how = {"source_kind": given.source, "processes": given.processes}
        result = drill(given.rows, given.kills, given.seed, directory, **how)
        print(result)
        assert result.compared, "no row was compared"
        assert not result.differences, "rows differ"
    print("drill: ok")


if __name__ == "__main__":
    main()
