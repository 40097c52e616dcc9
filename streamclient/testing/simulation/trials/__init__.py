"""A user's processor in real workers on simulated time, under chosen faults: the machinery of ``stream_simulation``."""
