"""Loops over changes. The worker runs in its own threads; the caller's thread or event loop handles the batches."""
