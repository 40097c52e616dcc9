"""Tables in PostgreSQL as an earlier version has made them: their rows are found by Python's own text of their keys."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import psycopg

from streamclient.destinations.postgres.postgres_rows import DIGEST
from streamclient.destinations.rows.change_rows import UNFIT


def former(key: Sequence[Any], *, is_newer: bool) -> bytes:
    """The digest that an earlier version made of a key, under a Python that knows the letter or does not."""
    text = repr(tuple(key)) if is_newer else ascii(tuple(key))
    return sha256(text.encode()).digest()


def as_before(conninfo: str, table: str, *, is_newer: bool = False) -> None:
    """Make of a table what an earlier version has made; with ``is_newer``, under this very Python."""
    with psycopg.connect(conninfo) as connection:
        connection.execute(f'alter table "{table}" drop constraint "{table}_pkey"'.encode())
        connection.execute(f'alter table "{table}" rename column "{DIGEST}" to _key'.encode())
        found = connection.execute(f'select _key, k, {UNFIT} from "{table}"'.encode()).fetchall()
        for digest, key, unfit in found:
            whole = key if key is not None else dict(unfit)["k"]["value"]
            values = (former([whole], is_newer=is_newer), digest)
            connection.execute(f'update "{table}" set _key = %b where _key = %b'.encode(), values)
        connection.execute(f'alter table "{table}" add primary key (_key)'.encode())


def digest_columns(conninfo: str, table: str) -> dict[str, bool]:
    """Columns of digests, and whether they are in the primary key."""
    query = (
        "select attname, "
        "exists(select from pg_index where indrelid = attrelid and indisprimary and attnum = any(indkey)) "
        "from pg_attribute where attrelid = %b::regclass and attname like '\\_key%%' and not attisdropped"
    )
    with psycopg.connect(conninfo) as connection:
        return dict(connection.execute(query, (f'"{table}"',)).fetchall())
