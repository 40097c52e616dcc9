"""For operators: what a fleet does, why a shard does not move, and safe changes to its leases.

``explanation`` and ``plans`` decide, as pure functions over values; the rest reads the facts, writes, and prints.
"""
