"""Handle changes as objects of a class, and park changes that do not fit the class.

A change of ``orders`` whose amount is missing or is not an integer fails twice. It is then parked in the table
``parked_orders`` with the reason, and the shard goes on. ``streamclient parked list --table parked_orders`` shows it.
"""

from dataclasses import dataclass

import streamclient
from streamclient import Batch, ClientConfig, FailurePolicy, OnFailure, TableParkingStore


@dataclass
class Order:
    id: str
    amount: int


def handle(batch: Batch) -> None:
    for record in batch:
        if not record.is_delete:
            print(record.to(Order), flush=True)


if __name__ == "__main__":
    store = TableParkingStore(streamclient.connect(), "parked_orders")
    policy = FailurePolicy(retries=1, then=OnFailure.PARK, parking=store)
    streamclient.changes("orders", group="billing", config=ClientConfig(failure_policy=policy)).run(handle)
