"""Pure decisions over values, without a clock, randomness, a thread, a log or I/O."""
