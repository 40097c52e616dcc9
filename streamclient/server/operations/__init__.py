"""What each operation demands and does: one module for each, found by itself.

A module here defines its operation as ``OPERATION``, or several as ``OPERATIONS``; a name that begins with an
underscore marks what modules share. A new operation is one new module, and its messages in ``wire``.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator, Mapping
from importlib import import_module
from types import MappingProxyType

from streamclient.server.operation import ServedOperation


def _collected() -> Iterator[ServedOperation]:
    for module in pkgutil.iter_modules(__path__):
        if module.name.startswith("_"):
            continue
        found = vars(import_module(f"{__name__}.{module.name}"))
        yield from found.get("OPERATIONS") or (found["OPERATION"],)


OPERATIONS: Mapping[str, ServedOperation] = MappingProxyType({operation.name: operation for operation in _collected()})
"""Every operation that this server has, by name."""
