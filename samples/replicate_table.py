"""Copy a table into another table: first its rows, then later changes, in two runs that each have an end time.

The program starts two local Tablestores for itself. The command ``streamclient replicate FILE`` does the same.
"""

from datetime import datetime, timedelta, timezone

from streamclient.copying import Replication, compare_tables, parse_settings
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


def copy_until(end_time: datetime, source: LocalTablestore, destination: LocalTablestore) -> None:
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
    outcome = Replication(settings, say=print, show=lambda line: None, poll_seconds=0.2).run()
    print(f"complete: {outcome.is_complete}, rows written: {outcome.rows}")
    reader, writer = settings.reader.client(), settings.writer.client()
    print(f"differences: {list(compare_tables(reader, 'orders', writer, 'orders_copy'))}")


def in_a_second() -> datetime:
    """Return an end time that is after all earlier writes, even if its fraction of a second is cut off."""
    return datetime.now(timezone.utc) + timedelta(seconds=1)


def main() -> None:
    with LocalTablestore() as source, LocalTablestore() as destination:
        make_table(source.client(), "orders")
        put_orders(source.client(), "orders", range(150))
        copy_until(in_a_second(), source, destination)
        put_orders(source.client(), "orders", [1000])
        copy_until(in_a_second(), source, destination)


if __name__ == "__main__":
    main()
