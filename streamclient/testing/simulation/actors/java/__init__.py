"""A model of the Java stream client, as a neighbour in the status table.

The model follows the behaviour of that client's ``LeaseTaker``, ``LeaseRenewer``, ``LeaseCoordinator``,
``ShardSyncTask`` and shard consumers with their default intervals. Its writes compare only the counter. Its shard sync
puts and deletes rows without a condition. After a lost answer it drops its own lease. It notices only by luck that
another worker requests its lease, stamps its leases after the answer, and takes a missing parent for a finished one.
These errors are the Java client's own; no law judges them.
"""
