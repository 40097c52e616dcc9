"""Pure decisions over values: no clock, randomness, thread, log or I/O of their own."""
