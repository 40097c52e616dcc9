"""The operators' side of a fleet: its state, the reason why a shard makes no progress, and safe changes to its leases.

The modules ``explanation`` and ``plans`` decide, with pure functions. The other modules read the facts, write the
leases, and make documents.
"""
