"""Loops over changes: a worker in threads of its own, and the batches that it reads in the caller's thread."""
