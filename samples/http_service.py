"""Serve the present rows of a table over HTTP, from one event loop that also reads the table's changes.

``curl http://127.0.0.1:8000/orders/a`` prints the row with the key ``a``. PORT chooses another port.
"""

import asyncio
import os
from typing import Any

from aiohttp import web
from streamclient import aio

rows: dict[object, Any] = {}


async def get(request: web.Request) -> web.Response:
    return web.json_response(rows.get(request.match_info["id"]))


async def main() -> None:
    app = web.Application()
    app.router.add_get("/orders/{id}", get)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", int(os.environ.get("PORT", "8000")))
    await site.start()
    print(f"serving {runner.addresses[0]}", flush=True)
    async with aio.changes("orders", group="cache") as changes:
        async for batch in changes:
            for record in batch:
                rows[record["id"]] = record.apply_to(rows.get(record["id"]))
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(main())
