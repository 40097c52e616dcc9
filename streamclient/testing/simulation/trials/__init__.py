"""Runs of a user's processor in real workers on simulated time, under chosen faults, for ``stream_simulation``."""
