"""Call another service for every change of a table, a hundred calls at a time, those of one order in their order.

The table is ``orders``. A position is stored once every change before it is shipped. A call that fails is repeated, so
the other service has to bear a change that it has seen before.
"""

import asyncio

import aiohttp
from streamclient import StreamRecord, aio


async def main() -> None:
    async with aiohttp.ClientSession("http://127.0.0.1:8080", raise_for_status=True) as http:

        async def ship(record: StreamRecord) -> None:
            await http.post("/ship", json=record.values)

        await aio.changes("orders", group="shipping").each(ship, concurrency=100)


if __name__ == "__main__":
    asyncio.run(main())
