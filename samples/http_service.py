"""Serve the present rows of a table over HTTP, from one event loop that also reads the table's changes.

``curl http://127.0.0.1:8000/orders/a`` prints the row with the key ``a``.
"""

import asyncio
from typing import Any

from aiohttp import web
from streamclient import aio

rows: dict[object, Any] = {}


async def get(request: web.BaseRequest) -> web.Response:
    return web.json_response(rows.get(request.path.removeprefix("/orders/")))


async def main() -> None:
    runner = web.ServerRunner(web.Server(get))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 8000).start()
    print(f"serving {runner.addresses[0]}", flush=True)
    async for batch in aio.changes("orders", group="cache"):
        for record in batch:
            rows[record["id"]] = record.apply_to(rows.get(record["id"]))
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(main())
