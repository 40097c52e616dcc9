"""A table kept equal to another one, in a lake or in a database.

Importing this package imports none of the libraries behind the destinations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamclient._lazy import loader

if TYPE_CHECKING:
    from streamclient.mirror.run import Mirror, mirror
    from streamclient.mirror.shards import MergeLimits
    from streamclient.mirror.verify import Comparison, MirrorDifference

__all__ = ["Comparison", "MergeLimits", "Mirror", "MirrorDifference", "mirror"]

_HOMES = {
    "Comparison": "verify",
    "MergeLimits": "shards",
    "Mirror": "run",
    "MirrorDifference": "verify",
    "mirror": "run",
}

__getattr__ = loader(__name__, _HOMES)
