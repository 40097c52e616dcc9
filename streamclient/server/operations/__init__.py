"""The operations of the server, one module for each. The package finds its modules automatically.

A module defines its operation as ``OPERATION``, or several operations as ``OPERATIONS``. Modules whose names begin with
an underscore are shared helpers. A new operation needs one new module, and its messages in ``wire``.
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
"""All operations of this server, by name."""
