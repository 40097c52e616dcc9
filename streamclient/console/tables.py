"""The console of a local Tablestore: tables, rows, changes, shards, tunnels, faults and requests.

It reads the state of the server in the server's own process, without requests. So the server's faults do not affect the
console, and the console is not one of the server's clients.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from streamclient._version import __version__
from streamclient.base.times import MICROS_PER_HOUR, MICROS_PER_SECOND
from streamclient.console.doors import ConsoleError, found, number_in
from streamclient.console.feeds import ROUND_SECONDS, Document
from streamclient.errors import ConfigurationError
from streamclient.model import Shard
from streamclient.operate.story import StoryBook
from streamclient.server import server_documents as documents
from streamclient.server.admin import Admin
from streamclient.server.observing import MOST_NAME_CHARACTERS, Exchange, Ring
from streamclient.server.server_errors import ServiceError
from streamclient.server.table_views import ranges_of

if TYPE_CHECKING:
    from streamclient.server.local import LocalTablestore

MOST_CHANGES = 200
"""The largest number of changes that the page of a table shows. It shows the newest changes."""

MOST_ROWS = 100
"""The largest number of rows that one page of a table shows."""

_KEY_TYPES: Mapping[str, type[int | str | bytes]] = {"INTEGER": int, "STRING": str, "BINARY": bytes}


class LocalPages:
    """The documents about one local Tablestore, and the changes that its page may make; see ``Pages``."""

    def __init__(self, local: LocalTablestore) -> None:
        self._local = local
        self._control = local.control
        self._admin = Admin(local.control, local.access_key_secret)
        self._changes: dict[str, _ChangeLog] = {}
        self._verdict = documents.FaultVerdict()
        self._wake: Callable[[], None] = lambda: None
        self.ring = Ring(lambda: self._control.now_micros)
        self._of_server: Mapping[str, Callable[[], Document]] = {
            "about": self._about,
            "verdict": self._verdict_now,
            "tables": self._tables,
            "tunnels": lambda: documents.tunnels_document(self._control),
            "faults": self._faults,
            "requests": lambda: documents.requests_document(self._control, self.ring),
        }
        self._of_table: Mapping[str, Callable[[str], Document]] = {
            "rows": lambda table: documents.rows_document(self._control, table, None, MOST_ROWS),
            "changes": self._table_changes,
            "story": self._story,
        }

    def begin(self, wake: Callable[[], None]) -> None:
        """Record requests from now on. The server's thread calls ``wake`` after each request."""
        self._wake = wake
        self.ring.begin()
        self._control.observe(self._observe)

    def end(self) -> None:
        """Stop recording requests."""
        self._control.unobserve(self._observe)
        self.ring.end()

    def followed(self, topics: Collection[str]) -> None:
        """Do nothing: no reading has to begin or end, because the server is in this process."""

    def document(self, topic: str) -> Document:
        """Return the document of a topic, such as ``tables`` or ``changes:orders``. It may be a refusal."""
        kind, _, table = topic.partition(":")
        try:
            if kind in self._of_table and table:
                return self._of_table[kind](table)
            if kind in self._of_server and not table:
                return self._of_server[kind]()
        except ServiceError as error:
            return _refused(error).document()
        return ConsoleError(404, "topic", f"there is no document {topic[:MOST_NAME_CHARACTERS]}").document()

    async def read(self, words: list[str], query: Mapping[str, str]) -> Document:
        """Return the document at the path ``words``; ``limit`` and ``after`` in ``query`` choose rows of a table."""
        match words:
            case ["about" | "verdict" as topic] | ["server", "tables" | "tunnels" | "requests" | "faults" as topic]:
                return found(self.document(topic))
            case ["server", "tables", table, "rows"] if query:
                limit, after = number_in(query.get("limit", str(MOST_ROWS))), query.get("after", "")
                if limit is None or not 1 <= limit <= MOST_ROWS:
                    raise ConsoleError(400, "limit", f"limit must be a whole number from 1 to {MOST_ROWS}")
                with _refusals("after"):
                    return documents.rows_document(self._control, table, bytes.fromhex(after) or None, limit)
            case ["server", "tables", table, kind] if kind in self._of_table:
                return found(self.document(f"{kind}:{table}"))
        raise ConsoleError(404, "path", "there is no such document")

    async def change(self, method: str, words: list[str], arguments: Mapping[str, Any]) -> Any:
        """Create a table, put or delete a row, or call the admin interface; return the document that is the answer."""
        match method, words:
            case "POST", ["server", "tables"]:
                return self._create_table(arguments)
            case "POST", ["server", "tables", table, "rows"]:
                with _refusals("value"):
                    columns = documents.columns_of(arguments, "columns")
                    self._local.put(table, **columns)
                return {"put": 1}
            case "DELETE", ["server", "tables", table, "rows"]:
                with _refusals("value"):
                    key: dict[str, Any] = documents.columns_of(arguments, "key")
                    self._local.delete(table, **key)
                return {"deleted": 1}
            case _, ["server", name]:
                with _refusals("argument"):
                    return self._admin.call(method, name, arguments)
        raise ConsoleError(404, "path", "there is nothing to change at this path")

    # Internal methods

    def _observe(self, exchange: Exchange) -> None:
        self.ring.note(exchange)
        self._wake()

    def _about(self) -> Document:
        return {
            "version": __version__,
            "endpoint": self._local.endpoint,
            "instance": self._local.instance,
            "uses": ["local"],
            "mode": "local",
            "interval_millis": round(ROUND_SECONDS * 1000),
        }

    def _tables(self) -> Document:
        return {
            **documents.tables_document(self._control),
            "fleets_hint": documents.fleets_document(self._control),
        }

    def _faults(self) -> Document:
        return {**documents.faults_document(self._control), "advanced_seconds": self._control.advanced_seconds}

    def _verdict_now(self) -> Document:
        return self._verdict.of(self._faults()["faults"], self._control.now_micros, self.ring.since_micros)

    def _table_changes(self, table: str) -> Document:
        log = self._changes.get(table) or _ChangeLog()
        new = self._control.changes(table, log.positions, MOST_CHANGES)  # raises for an unknown table
        self._changes[table] = log
        log.positions = new.positions
        # If the table was deleted and created again, drop its old changes: their shards do not exist any more.
        kept = [change for change in log.newest if change["shard"] in new.positions]
        log.newest = ([documents.change_document(record) for record in reversed(new.records)] + kept)[:MOST_CHANGES]
        return {"changes": log.newest}

    def _story(self, table: str) -> Document:
        spans = self._control.spans(table)
        view = next(view for view in self._control.tables() if view.name == table)
        # Round ``now`` up to a second. So the document changes once a second at most, and no shard opens after ``now``.
        now = -(-self._control.now_micros // MICROS_PER_SECOND) * MICROS_PER_SECOND
        book = StoryBook()
        book.saw(
            [Shard(span.shard_id, *span.parent_ids) for span in spans],
            {},
            now,
            ranges=ranges_of(spans),
            opened={span.shard_id: span.opened_micros for span in spans if span.opened_micros is not None},
            closed={span.shard_id: span.closed_micros for span in spans if span.closed_micros is not None},
        )
        loss = now - (view.retention_hours or 0) * MICROS_PER_HOUR
        first = min((span.opened_micros for span in spans if span.opened_micros is not None), default=loss)
        keys = {shard.shard_id: shard.key_range for shard in self._control.shards(table)}
        lines = [
            {"id": span.shard_id, "keys": keys[span.shard_id], "records": span.record_count}
            for span in spans
            if span.shard_id in keys
        ]
        return {**book.story(max(first, loss), now, loss), "shards": lines}

    def _create_table(self, arguments: Mapping[str, Any]) -> Document:
        """Create a table with a stream from ``{"name": text, "key": [{"name": text, "type": "STRING"}]}``."""
        name, key = arguments.get("name"), arguments.get("key")
        if not isinstance(name, str) or not isinstance(key, list) or not all(isinstance(part, dict) for part in key):
            raise ConsoleError(
                400,
                "argument",
                "a new table needs a name, and a key that is a list of columns, each with a name and a type",
            )
        kinds = {str(part.get("name", "")): _KEY_TYPES.get(str(part.get("type"))) for part in key}
        if None in kinds.values() or len(kinds) < len(key):
            text = "key columns need different names, and each needs a type: INTEGER, STRING or BINARY"
            raise ConsoleError(400, "argument", text)
        with _refusals("argument"):
            self._local.create_table(name, {at: kind for at, kind in kinds.items() if kind})
        return {"name": name}


class _ChangeLog:
    """The changes that the page of one table shows, newest first, and the position after them in each shard."""

    def __init__(self) -> None:
        self.positions: Mapping[str, int] | None = None
        self.newest: list[Document] = []


def _refused(error: ServiceError) -> ConsoleError:
    """Return the ``ConsoleError`` for a refusal by the local server."""
    return ConsoleError(error.http_status, error.code, error.message)


@contextmanager
def _refusals(code: str) -> Iterator[None]:
    """Raise errors of the ``with`` block as ``ConsoleError``. A ``ValueError`` gets the code ``code``."""
    try:
        yield
    except ServiceError as error:
        raise _refused(error) from error
    except KeyError:
        raise ConsoleError(404, "path", "there is nothing to change at this path") from None
    except (ConfigurationError, TypeError) as error:
        raise ConsoleError(400, "argument", str(error)) from error
    except ValueError as error:
        raise ConsoleError(400, code, str(error)) from error
