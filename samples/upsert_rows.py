"""Keep a table of PostgreSQL like a table of Tablestore, at least once.

``DSN=... python upsert_rows.py``, with a table that ``create table orders (id text primary key, amount bigint)`` made.
Each batch is one transaction, and its position is stored after it. So after a crash a batch may come again, which
changes nothing: an upsert of the same row is the same row.
"""

import os
import sys

try:
    import psycopg
except ModuleNotFoundError as missing:
    sys.exit(f'{missing}: run  pip install ".[postgres]"  where streamclient was installed from')
import streamclient

UPSERT = "insert into orders values (%s, %s) on conflict (id) do update set amount = excluded.amount"

if __name__ == "__main__":
    with psycopg.connect(os.environ["DSN"], autocommit=True) as db:
        for batch in streamclient.changes("orders", group="pg"):
            with db.transaction():
                for record in batch:
                    if record.is_delete:
                        db.execute("delete from orders where id = %s", [record["id"]])
                    elif "amount" in record:
                        db.execute(UPSERT, [record["id"], record["amount"]])
