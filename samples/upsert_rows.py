"""Keep a PostgreSQL table equal to a Tablestore table, with at-least-once delivery.

Run ``DSN=... python upsert_rows.py``. The table in PostgreSQL must exist; create it with
``create table orders (id text primary key, amount bigint)``. Each batch is one transaction, and the batch's position is
stored after the transaction. So after a crash a batch may come again. That changes nothing, because an upsert of the
same row has the same result.
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
