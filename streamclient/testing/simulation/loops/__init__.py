"""Simulated programs whose user code is a loop over batches, or a handler of batches."""
