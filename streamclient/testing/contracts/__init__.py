"""Contracts: checks of what a protocol requires of its implementations, which any test framework can run."""
