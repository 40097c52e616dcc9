"""Decisions as pure functions of values, without a clock, randomness, threads, logs or I/O."""
