"""The assignment of leases to workers, and the part of it that this worker carries out."""
