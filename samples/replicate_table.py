"""Copy a table into another one: what is there, then what changes, until a time.

Runs against two local Tablestores that it starts itself. ``streamclient replicate FILE`` does the same from a shell.
"""

import threading
from datetime import datetime, timedelta, timezone

from streamclient.replicate.run import Replication, client_for
from streamclient.replicate.settings import parse_settings
from streamclient.replicate.verify import compare_tables
from streamclient.server import LocalTablestore

from samples.tunnel_table import make_table, put_orders


def side(local: LocalTablestore, table: str) -> dict[str, object]:
    return {
        "endpoint": local.endpoint,
        "instanceName": local.instance,
        "tableName": table,
        "accessId": local.access_key_id,
        "accessKey": local.access_key_secret,
    }


def main() -> None:
    with LocalTablestore() as source, LocalTablestore() as destination:
        make_table(source.client(), "orders")
        put_orders(source.client(), "orders", range(150))
        end_time = datetime.now(timezone.utc) + timedelta(seconds=2)
        settings = parse_settings(
            {
                "ots-reader": {
                    **side(source, "orders"),
                    "tunnelName": "copy",
                    "endTime": end_time.strftime("%Y-%m-%d %H:%M:%S"),
                    "timeZone": "UTC",
                },
                "ots-writer": {**side(destination, "orders_copy"), "batchWriteCount": 100},
            },
            environment={},
        )
        # Runs until the end time is past; a change that is made meanwhile is copied too.
        change = threading.Timer(0.5, put_orders, (source.client(), "orders", [1000]))
        change.start()
        progress: list[str] = []
        outcome = Replication(settings, say=print, show=progress.append, poll_seconds=0.2).run()
        print(f"complete: {outcome.is_complete}, {outcome.rows} rows written")
        reader, writer = client_for(settings.reader), client_for(settings.writer)
        print(f"differences: {list(compare_tables(reader, 'orders', writer, 'orders_copy'))}")


if __name__ == "__main__":
    main()
