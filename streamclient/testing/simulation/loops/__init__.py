"""Simulated programs whose user code is a loop over changes."""
