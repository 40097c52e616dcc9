"""Keep state for each shard of a table in one event loop: an object per shard, with ``await`` in its methods.

Each total begins at 0 when this process takes a shard of ``orders``. It adds the amounts of the records from then on.
"""

import asyncio

from streamclient import InitializationInput, aio


class Totals(aio.AsyncRecordProcessor):
    async def initialize(self, initialization_input: InitializationInput) -> None:
        self.total = 0

    async def process_records(self, batch: aio.AsyncBatch) -> None:
        self.total += sum(record.get("amount", 0) for record in batch)
        await batch.commit()
        print(batch.shard.shard_id, self.total, flush=True)


async def main() -> None:
    await aio.changes("orders", group="totals").run(Totals)


if __name__ == "__main__":
    asyncio.run(main())
