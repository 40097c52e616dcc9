"""Delta as a place of the table: in a directory, and on a store."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.exceptions import DeltaError
from deltalake.schema import PrimitiveType

from streamclient.destinations import DeltaDestination
from streamclient.destinations.rows.change_rows import TIMESTAMP
from tests.destinations.object_store import COMMIT
from tests.destinations.silent_proxy import SilentProxy
from tests.hostile_lake.places import LIMIT_SECONDS, Befalling, Place, network
from tests.hostile_lake.steps import Steps, TellingDelta, TellingStore

_EVERYTHING = frozenset({"GET", "PUT", "HEAD", "POST", "DELETE"})


class DeltaPlace(Place):
    """What both have in common."""

    passing = (DeltaError,)
    url: str
    options: dict[str, str]

    def open(self) -> DeltaDestination:
        made = TellingDelta(self.url, storage_options=self.options, answer_seconds=LIMIT_SECONDS)
        made.steps = self.steps
        return made

    def see(self) -> DeltaDestination:
        return DeltaDestination(self.url, storage_options=self._own_options)

    @property
    def _own_options(self) -> dict[str, str]:
        """Without a proxy."""
        return self.options

    def _handle(self) -> DeltaTable:
        return DeltaTable(self.url, storage_options=self._own_options)

    @property
    def troubles(self) -> Mapping[str, Befalling]:
        return {
            "an unsafe property": self._property("delta.enableExpiredLogCleanup"),
            "append-only": self._property("delta.appendOnly"),
            "a constraint": Befalling(self._constrain, lambda: self._handle().alter.drop_constraint("none")),
            "maintenance": Befalling(self._maintain),
            "another's column": Befalling(
                lambda: self._handle().alter.add_columns([Field("note", PrimitiveType("string"))])
            ),
            "doubled rows": Befalling(self._double),
            "lost rows": Befalling(lambda: self._handle().delete("id = 3")),
        }

    def _property(self, name: str) -> Befalling:
        return Befalling(lambda: self._put(name, "true"), lambda: self._put(name, "false"))

    def _put(self, name: str, value: str) -> None:
        """Set a property of the table."""
        self._handle().alter.set_table_properties({name: value})

    def _rows(self) -> pa.Table:
        return self._handle().to_pyarrow_table()

    def _constrain(self) -> None:
        """No row that is written from now on fulfils it; copied ones have no time."""
        latest = pc.max(self._rows().column(TIMESTAMP)).as_py()
        limit = "IS NULL" if latest is None else f"<= '{latest.isoformat()}'"
        self._handle().alter.add_constraint({"none": f"{TIMESTAMP} {limit}"})

    def _maintain(self) -> None:
        handle = self._handle()
        handle.optimize.compact()
        handle.create_checkpoint()

    def _double(self) -> None:
        rows = self._rows()
        again = rows.filter(pc.is_in(rows.column("id"), pa.array([2, 4])))
        write_deltalake(self.url, again, mode="append", storage_options=self._own_options)


class DirectoryPlace(DeltaPlace):
    def __init__(self, directory: Path, steps: Steps) -> None:
        super().__init__(directory, steps)
        self._table = directory / "lake" / "orders"
        self.url, self.options = str(self._table), {}

    @property
    def troubles(self) -> Mapping[str, Befalling]:
        table = self._table
        return {
            **super().troubles,
            "the table away": _renamed(table),
            "the log away": _renamed(table / "_delta_log"),
            "the schema away": _renamed(table.parent),
            "rows away": Befalling(
                lambda: [one.rename(one.with_suffix(".away")) for one in table.glob("*.parquet")],
                lambda: [one.rename(one.with_suffix(".parquet")) for one in table.glob("*.away")],
            ),
            "another's in its place": Befalling(self._take_place, table.unlink),
        }

    def _take_place(self) -> None:
        self._table.parent.mkdir(parents=True)
        self._table.write_text("nothing of a table")


def _renamed(path: Path) -> Befalling:
    away = path.with_name(f"{path.name}-away")

    def end() -> None:
        # A write that was under way has made the directory anew, for a file of rows that no log names.
        shutil.rmtree(path, ignore_errors=True)
        away.rename(path)

    return Befalling(lambda: path.rename(away), end)


class StorePlace(DeltaPlace):
    def __init__(self, directory: Path, steps: Steps, store: TellingStore, proxy: SilentProxy) -> None:
        super().__init__(directory, steps)
        self._store, self._proxy = store, proxy
        store.steps = steps
        self.url = store.url("orders")
        self.options = {**store.options, "AWS_ENDPOINT_URL": proxy.endpoint}
        self._hidden: dict[str, bytes] = {}

    @property
    def _own_options(self) -> dict[str, str]:
        return self._store.options

    def _put(self, name: str, value: str) -> None:
        """As an entry of the log: delta-rs keeps Python from answering as a store while it sets a property."""
        with self._store.lock:
            entries = sorted(key for key in self._store.objects if COMMIT.fullmatch(key))
            actions = [json.loads(line) for key in entries for line in self._store.objects[key].splitlines()]
            found = [action["metaData"] for action in actions if "metaData" in action][-1]
            found["configuration"][name] = value
            folder, _, last = entries[-1].rpartition("/")
            text = json.dumps({"metaData": found}).encode()
            self._store.objects[f"{folder}/{int(last.removesuffix('.json')) + 1:020}.json"] = text

    @property
    def troubles(self) -> Mapping[str, Befalling]:
        return {
            **super().troubles,
            **network(self._proxy),
            "the table away": self._without(lambda key: True),
            "the log away": self._without(lambda key: "_delta_log" in key),
            "rows away": self._without(lambda key: key.endswith(".parquet") and "_delta_log" not in key),
            "read-only": self._denying(frozenset({"PUT", "POST", "DELETE"})),
            "no entry": self._denying(_EVERYTHING),
        }

    def _denying(self, commands: frozenset[str]) -> Befalling:
        return Befalling(
            lambda: setattr(self._store, "denied", commands), lambda: setattr(self._store, "denied", frozenset())
        )

    def _without(self, is_hidden: Callable[[str], bool]) -> Befalling:
        """Objects out of sight, as of a bucket that is replaced by an empty one."""

        def begin() -> None:
            with self._store.lock:
                for key in [one for one in self._store.objects if is_hidden(one)]:
                    self._hidden[key] = self._store.objects.pop(key)

        def end() -> None:
            with self._store.lock:
                taken = self._hidden.keys() & self._store.objects.keys()
                assert not taken, f"written while it was out of sight: {sorted(taken)}"
                self._store.objects.update(self._hidden)
                self._hidden.clear()

        return Befalling(begin, end)


def address(store: TellingStore) -> tuple[str, int]:
    """Where a proxy finds it."""
    parts = urlsplit(store.endpoint)
    assert parts.hostname
    assert parts.port
    return parts.hostname, parts.port
