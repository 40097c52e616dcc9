"""A table with a stream on the local server, lease and worker rows as workers leave them, and the command line."""

from __future__ import annotations

import contextlib
import io
import json
import threading
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from attrs import frozen
from tablestore import INF_MAX, INF_MIN, Condition, Direction, Row, RowExistenceExpectation

from streamclient.base.kept_formats import FORMAT_COLUMN
from streamclient.cli import main
from streamclient.core import leases as rule
from streamclient.core.leases import LeaseWrite
from streamclient.core.worker_info import WorkerInfo
from streamclient.core.write_rules import WriteOutcome
from streamclient.model import Lease, Pause
from streamclient.worker.lease import LeaseManager
from streamclient.worker.lease.lease_rows import CHECKPOINT, COUNTER, OWNER, PARENTS, STEALER, format_parents, key_of
from streamclient.worker.lease.own_columns import PAUSE, PAUSE_TAKEN, format_pause
from streamclient.worker.lease.worker_directory import BEAT, INFO, NONCE, STATE, WAKE, WORKER_STATUS_TYPE
from tests.patience import PATIENCE_SECONDS
from tests.worker.stage import make_table

if TYPE_CHECKING:
    from streamclient.server import LocalTablestore

TABLE, STATUS = "orders", "orders_status"
IGNORE = Condition(RowExistenceExpectation.IGNORE)


@frozen
class Ran:
    """What a command printed."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)

    @property
    def first_line(self) -> str:
        return self.out.splitlines()[0] if self.out else ""


class Scene:
    """One data table, its stream with one shard, and an empty status table."""

    def __init__(self, local: LocalTablestore, *, lease_seconds: float | None = 20.0) -> None:
        self.local = local
        self.client = local.client()
        self.streams = make_table(self.client, TABLE)
        self.lease_seconds = lease_seconds
        (summary,) = self.streams.list_stream(TABLE)
        self.stream_id = summary.stream_id
        self.manager = LeaseManager(self.client, STATUS, self.stream_id)
        self.manager.create_lease_table_if_not_exists()

    # --- the data table --------------------------------------------------------------------------------------------

    @property
    def shard(self) -> str:
        """The first shard that has no parents."""
        return next(s.shard_id for s in self.streams.describe_stream(self.stream_id).shards if not s.parent_shard_ids)

    def write(self, count: int = 1, *, start: int = 0) -> None:
        for number in range(start, start + count):
            self.client.put_row(TABLE, Row([("id", f"key-{number % 40:02}")], [("n", number)]), IGNORE)

    def split(self, shard_id: str | None = None) -> tuple[str, str]:
        return self.local.split(TABLE, shard_id)

    def iterator(self, shard_id: str | None = None, *, after: int = 0) -> str:
        """Iterator behind so many records."""
        text = self.streams.get_shard_iterator(self.stream_id, shard_id or self.shard)
        if after:
            text = self.streams.get_stream_record(text, after).next_position.text
        return text

    # --- rows as workers leave them --------------------------------------------------------------------------------

    def put_lease(
        self,
        shard_id: str,
        owner: str = "",
        *,
        stealer: str = "",
        checkpoint: str = "TRIM_HORIZON",
        counter: int = 7,
        parents: Iterable[str] = (),
        pause: Pause | None = None,
        taken: bool = False,
        beat: float = 0.0,
        moved: float = 0.0,
        owned: float = 0.0,
        marked: float = 0.0,
        without: str = "",
        row_format: int | None = None,
    ) -> None:
        """A lease row; the numbers are ages in seconds, put on the cells as the service's stamps."""
        cells = [
            (COUNTER, counter, beat),
            (OWNER, owner, owned),
            (STEALER, stealer, marked),
            (CHECKPOINT, checkpoint, moved),
            (PARENTS, format_parents(parents), owned),
        ]
        if pause is not None:
            cells.append((PAUSE, format_pause(pause), 5.0))
        if row_format is not None:
            cells.append((FORMAT_COLUMN, row_format, owned))
        if pause is not None and taken:
            cells.append((PAUSE_TAKEN, f"{pause.request_id} {owner}", 4.0))
        self._put(key_of(self.stream_id, shard_id), [cell for cell in cells if cell[0] != without])

    def put_worker(
        self, name: str, *, state: str = "running", beat: float = 0.0, nonce: str = "n1", info: WorkerInfo | None = None
    ) -> None:
        """A session row; ``beat`` is the age of its last beat in seconds."""
        cells = [(NONCE, nonce, beat), (BEAT, 5, beat), (STATE, state, beat), (WAKE, 0, beat)]
        cells.append((INFO, (info or WorkerInfo()).to_json(), beat))
        self._put(key_of(self.stream_id, name, WORKER_STATUS_TYPE), cells)

    def _put(self, key: Any, cells: list[Any]) -> None:
        now = time.time_ns() // 1_000_000
        columns = [(name, value, now - round(age * 1_000)) for name, value, age in cells]
        self.client.put_row(STATUS, Row(key, columns), IGNORE)

    def send(self, write: LeaseWrite) -> None:
        (answer,) = self.manager.write_many([write])
        assert answer.outcome is WriteOutcome.ACCEPTED, answer

    def lease(self, shard_id: str | None = None) -> Lease:
        lease = self.manager.get_lease(shard_id or self.shard)
        assert lease is not None
        return lease

    def cells(self, *, but: tuple[str, ...] = ()) -> list[Any]:
        """Everything in the status table, but rows of the named kinds."""
        start = [(name, INF_MIN) for name in ("StreamId", "StatusType", "StatusValue")]
        end = [(name, INF_MAX) for name in ("StreamId", "StatusType", "StatusValue")]
        _, _, rows, _ = self.client.get_range(STATUS, Direction.FORWARD, start, end, max_version=1)
        return [
            (row.primary_key, row.attribute_columns)
            for row in rows
            if {each[0]: each[1] for each in row.primary_key}["StatusType"] not in but
        ]

    # --- the command line ------------------------------------------------------------------------------------------

    def run(self, *words: str) -> Ran:
        options = ["--endpoint", self.local.endpoint, "--data-table", TABLE, "--status-table", STATUS]
        if self.lease_seconds is not None:
            options += ["--lease-duration", str(self.lease_seconds)]
        return run_cli(*words, *options)

    def explain(self, shard_id: str | None = None, *, observe: float = 0.0) -> str:
        """The first line of ``streamclient explain``."""
        ran = self.run("explain", shard_id or self.shard, "--observe", str(observe))
        assert not ran.err, ran.err
        return ran.first_line

    def audit(self) -> list[Any]:
        ran = self.run("leases", "audit", "--json")
        found: list[Any] = ran.document["records"]
        return found


