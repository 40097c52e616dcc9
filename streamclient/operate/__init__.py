"""The operators' side of a fleet: its state, the reason why a shard does not move, and safe changes to its leases.

``explanation`` and ``plans`` decide, as pure functions over values. The other modules read the facts, write the leases,
and make documents.
"""
