"""Call another service for every change of a table: a hundred calls at a time, and in order for each row.

The table is ``orders``. A position is stored only after all changes before it are shipped. A failed call is repeated,
so the other service must accept a change a second time.
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
