"""Copying a table and then following its changes, into a mirror in a lake or a database, or into another table.

Importing this package does not import the libraries that the destinations use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamclient.base._lazy import loader

if TYPE_CHECKING:
    from streamclient.copying.differences import Difference, compare_tables
    from streamclient.copying.mirror_comparison import Comparison
    from streamclient.copying.mirror_shards import MergeLimits
    from streamclient.copying.mirroring import Mirror, mirror
    from streamclient.copying.replication import Replication
    from streamclient.copying.replication_settings import parse_settings

__all__ = [
    "Comparison",
    "Difference",
    "MergeLimits",
    "Mirror",
    "Replication",
    "compare_tables",
    "mirror",
    "parse_settings",
]

_HOMES = {
    "Comparison": "mirror_comparison",
    "Difference": "differences",
    "MergeLimits": "mirror_shards",
    "Mirror": "mirroring",
    "Replication": "replication",
    "compare_tables": "differences",
    "mirror": "mirroring",
    "parse_settings": "replication_settings",
}


__getattr__ = loader(__name__, _HOMES)
