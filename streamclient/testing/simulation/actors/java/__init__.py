"""A model of the Java stream client, as a neighbour in the status table.

It follows the behaviour of that client's ``LeaseTaker``, ``LeaseRenewer``, ``LeaseCoordinator``, ``ShardSyncTask`` and
shard consumers with their default intervals: its writes compare the counter alone, its shard sync puts and deletes rows
without a condition, a lost answer makes it throw its own lease away, it notices marks by luck, stamps its leases after
the answer and takes a missing parent for a finished one. What it does wrong is its own; no law is about it.
"""
