"""Test a consumer without a server; run it with ``pytest samples/test_my_consumer.py``."""

from streamclient import Batch
from streamclient.testing import put, run


class Sum:
    total = 0

    def handle(self, batch: Batch) -> None:
        self.total += sum(record["amount"] for record in batch)


def test_sum() -> None:
    sums = Sum()
    done = run(sums.handle, [put("a", amount=12), put("b", amount=30)])
    assert sums.total == 42
    assert done.checkpoints == (2,)
