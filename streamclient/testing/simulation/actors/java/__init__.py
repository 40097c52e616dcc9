"""A model of the Java stream client, whose workers may share a status table with workers of this package.

The model follows the Java client's ``LeaseTaker``, ``LeaseRenewer``, ``LeaseCoordinator``, ``ShardSyncTask`` and shard
consumers with their default intervals. It repeats these errors of the Java client, which no law judges:

* A write compares only the counter of the row.
* The shard sync puts and deletes rows without a condition.
* After a lost answer a worker drops its own lease.
* A worker notices only by luck that another worker requests its lease.
* A worker counts the lease duration from the answer to its write, not from the request.
* A worker treats a missing parent shard as finished.
"""
