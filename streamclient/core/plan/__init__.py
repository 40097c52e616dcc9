"""The assignment of leases to workers, and this worker's part in it."""
