"""``rerouted.py PROGRAM [ARGUMENT...]``: run a program, a sample say, with other addresses than those that it names.

A site listens on any free port, which is printed, and sessions go to the address in ``WAREHOUSE``. With ``LOOP=uvloop``
the program's event loop is that of uvloop. Tests in the program are called.
"""

from __future__ import annotations

import asyncio
import os
import runpy
import sys
from collections.abc import Coroutine
from typing import Any

import aiohttp
from aiohttp import web

Session = aiohttp.ClientSession
run_as_ever = asyncio.run


class AnySite(web.TCPSite):
    """A site on any free port."""

    def __init__(self, runner: web.BaseRunner, host: str, port: int) -> None:
        super().__init__(runner, host, 0)
        self.of = runner

    async def start(self) -> None:
        await super().start()
        print(f"serving {self.of.addresses[0][1]}", flush=True)


def session(base_url: str, **options: Any) -> Session:
    """A session with another base."""
    return Session(os.environ["WAREHOUSE"], **options)


def run_in_uvloop(main: Coroutine[Any, Any, Any]) -> Any:
    """As ``asyncio.run``."""
    import uvloop

    asyncio.run = run_as_ever  # uvloop uses it from Python 3.12 on
    return uvloop.run(main)


def reroute() -> None:
    """Put all of this in place."""
    web.TCPSite = AnySite  # type: ignore[assignment, misc]
    aiohttp.ClientSession = session  # type: ignore[assignment, misc]
    if os.environ.get("LOOP") == "uvloop":
        asyncio.run = run_in_uvloop  # type: ignore[assignment]


if __name__ == "__main__":
    reroute()
    program, *sys.argv[1:] = sys.argv[1:]
    for name, value in runpy.run_path(program, run_name="__main__").items():
        if name.startswith("test_"):
            value()
