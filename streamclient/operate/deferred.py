"""Commands whose code, and with it the SDK, is loaded when they run: ``--help`` should not wait for it."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable
from importlib import import_module


def deferred(command: str, function: str) -> Callable[[argparse.Namespace], int]:
    """A ``run`` for the parser: calls ``module:function`` of this room with the site and the arguments."""
    module, _, attribute = function.partition(":")

    def run(arguments: argparse.Namespace) -> int:
        _quieten_sdk()
        running = import_module("streamclient.operate.running")
        action = getattr(import_module(f"streamclient.operate.{module}"), attribute)
        code: int = running.run_action(command, action, arguments)
        return code

    return run


def _quieten_sdk() -> None:
    """The SDK warns on import that it has no native codec; without a handler Python prints that."""
    logger = logging.getLogger("tablestore")
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