def run_cli(*words: str) -> Ran:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main.main([*words])
    return Ran(code, out.getvalue(), err.getvalue())


class Owner:
    """A worker reduced to its rows: renews a lease and beats, and obeys pauses if it is told to."""

    def __init__(self, scene: Scene, name: str, shard_id: str, *, obeys: bool = True, has_session: bool = True) -> None:
        self.scene = scene
        self.name = name
        self.shard_id = shard_id
        self.obeys = obeys
        self.has_session = has_session
        self.refused = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"owner-{name}", daemon=True)

    def __enter__(self) -> Owner:
        self._turn()
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join(PATIENCE_SECONDS)

    def _run(self) -> None:
        while not self._stop.wait(0.1):
            self._turn()

    def _turn(self) -> None:
        if self.has_session:
            self.scene.put_worker(self.name)
        lease = self.scene.manager.get_lease(self.shard_id)
        if lease is None or lease.owner != self.name:
            return
        is_asked = self.obeys and lease.pause is not None and not lease.is_paused_by_owner
        write = rule.take_pause(lease) if is_asked else rule.renew(lease)
        (answer,) = self.scene.manager.write_many([write])
        self.refused += answer.outcome is not WriteOutcome.ACCEPTED


def read_shard(scene: Scene, *, records: int = 10, after: int = 6, owner: str = "", **row: Any) -> str:
    """A shard of which some records were read; the row as its owner left it."""
    scene.write(records)
    scene.put_lease(scene.shard, owner, checkpoint=scene.iterator(after=after), **row)
    return scene.shard


def closed_family(scene: Scene) -> tuple[str, str, str]:
    """A finished parent, one child that was read to its end, and one that was begun; nobody owns them."""
    scene.write(4)
    parent = scene.shard
    first, second = scene.split()
    scene.write(40)
    scene.put_lease(parent, checkpoint="SHARD_END")
    scene.put_lease(first, parents=[parent], checkpoint=scene.iterator(first, after=3))
    scene.put_lease(second, parents=[parent])
    return parent, first, second
